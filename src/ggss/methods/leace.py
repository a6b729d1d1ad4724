"""LEACE: least-squares concept erasure (Belrose et al. 2023; appendix A.5), fitted with their `concept-erasure`.

    W = Sigma_x^(-1/2)      U: left singular vectors of W Sigma_xz      P(x) = x - W^-1 U U^T W (x - mean)

    leace-spherical     x = t = log_mu(h^):     |h| Normalize(exp_mu(t - alpha W^-1 U U^T W t))
    leace-gated         GGSS's gate and slerp with V = U and the gate calibrated on it

x are the tangent vectors of the pooled representatives at their Fréchet mean, where their own mean is zero; z are
one-hot values. The package's defaults are kept: covariance shrunk towards a multiple of the identity (with fewer
images than dimensions it has no inverse otherwise), variance not allowed to grow, singular values below 0.01 dropped.

**Cost.** Outside the span of the data the shrunk covariance is a multiple of the identity and erases nothing, so
the package is given the statistics in coordinates of that span: N dimensions instead of D, the same eraser.
"""

import warnings
from typing import Any

import torch
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.classes import classes, span
from ggss.methods.geodesic import Geodesic
from ggss.methods.ggss import GateOptions, gate_statistics
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import oriented, protected_magnitude, representatives
from ggss.methods.tangent import Tangent

ROUNDING = 1e-5  # variation this small, relative to the largest, may be rounding of float32 activations


def fit_spherical(activations: Activations, attribute: Attribute, options: Options) -> Fitted:
    mu, _, directions, fitter = fitted(activations, attribute)
    eraser = fitter.eraser
    left, size, right = torch.linalg.svd(eraser.proj_left @ eraser.proj_right)
    kept = size > 1e-9 * size[0]
    left, right = (left * size)[:, kept], right[kept].T
    basis, spread, _ = torch.linalg.svd(torch.cat([left / size[0], right], 1), full_matrices=False)
    basis = basis[:, spread > 1e-9]
    erased = basis.T @ left @ right.T @ basis
    return Fitted(Tangent(mu.float(), (directions @ basis).float().contiguous(), map=erased.float()))


def fit_gated(activations: Activations, attribute: Attribute, options: GateOptions) -> Fitted:
    mu, points, directions, fitter = fitted(activations, attribute)
    whitened = fitter.sigma_xz / fitter.sigma_xx.diagonal().sqrt()[:, None]
    u, size, _ = torch.linalg.svd(whitened, full_matrices=False)
    basis = oriented(directions @ u[:, size > fitter.svd_tol])
    magnitudes = protected_magnitude(points, mu, basis)
    operator = Geodesic(
        mu.float(),
        basis.float().contiguous(),
        **gate_statistics(magnitudes),
        kappa=options.kappa,
        floor=options.floor,
    )
    return Fitted(operator, {"magnitudes": magnitudes.float()})


def fitted(activations: Activations, attribute: Attribute) -> tuple[Tensor, Tensor, Tensor, Any]:
    """mu [D], representatives [N, D], directions [D, r] of the span, and a LeaceFitter in its coordinates, in
    which the covariance is diagonal."""
    LeaceFitter = _fitter()
    known = classes(activations, attribute)
    points = representatives(activations.pooled)
    mu = sphere.frechet_mean(points)
    data = span(sphere.log(mu, points))
    count, rank = data.coordinates.shape
    sizes, needed = data.coordinates.norm(dim=0), len(known.values) - 1
    if (real := int((sizes > ROUNDING * sizes[0]).sum())) < needed:
        raise InputError(
            f"the {count} images vary in {real} directions, {len(known.values)} values need {needed}: "
            "the covariance has too small a rank to erase them"
        )
    one_hot = torch.nn.functional.one_hot(known.labels).double()
    variances = (data.coordinates**2).sum(0) / count
    shrunk = shrunk_variances(variances, count, activations.pooled.shape[1])
    fitter = LeaceFitter(rank, len(known.values), dtype=torch.float64, shrinkage=False)
    fitter.n = torch.tensor(count)
    fitter.sigma_xx_ = torch.diag(shrunk * (count - 1))
    fitter.sigma_xz_ = data.coordinates.T @ (one_hot - one_hot.mean(0))
    if not (torch.linalg.svdvals(fitter.sigma_xz / shrunk.sqrt()[:, None]) > fitter.svd_tol).any():
        raise InputError(f"no linear trace of {attribute!r} in the activations: there is nothing to erase")
    return mu, points, data.directions, fitter


def shrunk_variances(variances: Tensor, count: int, width: int) -> Tensor:
    """concept-erasure's `optimal_linear_shrinkage` of a D x D covariance, given its non-zero eigenvalues only."""
    trace, squares = variances.sum(), (variances**2).sum()
    flat = trace**2 / width  # |Sigma0|^2, and equally <S, Sigma0>, for Sigma0 = trace / D * identity
    eps = torch.finfo(torch.float64).eps
    alpha = 1 - (trace**2 * flat / count + eps) / (squares * flat - flat**2 + eps)
    return alpha * variances + (1 - alpha) * trace / width


def _fitter() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*torch\.jit\.script", DeprecationWarning)
        try:
            from concept_erasure import LeaceFitter
        except ImportError:
            raise InputError("LEACE is fitted with concept-erasure: pip install 'ggss[leace]'") from None
    return LeaceFitter


for _name, _summary, _fit, _options in (
    ("leace-spherical", "least-squares concept erasure in tangent space", fit_spherical, Options),
    ("leace-gated", "LEACE's subspace inside GGSS's gate and slerp", fit_gated, GateOptions),
):
    register(
        Method(
            _name,
            _summary,
            "Belrose et al. 2023, LEACE: Perfect Linear Concept Erasure in Closed Form",
            _fit,
            _options,
        )
    )
