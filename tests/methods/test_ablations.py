"""Component and geometry ablations: each differs from GGSS in the one thing it is named after."""

import numpy as np
import pytest
import torch

import ggss
import transcription
from planted import planted
from rounding import assert_same

SITE = "projection-mlp2"


@pytest.fixture(scope="module")
def acts():
    return planted(identities=6, noise=0.2)[0]


@pytest.fixture(scope="module")
def rows():
    return torch.cat(list(planted(identities=1, noise=0.2, seed=7)[0].tokens))


def fit(name, acts, **options):
    return ggss.fit(name, acts, attribute="race", **options)


def test_without_gate_slerp_reaches_hard_projection_at_full_strength(acts, rows):
    slerp, hard = fit("ggss-no-gate", acts), fit("svd-pooled-spherical", acts)
    torch.testing.assert_close(slerp.steer(rows), hard.steer(rows), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(slerp.steer(rows, alpha=0.5), hard.steer(rows, alpha=0.5), atol=1e-4)
    open_gate = fit("ggss", acts, floor=1.0)
    assert_same(slerp.steer(rows, alpha=0.5), open_gate.steer(rows, alpha=0.5))


@pytest.mark.parametrize("alpha", [0.5, 1.5])
def test_no_slerp_is_the_gate_times_hard_projection(acts, rows, alpha):
    steerer, full = fit("ggss-no-slerp", acts), fit("ggss", acts)
    gate = full.gate(rows)
    torch.testing.assert_close(steerer.gate(rows), gate, rtol=1e-6, atol=1e-6)
    operator = full.operators[SITE]
    mu, basis = operator.mu.double().numpy(), operator.basis.double().numpy()
    for h, g, found in zip(rows.double().numpy(), gate.tolist(), steerer.steer(rows, alpha=alpha), strict=True):
        t = transcription.log(mu, h / np.linalg.norm(h), 0)
        target = transcription.normalize(transcription.exp(mu, t - alpha * g * basis @ (basis.T @ t)))
        np.testing.assert_allclose(found, np.linalg.norm(h) * target, atol=1e-5)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5])
def test_the_chord_of_the_authors_code_is_an_option(acts, rows, alpha):
    steerer, hard = fit("ggss-no-slerp", acts, path="chord"), fit("ggss-no-slerp", acts)
    operator = steerer.operators[SITE]
    mu, basis = operator.mu.double().numpy(), operator.basis.double().numpy()
    far = 0.1 * torch.randn(20, 64, generator=torch.Generator().manual_seed(2)) - operator.mu  # beyond 120 degrees
    assert (torch.nn.functional.cosine_similarity(far, operator.mu[None]) < -0.5).all()
    rows = torch.cat([rows, far])
    gates = steerer.gate(rows).tolist()
    for h, seen, found in zip(rows.double().numpy(), gates, steerer.steer(rows, alpha=alpha), strict=True):
        numbers = (operator.gate_median, operator.gate_std, alpha)
        expected, gate = transcription.steer(h, mu, basis, *numbers, path=transcription.chord)
        np.testing.assert_allclose(found, expected, atol=2e-5)
        assert seen == pytest.approx(gate, abs=1e-5)
    assert (steerer.steer(rows, alpha=alpha) - hard.steer(rows, alpha=alpha)).norm(dim=1).max() > 1e-3
    torch.testing.assert_close(steerer.steer(rows, alpha=alpha).norm(dim=1), rows.norm(dim=1), rtol=1e-6, atol=0)


def test_the_chord_ends_where_slerp_does(acts, rows):
    """With the gate held open; halfway both are at the middle of the arc, elsewhere they are not."""
    chord, arc = fit("ggss-no-slerp", acts, path="chord", floor=1.0), fit("ggss-no-gate", acts)
    for alpha in (0.5, 1.0):
        torch.testing.assert_close(chord.steer(rows, alpha=alpha), arc.steer(rows, alpha=alpha), rtol=1e-5, atol=1e-5)
    assert (chord.steer(rows, alpha=0.25) - arc.steer(rows, alpha=0.25)).norm(dim=1).max() > 1e-4


@pytest.mark.parametrize("alpha", [0.5, 1.5])
def test_geometry_is_toggled_at_the_very_same_gate(acts, rows, alpha):
    flat, renorm, full = (fit(name, acts) for name in ("gated-euclidean", "gated-euclidean-renorm", "ggss"))
    gate = full.gate(rows)
    for steerer in (flat, renorm):  # fitted apart; a gate is steep: it magnifies rounding twenty times and more
        torch.testing.assert_close(steerer.gate(rows), gate, rtol=0, atol=1e-4)
    operator = fit("svd-pooled-euclidean", acts).operators[SITE]
    moved = rows - alpha * gate[:, None] * (rows - operator.mean) @ operator.basis @ operator.basis.T
    torch.testing.assert_close(flat.steer(rows, alpha=alpha), moved, rtol=1e-5, atol=1e-5)
    restored = moved * (rows.norm(dim=1) / moved.norm(dim=1))[:, None]
    torch.testing.assert_close(renorm.steer(rows, alpha=alpha), restored, rtol=1e-5, atol=1e-5)


def test_renormalisation_survives_tokens_inside_the_subspace_and_zero_tokens(acts):
    steerer = fit("gated-euclidean-renorm", acts)
    operator = steerer.operators[SITE]
    inside = operator.mean + 50 * operator.basis.sum(1)  # hardly anything is left of it
    rows = torch.stack([inside, torch.zeros(64), 1e-18 * inside, 1e12 * inside])
    steered = steerer.steer(rows)
    assert torch.isfinite(steered).all()
    assert (steered.double().norm(dim=1) - rows.double().norm(dim=1)).abs().max() / 1e12 < 1e-3
    torch.testing.assert_close(steered[0].norm(), rows[0].norm(), rtol=1e-6, atol=0)


def test_the_token_gate_is_calibrated_on_every_token(acts):
    steerer, full = fit("ggss-token-gate", acts), fit("ggss", acts)
    own, pooled = steerer.operators[SITE], full.operators[SITE]
    assert_same(own.basis @ own.basis.T, pooled.basis @ pooled.basis.T)
    mu, basis = own.mu.double().numpy(), own.basis.double().numpy()
    tokens = torch.cat(list(acts.tokens)).double().numpy()
    b = [np.linalg.norm(basis.T @ transcription.log(mu, h / np.linalg.norm(h), 0)) for h in tokens]
    assert (own.gate_median, own.gate_std) == pytest.approx(transcription.gate_statistics(b), rel=1e-5)
    assert own.gate_std > 1.5 * pooled.gate_std  # single tokens vary more than their means
    padded = [torch.cat([t, torch.zeros(3, 64)]) for t in acts.tokens]
    again = fit("ggss-token-gate", ggss.Activations(padded, acts.attributes, acts.contexts)).operators[SITE]
    assert again.gate_median == pytest.approx(own.gate_median, rel=1e-5)
