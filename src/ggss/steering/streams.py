"""Sequences of tensors too large for memory, in one safetensors file. It is written one tensor at a time, and
memory-mapped when it is read.

Tensor i of sequence S is named `S/i`. The header has the sha256 of the artefact's small tensors, so that files of two
artefacts are not mixed. An incomplete file is refused by the safetensors format itself.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ggss.errors import InputError
from ggss.files import write_whole

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


def write(path: Path, sequences: Mapping[str, Sequence[Tensor]], belongs_to: str) -> None:
    """Write the sequences with one tensor in memory at a time; the file is written completely or not at all."""
    header: dict[str, object] = {"__metadata__": {"belongs_to": belongs_to}}
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

    write_whole(path, pieces())


def read(path: Path, belongs_to: str) -> dict[str, Sequence[Tensor]]:
    """The sequences of a file, memory-mapped; InputError if it is incomplete or belongs to another artefact."""
    try:
        with safe_open(path, "pt") as file:
            owner, names = (file.metadata() or {}).get("belongs_to"), list(file.keys())
    except (OSError, SafetensorError) as error:
        raise InputError(f"{str(path)!r} is missing or cut short ({error}): save the steerer again") from error
    if owner != belongs_to:
        raise InputError(f"{str(path)!r} belongs to another steerer: save this one again")
    counts: dict[str, int] = {}
    for name in names:
        sequence = name.rpartition("/")[0]
        counts[sequence] = counts.get(sequence, 0) + 1
    return {name: Stored(path, name, count) for name, count in counts.items()}
