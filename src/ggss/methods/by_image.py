"""Rows of a batch, image by image, for operators that treat an image as a whole."""

from collections.abc import Iterator

import torch
from torch import Tensor


def mean_row(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The mean [D] of rows [N, D]: float32 sums of a few rows, added up in `dtype` without a wide copy of all."""
    return torch.stack([some.sum(0) for some in rows.split(64)]).to(dtype).sum(0) / len(rows)


def parts(images: Tensor | None, count: int) -> Iterator[slice | Tensor]:
    """What selects the rows of each image: a slice where they lie together, else their positions.

    images [count] numbers the image of each row; None means that all rows are of one.
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
