"""Kernel regression of own contrasts: its formula, what it removes of other people, where it removes nothing."""

from functools import cache

import pytest
import torch

import ggss
from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.operator import Identity, apply
from ggss.methods.pace_kernel import KernelContrast, after, own_contrasts
from ggss.methods.projection import Oblique

SITE = "projection-mlp2"
WIDTH, COUNT, VALUES = 32, 6, ("amber", "coral", "indigo")


@cache
def pictures(identities=16, seed=0, own=1.0, people=0.2):
    """Race does the same to everyone along axes 0 and 1; along 2 and 3 it does the opposite to every second person.

    people: how much people vary in all axes but these.
    """
    generator = torch.Generator().manual_seed(seed)
    corners = torch.tensor([[1.0, 0.0], [-0.5, 0.866], [-0.5, -0.866]])
    tokens, attributes, contexts = [], [], []
    for identity in range(identities):
        kind = 1.0 if identity % 4 < 2 else -1.0
        person = people * torch.randn(COUNT, WIDTH, generator=generator)
        person[:, 5] += 3
        person[:, 4] += 2 * kind
        for r, value in enumerate(VALUES):
            shown = torch.zeros(WIDTH)
            shown[:2], shown[2:4] = corners[r], own * kind * corners[r]
            tokens.append(person + shown + 0.02 * torch.randn(COUNT, WIDTH, generator=generator))
            attributes.append({"race": value})
            contexts.append(identity)
    return Activations(tokens, attributes, contexts)


def left(steerer, acts):
    """sum |y|^2 of each person's own contrasts after steering, as a share of before."""
    tokens = torch.stack(list(acts.tokens)).unflatten(0, (-1, len(VALUES)))
    steered = steerer.steer(tokens.flatten(0, 2)).reshape(tokens.shape)
    of = [(rows - rows.mean(1, keepdim=True)).square().sum() for rows in (steered, tokens)]
    return float(of[0] / of[1])


def test_it_removes_from_other_people_what_pace_leaves_of_their_own_contrasts():
    others = pictures(seed=1)
    pace, kernel = (ggss.fit(name, pictures(), attribute="race") for name in ("pace", "pace-kernel"))
    assert isinstance(kernel.operators[SITE], KernelContrast)
    assert left(pace, others) > 0.4, "on average over people, race does nothing along axes 2 and 3"
    assert left(kernel, others) < 0.1
    note = kernel.diagnostics[SITE]["notes"][-1]
    assert note.startswith("Of what PACE leaves of each person's own contrasts, kernel regression leaves "), note


def test_where_nothing_can_be_read_it_is_pace():
    """People vary much more than versions of one differ by chance: the token does not tell its own contrast."""
    acts = pictures(own=0.0, people=5.0)
    pace, kernel = (ggss.fit(name, acts, attribute="race") for name in ("pace", "pace-kernel"))
    assert isinstance(kernel.operators[SITE], Oblique)
    assert torch.equal(kernel.operators[SITE].detection, pace.operators[SITE].detection)
    assert "this steerer is that of pace" in kernel.diagnostics[SITE]["notes"][-1]


def test_labels_that_mean_nothing_remove_nothing():
    acts = pictures()
    order = torch.Generator().manual_seed(0)
    shuffled = [VALUES[i] for _ in range(16) for i in torch.randperm(3, generator=order).tolist()]
    meaningless = Activations(list(acts.tokens), [{"race": value} for value in shuffled], acts.contexts)
    assert isinstance(ggss.fit("pace-kernel", meaningless, attribute="race").operators[SITE], Identity)


def test_three_people_are_too_few_to_choose_by():
    acts = pictures().of(list(range(9)))
    fitted = ggss.fit("pace-kernel", acts, attribute="race", k=2)
    assert "it needs four people" in fitted.diagnostics[SITE]["notes"][-1]


def test_neutral_pictures_hardly_move():
    generator = torch.Generator().manual_seed(9)
    rows = [torch.randn(COUNT, WIDTH, generator=generator) for _ in range(40)]
    neutral, unseen = (Activations(some, [{}] * 20, range(20)) for some in (rows[:20], rows[20:]))
    acts = pictures()
    kernel = ggss.fit("pace-kernel", acts, attribute="race", neutral=neutral)
    operator = kernel.operators[SITE]
    assert isinstance(operator, KernelContrast)
    pace = Oblique(operator.mu, operator.detection, operator.movement)

    def moved(of):
        tokens = torch.cat(list(of.tokens))
        beyond = kernel.steer(tokens) - apply(pace, tokens, torch.ones(len(tokens), 1)).rows
        return float(beyond.norm(dim=1).mean())

    assert moved(unseen) < 0.1 * moved(acts), "far from all people f is 0"


def test_the_formula_in_float64():
    operator = ggss.fit("pace-kernel", pictures(), attribute="race").operators[SITE]
    mu, w, v, reading, centres, weights, writing = (tensor.double() for tensor in operator.tensors().values())
    rows = torch.cat([pictures(seed=2).tokens[0], torch.zeros(1, WIDTH)])
    expected = []
    for h in rows.double():
        p = h - v @ (w.T @ (h - mu))
        kernel = [
            torch.exp(-(reading.T @ (p - mu) - z).square().sum() / (2 * operator.bandwidth**2)) for z in centres
        ]
        f = writing @ sum(k * a for k, a in zip(kernel, weights, strict=True))
        expected.append(h - 0.7 * (h - p + f) if h.any() else h)
    steered = apply(operator, rows, torch.full((len(rows), 1), 0.7)).rows
    torch.testing.assert_close(steered.double(), torch.stack(expected), rtol=1e-5, atol=1e-5)
    assert operator.affine(1.0) is None, "it cannot be folded into weights"


def test_own_contrasts_are_of_versions_that_differ_in_the_attributes_alone():
    acts = pictures()
    both = [{"race": attributes["race"], "gender": "man"} for attributes in acts.attributes]
    other = [{"race": attributes["race"], "gender": "woman"} for attributes in acts.attributes]
    shifted = [tokens + 1 for tokens in acts.tokens]
    crossed = Activations([*acts.tokens, *shifted], [*both, *other], [*acts.contexts, *acts.contexts])
    pace = ggss.fit("pace", acts, attribute="race").operators[SITE]
    race = own_contrasts(crossed, pace, ("race",)).contrasts.square().sum()
    torch.testing.assert_close(
        race, 2 * own_contrasts(acts, pace, ("race",)).contrasts.square().sum(), rtol=1e-4, atol=0
    )
    gap = (after(pace, shifted[0]) - after(pace, acts.tokens[0])).square().sum() / 4
    together = own_contrasts(crossed, pace, ("race", "gender")).contrasts.square().sum()
    torch.testing.assert_close(together, race + len(acts) * 2 * gap, rtol=1e-4, atol=0)


def test_versions_of_different_sizes_are_refused():
    acts = pictures()
    pace = ggss.fit("pace", acts, attribute="race").operators[SITE]
    cut = Activations([acts.tokens[0][:4], *list(acts.tokens)[1:]], acts.attributes, acts.contexts)
    with pytest.raises(InputError, match=r"the versions in context 0 have 4, 6, 6 tokens"):
        own_contrasts(cut, pace, ("race",))
