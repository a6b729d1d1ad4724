"""What the cache on disk holds, and deleting some of it. Only files that ggss wrote are ever counted or deleted.

Ours is a file whose place and name follow from the key that is written in it (`CacheEntry`), and a temporary file of
such an entry that a killed process has left. Links and everything else in the folder are left alone.

One entry of the cache on disk: a safetensors file that says which key it is of, and a checksum of each tensor.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from stat import S_ISREG
from typing import Any

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
        hashing.add_tensor(digest, name, tensor)
        return digest.hexdigest()

    def _fits(self, name: str, tensor: Tensor) -> bool:
        """One row, or rows of tokens, as wide as the site."""
        form = tensor.ndim == 1 and tensor.dtype == torch.float32 if name == POOLED else tensor.ndim == 2
        return form and tensor.is_floating_point() and self.width in (None, tensor.shape[-1])


FOLDER = "activations"  # in the cache's folder
ABANDONED = 86_400.0  # seconds: a temporary file that is older was left by a process that was killed
_UNFINISHED = re.compile(r"\.([0-9a-f]{64})\.safetensors\.\d+")


@dataclass(frozen=True)
class CachedFile:
    """A file that ggss wrote: its size in bytes, when it was written, and its key; {} if it was never finished."""

    path: Path
    size: int
    written: float
    key: dict[str, Any]


@dataclass(frozen=True)
class CachedGroup:
    """The entries of a model (the first digits of its visual identity) at a site."""

    model: str
    site: str
    entries: int
    size: int
    oldest: float
    newest: float


@dataclass(frozen=True)
class CacheContents:
    """The files of a cache, oldest first; `others`: how many files there are that ggss did not write."""

    folder: Path
    files: tuple[CachedFile, ...]
    others: int

    @classmethod
    def read(cls, folder: Path) -> "CacheContents":
        """Look at a cache's folder; one that does not exist is empty."""
        place, found, others = folder / FOLDER, [], 0
        for path in sorted(place.rglob("*")) if place.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                continue
            own = _own(place, path)
            found += [own] if own else []
            others += own is None
        return cls(folder, tuple(sorted(found, key=lambda file: (file.written, file.path))), others)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def groups(self) -> list[CachedGroup]:
        """By model and site, largest first."""
        by: dict[tuple[str, str], list[CachedFile]] = {}
        for file in self.files:
            model, site = str(file.key.get("model", "")), str(file.key.get("site", ""))
            by.setdefault((model[:12], site), []).append(file)
        made = [
            CachedGroup(*name, len(own), sum(one.size for one in own), own[0].written, own[-1].written)
            for name, own in by.items()
        ]
        return sorted(made, key=lambda group: (-group.size, group.model, group.site))

    def expendable(
        self, now: float, older_than: float | None = None, max_size: int | None = None
    ) -> list[CachedFile]:
        """What to delete: files written more than `older_than` seconds ago, and then the oldest until the rest fits.

        Unfinished files that no process can be writing any more are always among them.
        """
        chosen, left = [], []
        for file in self.files:
            limit = older_than if file.key else ABANDONED
            (chosen if limit is not None and now - file.written > limit else left).append(file)
        size = sum(file.size for file in left)
        for file in left:
            if max_size is None or size <= max_size:
                break
            if file.key:
                chosen.append(file)
                size -= file.size
        return chosen


def delete(files: Iterable[CachedFile]) -> tuple[int, int]:
    """Delete files, and folders that are empty then. Returns how many were deleted, and their bytes.

    A file that is no longer the one that was looked at is left.
    """
    count = size = 0
    for file in files:
        with suppress(FileNotFoundError):
            seen = file.path.lstat()
            if (seen.st_size, seen.st_mtime) != (file.size, file.written):
                continue
            file.path.unlink()
            count, size = count + 1, size + file.size
        with suppress(OSError):
            file.path.parent.rmdir()  # which refuses if it is not empty
    return count, size


def _own(place: Path, path: Path) -> CachedFile | None:
    """The file, if ggss wrote it."""
    seen = path.lstat()
    if not S_ISREG(seen.st_mode):
        return None
    if (unfinished := _UNFINISHED.fullmatch(path.name)) and path.parent == place / unfinished[1][:2]:
        return CachedFile(path, seen.st_size, seen.st_mtime, {})
    key = _key(path)
    if CacheEntry(place, key).path != path:
        return None
    return CachedFile(path, seen.st_size, seen.st_mtime, json.loads(key))


def _key(path: Path) -> str:
    """The key that is written in a file; empty if it is no safetensors file with one."""
    with suppress(OSError, SafetensorError, ValueError), safe_open(path, "pt") as file:
        return (file.metadata() or {}).get("key", "")
    return ""
