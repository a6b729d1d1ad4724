"""Content hashes of named tensors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def add(digest: Any, tensors: Mapping[str, Tensor]) -> None:
    """Add the names, dtypes, shapes and bytes of tensors to a hash, in the order of their names."""
    for name in sorted(tensors):
        add_one(digest, name, tensors[name])


def add_one(digest: Any, name: str, tensor: Tensor) -> None:
    values = tensor.detach().cpu().contiguous()
    digest.update(f"{name} {values.dtype} {list(values.shape)}\n".encode())
    digest.update(values.view(-1).view(torch.uint8).numpy().data)
