"""The reference images of `bend_token`: they stay on disk, and every product with them is computed as a stream.

    R_i = vec(H_i) / |H_i|      q = R e^ [n]      sum_i w_i R_i      K = R R^T [n, n], once, while fitting

q and the sum take one pass over the references each, one reference at a time. K takes one pass for each block of
token positions; a block has these positions of all references. Products are float32, summed in float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ggss.errors import InputError, problems
from ggss.methods.declared import Array
from ggss.methods.operator import Operator
from ggss.progress import track

ROUNDING = 1e-4  # of a cosine from float32 products
BLOCK = 2**26  # numbers in a block of token positions of all references


@dataclass(frozen=True)
class References(Operator):
    """References [n] of [T, D] with their norms [n], labels [n] and the Gram matrix [n, n] of their directions."""

    references: Sequence[Tensor]
    norms: Annotated[Tensor, Array("n", dtype=torch.float64, ge=1e-30)]
    labels: Annotated[Tensor, Array("n", dtype=torch.int64, ge=0)]
    gram: Annotated[Tensor, Array("n", "n", dtype=torch.float64, ge=-1 - ROUNDING, le=1 + ROUNDING)]
    tokens: Annotated[int, Field(ge=1)]
    length: Annotated[int, Field(ge=1)]

    streamed: ClassVar[tuple[str, ...]] = ("references",)

    @property
    def width(self) -> int:
        return self.length

    def validate(self) -> None:
        count, shape = len(self.norms), (self.tokens, self.length)
        if len(self.references) != count:
            raise InputError(f"{len(self.references)} references do not fit a Gram matrix of {count}")
        for i, one in enumerate(self.references):
            if one.shape != shape or not one.is_floating_point():
                raise InputError(f"reference {i} is {tuple(one.shape)} of {one.dtype}, not {shape} of floating point")
        skewed = max((self.gram - self.gram.T).abs().max(), (self.gram.diagonal() - 1).abs().max())
        if skewed > ROUNDING:
            raise InputError(f"the Gram matrix is not symmetric with a diagonal of 1 (off by {float(skewed):.1e})")

    def cosines(self, rows: Tensor, norm: float) -> Tensor:
        """q = R e^ [n] in float64 for an image [T, D] of a given norm: a pass over the references."""
        image = rows.cpu()
        dots = [float(torch.linalg.vecdot(image, one.float()).double().sum()) for one in self.references]
        if not all(map(math.isfinite, dots)):
            raise InputError(
                "the references hold numbers that are not finite, or overflow float32: nothing was steered"
            )
        return torch.tensor(dots, dtype=torch.float64) / (self.norms * norm)

    def combined(self, coefficients: Tensor) -> Tensor:
        """sum_i w_i R_i as [T, D] in float32: a pass over the references that have a weight."""
        total = torch.zeros(self.tokens, self.length)
        for one, weight in zip(self.references, (coefficients / self.norms).tolist(), strict=True):
            if weight:
                total.add_(one, alpha=weight)
        return total

    def nearest(self, cosines: Tensor, count: int) -> Tensor:
        """The mean of each value's `count` nearest references, as coefficients [A, n]."""
        chosen = torch.zeros(int(self.labels.max()) + 1, len(cosines), dtype=torch.float64)
        for value, row in enumerate(chosen):
            own = (self.labels == value).nonzero().flatten()
            row[own[cosines[own].topk(count).indices]] = 1 / count
        return chosen

    @property
    def centre_differences(self) -> Tensor:
        """Each value's mean reference minus the mean of those means, as coefficients [A, n]."""
        one_hot = torch.nn.functional.one_hot(self.labels).double()
        centres = (one_hot / one_hot.sum(0)).T
        return centres - centres.mean(0)


def compared(tokens: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The norms [n] of images [T, D] and the Gram matrix [n, n] of their directions, in float64.

    InputError if they differ in their number of tokens, or one is zero.
    """
    count = len(tokens[0])
    others = [f"image {i} has {len(one)}" for i, one in enumerate(tokens) if len(one) != count]
    if others:
        raise problems(f"image 0 has {count} tokens and every image needs as many", others)
    gram = gram_matrix(tokens)
    norms = gram.diagonal().sqrt()
    if not bool((norms > 0).all()):
        raise InputError(f"all tokens of image {int(norms.argmin())} are zero: it has no direction")
    return norms, (gram / norms[:, None] / norms).fill_diagonal_(1)


def gram_matrix(tokens: Sequence[Tensor]) -> Tensor:
    """<vec(H_i), vec(H_j)> [n, n] in float64, from a block of token positions of all images at a time."""
    count, width = tokens[0].shape
    gram = torch.zeros(len(tokens), len(tokens), dtype=torch.float64)
    step = min(count, max(1, BLOCK // (len(tokens) * width)))
    room = torch.empty(len(tokens) * step * width)  # reused: a new block beside the old one would double the memory
    for start in track(range(0, count, step), "comparing references"):
        some = min(step, count - start)
        block = room[: len(tokens) * some * width].view(len(tokens), some, width)
        for i, one in enumerate(tokens):
            block[i] = one[start : start + some]
        flat = block.flatten(1)
        gram += (flat @ flat.T).double()
    return gram
