"""LEACE: equal to concept-erasure's own eraser in all dimensions, and what it promises."""

import builtins
import warnings

import numpy as np
import pytest
import torch

import ggss
import transcription
from ggss.methods.leace import shrunk_variances
from planted import planted

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from concept_erasure import LeaceEraser, LeaceFitter, optimal_linear_shrinkage

SITE = "projection-mlp2"


def tangents(acts):
    points = np.array([transcription.normalize(y) for y in acts.pooled.double().numpy()])
    mu = transcription.karcher(points)
    return torch.from_numpy(np.array([transcription.log(mu, y, 0) for y in points]))


def pooled(acts):
    return acts.pooled.double()


BOTH = pytest.mark.parametrize(
    ("options", "rows_of"), [({}, pooled), ({"covariance": "pooled"}, pooled), ({"covariance": "tangent"}, tangents)]
)


def erased(operator, x):
    """x - W^-1 U U^T W x by the numbers of an operator."""
    basis, small = operator.basis.double(), operator.map.double()
    return x - x @ basis @ small.T @ basis.T


def one_hot(acts, attribute):
    values = acts.groups(attribute).values
    return torch.nn.functional.one_hot(torch.tensor([values.index(v) for v in acts.labels(attribute)])).double()


@pytest.mark.parametrize("noise", [0.05, 1.0, 3.0])
@pytest.mark.parametrize(("identities", "attribute"), [(4, "race"), (12, "race"), (3, "gender"), (12, "gender")])
@BOTH
def test_the_eraser_is_the_packages_own(identities, attribute, noise, options, rows_of):
    """With fewer images than dimensions, and with more."""
    acts, _ = planted(identities=identities, noise=noise)
    x = rows_of(acts)
    eraser = LeaceEraser.fit(x, one_hot(acts, attribute))
    operator = ggss.fit("leace-spherical", acts, attribute=attribute, **options).operators[SITE]
    other = torch.randn(20, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for rows in (x - x.mean(0), other):
        expected = eraser(rows + x.mean(0)) - x.mean(0)
        torch.testing.assert_close(erased(operator, rows), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(erased(operator, other), other, atol=1e-2)


def test_shrunk_variances_are_the_packages_and_stay_between_the_samples_and_their_mean():
    """Of few images the package's share of the sample's covariance may be negative: the largest were the least."""
    beyond = 0
    for seed in range(30):
        x = torch.randn(10, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        covariance = torch.cov(x.T, correction=0)
        variances = torch.linalg.eigvalsh(covariance)
        package = torch.linalg.eigvalsh(optimal_linear_shrinkage(covariance, 10))
        shrunk, mean = shrunk_variances(variances, 10, 4), variances.mean()
        trend = (optimal_linear_shrinkage(covariance, 10) * covariance).sum() - 4 * mean**2
        if trend >= 0:
            torch.testing.assert_close(shrunk, package)
        else:
            beyond += 1
            torch.testing.assert_close(shrunk, mean.expand(4))
    assert 0 < beyond < 30


@pytest.mark.parametrize("attribute", ["race", "gender"])
def test_the_default_is_the_papers_text(attribute):
    """W, U and P written out in all dimensions, from covariances of pooled activations, and P in tangent space."""
    acts, _ = planted(identities=12, noise=0.5)
    x, z = pooled(acts), one_hot(acts, attribute)
    x, z = x - x.mean(0), z - z.mean(0)
    count, width = x.shape
    sigma = x.T @ x / count
    flat = torch.eye(width) * sigma.trace() / width
    spread = (sigma**2).sum() * (flat**2).sum() - (flat * sigma).sum() ** 2
    share = sigma.trace() ** 2 * (flat**2).sum() / count / spread  # of the package's shrinkage
    size, vectors = torch.linalg.eigh((1 - share) * sigma + share * flat)
    whitening, unwhitening = vectors / size.sqrt() @ vectors.T, vectors * size.sqrt() @ vectors.T
    k = z.shape[1] - 1
    u = torch.linalg.svd(whitening @ x.T @ z / (count - 1))[0][:, :k]
    oblique = (unwhitening @ u @ u.T @ whitening).numpy()
    steerer = ggss.fit("leace-spherical", acts, attribute=attribute)
    mu = transcription.karcher(np.array([transcription.normalize(y) for y in acts.pooled.double().numpy()]))
    rows = acts.tokens[7]
    for h, found in zip(rows.double().numpy(), steerer.steer(rows, alpha=0.7), strict=True):
        t = transcription.log(mu, h / np.linalg.norm(h), 0)
        expected = transcription.normalize(transcription.exp(mu, t - 0.7 * oblique @ t))
        np.testing.assert_allclose(found, np.linalg.norm(h) * expected, atol=2e-5)
    basis = ggss.fit("leace-gated", acts, attribute=attribute).operators[SITE].basis.double()
    torch.testing.assert_close(basis @ basis.T, u @ u.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["leace-spherical", "leace-gated"])
@pytest.mark.parametrize("attribute", ["race", "gender"])
def test_the_form_of_the_authors_code_is_an_option(name, attribute):
    acts, _ = planted(identities=4, noise=1.0)
    eraser = LeaceEraser.fit(pooled(acts), one_hot(acts, attribute))
    removed = eraser.proj_left @ eraser.proj_right  # I - P
    k = len(acts.groups(attribute).values) - 1
    v = torch.linalg.eigh(removed, UPLO="L")[1][:, -k:]
    operator = ggss.fit(name, acts, attribute=attribute, form="release").operators[SITE]
    basis = operator.basis.double()
    torch.testing.assert_close(basis @ basis.T, v @ v.T, rtol=1e-5, atol=1e-5)
    if name == "leace-spherical":
        assert torch.equal(operator.map, torch.eye(k))
    own = ggss.fit("leace-gated", acts, attribute=attribute).operators[SITE].basis.double()
    assert (basis @ basis.T - own @ own.T).norm() > 0.05


@BOTH
def test_the_variance_constraint_is_the_packages_too(options, rows_of):
    """An attribute along a direction of little variance: plain LEACE would add variance, the package does not."""
    generator = torch.Generator().manual_seed(0)
    width = 24
    scales = torch.logspace(0, -2, width)
    mixing = torch.randn(width, width, generator=generator) / width**0.5
    rows = []
    for _ in range(30):
        person = torch.randn(width, generator=generator) * scales
        rows += [
            person + sign * 0.3 * (scales @ mixing) + 0.02 * torch.randn(width, generator=generator)
            for sign in (-1, 1)
        ]
    rows = torch.stack(rows) + 4 * torch.eye(width)[-1]
    attributes = [{"gender": g} for _ in range(30) for g in ("man", "woman")]
    acts = ggss.Activations(list(rows[:, None]), attributes, [i // 2 for i in range(60)])
    x = rows_of(acts)
    fitter = LeaceFitter.fit(x, one_hot(acts, "gender"))
    operator = ggss.fit("leace-spherical", acts, attribute="gender", **options).operators[SITE]
    expected = fitter.eraser(x) - x.mean(0)
    torch.testing.assert_close(erased(operator, x - x.mean(0)), expected, rtol=1e-5, atol=1e-5)


@BOTH
def test_no_linear_trace_is_left_where_it_was_fitted(options, rows_of):
    acts, _ = planted()
    z = one_hot(acts, "race")
    operator = ggss.fit("leace-spherical", acts, attribute="race", **options).operators[SITE]
    centred = z - z.mean(0)

    def trace(x):
        return float((x.T @ centred).norm())

    assert trace(rows_of(acts)) > 1
    assert trace(erased(operator, rows_of(acts))) < 1e-4
    elsewhere = pooled if rows_of is tangents else tangents  # the control: the other space keeps some of it
    assert trace(erased(operator, elsewhere(acts))) > 1e-2


@BOTH
def test_the_gated_form_uses_the_packages_u(options, rows_of):
    acts, _ = planted(identities=4)
    x = rows_of(acts)
    fitter = LeaceFitter.fit(x, one_hot(acts, "race"))
    size, vectors = torch.linalg.eigh(fitter.sigma_xx)
    whitening = vectors / size.sqrt() @ vectors.T
    u = torch.linalg.svd(whitening @ fitter.sigma_xz)[0][:, :4]
    operator = ggss.fit("leace-gated", acts, attribute="race", **options).operators[SITE]
    basis = operator.basis.double()
    torch.testing.assert_close(basis @ basis.T, u @ u.T, rtol=1e-5, atol=1e-5)
    magnitudes = (tangents(acts) @ u).norm(dim=1).numpy()
    assert (operator.gate_median, operator.gate_std) == pytest.approx(
        transcription.gate_statistics(magnitudes), rel=1e-5
    )


def test_a_missing_package_names_its_pip_line(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("concept_erasure"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ggss.InputError, match=r"pip install 'ggss\[leace\]'"):
        ggss.fit("leace-spherical", planted(identities=2)[0], attribute="race")
