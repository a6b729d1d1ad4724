"""SVD ablations: equal to numpy on small data, streamed, and refusing tokens that do not correspond."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

import ggss
import transcription
from ggss import InputError
from planted import planted

SITE = "projection-mlp2"


def table(acts, attribute="race"):
    """Tokens as [U, A, T, D] in float64."""
    index = acts.groups(attribute).index.tolist()
    return np.array([[acts.tokens[i].double().numpy() for i in row] for row in index])


def top(shifts, k):
    rows = np.linalg.svd(shifts, full_matrices=False)[2][:k]
    return rows.T @ rows


def projector(name, acts, **options):
    basis = ggss.fit(name, acts, attribute="race", **options).operators[SITE].basis.double().numpy()
    return basis @ basis.T


@pytest.mark.parametrize("k", [1, 4])
def test_pooled_euclidean_equals_numpy(k):
    acts, _ = planted(identities=4)
    pooled = table(acts).mean(2)
    shifts = (pooled - pooled.mean(1, keepdims=True)).reshape(-1, 64)
    np.testing.assert_allclose(projector("svd-pooled-euclidean", acts, k=k), top(shifts, k), atol=1e-5)
    rows = acts.tokens[0]
    expected = rows.numpy() - 0.7 * (rows.double().numpy() - pooled.reshape(-1, 64).mean(0)) @ top(shifts, k)
    steered = ggss.fit("svd-pooled-euclidean", acts, attribute="race", k=k).steer(rows, alpha=0.7)
    np.testing.assert_allclose(steered, expected, atol=1e-5)


def test_token_euclidean_equals_numpy():
    acts, _ = planted(identities=4, noise=0.3)
    tokens = table(acts)
    shifts = (tokens - tokens.mean(1, keepdims=True)).reshape(-1, 64)
    np.testing.assert_allclose(projector("svd-token-euclidean", acts), top(shifts, 4), atol=1e-5)
    singular = np.linalg.svd(shifts, compute_uv=False)
    found = ggss.fit("svd-token-euclidean", acts, attribute="race").statistics[SITE]
    np.testing.assert_allclose(found["singular_values"], singular[:4], rtol=1e-5)
    np.testing.assert_allclose(found["explained_variance"], singular[:4] ** 2 / (singular**2).sum(), rtol=1e-5)


def curved(points):
    """log_c(y) of points [A, D] at their Karcher mean, as printed."""
    points = np.array([transcription.normalize(y) for y in points])
    centre = transcription.karcher(points)
    return [transcription.log(centre, y, 0) for y in points]


def test_token_spherical_equals_numpy():
    acts, _ = planted(identities=2, count=3, noise=0.3)
    tokens = table(acts)
    shifts = np.array([s for group in tokens for t in range(3) for s in curved(group[:, t])])
    np.testing.assert_allclose(projector("svd-token-spherical", acts), top(shifts, 4), atol=1e-5)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5])
def test_spherical_hard_projection_equals_the_printed_equation(alpha):
    acts, _ = planted(identities=4)
    operator = ggss.fit("svd-pooled-spherical", acts, attribute="race").operators[SITE]
    steered = ggss.fit("svd-pooled-spherical", acts, attribute="race").steer(acts.tokens[3], alpha=alpha)
    mu, basis = operator.mu.double().numpy(), operator.basis.double().numpy()
    for h, found in zip(acts.tokens[3].double().numpy(), steered.numpy(), strict=True):
        t = transcription.log(mu, h / np.linalg.norm(h), 0)
        expected = transcription.normalize(transcription.exp(mu, t - alpha * basis @ (basis.T @ t)))
        np.testing.assert_allclose(found, np.linalg.norm(h) * expected, atol=1e-5)


class Counted(Sequence):
    """Tokens that know how many of them are alive at once."""

    def __init__(self, tokens):
        self.tokens, self.asked = tokens, []

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        self.asked.append(i)
        return self.tokens[i]


def test_tokens_are_read_once_each_and_in_blocks_of_any_size(monkeypatch):
    acts, _ = planted(identities=2)
    counted = Counted(acts.tokens)
    rows = ggss.activations.Rows(acts.pooled, counted)
    lazy = ggss.Activations.from_rows({SITE: rows}, acts.attributes, acts.contexts)
    whole = projector("svd-token-spherical", lazy)
    assert sorted(counted.asked) == list(range(len(acts)))
    monkeypatch.setattr("ggss.methods.subspace.POSITIONS", 4)
    np.testing.assert_allclose(projector("svd-token-spherical", acts), whole, atol=1e-6)


def test_groups_may_differ_in_tokens_but_not_their_members():
    acts, _ = planted(identities=3)
    ragged = [t[:4] if acts.contexts[i][1] == 0 else t for i, t in enumerate(acts.tokens)]
    again = ggss.Activations(ragged, acts.attributes, acts.contexts)
    assert ggss.fit("svd-token-euclidean", again, attribute="race").operators[SITE].basis.shape == (64, 4)
    ragged[7] = ragged[7][:3]
    broken = ggss.Activations(ragged, acts.attributes, acts.contexts)
    with pytest.raises(InputError, match=r"need equal token counts[\s\S]*has 3 tokens"):
        ggss.fit("svd-token-spherical", broken, attribute="race")


def test_pooled_means_alone_are_not_enough():
    acts, _ = planted(identities=2)
    pooled = ggss.Activations.from_rows({SITE: ggss.activations.Rows(acts.pooled)}, acts.attributes, acts.contexts)
    with pytest.raises(InputError, match="keep_tokens=True"):
        ggss.fit("svd-token-euclidean", pooled, attribute="race")


@pytest.mark.parametrize("name", ["svd-token-euclidean", "svd-token-spherical"])
def test_what_cannot_be_found_is_refused(name):
    acts, _ = planted(identities=2)
    with pytest.raises(InputError, match="in 64 dimensions; choose a smaller k"):
        ggss.fit(name, acts, attribute="race", k=64)
    same = ggss.Activations([torch.ones(2, 8)] * 4, [{"race": r} for r in "abab"], [0, 0, 1, 1])
    with pytest.raises(InputError, match="equal tokens"):
        ggss.fit(name, same, attribute="race")
