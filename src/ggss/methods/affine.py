"""Affine maps of tokens: what an operator is if it does the same to every token, and the nearest one if it is not.

    h' = scale * h + left right^T h + offset

Such a map can be folded into the Linear that gives h (`ggss.steering.export`). For an operator that is not affine,
`nearest_map` finds the one that is nearest to it on some tokens, by least squares of what the operator adds:

    M, c = argmin  sum |h' - h - M h - c|^2 + ridge |M|^2

How near that is, is measured on other tokens (`explained`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ggss.errors import InputError
from ggss.methods.operator import Array, Operator, apply

RIDGE = 1e-3  # of the tokens' mean variance. With less, pictures unlike those of the fit are moved at random


@dataclass(frozen=True)
class Affine:
    """The map h -> scale * h + left right^T h + offset, in float64: what can be folded into a Linear that gives h.

    scale and offset [D]; left and right [D, k]. Rows that are exactly zero are mapped as all others are.
    """

    scale: Tensor
    left: Tensor
    right: Tensor
    offset: Tensor

    @classmethod
    def projection(cls, alpha: float, mean: Tensor, movement: Tensor, detection: Tensor) -> "Affine":
        """h - alpha V W^T (h - mean), for a mean [D], movement V [D, k] and detection W [D, k]."""
        mean, movement, detection = (tensor.detach().cpu().double() for tensor in (mean, movement, detection))
        return cls(torch.ones_like(mean), -alpha * movement, detection, alpha * movement @ (detection.T @ mean))

    @classmethod
    def by_dimension(cls, scale: Tensor, offset: Tensor) -> "Affine":
        """scale * h + offset, both [D]."""
        scale, offset = scale.detach().cpu().double(), offset.detach().cpu().double()
        return cls(scale, scale.new_zeros(len(scale), 0), scale.new_zeros(len(scale), 0), offset)

    @property
    def is_identity(self) -> bool:
        return bool((self.scale == 1).all()) and not self.offset.any() and not (self.left.any() and self.right.any())

    def __call__(self, rows: Tensor) -> Tensor:
        """The map of rows [N, D] in float64."""
        return rows * self.scale + (rows @ self.right) @ self.left.T + self.offset

    def then(self, later: "Affine") -> "Affine":
        """This map, and the later one after it."""
        return Affine(
            self.scale * later.scale,
            torch.cat([later.scale[:, None] * self.left + later.left @ (later.right.T @ self.left), later.left], 1),
            torch.cat([self.right, self.scale[:, None] * later.right], 1),
            later(self.offset[None])[0],
        )

    def fold(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """The weight [D, inputs] and bias [D] in float64 of the Linear that gives the mapped rows by itself."""
        weight = weight.detach().cpu().double()
        bias = torch.zeros_like(self.offset) if bias is None else bias.detach().cpu().double()
        return self.scale[:, None] * weight + self.left @ (self.right.T @ weight), self(bias[None])[0]

    def low_rank(self) -> tuple[Tensor, Tensor]:
        """B [D, r] and A [D, r] such that the map is h + B A^T h + offset."""
        scaled = (self.scale != 1).nonzero().flatten()
        units = torch.eye(len(self.scale), dtype=self.scale.dtype)[:, scaled]
        return torch.cat([self.left, units * (self.scale - 1)[scaled]], 1), torch.cat([self.right, units], 1)


@dataclass(frozen=True)
class AffineMap(Operator):
    """h + alpha (matrix h + offset): matrix [D, D] and offset [D] in float32. It is not saved in artefacts."""

    matrix: Annotated[Tensor, Array("D", "D")]
    offset: Annotated[Tensor, Array("D")]

    kind: ClassVar[str] = "affine"

    @property
    def width(self) -> int:
        return len(self.offset)

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        added = rows @ self.matrix.to(rows.device).T + self.offset.to(rows.device)
        torch.add(rows, alpha * added, out=out)

    def affine(self, alpha: float) -> Affine:
        matrix = self.matrix.double()
        identity = torch.eye(self.width, dtype=matrix.dtype)
        return Affine(
            torch.ones(self.width, dtype=matrix.dtype), alpha * matrix, identity, alpha * self.offset.double()
        )


def steered_pairs(operator: Operator, tokens: Iterable[Tensor], alpha: float) -> Iterable[tuple[Tensor, Tensor]]:
    """For the tokens [T, D] of each image: these, and what the operator adds to them, in float64."""
    for rows in tokens:
        rows = rows.float()
        done = apply(operator, rows, torch.full((len(rows), 1), alpha), torch.zeros(len(rows), dtype=torch.long)).rows
        yield rows.double(), done.double() - rows.double()


def nearest_map(operator: Operator, tokens: Iterable[Tensor], alpha: float) -> AffineMap:
    """The affine map that is nearest to an operator at a strength, on the tokens of some images; at alpha 1."""
    width = operator.width
    products = torch.zeros(width + 1, width + 1, dtype=torch.float64)
    targets = torch.zeros(width + 1, width, dtype=torch.float64)
    for rows, added in steered_pairs(operator, tokens, alpha):
        ones = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        products += ones.T @ ones
        targets += ones.T @ added
    count = float(products[-1, -1])
    if not count:
        raise InputError("no tokens were given: the nearest affine map is found on the tokens of some images")
    mean = products[-1, :-1] / count
    covariance = products[:-1, :-1] / count - torch.outer(mean, mean)
    shared = targets[:-1] / count - torch.outer(mean, targets[-1] / count)
    ridge = RIDGE * covariance.trace() / width * torch.eye(width, dtype=torch.float64)
    matrix = torch.linalg.solve(covariance + ridge, shared).T
    return AffineMap(matrix.float().contiguous(), (targets[-1] / count - matrix @ mean).float())


def explained(operator: Operator, nearest: AffineMap, tokens: Iterable[Tensor], alpha: float) -> float:
    """R^2: the share of the variance of what an operator adds to tokens that its nearest affine map adds, too."""
    missed, total, count = 0.0, 0.0, 0
    mean = torch.zeros(operator.width, dtype=torch.float64)
    matrix, offset = nearest.matrix.double(), nearest.offset.double()
    for rows, added in steered_pairs(operator, tokens, alpha):
        missed += float((added - rows @ matrix.T - offset).square().sum())
        total += float(added.square().sum())
        mean += added.sum(0)
        count += len(rows)
    variance = total - float(mean.square().sum()) / max(count, 1)
    return 1 - missed / variance if variance else float("nan")
