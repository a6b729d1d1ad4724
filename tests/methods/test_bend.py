"""BendVLM-style equalisation of mean tokens: as its definition in numpy, for images of any number of tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import ggss
import transcription
from planted import planted

SITE = "projection-mlp2"
KINDS = ["bend-euclidean", "bend-spherical"]


@pytest.fixture(scope="module")
def acts():
    return planted(identities=6, noise=0.3)[0]


def image(seed=9, count=6):
    return planted(identities=1, noise=0.3, count=count, seed=seed)[0].tokens[3]


def unit(x):
    return x / np.linalg.norm(x)


def closest(start, constraints, wanted):
    """argmin |x - start| with constraints @ x = wanted: the KKT system, solved as it stands."""
    size, count = len(start), len(constraints)
    kkt = np.block([[np.eye(size), constraints.T], [constraints, np.zeros((count, count))]])
    return np.linalg.lstsq(kkt, np.concatenate([start, wanted]), rcond=1e-12)[0][:size]


def directly(acts, rows, spherical, neighbours=10):
    """The correction |e| e* - e of an image, and its distances to all prototypes before and after."""
    references = np.array([unit(t.double().numpy().mean(0)) for t in acts.tokens])
    labels = np.array(acts.labels("race"))
    values = sorted(set(labels))
    centres = [references[labels == v].mean(0) for v in values]
    pairs = np.array([b - a for i, a in enumerate(centres) for b in centres[i + 1 :]])
    basis = np.linalg.svd(pairs, full_matrices=False)[2][: len(values) - 1]
    e = rows.double().numpy().mean(0)
    q = unit(unit(e) - basis.T @ (basis @ unit(e)))
    nearest = []
    for value in values:
        own = references[labels == value]
        nearest.append(own[np.argsort(-own @ q)[:neighbours]])
    if not spherical:
        prototypes = np.array([unit(own.mean(0)) for own in nearest])
        target = unit(closest(q, prototypes[1:] - prototypes[0], np.zeros(len(values) - 1)))
        before, after = prototypes @ unit(e), prototypes @ target
    else:
        mu = transcription.karcher(references)
        prototypes = np.array([transcription.log(mu, transcription.karcher(own), 0) for own in nearest])
        squares = (prototypes**2).sum(1)
        t = closest(transcription.log(mu, q, 0), prototypes[1:] - prototypes[0], (squares[1:] - squares[0]) / 2)
        target = transcription.exp(mu, t)
        before = np.linalg.norm(prototypes - transcription.log(mu, unit(e), 0), axis=1)
        after = np.linalg.norm(prototypes - t, axis=1)
    return np.linalg.norm(e) * target - e, before, after


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("count", [1, 4, 6, 40])
@pytest.mark.parametrize("name", KINDS)
def test_equals_its_definition_for_any_number_of_tokens(acts, name, count, alpha):
    rows = image(count=count)
    correction, before, after = directly(acts, rows, name == "bend-spherical")
    assert np.ptp(before) > 0.01
    assert np.ptp(after) < 1e-10  # equally near to every prototype
    e = rows.double().numpy().mean(0)
    moved = e + alpha * correction
    if name == "bend-spherical":
        moved *= np.linalg.norm(e) / np.linalg.norm(moved)
    steered = ggss.fit(name, acts, attribute="race").steer(rows, alpha=alpha)
    np.testing.assert_allclose(steered, rows.double().numpy() + moved - e, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_at_full_strength_the_correction_is_that_of_the_authors_code(acts, name):
    """|e| e* - e, added to every token; their code has no other step."""
    rows = image(count=9)
    correction, *_ = directly(acts, rows, name == "bend-spherical")
    steered = ggss.fit(name, acts, attribute="race").steer(rows)
    np.testing.assert_allclose(steered - rows, np.tile(correction, (9, 1)), atol=1e-5)


@pytest.mark.parametrize("alpha", [0.25, 1.0, 1.5])
def test_the_spherical_form_restores_the_norm_of_mean_and_image(acts, alpha):
    rows = image(count=17)
    norms = {}
    for name in KINDS:
        after = ggss.fit(name, acts, attribute="race").steer(rows, alpha=alpha).double()
        mean = float(after.mean(0).norm() / rows.double().mean(0).norm())
        norms[name] = mean, float(after.norm() / rows.double().norm())
        assert (after.norm(dim=1) / rows.double().norm(dim=1) - 1).abs().max() > 1e-3  # no token's own
    assert norms["bend-spherical"] == pytest.approx((1, 1), abs=1e-6)
    if alpha != 1:
        assert norms["bend-euclidean"] != pytest.approx((1, 1), abs=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_only_the_mean_of_an_image_and_of_the_references_counts(acts, name):
    steerer, rows = ggss.fit(name, acts, attribute="race"), image(count=6)
    twice = torch.cat([rows, rows.flip(0)])
    torch.testing.assert_close(steerer.steer(twice)[:6], steerer.steer(rows), rtol=1e-5, atol=1e-5)
    pooled = ggss.Activations([t.mean(0, keepdim=True) for t in acts.tokens], acts.attributes, acts.contexts)
    assert not ggss.methods.get(name).needs_tokens
    again = ggss.fit(name, pooled, attribute="race").steer(rows)
    torch.testing.assert_close(again, steerer.steer(rows), rtol=1e-5, atol=1e-5)
    other = steerer.steer(image(seed=10)) - image(seed=10)
    assert (other[0] - (steerer.steer(rows) - rows)[0]).norm() > 1e-2


@pytest.mark.parametrize("name", KINDS)
def test_images_of_different_numbers_of_tokens_in_one_batch(acts, name):
    steerer, parts = ggss.fit(name, acts, attribute="race"), [image(9, 5), image(10, 12), image(11, 1)]
    images = torch.tensor([0] * 5 + [1] * 12 + [2])
    together = steerer.steer(torch.cat(parts), images)
    alone = torch.cat([steerer.steer(part) for part in parts])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_neighbours(acts, name):
    rows = image()
    steered = ggss.fit(name, acts, attribute="race", neighbours=3).steer(rows)
    correction, *_ = directly(acts, rows, name == "bend-spherical", neighbours=3)
    np.testing.assert_allclose(steered, rows.numpy() + correction, atol=1e-5)
    assert (steered - ggss.fit(name, acts, attribute="race").steer(rows)).norm() > 1e-3


@pytest.mark.parametrize("name", KINDS)
def test_bad_references_are_refused(name):
    few, _ = planted(identities=2)
    with pytest.raises(ggss.InputError, match=r"has 4 images and 10 neighbours are asked for: .* neighbours=4"):
        ggss.fit(name, few, attribute="race")
    assert ggss.fit(name, few, attribute="race", neighbours=4).values
    rows = [{"race": r} for _ in range(10) for r in "ab"]
    same = ggss.Activations([torch.ones(2, 8)] * 20, rows, [i // 2 for i in range(20)])
    with pytest.raises(ggss.InputError, match="are equal within the resolution of float32: there is nothing"):
        ggss.fit(name, same, attribute="race")
    zero = ggss.Activations([torch.zeros(2, 8)] * 20, rows, [i // 2 for i in range(20)])
    with pytest.raises(ggss.InputError, match="it has no direction"):
        ggss.fit(name, zero, attribute="race")


@pytest.mark.parametrize("name", KINDS)
def test_an_image_without_a_direction_is_left_as_it_is(acts, name):
    steerer = ggss.fit(name, acts, attribute="race")
    zero = torch.zeros(6, 64)
    assert torch.equal(steerer.steer(zero), zero)
    cancelling = torch.cat([torch.ones(1, 64), -torch.ones(1, 64)])
    assert torch.equal(steerer.steer(cancelling), cancelling)
    inside = steerer.operators[SITE].basis.sum(1).expand(3, 64).contiguous()  # the projection leaves nothing of it
    assert torch.equal(steerer.steer(inside), inside)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.full((60,), 10**12)}, "labels are not 0, 1"),
        ({"labels": torch.arange(59)}, r"labels must be \[n\] with n = 60"),
        ({"neighbours": 13}, "13 neighbours are asked for where a value has 12"),
        ({"references": torch.full((60, 64), 0.5)}, "do not have length 1"),
        ({"basis": torch.ones(64, 4)}, "not orthonormal"),
        ({"mu": torch.ones(64)}, "mu has length 8"),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(acts, change, message):
    operator = ggss.fit("bend-spherical", acts, attribute="race").operators[SITE]
    with pytest.raises(ggss.InputError, match=message):
        replace(operator, **change)
