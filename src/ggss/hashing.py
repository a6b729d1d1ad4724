"""Content hashes of plain data and of named tensors."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

_THREADS = min(os.cpu_count() or 1, 8)


def of(value: Any) -> str:
    """SHA-256 of plain data, as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def of_tensors(tensors: Mapping[str, Tensor], rounded: Callable[[Tensor], Tensor] | None = None) -> str:
    """SHA-256 of the names, dtypes, shapes and bytes of tensors. Several are hashed at a time: a model has gigabytes.

    rounded: what is done to real numbers first, one tensor at a time.
    """

    def one(name: str) -> str:
        digest, tensor = hashlib.sha256(), tensors[name]
        add_one(digest, name, rounded(tensor) if rounded and tensor.is_floating_point() else tensor)
        return digest.hexdigest()

    with ThreadPoolExecutor(_THREADS) as pool:
        return of(list(pool.map(one, sorted(tensors))))


def add(digest: Any, tensors: Mapping[str, Tensor]) -> None:
    """Add the names, dtypes, shapes and bytes of tensors to a hash, in the order of their names."""
    for name in sorted(tensors):
        add_one(digest, name, tensors[name])


def add_one(digest: Any, name: str, tensor: Tensor) -> None:
    values = tensor.detach().cpu().contiguous()
    digest.update(f"{name} {values.dtype} {list(values.shape)}\n".encode())
    digest.update(values.view(-1).view(torch.uint8).numpy().data)
