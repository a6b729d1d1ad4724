"""LEACE: equal to concept-erasure's own eraser in all dimensions, and what it promises."""

import builtins
import warnings

import numpy as np
import pytest
import torch

import ggss
from ggss import sphere
from planted import planted

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from concept_erasure import LeaceEraser, LeaceFitter

SITE = "projection-mlp2"


def tangents(acts):
    points = sphere.normalize(acts.pooled.double())
    mu = sphere.frechet_mean(points)
    return sphere.log(mu, points), mu


def one_hot(acts, attribute):
    values = acts.groups(attribute).values
    return torch.nn.functional.one_hot(torch.tensor([values.index(v) for v in acts.labels(attribute)])).double()


@pytest.mark.parametrize("noise", [0.05, 1.0, 3.0])
@pytest.mark.parametrize(("identities", "attribute"), [(4, "race"), (12, "race"), (3, "gender"), (12, "gender")])
def test_the_eraser_is_the_packages_own(identities, attribute, noise):
    """With fewer images than dimensions, and with more."""
    acts, _ = planted(identities=identities, noise=noise)
    x, _ = tangents(acts)
    eraser = LeaceEraser.fit(x, one_hot(acts, attribute))
    operator = ggss.fit("leace-spherical", acts, attribute=attribute).operators[SITE]
    basis, small = operator.basis.double(), operator.map.double()
    torch.testing.assert_close(x - x @ basis @ small.T @ basis.T, eraser(x), rtol=1e-5, atol=1e-5)
    other = torch.randn(20, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(other - other @ basis @ small.T @ basis.T, eraser(other), rtol=1e-5, atol=1e-5)


def test_the_variance_constraint_is_the_packages_too():
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
    x, _ = tangents(acts)
    fitter = LeaceFitter.fit(x, one_hot(acts, "gender"))
    operator = ggss.fit("leace-spherical", acts, attribute="gender").operators[SITE]
    basis, small = operator.basis.double(), operator.map.double()
    torch.testing.assert_close(x - x @ basis @ small.T @ basis.T, fitter.eraser(x), rtol=1e-5, atol=1e-5)


def test_no_linear_trace_is_left_in_tangent_space():
    acts, _ = planted()
    x, _ = tangents(acts)
    z = one_hot(acts, "race")
    operator = ggss.fit("leace-spherical", acts, attribute="race").operators[SITE]
    basis, small = operator.basis.double(), operator.map.double()
    after = x - x @ basis @ small.T @ basis.T
    centred = z - z.mean(0)
    assert (x.T @ centred).norm() > 1
    assert (after.T @ centred).norm() < 1e-4


def test_the_gated_form_uses_the_packages_u():
    acts, _ = planted(identities=4)
    x, _ = tangents(acts)
    fitter = LeaceFitter.fit(x, one_hot(acts, "race"))
    size, vectors = torch.linalg.eigh(fitter.sigma_xx)
    whitening = vectors / size.sqrt() @ vectors.T
    u = torch.linalg.svd(whitening @ fitter.sigma_xz)[0][:, :4]
    operator = ggss.fit("leace-gated", acts, attribute="race").operators[SITE]
    basis = operator.basis.double()
    torch.testing.assert_close(basis @ basis.T, u @ u.T, rtol=1e-5, atol=1e-5)
    magnitudes = (x @ u).norm(dim=1)
    assert operator.gate_median == pytest.approx(float(np.median(magnitudes)), rel=1e-5)
    assert operator.gate_std == pytest.approx(float(magnitudes.std(correction=0)), rel=1e-5)


def test_a_missing_package_names_its_pip_line(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("concept_erasure"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ggss.InputError, match=r"pip install 'ggss\[leace\]'"):
        ggss.fit("leace-spherical", planted(identities=2)[0], attribute="race")
