"""A picture: an image, a digest of its content, and labels of what it shows.

Photographs on disk, pictures inside a benchmark's file and painted ones are all used in the same way.
`attributes` are what a counterfactual set varies (race, gender); `context` is what it holds fixed (occupation,
identity).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from PIL import Image

from ggss.data.decoding import DECODER, decoded, header_size
from ggss.errors import InputError
from ggss.files import read_bounded

Context = tuple[tuple[str, str], ...]


class Picture(Protocol):
    """What every picture gives, wherever it comes from."""

    @property
    def name(self) -> str:
        """Its name in messages: a path, or what it shows."""
        ...

    @property
    def digest(self) -> str:
        """sha256 of all that decides the image: pictures of one digest are the same image."""
        ...

    @property
    def attributes(self) -> Mapping[str, str]: ...

    @property
    def context(self) -> Context: ...

    def image(self) -> Image.Image:
        """The image in RGB; InputError if it cannot be loaded."""
        ...


def labels(picture: Picture) -> dict[str, str]:
    """All labels of a picture: what is held fixed, then what is varied."""
    return dict(picture.context) | dict(picture.attributes)


def held_fixed(picture: Picture, attribute: str) -> Context:
    """The paper's context u of one attribute: the picture's context, then its other attributes."""
    return picture.context + tuple(pair for pair in picture.attributes.items() if pair[0] != attribute)


@dataclass(frozen=True)
class FilePicture:
    """A picture in a file of its own."""

    path: Path
    attributes: dict[str, str] = field(default_factory=dict, hash=False)
    context: Context = ()

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def digest(self) -> str:
        """sha256 of the file and its decoder; the file is read once."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return _digest_of(self._bytes())

    def image(self) -> Image.Image:
        """The picture in RGB, as `decoding` says; InputError unless the whole file decodes."""
        return decoded(self._bytes(), f"image {self.name!r}")

    def size(self) -> tuple[int, int]:
        """Width and height from the file's header, as `image` would show it; nothing is decoded."""
        return header_size(self._bytes(), f"image {self.name!r}")

    def _bytes(self) -> bytes:
        return read_bounded(self.path, "image")


@dataclass(frozen=True)
class BytesPicture:
    """A picture kept as the bytes of its file, as benchmarks hold it; equal when the bytes are."""

    digest: str
    data: bytes = field(repr=False, compare=False)
    attributes: dict[str, str] = field(default_factory=dict, hash=False)
    context: Context = ()

    @classmethod
    def of(cls, data: bytes) -> "BytesPicture":
        return cls(_digest_of(data), data)

    @property
    def name(self) -> str:
        return f"picture {self.digest[:12]}"

    def image(self) -> Image.Image:
        """The picture in RGB, as `decoding` says; InputError unless all of it decodes."""
        return decoded(self.data, self.name)


@dataclass(frozen=True)
class AbsentPicture:
    """A picture of which only the digest is known, as in a run that was read from a file."""

    digest: str
    attributes: dict[str, str] = field(default_factory=dict, hash=False)
    context: Context = ()

    @property
    def name(self) -> str:
        return f"picture {self.digest[:12]}"

    def image(self) -> Image.Image:
        raise InputError(f"the {self.name} is not here: a run's file holds answers, not pictures")


def size_of(picture: Picture) -> tuple[int, int]:
    """Width and height, without decoding if the picture is the content of a file."""
    if isinstance(picture, FilePicture):
        return picture.size()
    return header_size(picture.data, picture.name) if isinstance(picture, BytesPicture) else picture.image().size


def _digest_of(data: bytes) -> str:
    """sha256 of the bytes of a file and of the rules by which they are decoded."""
    return hashlib.sha256(b"decoder %d\n" % DECODER + data).hexdigest()
