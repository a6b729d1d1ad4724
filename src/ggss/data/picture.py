"""A picture: an image, a digest of its content, and labels of what it shows.

Photographs on disk, pictures inside a benchmark's file and painted ones are all used in the same way.
`attributes` are what a counterfactual set varies (race, gender); `context` is what it holds fixed (occupation,
identity).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Protocol

from PIL import Image, ImageOps, UnidentifiedImageError

from ggss.errors import InputError

Context = tuple[tuple[str, str], ...]

ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)  # EXIF's tag, and its values for a quarter turn


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
        """sha256 of the file, read once."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self._bytes()).hexdigest()

    def image(self) -> Image.Image:
        """The picture in RGB, rotated as its EXIF says; InputError unless the whole file decodes."""
        return decoded(self._bytes(), f"image {self.name!r}")

    def size(self) -> tuple[int, int]:
        """Width and height from the file's header, as `image` would show it; nothing is decoded."""
        return header_size(self._bytes(), f"image {self.name!r}")

    def _bytes(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError as error:
            raise InputError(f"image {self.name!r} does not exist: correct its path") from error
        except (OSError, ValueError) as error:
            raise InputError(f"image {self.name!r} cannot be read: {error}") from error


@dataclass(frozen=True)
class BytesPicture:
    """A picture kept as the bytes of its file, as benchmarks hold it; equal when the bytes are."""

    digest: str
    data: bytes = field(repr=False, compare=False)
    attributes: dict[str, str] = field(default_factory=dict, hash=False)
    context: Context = ()

    @classmethod
    def of(cls, data: bytes) -> "BytesPicture":
        return cls(hashlib.sha256(data).hexdigest(), data)

    @property
    def name(self) -> str:
        return f"picture {self.digest[:12]}"

    def image(self) -> Image.Image:
        """The picture in RGB, rotated as its EXIF says; InputError unless all of it decodes."""
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


def decoded(data: bytes, name: str) -> Image.Image:
    """The one decoder: the bytes of an image file in RGB, upright. InputError unless all of them decode."""
    try:
        with Image.open(BytesIO(data)) as image:
            image.verify()  # checksums and the end of a PNG, which decoding alone does not look at
        with Image.open(BytesIO(data)) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # decoders raise exceptions of many types, such as struct.error
        raise _broken(name, error) from error


def header_size(data: bytes, name: str) -> tuple[int, int]:
    """Width and height of the upright image, from the header and the checksums alone."""
    try:
        with Image.open(BytesIO(data)) as image:
            image.verify()
        with Image.open(BytesIO(data)) as image:
            width, height = image.size
            # If a PNG has no EXIF before its pixels, `getexif` would decode all of them to look for it at the end.
            described = "exif" in image.info or image.format == "TIFF"
            turned = described and image.getexif().get(ORIENTATION, 1) in SIDEWAYS
        return (height, width) if turned else (width, height)
    except Exception as error:  # as above
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> InputError:
    if isinstance(error, UnidentifiedImageError):
        return InputError(f"{name} has no known image format: replace it")
    return InputError(f"{name} does not decode ({error}): replace it")
