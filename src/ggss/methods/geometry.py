"""The geometry ablation: a flat update under GGSS's own gate (appendix B, matched-gate geometry ablation).

    gated-euclidean            h' = h - alpha g V V^T (h - mean)
    gated-euclidean-renorm     |h| h' / |h'|

Left open by the paper: which gate and which subspace. The paper's flat row without a gate is `svd-pooled-euclidean`,
so V and mean are those of that method. "Matched" is read literally: g is the gate that `ggss` gives to the same
token, from the spherical subspace and its statistics. The flat and the spherical row then differ only in the update.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.methods.declared import Array
from ggss.methods.euclidean import finite_coordinates
from ggss.methods.ggss import GgssOptions, calibrated, discover
from ggss.methods.operator import Operator, register
from ggss.methods.registry import Attribute, Fitted, Method
from ggss.methods.registry import register as register_method
from ggss.methods.spherical import (
    Floor,
    Kappa,
    Magnitude,
    check_frame,
    check_orthonormal,
    gate,
    magnitudes,
    precise,
)
from ggss.methods.svd import flat_subspace

SAFE_SHRINKING = 0.1  # |h'|^2 / |h|^2 below which the closed form of |h'| has lost too many digits


@register
@dataclass(frozen=True)
class GatedEuclidean(Operator):
    """The flat mean [D] and basis [D, k], and the gate's spherical mu [D] and gate_basis [D, k]."""

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
        taken = 2 * (products[:, :k].to(g) * removed).sum(1, keepdim=True) - (removed * removed).sum(1, keepdim=True)
        left = 1 - torch.where(norms > 0, taken / (norms * norms), 0)
        safe = left > SAFE_SHRINKING
        scale = torch.where(safe, left.clamp(min=SAFE_SHRINKING).rsqrt(), 1)
        torch.mul(rows, scale.float(), out=out).addmm_((scale * removed).float(), basis.T, alpha=-1)
        if not safe.all():
            odd = ~safe.squeeze(1)
            short = out[odd]
            length = torch.linalg.vector_norm(short, dim=1, keepdim=True)
            out[odd] = short * (norms[odd].float() / torch.where(length > 0, length, 1))
        return g.squeeze(1).float()


class GatedEuclideanOptions(GgssOptions):
    k: int | None = Field(None, ge=1, description="dimensions of both subspaces; the number of values - 1")


def fit(activations: Activations, attribute: Attribute, options: GatedEuclideanOptions, renorm: bool) -> Fitted:
    found = discover(activations, attribute, options.k)
    mean, flat = flat_subspace(activations, attribute, options.k)
    operator = GatedEuclidean(
        mean.float(),
        flat.basis.float().contiguous(),
        *found.frame,
        **calibrated(found.magnitudes, options),
        renorm=renorm,
    )
    return Fitted(operator, found.statistics, found.diagnostics)


def fit_flat(activations: Activations, attribute: Attribute, options: GatedEuclideanOptions) -> Fitted:
    return fit(activations, attribute, options, renorm=False)


def fit_renormalized(activations: Activations, attribute: Attribute, options: GatedEuclideanOptions) -> Fitted:
    return fit(activations, attribute, options, renorm=True)


for _name, _summary, _fit in (
    ("gated-euclidean", "GGSS's gate with flat hard projection", fit_flat),
    ("gated-euclidean-renorm", "GGSS's gate with flat hard projection, each token's norm restored", fit_renormalized),
):
    register_method(
        Method(
            _name,
            _summary,
            "Sun et al., GGSS: Geodesic-Gated Spherical Steering, appendix B",
            _fit,
            GatedEuclideanOptions,
        )
    )
