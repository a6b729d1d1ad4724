"""LEACE: least-squares concept erasure (Belrose et al. 2023; appendix A.5), fitted with their `concept-erasure`.

    W = Sigma_x^(-1/2)      U: left singular vectors of W Sigma_xz      P(x) = x - W^-1 U U^T W (x - mean)

    leace-spherical     t = log_mu(h^):     |h| Normalize(exp_mu(t - alpha W^-1 U U^T W t))
    leace-gated         GGSS's gate and slerp with V = U and the gate calibrated on it

x are the pooled activations, z one-hot values, mu is the Fréchet mean of the normalised x. The package's defaults are
kept: covariance shrunk towards a multiple of the identity (with fewer images than dimensions it has no inverse
otherwise), variance not allowed to grow, singular values below 0.01 dropped. An ordered attribute's z is its number,
in units of its standard deviation. Of unpaired images z is centred within strata (`subspace.targets`), and Sigma_x is
that of images whose label is independent of strata: what is erased is what the label does at equal context.

**What the paper says, what its code does, what we do.** The paper: Sigma_x is "the covariance of pooled discovery
activations", the spherical form is P "applied in tangent space", the gated form takes "LEACE's U as V_bias". So do
we. The tangent space at mu has its origin at mu, which takes the place of the mean in P. The authors' code fits the
same covariances. It then replaces P by an orthogonal projection, in both forms: V are the eigenvectors of I - P with
the K - 1 largest eigenvalues, found by a routine for symmetric matrices. I - P is not symmetric; the routine reads
its lower triangle and takes the upper one to be the same. So V depends on the order of the dimensions, and is neither
U nor the range of I - P. `form="release"` does this. `covariance="tangent"` fits LEACE to the tangent vectors log_mu
of the normalised activations, the space in which it is applied, where its promise (no linear trace left) is kept.

**Cost.** Outside the span of the data the shrunk covariance is a multiple of the identity and erases nothing, so
the package is given the statistics in coordinates of that span: N dimensions instead of D, the same eraser.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.ggss import GateOptions, calibrated
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.spherical import Geodesic, Tangent
from ggss.methods.subspace import oriented, protected_magnitude, representatives, span, targets, top_eigenvectors

ROUNDING = 1e-5  # variation this small, relative to the largest, may be rounding of float32 activations


class LeaceOptions(Options):
    covariance: Literal["pooled", "tangent"] = Field(
        "pooled", description="covariances of the pooled activations, or of their tangent vectors"
    )
    form: Literal["paper", "release"] = Field(
        "paper", description="P in tangent space and V = U, or the orthogonal projection of the authors' code"
    )


class LeaceGatedOptions(GateOptions, LeaceOptions):
    pass


@dataclass(frozen=True)
class Erasure:
    """A LeaceFitter in coordinates of the span of the data, in which the covariance is diagonal; float64.

    mu [D]; points: the representatives [N, D]; directions [D, r] of the span; rank: the directions a label can have.
    """

    mu: Tensor
    points: Tensor
    directions: Tensor
    fitter: Any
    rank: int

    @property
    def erased(self) -> Tensor:
        """I - P [r, r] in the coordinates of the span."""
        return self.fitter.eraser.proj_left @ self.fitter.eraser.proj_right

    @property
    def whitened_basis(self) -> Tensor:
        """The paper's U [D, k]."""
        whitened = self.fitter.sigma_xz / self.fitter.sigma_xx.diagonal().sqrt()[:, None]
        u, singular, _ = torch.linalg.svd(whitened, full_matrices=False)
        return oriented(self.directions @ u[:, singular > self.fitter.svd_tol])

    @property
    def released_basis(self) -> Tensor:
        """V [D, K - 1] of the authors' code: eigenvectors of the lower triangle of I - P."""
        lower = (self.directions @ self.erased @ self.directions.T).tril()
        return oriented(top_eigenvectors(lower + lower.tril(-1).T, self.rank)[1])


def fit_spherical(activations: Activations, attribute: Attribute, options: LeaceOptions) -> Fitted:
    erasure = fit_erasure(activations, attribute, options)
    if options.form == "release":
        return Fitted(Tangent.orthogonal(erasure.mu, erasure.released_basis))
    left, singular, right = torch.linalg.svd(erasure.erased)
    nonzero = singular > 1e-9 * singular[0]
    left, right = (left * singular)[:, nonzero], right[nonzero].T
    basis, spans, _ = torch.linalg.svd(torch.cat([left / singular[0], right], 1), full_matrices=False)
    basis = basis[:, spans > 1e-9]
    erased = basis.T @ left @ right.T @ basis
    return Fitted(Tangent(erasure.mu.float(), (erasure.directions @ basis).float().contiguous(), map=erased.float()))


def fit_gated(activations: Activations, attribute: Attribute, options: LeaceGatedOptions) -> Fitted:
    erasure = fit_erasure(activations, attribute, options)
    basis = erasure.released_basis if options.form == "release" else erasure.whitened_basis
    magnitudes = protected_magnitude(erasure.points, erasure.mu, basis)
    operator = Geodesic(erasure.mu.float(), basis.float().contiguous(), **calibrated(magnitudes, options))
    return Fitted(operator, {"magnitudes": magnitudes.float()})


def fit_erasure(activations: Activations, attribute: Attribute, options: LeaceOptions) -> Erasure:
    """LEACE fitted to the pooled activations, or to their tangent vectors."""
    LeaceFitter = _leace_fitter()
    known = targets(activations, attribute)
    points = representatives(activations.pooled)
    mu = sphere.frechet_mean(points)
    rows = activations.pooled.double() if options.covariance == "pooled" else sphere.log(mu, points)
    data = span(rows + known.independent @ known.slopes(known.z.T @ rows) if activations.unpaired else rows)
    count, rank = data.coordinates.shape
    lengths, needed = data.coordinates.norm(dim=0), known.directions
    if (varying := int((lengths > ROUNDING * lengths[0]).sum())) < needed:
        raise InputError(
            f"the {count} images vary in {varying} directions, {len(known.values)} values need {needed}: "
            "the covariance has too small a rank to erase them"
        )
    variances = (data.coordinates**2).sum(0) / count
    shrunk = shrunk_variances(variances, count, activations.pooled.shape[1])
    fitter = LeaceFitter(rank, known.z.shape[1], dtype=torch.float64, shrinkage=False)
    fitter.n = torch.tensor(count)
    fitter.sigma_xx_ = torch.diag(shrunk * (count - 1))
    fitter.sigma_xz_ = data.directions.T @ (rows.T @ known.z)
    if not (torch.linalg.svdvals(fitter.sigma_xz / shrunk.sqrt()[:, None]) > fitter.svd_tol).any():
        raise InputError(f"no linear trace of {attribute!r} in the activations: there is nothing to erase")
    return Erasure(mu, points, data.directions, fitter, needed)


def shrunk_variances(variances: Tensor, count: int, width: int) -> Tensor:
    """concept-erasure's `optimal_linear_shrinkage` of a D x D covariance, given its non-zero eigenvalues only.

    Of few images its alpha may be negative, and then the largest variance becomes the smallest, or negative. The
    package's formula leaves it so; here alpha is 0 there, which makes all variances alike.
    """
    trace, squares = variances.sum(), (variances**2).sum()
    target = trace**2 / width  # |Sigma0|^2, and equally <S, Sigma0>, for Sigma0 = trace / D * identity
    eps = torch.finfo(torch.float64).eps
    alpha = 1 - (trace**2 * target / count + eps) / (squares * target - target**2 + eps)
    alpha = alpha.clamp(0, 1)
    return alpha * variances + (1 - alpha) * trace / width


def _leace_fitter() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*torch\.jit\.script", DeprecationWarning)
        try:
            from concept_erasure import LeaceFitter
        except ImportError:
            raise InputError("LEACE is fitted with concept-erasure: pip install 'ggss[leace]'") from None
    return LeaceFitter


for _name, _summary, _fit, _options in (
    ("leace-spherical", "least-squares concept erasure in tangent space", fit_spherical, LeaceOptions),
    ("leace-gated", "LEACE's subspace inside GGSS's gate and slerp", fit_gated, LeaceGatedOptions),
):
    register(
        Method(
            _name,
            _summary,
            "Belrose et al. 2023, LEACE: Perfect Linear Concept Erasure in Closed Form",
            _fit,
            _options,
            takes_unpaired=True,
        )
    )
