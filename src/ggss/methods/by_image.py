"""Rows of a batch, image by image, for operators that treat an image as a whole."""

from collections.abc import Iterator

import torch
from torch import Tensor


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
