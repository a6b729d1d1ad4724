"""Ablations of GGSS: the subspace, the geometry, the gate and slerp, each replaced while the rest stays the same.

**`svd-*`**, SVD ablations (appendix A.4): hard projection without gate and slerp, pooled or per token, Euclidean or
spherical.

    pooled, Euclidean   s_ua = hbar_ua - mean over a of hbar_ua             h - alpha V V^T (h - mean)
    pooled, spherical   s_ua = log_{c_u}(y_ua)                              exp_mu(t - alpha V V^T t), norm restored
    per token           the same for every token position t: s_uat around the centre c_ut of its A variants

V holds the top k right singular vectors of all shifts, k = number of values - 1 by default.

Per token there are images x tokens shifts, 819 200 of 4096 numbers for 400 images of 2048 tokens. They are never all
in memory: each group of variants is read, its shifts are computed a few hundred positions at a time, and only their
Gram matrix S^T S [D, D] is kept (134 MB at D = 4096, in float64; the products of a block are float32). Its
eigenvectors are the right singular vectors. Positions must correspond, so the images of a group need equal token
counts; groups may differ.

Left open by the paper: the reference point of the per-token forms. Here it is the pooled one, mean or Fréchet mean,
so that a per-token form differs from its pooled form in the subspace alone. The authors' code takes the mean of all
tokens, on the sphere the normalised mean of their directions; and its spherical centres c_ut are normalised means
instead of Fréchet means: `form="release"`.

**`ggss-no-gate`, `ggss-no-slerp`**, component ablations (section 4.3): GGSS without its gate, and without slerp.

    ggss-no-gate     |h| slerp(h^, target; alpha)                              g = 1
    ggss-no-slerp    |h| Normalize(exp_mu(t - alpha g V V^T t))                the gate, then hard projection

Discovery is that of `ggss`. At alpha = 1 `ggss-no-gate` equals `svd-pooled-spherical`, as the paper observes.

The paper's row is "w/o Slerp (hard proj. + gate)", and hard projection is `t - alpha V V^T t` (appendix A.4). The
authors' code goes along the chord instead, |h| Normalize((1 - alpha g) h^ + alpha g target): option `path="chord"`.
Both end at GGSS's target where alpha g = 1; the chord stays on the arc of slerp, at another share of it.

**`gated-euclidean`, `gated-euclidean-renorm`**, the matched-gate geometry ablation (appendix B): a Euclidean update
under the gate of GGSS.

    gated-euclidean            h' = h - alpha g V V^T (h - mean)
    gated-euclidean-renorm     |h| h' / |h'|

Left open by the paper: which gate and which subspace. The paper's Euclidean row without a gate is
`svd-pooled-euclidean`, so V and mean are those of that method. "Matched" is read literally: g is the gate that `ggss`
gives to the same token, from the spherical subspace and its statistics. The Euclidean and the spherical row then
differ only in the update.

**`ggss-token-gate`** is GGSS with its gate calibrated on tokens instead of pooled rows (appendix B, gate
calibration).

    median and std of b(h) = |V^T log_mu(h^)| over all tokens h of all discovery images

Subspace, mu and update are those of `ggss`. Tokens are read one image at a time; one number per token is kept. Zero
tokens have no direction and do not count.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations, Groups
from ggss.errors import InputError
from ggss.methods.ggss import GateOptions, GgssOptions, SubspaceOptions, calibrated, discover
from ggss.methods.operator import Affine, Array, Operator, register_kind
from ggss.methods.projection import Euclidean, finite_coordinates
from ggss.methods.registry import Attribute, Fitted, Method, register
from ggss.methods.spherical import (
    Floor,
    Gated,
    Geodesic,
    Kappa,
    Magnitude,
    Removal,
    Tangent,
    check_frame,
    check_orthonormal,
    gate,
    magnitudes,
    precise,
)
from ggss.methods.subspace import Subspace, aligned_blocks, find_subspace, oriented, representatives, top_eigenvectors
from ggss.terminal import track

PAPER = "Sun et al., GGSS: Geodesic-Gated Spherical Steering"
SAFE_SHRINKING = 0.1  # |h'|^2 / |h|^2 below which the closed form of |h'| has lost too many digits
ROUNDING = 1e-6  # an eigenvalue this small, relative to the largest, is a rounding error of float32 products


def fit_pooled_euclidean(activations: Activations, attribute: Attribute, options: SubspaceOptions) -> Fitted:
    mean, subspace = euclidean_subspace(activations, attribute, options.k)
    return Fitted(
        Euclidean(mean.float(), subspace.basis.float().contiguous()),
        {
            "singular_values": subspace.singular_values.float(),
            "explained_variance": subspace.explained_variance.float(),
        },
    )


def fit_pooled_spherical(activations: Activations, attribute: Attribute, options: SubspaceOptions) -> Fitted:
    discovery = discover(activations, attribute, options.k)
    return Fitted(Tangent.orthogonal(*discovery.frame), discovery.statistics, discovery.diagnostics)


class TokenSvdOptions(SubspaceOptions):
    form: Literal["paper", "release"] = Field(
        "paper", description="pooled reference point and Fréchet centres, or the means of the authors' code"
    )


def fit_token_euclidean(activations: Activations, attribute: Attribute, options: TokenSvdOptions) -> Fitted:
    basis, statistics = token_subspace(activations, attribute, options.k, _euclidean_shifts)
    released = options.form == "release"
    mean = _mean_token(activations, lambda rows: rows) if released else activations.pooled.double().mean(0)
    return Fitted(Euclidean(mean.float(), basis), statistics)


def fit_token_spherical(activations: Activations, attribute: Attribute, options: TokenSvdOptions) -> Fitted:
    if options.form == "release":
        mu = sphere.normalize(_mean_token(activations, sphere.normalize))
        basis, statistics = token_subspace(activations, attribute, options.k, _released_shifts)
    else:
        mu = sphere.frechet_mean(representatives(activations.pooled))
        basis, statistics = token_subspace(activations, attribute, options.k, _spherical_shifts)
    return Fitted(Tangent.orthogonal(mu, basis), statistics)


def _mean_token(activations: Activations, changed: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean [D] in float64 of all tokens of all images, each as `changed` gives it."""
    total, count = torch.zeros(activations.pooled.shape[1], dtype=torch.float64), 0
    for tokens in activations.tokens:
        total += changed(tokens.double()).sum(0)
        count += len(tokens)
    return total / count


def euclidean_subspace(activations: Activations, attribute: Attribute, k: int | None) -> tuple[Tensor, Subspace]:
    """The mean pooled row [D] and the Euclidean subspace of pooled shifts, in float64."""
    pooled = activations.pooled.double()
    table = activations.groups(attribute).of(pooled)
    return pooled.mean(0), find_subspace(table - table.mean(1, keepdim=True), k)


def token_subspace(
    activations: Activations, attribute: Attribute, k: int | None, shifts_of: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The basis [D, k] in float32 and its statistics, from the shifts of all tokens.

    shifts_of: from tokens [positions, values, D] in float64 to their shifts.
    """
    groups = activations.groups(attribute)
    k = len(groups.values) - 1 if k is None else k
    gram = _token_gram(activations, groups, shifts_of)
    width = len(gram)
    if not 1 <= k < width:
        raise InputError(f"k = {k} directions were asked for in {width} dimensions; choose a smaller k")
    if not float(gram.trace()) > 0:
        raise InputError("the images of every context give equal tokens: there are no shifts to find directions in")
    energy, vectors = top_eigenvectors(gram, k)
    if not float(energy[-1]) > ROUNDING * float(energy[0]):
        raise InputError(f"k = {k} directions were asked for, but the tokens' shifts span fewer; choose a smaller k")
    share = energy / gram.trace()
    return oriented(vectors).float().contiguous(), {
        "singular_values": energy.sqrt().float(),
        "explained_variance": share.float(),
    }


def _token_gram(activations: Activations, groups: Groups, shifts_of: Callable[[Tensor], Tensor]) -> Tensor:
    """S^T S [D, D] in float64 of all tokens' shifts."""
    width = activations.pooled.shape[1]
    gram = torch.zeros(width, width, dtype=torch.float64)
    for _, _, block in aligned_blocks(activations, groups, "shifts of tokens"):
        shift = shifts_of(block).reshape(-1, width).float()
        gram += shift.T @ shift
    return gram


def _euclidean_shifts(block: Tensor) -> Tensor:
    """s_uat of tokens [positions, values, D], around their mean over the values."""
    return block - block.mean(1, keepdim=True)


def _spherical_shifts(block: Tensor) -> Tensor:
    """s_uat of tokens [positions, values, D], in the tangent space at their Fréchet mean over the values."""
    points = sphere.normalize(block)
    return sphere.log(sphere.frechet_mean(points).unsqueeze(1), points)


def _released_shifts(block: Tensor) -> Tensor:
    """The same around the normalised mean of the directions, as in the authors' code."""
    points = sphere.normalize(block)
    return sphere.log(sphere.normalize(points.mean(1, keepdim=True)), points)


for _name, _summary, _fit in (
    ("svd-pooled-euclidean", "SVD of pooled shifts, hard projection in Euclidean space", fit_pooled_euclidean),
    ("svd-pooled-spherical", "SVD of pooled tangent shifts, hard projection in tangent space", fit_pooled_spherical),
    ("svd-token-euclidean", "SVD of every token's shifts, hard projection in Euclidean space", fit_token_euclidean),
    (
        "svd-token-spherical",
        "SVD of every token's tangent shifts, hard projection in tangent space",
        fit_token_spherical,
    ),
):
    register(
        Method(
            _name,
            _summary,
            f"{PAPER}, appendix A.4",
            _fit,
            TokenSvdOptions if _name.startswith("svd-token") else SubspaceOptions,
            needs_tokens=_name.startswith("svd-token"),
        )
    )


class NoSlerpOptions(GgssOptions):
    path: Literal["projection", "chord"] = Field(
        "projection", description="the paper's hard projection, or the chord of the authors' code"
    )


@register_kind
@dataclass(frozen=True)
class Chord(Gated):
    """The update of GGSS along the chord to its target. mu [D] and basis [D, k] in float32, and the gate."""

    kind: ClassVar[str] = "chord"

    def removal(self, b: Tensor, alpha: Tensor) -> Removal:
        g = self.gate_of(b)
        return Removal(b, alpha * g, None if self.floor == 1 else g, chord=True)


def fit_without_gate(activations: Activations, attribute: Attribute, options: SubspaceOptions) -> Fitted:
    discovery = discover(activations, attribute, options.k)
    operator = Geodesic(
        *discovery.frame, **calibrated(discovery.magnitudes, GateOptions.model_validate({"floor": 1.0}))
    )
    return Fitted(operator, discovery.statistics, discovery.diagnostics)


def fit_without_slerp(activations: Activations, attribute: Attribute, options: NoSlerpOptions) -> Fitted:
    discovery = discover(activations, attribute, options.k)
    operator_class = Chord if options.path == "chord" else Tangent.orthogonal
    operator = operator_class(*discovery.frame, **calibrated(discovery.magnitudes, options))
    return Fitted(operator, discovery.statistics, discovery.diagnostics)


COMPONENTS = f"{PAPER}, section 4.3"

register(Method("ggss-no-gate", "GGSS with the gate held at 1", COMPONENTS, fit_without_gate, SubspaceOptions))
register(Method("ggss-no-slerp", "GGSS's gate with hard projection", COMPONENTS, fit_without_slerp, NoSlerpOptions))


@register_kind
@dataclass(frozen=True)
class GatedEuclidean(Operator):
    """Hard Euclidean projection under GGSS's gate.

    mean [D] and basis [D, k]: of the update. mu [D] and gate_basis [D, k]: of the gate, on the sphere.
    """

    mean: Annotated[Tensor, Array("D")]
    basis: Annotated[Tensor, Array("D", "k")]
    mu: Annotated[Tensor, Array("D")]
    gate_basis: Annotated[Tensor, Array("D", "k")]
    gate_median: Magnitude
    gate_std: Magnitude
    kappa: Kappa = 5.0
    floor: Floor = 0.3
    renorm: bool = False

    kind: ClassVar[str] = "gated-euclidean"

    @property
    def width(self) -> int:
        return self.mean.shape[0]

    def validate(self) -> None:
        check_orthonormal(self.basis)
        check_frame(self.mu, self.gate_basis)

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> Tensor:
        mean, basis = self.mean.to(rows.device), self.basis.to(rows.device)
        mu, gate_basis = self.mu.to(rows.device), self.gate_basis.to(rows.device)
        k = basis.shape[1]
        products = rows @ torch.cat([basis, mu[:, None], gate_basis], 1)
        finite_coordinates(products, rows)
        magnitude = magnitudes(rows, products[:, k:], mu, gate_basis)
        g = gate(magnitude, self.gate_median, self.gate_std, self.kappa, self.floor)
        removed = alpha * g * (products[:, :k].to(g) - (mean @ basis).to(g))
        if not self.renorm:
            torch.addmm(rows, removed.float(), basis.T, alpha=-1, out=out)
            return g.squeeze(1).float()
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True).to(precise(rows))
        # |h|^2 - |h'|^2, then |h'|^2 / |h|^2
        lost = 2 * (products[:, :k].to(g) * removed).sum(1, keepdim=True) - (removed * removed).sum(1, keepdim=True)
        length_squared = 1 - torch.where(norms > 0, lost / (norms * norms), 0)
        safe = length_squared > SAFE_SHRINKING
        scale = torch.where(safe, length_squared.clamp(min=SAFE_SHRINKING).rsqrt(), 1)
        torch.mul(rows, scale.float(), out=out).addmm_((scale * removed).float(), basis.T, alpha=-1)
        if not safe.all():
            unsafe = ~safe.squeeze(1)
            short_rows = out[unsafe]
            length = torch.linalg.vector_norm(short_rows, dim=1, keepdim=True)
            out[unsafe] = short_rows * (norms[unsafe].float() / torch.where(length > 0, length, 1))
        return g.squeeze(1).float()

    def affine(self, alpha: float) -> Affine | None:
        gated = self.floor != 1
        return None if gated or self.renorm else Affine.projection(alpha, self.mean, self.basis, self.basis)


class GatedEuclideanOptions(GgssOptions):
    k: int | None = Field(None, ge=1, description="dimensions of both subspaces; the number of values - 1")


def fit_gated_euclidean(
    activations: Activations, attribute: Attribute, options: GatedEuclideanOptions, renorm: bool
) -> Fitted:
    discovery = discover(activations, attribute, options.k)
    mean, euclidean = euclidean_subspace(activations, attribute, options.k)
    operator = GatedEuclidean(
        mean.float(),
        euclidean.basis.float().contiguous(),
        *discovery.frame,
        **calibrated(discovery.magnitudes, options),
        renorm=renorm,
    )
    return Fitted(operator, discovery.statistics, discovery.diagnostics)


def fit_euclidean(activations: Activations, attribute: Attribute, options: GatedEuclideanOptions) -> Fitted:
    return fit_gated_euclidean(activations, attribute, options, renorm=False)


def fit_renormalized(activations: Activations, attribute: Attribute, options: GatedEuclideanOptions) -> Fitted:
    return fit_gated_euclidean(activations, attribute, options, renorm=True)


for _name, _summary, _fit in (
    ("gated-euclidean", "GGSS's gate with hard projection in Euclidean space", fit_euclidean),
    (
        "gated-euclidean-renorm",
        "GGSS's gate with hard projection in Euclidean space, each token's norm restored",
        fit_renormalized,
    ),
):
    register(
        Method(
            _name,
            _summary,
            f"{PAPER}, appendix B",
            _fit,
            GatedEuclideanOptions,
        )
    )


def fit_token_gate(activations: Activations, attribute: Attribute, options: GgssOptions) -> Fitted:
    discovery = discover(activations, attribute, options.k)
    mu, basis = discovery.frame
    frame = torch.cat([mu[:, None], basis], 1)
    by_image = []
    for tokens in track(activations.tokens, "gates of tokens", len(activations)):
        rows = tokens.float()
        by_image.append(magnitudes(rows, rows @ frame, mu, basis))
    token_magnitudes = torch.cat(by_image).flatten()
    if not len(token_magnitudes):
        raise InputError("every token of these activations is zero: there is nothing to calibrate a gate on")
    operator = Geodesic(mu, basis, **calibrated(token_magnitudes, options))
    return Fitted(operator, discovery.statistics, discovery.diagnostics)


register(
    Method(
        name="ggss-token-gate",
        summary="GGSS with the gate calibrated on tokens",
        reference=f"{PAPER}, appendix B",
        fit=fit_token_gate,
        options=GgssOptions,
        needs_tokens=True,
    )
)
