"""What travels with a picture from vLLM's front process to the model's: who acts on it, how strongly, and its key.

All of it is one tensor of 64-bit integers, so that no step on the way rounds it: the picture's key, then for each
steerer four words of its content hash and one with the bits of the strength.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

FIELD = "ggss"
"""The name of the field, and of the entry of `mm_processor_kwargs` in a request."""

_WORDS = 5  # of one steerer


@dataclass(frozen=True)
class PictureStrengths:
    """key: of the picture at these strengths. strengths: by the steerers' content, in the order in which they act."""

    key: int
    strengths: Mapping[str, float]


def packed(strengths: Mapping[str, float], key: int = 0) -> Tensor:
    """[1 + 5 steerers] int64."""
    words = [key]
    for content, alpha in strengths.items():
        words += struct.unpack(">4q", bytes.fromhex(content)) + struct.unpack(">q", struct.pack(">d", alpha))
    return torch.tensor(words, dtype=torch.int64)


def unpacked(words: Tensor) -> PictureStrengths:
    """ValueError if it is not what `packed` gives."""
    key, *rest = words.tolist()
    if words.dtype != torch.int64 or len(rest) % _WORDS:
        raise ValueError(f"{len(rest)} words of {words.dtype} are no strengths")
    strengths = {}
    for start in range(0, len(rest), _WORDS):
        *content, alpha = rest[start : start + _WORDS]
        strengths[struct.pack(">4q", *content).hex()] = struct.unpack(">d", struct.pack(">q", alpha))[0]
    return PictureStrengths(key, strengths)


def key_of(mm_hash: str) -> int:
    """A picture's key, from the hash under which vLLM keeps it: this covers the picture and all strengths."""
    return struct.unpack(">q", hashlib.sha256(mm_hash.encode()).digest()[:8])[0]
