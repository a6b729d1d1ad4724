"""BioPro: what shows the attribute stays exactly as it is, neutral pictures are projected, and only those."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

import ggss
from conftest import noise
from ggss.activations import Rows
from ggss.study.plan import Plan
from planted import RACES, nobody, planted
from rounding import assert_same

SITE = "projection-mlp2"
STUDY = Path(__file__).parents[2] / "studies" / "rivals.yaml"


def fitted(acts=None, neutral=None, **options):
    return ggss.fit("biopro", acts or planted()[0], attribute="race", neutral=neutral or nobody(), **options)


def transcribed(acts, neutral, quantile=0.95):
    """The projection V V^T and tau with numpy alone, in float64."""
    means = np.array([tokens.double().numpy().mean(0) for tokens in acts.tokens])
    groups = {}
    for row, context in zip(means, acts.contexts, strict=True):
        groups.setdefault(context, []).append(row)
    # A context has two genders of each race: each with its own centre.
    shifts = []
    for rows in groups.values():
        for gender in (rows[:5], rows[5:]):
            shifts += [row - np.mean(gender, axis=0) for row in gender]
    basis = np.linalg.svd(np.array(shifts), full_matrices=False)[2][:4].T
    parts = sorted(np.linalg.norm(tokens.double().numpy().mean(0) @ basis) for tokens in neutral.tokens)
    return basis @ basis.T, np.quantile(parts, quantile)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5])
def test_it_is_the_transcription(alpha):
    acts, neutral = planted()[0], nobody()
    projection, tau = transcribed(acts, neutral)
    steerer = fitted(acts, neutral)
    assert steerer.operators[SITE].threshold == pytest.approx(tau, rel=1e-5)
    gated = []
    for tokens in [*neutral.tokens, *nobody(10, hint=0.4, seed=8).tokens, *acts.tokens[:4]]:
        rows = tokens.double().numpy()
        projected = np.linalg.norm(rows.mean(0) @ projection) <= tau
        gated.append(bool(projected))
        expected = rows - alpha * rows @ projection if projected else rows
        np.testing.assert_allclose(steerer.steer(tokens, alpha=alpha), expected, atol=1e-5)
        assert bool(steerer.gate(tokens).all()) == bool(steerer.gate(tokens).any()) == projected
    assert sum(gated[:40]) == 38  # 95 % of 40
    assert not any(gated[50:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pictures_that_show_the_attribute_stay_exactly_as_they_are(dtype):
    steerer = fitted()
    for seed in (0, 5):  # known people, and others in the same space
        acts = planted(identities=4)[0] if seed == 0 else others(seed)
        for tokens in acts.tokens:
            rows = tokens.to(dtype)
            assert torch.equal(steerer.steer(rows, alpha=1.5), rows)
    assert steerer.diagnostics[SITE]["discovery_neutral"] == 0
    assert steerer.warnings == []


def others(seed):
    """People whom nothing was fitted on, who show a race along the axes of `planted()`."""
    axes = planted(identities=1)[1]
    acts, their_axes = planted(identities=4, seed=seed)
    return acts.mapped(lambda rows: rows @ their_axes @ axes.T)


def test_neutral_pictures_lose_the_trace_and_nothing_else():
    """A picture that shows no race may still have a trace of one: a bias that a probe reads, and then does not."""
    axes = planted(identities=1)[1]
    plain = nobody(200, hint=0.0, noise=0.02, seed=4)
    corners = torch.linalg.svd(torch.eye(5) - 0.2)[0][:, :4]
    labels = [RACES[i % 5] for i in range(200)]
    pictures = [tokens + 0.1 * corners[i % 5] @ axes[:, :4].T for i, tokens in enumerate(plain.tokens)]
    steerer = fitted(neutral=nobody(200, hint=0.1))
    after = [steerer.steer(rows) for rows in pictures]
    assert all(steerer.gate(rows).all() for rows in pictures)

    def read(rows):
        pooled = torch.stack([tokens.mean(0) for tokens in rows]).numpy()
        probe = LogisticRegression(C=1e4, max_iter=5000)
        return cross_val_score(probe, pooled, labels, cv=4).mean()

    assert read(pictures) > 0.9
    assert read(after) < 0.35
    basis = steerer.operators[SITE].basis
    torch.testing.assert_close(torch.stack(after) @ basis, torch.zeros(200, 6, 4), rtol=0, atol=1e-5)
    outside = torch.eye(64) - basis @ basis.T
    torch.testing.assert_close(torch.stack(after) @ outside, torch.stack(pictures) @ outside, rtol=0, atol=1e-5)


def test_in_a_batch_each_picture_is_judged_alone():
    steerer = fitted()
    shown, neutral = planted()[0].tokens[3], nobody(1, hint=0.05, seed=2).tokens[0]
    rows, images = torch.cat([shown, neutral]), torch.tensor([0] * 6 + [1] * 6)
    order = torch.arange(12).reshape(2, 6).T.flatten()  # the two pictures' tokens alternate
    for index in (torch.arange(12), order):
        steered, gate = steerer.apply(rows[index], images[index], 1.0)[:2]
        assert torch.equal(steered[images[index] == 0], shown)
        assert_same(steered[images[index] == 1], steerer.steer(neutral))
        assert torch.equal(gate, images[index].float())
    half = steerer.steer(rows, images, alpha=torch.tensor([1.0, 0.5]))
    torch.testing.assert_close(half[6:], (neutral + steerer.steer(neutral)) / 2)
    # Without images all tokens are one picture, whose mean still shows half of the attribute.
    assert torch.equal(steerer.steer(rows), rows)


def test_what_is_called_neutral_decides_and_a_gate_that_tells_nothing_warns():
    """The negative control: pictures that show race, given as neutral ones, make it a projection of everything."""
    acts, people = planted()[0], others(5)
    steerer = fitted(acts, people, quantile=1.0)
    plain = ggss.fit("directional-ablation", acts, attribute="race")
    moved = [float((steerer.steer(tokens) - tokens).norm()) for tokens in acts.tokens]
    assert np.mean(np.array(moved) > 0) > 0.5
    first = next(i for i, by in enumerate(moved) if by > 0)
    torch.testing.assert_close(steerer.steer(acts.tokens[first]), plain.steer(acts.tokens[first]), rtol=0, atol=0.05)
    (warning,) = steerer.warnings
    assert "the gate cannot tell whether 'race' is shown" in warning
    # And a subspace of labels that mean nothing is in neutral pictures as in any.
    order = torch.randperm(len(acts), generator=torch.Generator().manual_seed(3)).tolist()
    mixed = ggss.Activations([acts.tokens[i] for i in order], acts.attributes, acts.contexts)
    assert fitted(mixed).diagnostics[SITE]["discovery_neutral"] > 0.2


def test_the_quantile_and_k_are_options():
    loose, strict = (fitted(quantile=q).operators[SITE].threshold for q in (1.0, 0.5))
    assert strict < loose
    assert fitted(k=2).operators[SITE].basis.shape == (64, 2)
    with pytest.raises(ggss.InputError, match="k = 200 directions were asked for"):
        fitted(k=200)
    with pytest.raises(ggss.InputError, match="quantile: input should be greater than 0"):
        fitted(quantile=0)


def test_it_is_refused_without_neutral_pictures():
    acts, _ = planted(identities=4)
    with pytest.raises(ggss.InputError, match=r"biopro needs neutral pictures, .* ggss discover --neutral FOLDER"):
        ggss.fit("biopro", acts, attribute="race")
    plan = Plan.load(STUDY).model_dump(mode="json")
    plan["methods"].append({"name": "biopro"})
    with pytest.raises(ggss.InputError, match="'biopro' needs neutral pictures, and a plan has none"):
        Plan.of(plan)


def test_mean_rows_of_neutral_pictures_will_do():
    means = nobody()
    pooled = ggss.Activations.from_rows({SITE: Rows(means.pooled)}, means.attributes, means.contexts)
    assert fitted(neutral=pooled).content_hash == fitted(neutral=means).content_hash


def test_on_a_live_model_a_batch_is_steered_picture_by_picture(vlm):
    """Of two pictures the one with the smaller part in the subspace is projected, as from encoded features."""
    encoded = vlm.encode([noise(seed) for seed in range(12)], sites=[SITE])
    tokens = [features.rows[SITE].float().cpu().clone() for features in encoded]
    acts = ggss.Activations(
        tokens, [{"gender": g} for _ in range(6) for g in ("man", "woman")], [i // 2 for i in range(12)]
    )
    steerer = ggss.fit("biopro", acts, attribute="gender", neutral=acts)
    operator = steerer.operators[SITE]
    pictures = [noise(50), noise(51)]
    pooled = torch.stack([features.rows[SITE].double().mean(0) for features in vlm.encode(pictures)])
    parts = (pooled @ operator.basis.double()).norm(dim=1)
    between = replace(steerer, operators={SITE: replace(operator, threshold=float(parts.mean()))})
    questions = ["what colour hat ?"] * 2
    unsteered = vlm.logits(questions, [[picture] for picture in pictures])
    with between.attach(vlm, alpha=3.0):
        live = vlm.logits(questions, [[picture] for picture in pictures])
    features = [[picture.steered(between, alpha=3.0)] for picture in vlm.encode(pictures)]
    torch.testing.assert_close(vlm.logits(questions, features), live, rtol=1e-3, atol=1e-4)
    moved = (live - unsteered).abs().amax(1)
    assert float(moved[int(parts.argmin())]) > 1e-4
    assert float(moved[int(parts.argmax())]) < 1e-4
