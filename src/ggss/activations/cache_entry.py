"""One entry of the cache on disk: a safetensors file that says which key it is of, and a checksum of each tensor."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ggss import hashing
from ggss.errors import InputError
from ggss.files import write_whole

POOLED, TOKENS = "pooled", "tokens"


@dataclass(frozen=True)
class CacheEntry:
    """The entry of a key in a folder, whether its file is there or not. width: of its rows, if it is known."""

    folder: Path
    key: str
    width: int | None = None

    @cached_property
    def path(self) -> Path:
        name = hashlib.sha256(self.key.encode()).hexdigest()
        return self.folder / name[:2] / f"{name}.safetensors"

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the file, completely or not at all."""
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        sums = {name: self._checksum(name, tensor) for name, tensor in whole.items()}
        write_whole(self.path, save(whole, {"key": self.key, **sums}), "set GGSS_CACHE to another folder")

    def read(self, name: str) -> Tensor | None:
        """A tensor as it was written; None if it is not there, or if anything about it is not as it was."""
        try:
            with safe_open(self.path, "pt") as file:
                told = file.metadata() or {}
                tensor = file.get_tensor(name)
        except (OSError, SafetensorError, ValueError):
            return None
        whole = told.get("key") == self.key and told.get(name) == self._checksum(name, tensor)
        return tensor if whole and self._fits(name, tensor) else None

    def need(self, name: str) -> Tensor:
        """A tensor that was there a moment ago."""
        if (tensor := self.read(name)) is None:
            raise InputError(f"the cache entry {str(self.path)!r} was deleted or damaged while in use: run again")
        return tensor

    def _checksum(self, name: str, tensor: Tensor) -> str:
        digest = hashlib.sha256(self.key.encode())
        hashing.add_one(digest, name, tensor)
        return digest.hexdigest()

    def _fits(self, name: str, tensor: Tensor) -> bool:
        """One row, or rows of tokens, as wide as the site."""
        form = tensor.ndim == 1 and tensor.dtype == torch.float32 if name == POOLED else tensor.ndim == 2
        return form and tensor.is_floating_point() and self.width in (None, tensor.shape[-1])
