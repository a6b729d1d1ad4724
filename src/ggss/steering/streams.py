"""Sequences of tensors too large for memory, in one safetensors file. It is written one tensor at a time, and
memory-mapped when it is read.

Tensor i of sequence S is named `S/i`. The artefact has the sha256 of the whole file, so the file is read through once
when an artefact is loaded.
"""

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ggss.errors import InputError
from ggss.files import require_file, write_whole
from ggss.progress import track

CHUNK = 2**24  # bytes read at a time for the sha256
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


class Stored(Sequence[Tensor]):
    """The tensors of one sequence. A tensor is mapped when it is indexed, and freed with its last reference."""

    def __init__(self, path: Path, name: str, size: int) -> None:
        self.path, self.name, self.size = path, name, size

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, i: int) -> Tensor: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, i: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(self.size))]
        if not -self.size <= i < self.size:
            raise IndexError(i)
        with safe_open(self.path, "pt") as file:
            return file.get_tensor(f"{self.name}/{i % self.size}")


def write(path: Path, sequences: Mapping[str, Sequence[Tensor]]) -> str:
    """Write the sequences, one tensor in memory at a time, completely or not at all; returns the file's sha256."""
    header: dict[str, object] = {}
    digest = hashlib.sha256()
    end = 0
    for name, sequence in sequences.items():
        for i, tensor in enumerate(sequence):
            start, end = end, end + tensor.numel() * tensor.element_size()
            described = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
            header[f"{name}/{i}"] = described
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def pieces() -> Iterator[bytes]:
        yield struct.pack("<Q", len(text)) + text
        for sequence in sequences.values():
            for tensor in sequence:
                yield tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()

    def hashed() -> Iterator[bytes]:
        for piece in pieces():
            digest.update(piece)
            yield piece

    write_whole(path, hashed())
    return digest.hexdigest()


def read(path: Path, sha256: str) -> dict[str, Sequence[Tensor]]:
    """The sequences of a file, memory-mapped; InputError unless it is the whole file with this sha256."""
    require_file(path, "the steerer's file")
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for _ in track(range(0, path.stat().st_size, CHUNK), "checking references"):
                digest.update(file.read(CHUNK))
        if digest.hexdigest() != sha256:
            raise InputError(f"{str(path)!r} was changed, cut short, or is of another steerer: save this one again")
        with safe_open(path, "pt") as file:
            names = set(file.keys())
    except (OSError, SafetensorError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}): save the steerer again") from error
    sizes = Counter(name.rpartition("/")[0] for name in names)
    if names != {f"{name}/{i}" for name, size in sizes.items() for i in range(size)}:
        raise InputError(f"{str(path)!r} lacks some of its numbered tensors: save the steerer again")
    return {name: Stored(path, name, size) for name, size in sizes.items()}
