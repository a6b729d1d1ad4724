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

    rounded: applied to each floating-point tensor first.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        names = list(tensors)
        return of_digests(
            dict(zip(names, pool.map(lambda name: of_tensor(name, tensors[name], rounded), names), strict=True))
        )


def of_tensor(name: str, tensor: Tensor, rounded: Callable[[Tensor], Tensor] | None = None) -> str:
    """SHA-256 of the name, dtype, shape and bytes of a tensor. rounded: as in `of_tensors`."""
    digest = hashlib.sha256()
    add_tensor(digest, name, rounded(tensor) if rounded and tensor.is_floating_point() else tensor)
    return digest.hexdigest()


def of_digests(digests: Mapping[str, str]) -> str:
    """`of_tensors`, from the results of `of_tensor` by name: so tensors need not be in memory together."""
    return of([digests[name] for name in sorted(digests)])


def add(digest: Any, tensors: Mapping[str, Tensor]) -> None:
    """Add the names, dtypes, shapes and bytes of tensors to a hash, in the order of their names."""
    for name in sorted(tensors):
        add_tensor(digest, name, tensors[name])


def add_tensor(digest: Any, name: str, tensor: Tensor) -> None:
    """Add the name, dtype, shape and bytes of a tensor to a hash."""
    values = tensor.detach().cpu().contiguous()
    digest.update(f"{name} {values.dtype} {list(values.shape)}\n".encode())
    digest.update(values.view(-1).view(torch.uint8).numpy().data)
