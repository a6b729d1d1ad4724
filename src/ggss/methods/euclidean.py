"""Null-space projection around a mean in flat space: what the spherical methods are compared with.

    h_steered = h - alpha V V^T (h - mean)

Norms are not kept. V is orthonormal. Two passes over the tokens (`passes`).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ggss.errors import InputError
from ggss.methods.declared import Array
from ggss.methods.operator import Operator, register, require_finite
from ggss.methods.passes import project, recombine
from ggss.methods.spherical import check_orthonormal


@register
@dataclass(frozen=True)
class Euclidean(Operator):
    """mean [D] and orthonormal basis [D, k] in float32."""

    mean: Annotated[Tensor, Array("D")]
    basis: Annotated[Tensor, Array("D", "k")]

    kind: ClassVar[str] = "euclidean"
    any_dtype: ClassVar[bool] = True

    @property
    def width(self) -> int:
        return self.mean.shape[0]

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        mean, directions = self.mean.to(rows.device), self.basis.to(rows.device).T.contiguous()
        coordinates = finite_coordinates(project(rows, directions)[0] - directions @ mean, rows)
        recombine(rows, torch.ones_like(alpha), -alpha * coordinates, directions, out)

    def validate(self) -> None:
        check_orthonormal(self.basis)


def finite_coordinates(coordinates: Tensor, rows: Tensor) -> Tensor:
    """The coordinates [N, k] of rows [N, D]; InputError if a row, or its product with the basis, is not finite."""
    if not torch.isfinite(coordinates).all():
        require_finite(rows, len(rows))
        raise InputError(f"tokens of size {float(rows.abs().max()):.1e} overflow float32; nothing was steered")
    return coordinates
