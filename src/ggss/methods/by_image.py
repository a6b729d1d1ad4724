"""Rows of a batch, image by image, for operators that treat an image as a whole."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ggss.methods.operator import Operator, require_finite
from ggss.methods.spherical import precise


@dataclass(frozen=True)
class ByImage(Operator):
    """Base of operators that decide by an image's mean row what happens to all of its rows.

    Without `images` all rows count as one image. Pooling is over all rows of the image that the site gives.
    """

    needs_images: ClassVar[bool] = True

    def steer_image(self, rows: Tensor, pooled: Tensor, alpha: Tensor, out: Tensor) -> None:
        """Write the steered rows [n, D] of one image into `out`, which may be `rows`; pooled [D] is in float64."""
        raise NotImplementedError

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        for own in parts(images, len(rows)):
            mine = rows[own]
            pooled = mean_row(mine, precise(rows))
            if not torch.isfinite(pooled).all():
                require_finite(mine, len(rows))
            if isinstance(own, slice):
                self.steer_image(mine, pooled, alpha[own], out[own])
            else:
                self.steer_image(mine, pooled, alpha[own], mine)
                out[own] = mine


def mean_row(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The mean [D] of rows [N, D]: float32 sums of 64 rows each, added up in `dtype`; no copy of all rows in it."""
    return torch.stack([some.sum(0) for some in rows.split(64)]).to(dtype).sum(0) / len(rows)


def parts(images: Tensor | None, count: int) -> Iterator[slice | Tensor]:
    """The rows of each image: a slice where they are contiguous, else their positions.

    images [count] is the image number of each row; None means that all rows are of one image.
    """
    if images is None:
        if count:
            yield slice(0, count)
        return
    names, lengths = torch.unique_consecutive(images, return_counts=True)
    if len(names.unique()) < len(names):
        yield from ((images == name).nonzero().flatten() for name in images.unique())
        return
    start = 0
    for length in lengths.tolist():
        yield slice(start, start + length)
        start += length
