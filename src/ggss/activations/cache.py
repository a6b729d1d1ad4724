"""The cache of activations on disk: its entries, what it contains, and deleting some of it.

An entry is a safetensors file with its key and a checksum of each tensor (`CacheEntry`). `CacheContents` lists only
files that ggss wrote, and only those are deleted: a file whose folder and name follow from the key written in it, and
a temporary file of such an entry that a killed process has left. Links and all other files stay.
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
VISIBLE, GRID = "visible", "grid"  # of the tokens' places
FOLDER = "activations"  # in the cache's folder
ABANDONED = 86_400.0  # seconds: an older temporary file was left by a process that was killed
_UNFINISHED = re.compile(r"\.([0-9a-f]{64})\.safetensors\.\d+")


@dataclass(frozen=True)
class CacheEntry:
    """The entry of a key in a folder, whether its file exists or not. width: of its rows, if known."""

    folder: Path
    key: str
    width: int | None = None

    @cached_property
    def path(self) -> Path:
        name = hashlib.sha256(self.key.encode()).hexdigest()
        return self.folder / name[:2] / f"{name}.safetensors"

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the file, completely or not at all."""
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        sums = {name: self._checksum(name, tensor) for name, tensor in contiguous.items()}
        write_whole(self.path, save(contiguous, {"key": self.key, **sums}), "set GGSS_CACHE to another folder")

    def read(self, name: str) -> Tensor | None:
        """A tensor as it was written; None if it does not exist, or if it is damaged or another key's."""
        try:
            with safe_open(self.path, "pt") as file:
                metadata = file.metadata() or {}
                tensor = file.get_tensor(name)
        except (OSError, SafetensorError, ValueError):
            return None
        intact = metadata.get("key") == self.key and metadata.get(name) == self._checksum(name, tensor)
        return tensor if intact and self._fits(name, tensor) else None

    def need(self, name: str) -> Tensor:
        """A tensor that existed a moment ago; InputError if it does not exist now."""
        if (tensor := self.read(name)) is None:
            raise InputError(f"the cache entry {str(self.path)!r} was deleted or damaged while in use: run again")
        return tensor

    def _checksum(self, name: str, tensor: Tensor) -> str:
        digest = hashlib.sha256(self.key.encode())
        hashing.add_tensor(digest, name, tensor)
        return digest.hexdigest()

    def _fits(self, name: str, tensor: Tensor) -> bool:
        """Whether it is a pooled row [D] or tokens [T, D], as wide as the site; or places of tokens."""
        if name == VISIBLE:
            return tensor.ndim == 1 and tensor.dtype == torch.int64
        if name == GRID:
            return tensor.ndim == 2 and tensor.shape[1] == 3 and tensor.is_floating_point()
        form = tensor.ndim == 1 and tensor.dtype == torch.float32 if name == POOLED else tensor.ndim == 2
        return form and tensor.is_floating_point() and self.width in (None, tensor.shape[-1])


@dataclass(frozen=True)
class CachedFile:
    """A file that ggss wrote: its size in bytes, when it was written, and its key, {} if it was not finished."""

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
    """The files of a cache, oldest first. others: how many files ggss did not write."""

    folder: Path
    files: tuple[CachedFile, ...]
    others: int

    @classmethod
    def read(cls, folder: Path) -> "CacheContents":
        """List a cache's folder; a folder that does not exist is empty."""
        root, files, others = folder / FOLDER, [], 0
        for path in sorted(root.rglob("*")) if root.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                continue
            file = _cached_file(root, path)
            files += [file] if file else []
            others += file is None
        files.sort(key=lambda file: (file.written, file.path))
        return cls(folder, tuple(files), others)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def groups(self) -> list[CachedGroup]:
        """By model and site, largest first."""
        by_group: dict[tuple[str, str], list[CachedFile]] = {}
        for file in self.files:
            model, site = str(file.key.get("model", "")), str(file.key.get("site", ""))
            by_group.setdefault((model[:12], site), []).append(file)
        groups = [
            CachedGroup(*name, len(files), sum(file.size for file in files), files[0].written, files[-1].written)
            for name, files in by_group.items()
        ]
        return sorted(groups, key=lambda group: (-group.size, group.model, group.site))

    def expendable(
        self, now: float, older_than: float | None = None, max_size: int | None = None
    ) -> list[CachedFile]:
        """The files to delete: those written more than `older_than` seconds ago, then the oldest until the rest fits.

        Unfinished files that no process can still be writing are always among them.
        """
        expendable, remaining = [], []
        for file in self.files:
            limit = older_than if file.key else ABANDONED
            (expendable if limit is not None and now - file.written > limit else remaining).append(file)
        size = sum(file.size for file in remaining)
        for file in remaining:
            if max_size is None or size <= max_size:
                break
            if file.key:
                expendable.append(file)
                size -= file.size
        return expendable


def delete(files: Iterable[CachedFile]) -> tuple[int, int]:
    """Delete files, and folders that are empty afterwards. Returns the number and the bytes of deleted files.

    A file that has changed since it was listed is not deleted.
    """
    count = size = 0
    for file in files:
        with suppress(FileNotFoundError):
            status = file.path.lstat()
            if (status.st_size, status.st_mtime) != (file.size, file.written):
                continue
            file.path.unlink()
            count, size = count + 1, size + file.size
        with suppress(OSError):
            file.path.parent.rmdir()  # fails if it is not empty
    return count, size


def _cached_file(root: Path, path: Path) -> CachedFile | None:
    """The file if ggss wrote it, else None."""
    status = path.lstat()
    if not S_ISREG(status.st_mode):
        return None
    if (unfinished := _UNFINISHED.fullmatch(path.name)) and path.parent == root / unfinished[1][:2]:
        return CachedFile(path, status.st_size, status.st_mtime, {})
    key = _key(path)
    if CacheEntry(root, key).path != path:
        return None
    return CachedFile(path, status.st_size, status.st_mtime, json.loads(key))


def _key(path: Path) -> str:
    """The key that is written in a file; "" if it is not a safetensors file with a key."""
    with suppress(OSError, SafetensorError, ValueError), safe_open(path, "pt") as file:
        return (file.metadata() or {}).get("key", "")
    return ""
