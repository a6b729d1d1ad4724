"""A picture: an image, a digest of its content, and labels of what it shows.

Photographs on disk, pictures inside a benchmark's file and painted ones are all used in the same way.
`attributes` are what a counterfactual set varies (race, gender); `context` is what it holds fixed (occupation,
identity).

All images are decoded here (`decoded`, `in_rgb`), into an upright 8-bit RGB image.

| in the file | result |
| --- | --- |
| RGB, grey, black and white, palette, YCbCr | the same colours in RGB |
| 16-bit grey | scaled to 8 bits: 0 stays black, 65535 becomes white |
| 12-bit grey, and 16 bits where 0 is white (TIFF) | the same, by the range and direction that the file says |
| transparency, of any kind | laid over `BACKGROUND`, white |
| CMYK | RGB by the plain formula |
| an EXIF orientation | turned or mirrored as it says |
| several pictures in a photograph (MPO) | the first, which is the photograph |
| several frames or pages; float, 32-bit and other modes; more pixels than `PIL.Image.MAX_IMAGE_PIXELS` | refused |
| any format that is not in `FORMATS` | refused; some are programs that other programs would run, such as PostScript |
| more metadata than a camera or an editor writes (`METADATA`, `PARTS`, `TAGS`) | refused before Pillow reads it |
| a file that takes longer than `SECONDS` plus `SECONDS_PER_MEGAPIXEL` of CPU time | refused |

A picture is as large as its file says, unless a cap is put on its longer side (`ShrunkPicture`).

Colour profiles are not applied: the numbers of the file are taken as sRGB, as image processors of models do.
Rules that change a picture visibly (transparency, orientation, MPO) are logged once for all pictures, by the logger
`ggss`, which prints to stderr unless a program configures it. Pillow's own warnings about damaged metadata are
counted and not shown: a file can cause one for each of its tags.
"""

import hashlib
import logging
import os
import re
import struct
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ggss import errors
from ggss.errors import InputError
from ggss.files import read_bounded

PICTURE = "<picture>"  # in the text of a question: where a picture is shown
SYSTEM = "<system turn>"  # in the text of a question: what is before it is the system turn

Context = tuple[tuple[str, str], ...]
"""What is held fixed: (column, value) pairs."""

DECODER = 3
"""The version of these rules. It is part of every digest of a file, so that no cache mixes two decoders."""

FORMATS = ("PNG", "JPEG", "JPEG2000", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM")

BACKGROUND = (255, 255, 255)
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)  # EXIF's tag, and its values for a quarter turn
WIDTH, HEIGHT = 256, 257  # TIFF's tags
BITS, PHOTOMETRIC = 258, 262  # TIFF's tags: how many bits a sample has, and (0) whether zero is white

METADATA = 8 * 2**20  # bytes of a file's parts that are not pixels
PARTS = 1_000  # chunks of a PNG or WebP, segments of a JPEG
PIXEL_PART = 1_024  # bytes of a PNG for which it may have one more chunk
TAGS = 1_000  # of EXIF, and of a TIFF
SCANS = 100  # of a JPEG; a progressive one has about ten, and each goes over all pixels
SECONDS, SECONDS_PER_MEGAPIXEL = 5.0, 0.5

_CONVERTED = {"1", "L", "P", "RGB", "YCbCr", "CMYK", "LA", "PA", "RGBA", "RGBa"}
_SIXTEEN_BITS = {"I;16", "I;16L", "I;16B", "I;16N"}
_REFUSED = {"F": "floating point", "I": "32-bit integers", "LAB": "L*a*b* colours", "HSV": "hue and saturation"}

_PIXELS = {b"IDAT", b"VP8 ", b"VP8L", b"ALPH", b"ANMF"}
_EXIF = {b"eXIf", b"EXIF", b"\xff\xe1"}
_TIFF = {b"II": "<", b"MM": ">"}
_ALONE = {bytes([0x01]), *(bytes([number]) for number in range(0xD0, 0xDA))}  # a JPEG's markers without content
_MARKER = re.compile(rb"\xff([^\x00\xff])", re.DOTALL)  # of a JPEG's segment; bytes before it are skipped

_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{1,15})?")

_log = logging.getLogger("ggss")
_logged: set[str] = set()


def decoded(data: bytes, name: str) -> Image.Image:
    """The image in the bytes of a file. InputError unless all of them decode, by the rules above."""
    with _opened(data, name) as image:
        if image.getexif().get(ORIENTATION, 1) not in (0, 1):
            _log_once(f"{name} is turned as its EXIF orientation says")
        if image.format == "MPO" and getattr(image, "n_frames", 1) > 1:
            _log_once(f"{name} holds several pictures (MPO), and the first is used")
        sixteen = _has_sixteen_bits(image)
        tags = _tags(image)  # read before the image is turned, which drops them
        upright = ImageOps.exif_transpose(image)
        return _scaled(upright, tags) if sixteen else in_rgb(upright, name)


def header_size(data: bytes, name: str) -> tuple[int, int]:
    """Width and height of the upright image, from the header and the checksums alone."""
    with _opened(data, name) as image:
        # For a TIFF Pillow returns the size after turning, for other formats the stored size.
        width, height = (_tags(image)[tag] for tag in (WIDTH, HEIGHT)) if image.format == "TIFF" else image.size
        # If a PNG has no EXIF before its pixels, `getexif` would decode all of them to look for it at the end.
        described = "exif" in image.info or image.format == "TIFF"
        turned = described and image.getexif().get(ORIENTATION, 1) in SIDEWAYS
    return (height, width) if turned else (width, height)


def in_rgb(image: Image.Image, name: str) -> Image.Image:
    """An image in memory, in RGB. InputError if it is of a mode that RGB cannot show faithfully."""
    if _has_sixteen_bits(image):
        return _scaled(image, _tags(image))
    _require_mode(image, name)
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    rgba = image.convert("RGBA")
    if rgba.getchannel("A").getextrema() != (255, 255):
        _log_once(f"{name} has transparent parts, which are shown over white")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, BACKGROUND), rgba).convert("RGB")


@contextmanager
def _opened(data: bytes, name: str) -> Iterator[Image.Image]:
    """The image of a file, not yet decoded. Exceptions inside the block become InputErrors."""
    _check_metadata(data, name)
    clock = _Clock()
    try:
        with pillow_warnings:
            with Image.open(_TimedBytes(data, clock), formats=_formats()) as image:
                clock.allow(image)
                image.verify()  # checksums and the end of a PNG, which decoding does not check
            with Image.open(_TimedBytes(data, clock), formats=_formats()) as image:
                frames = getattr(image, "n_frames", 1)
                if frames > 1 and image.format != "MPO":
                    raise InputError(
                        f"{name} has {frames} frames or pages ({image.format}): save the one that is meant"
                    )
                if not _has_sixteen_bits(image):
                    _require_mode(image, name)
                yield image
    except InputError:
        raise
    except _TooSlow as error:
        raise InputError(f"{name} takes longer than {clock.seconds:g} s to decode: save it in another way") from error
    except UnidentifiedImageError as error:
        formats = ", ".join(FORMATS)
        raise InputError(f"{name} has no known image format ({formats}): save it as one of them") from error
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise InputError(f"{name} has more than {Image.MAX_IMAGE_PIXELS:,} pixels: make it smaller") from error
    except Exception as error:  # decoders raise exceptions of many types, such as struct.error
        raise InputError(f"{name} does not decode ({error}): replace it") from error


class _TooSlow(Exception):
    """A picture has used up its CPU time."""


class _Clock:
    """CPU time of this thread, so that a busy machine refuses no picture."""

    def __init__(self) -> None:
        self._start, self.seconds = time.thread_time(), SECONDS

    def allow(self, image: Image.Image) -> None:
        """Large pictures may take longer."""
        self.seconds = SECONDS + SECONDS_PER_MEGAPIXEL * image.width * image.height / 1e6

    def check(self) -> None:
        if time.thread_time() - self._start > self.seconds:
            raise _TooSlow


class _TimedBytes(BytesIO):
    """A file that can be read only while there is time: every decoder of Pillow reads piece by piece."""

    def __init__(self, data: bytes, clock: _Clock) -> None:
        super().__init__(data)
        self._clock = clock

    def read(self, size: int | None = -1, /) -> bytes:
        self._clock.check()
        return super().read(size)


class PillowWarnings:
    """While at least one thread is in the block, Pillow's warnings are counted and not shown.

    `warnings.catch_warnings` alone is not thread-safe: if two threads leave in another order than they entered, the
    filters of one of them stay.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lock, self._threads = threading.Lock(), 0
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            self._threads += 1
            if self._threads == 1:
                self._caught = warnings.catch_warnings()
                self._caught.__enter__()
                self._show = warnings.showwarning
                warnings.showwarning = self._counted
                warnings.filterwarnings("always", module=r"PIL(\.|$)")
                warnings.simplefilter("error", Image.DecompressionBombWarning)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._threads -= 1
            if not self._threads:
                self._caught.__exit__(None, None, None)

    def _counted(self, message: Any, category: Any, filename: str, *details: Any) -> None:
        if f"{os.sep}PIL{os.sep}" not in filename:
            return self._show(message, category, filename, *details)
        self.count += 1


pillow_warnings = PillowWarnings()


def _check_metadata(data: bytes, name: str) -> None:
    """InputError if a file has so much metadata that reading it would cost more than the picture."""
    size, exif = 0, b""
    for parts, (kind, start, length) in enumerate(_parts(data), 1):
        if kind not in _PIXELS:
            size += length
        if kind in _EXIF:
            exif += data[start : start + length]
        most = PARTS + (len(data) // PIXEL_PART if kind == b"IDAT" else 0)
        if parts > most:
            raise _excessive(name, f"more than {most:,} parts")
        if size > METADATA:
            raise _excessive(name, f"more than {METADATA:,} bytes of metadata")
    if data.startswith(b"\xff\xd8") and data.count(b"\xff\xda") > SCANS:
        raise _excessive(name, f"more than {SCANS} scans")
    block = data if data[:2] in _TIFF else exif.removeprefix(b"Exif\0\0")
    if _tag_count(block) > TAGS:
        raise _excessive(name, f"more than {TAGS:,} tags")


def _excessive(name: str, excess: str) -> InputError:
    return InputError(f"{name} has {excess}, which no camera writes: save it without metadata")


def _parts(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The parts of a PNG or WebP, or of a JPEG up to its pixels: kind, where the content begins, and its length."""
    end = len(data)
    place = 8 if data.startswith(b"\x89PNG\r\n\x1a\n") else 12
    if place == 8:
        kind = b""
        while place + 8 <= end and kind != b"IEND":
            length, kind = struct.unpack_from(">I4s", data, place)
            yield kind, place + 8, min(length, end - place)
            place += length + 12
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        while place + 8 <= end:
            kind, length = struct.unpack_from("<4sI", data, place)
            yield kind, place + 8, min(length, end - place)
            place += 8 + length + length % 2
    elif data.startswith(b"\xff\xd8"):
        place = 2
        while marker := _MARKER.search(data, place):
            place = marker.end()
            if marker[1] == b"\xda" or place + 2 > end:  # the pixels begin
                break
            if marker[1] in _ALONE:
                yield marker[0], place, 0
                continue
            (length,) = struct.unpack_from(">H", data, place)
            yield b"\xff" + marker[1], place + 2, min(max(0, length - 2), end - place)
            place += max(2, length)


def _tag_count(block: bytes) -> int:
    """How many tags the directories of a TIFF or of EXIF declare, plus one for each directory; 0 for other data.

    Counting stops soon after `TAGS`, so it also ends for directories that point to each other.
    """
    order = _TIFF.get(block[:2], "")
    count = 0
    try:
        if not order:
            return 0
        big = struct.unpack_from(f"{order}H", block, 2)[0] == 43
        head, entry, pointer = ("Q", 20, "Q") if big else ("H", 12, "I")
        (place,) = struct.unpack_from(f"{order}{pointer}", block, 8 if big else 4)
        while place and count <= TAGS:
            (tags,) = struct.unpack_from(f"{order}{head}", block, place)
            count += tags + 1
            place += struct.calcsize(f"{order}{head}") + entry * tags
            (place,) = struct.unpack_from(f"{order}{pointer}", block, place)
    except struct.error:  # a truncated directory: Pillow reports it
        pass
    return count


@cache
def _formats() -> list[str]:
    """Those of `FORMATS` that this Pillow has."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _tags(image: Image.Image) -> Mapping[int, Any]:
    """The tags of a TIFF; of other images none."""
    return getattr(image, "tag_v2", {})


def _has_sixteen_bits(image: Image.Image) -> bool:
    """Whether it is grey with 16 bits; for PNG and PPM files Pillow may have these in its mode for 32 bits."""
    return image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format in ("PNG", "PPM"))


def _require_mode(image: Image.Image, name: str) -> None:
    if image.mode not in _CONVERTED:
        kind = f"mode {image.mode!r}{f', {_REFUSED[image.mode]}' if image.mode in _REFUSED else ''}"
        raise InputError(f"{name} is of {kind}, which 8-bit RGB cannot show faithfully: save it in 8 or 16 bits")


def _scaled(image: Image.Image, tags: Mapping[int, Any]) -> Image.Image:
    """16-bit grey in RGB; a value that the file declares transparent becomes the background.

    Pillow returns the values of a TIFF as they are stored, so its tags are applied here.
    """
    values = np.asarray(image).astype(np.uint32)
    most = 4095 if tags.get(BITS) == (12,) else 65535
    level = (values * 255 + most // 2) // most
    grey = Image.fromarray((255 - level if tags.get(PHOTOMETRIC) == 0 else level).astype(np.uint8))
    rgb = grey.convert("RGB")
    if isinstance(clear := image.info.get("transparency"), int):
        rgb.paste(BACKGROUND, mask=Image.fromarray(values == clear))
    return rgb


def _log_once(message: str) -> None:
    """Log a message once for all pictures: only the picture's name differs."""
    kind = message.rpartition("' ")[2]
    if kind not in _logged:
        _logged.add(kind)
        _log.warning("%s; the same holds for every picture like it", message)


class Picture(Protocol):
    """What every picture has, wherever it comes from."""

    @property
    def name(self) -> str:
        """Its name in messages: a path, or what it shows."""
        ...

    @property
    def digest(self) -> str:
        """sha256 of everything that determines the image: pictures of one digest are the same image."""
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


def as_number(label: str) -> float | None:
    """The number that a label is, such as an age in years; None for any other text."""
    return float(label) if _NUMBER.fullmatch(label) else None


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
        """The picture in RGB, as the table above says; InputError unless the whole file decodes."""
        return decoded(self._bytes(), f"image {self.name!r}")

    def size(self) -> tuple[int, int]:
        """Width and height from the file's header, as `image` would show it; nothing is decoded."""
        return header_size(self._bytes(), f"image {self.name!r}")

    def _bytes(self) -> bytes:
        return read_bounded(self.path, "image")


@dataclass(frozen=True)
class BytesPicture:
    """A picture as the bytes of its file, as benchmarks have it; equal if the bytes are."""

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
        """The picture in RGB, as the table above says; InputError unless all of it decodes."""
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


@dataclass(frozen=True)
class ShrunkPicture:
    """A picture that is shrunk until its longer side has at most `max_side` pixels; a smaller one is as it was.

    By LANCZOS, with sides rounded down, as the authors' code shrinks every picture to 512 pixels.
    """

    picture: Picture
    max_side: int

    @property
    def name(self) -> str:
        return self.picture.name

    @property
    def attributes(self) -> Mapping[str, str]:
        return self.picture.attributes

    @property
    def context(self) -> Context:
        return self.picture.context

    @property
    def digest(self) -> str:
        """That of the picture if nothing is shrunk: then it is the same image."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        if not self._shrinks:
            return self.picture.digest
        return hashlib.sha256(f"max_side {self.max_side} of {self.picture.digest}".encode()).hexdigest()

    @cached_property
    def _shrinks(self) -> bool:
        return max(size_of(self.picture)) > self.max_side

    def image(self) -> Image.Image:
        image = self.picture.image()
        return image.resize(self.size(), Image.Resampling.LANCZOS) if self._shrinks else image

    def size(self) -> tuple[int, int]:
        """Width and height, without decoding if the picture is the content of a file."""
        width, height = size_of(self.picture)
        if not self._shrinks:
            return width, height
        scale = self.max_side / max(width, height)
        return max(1, int(width * scale)), max(1, int(height * scale))


def shrunk(picture: Picture, max_side: int | None) -> Picture:
    """The picture with at most so many pixels on its longer side; None: as it is."""
    if max_side is None:
        return picture
    errors.SIDE.check("max_side", max_side)
    return ShrunkPicture(picture, max_side)


def size_of(picture: Picture) -> tuple[int, int]:
    """Width and height, without decoding if the picture is the content of a file."""
    if isinstance(picture, FilePicture | ShrunkPicture):
        return picture.size()
    return header_size(picture.data, picture.name) if isinstance(picture, BytesPicture) else picture.image().size


def is_file(picture: Picture) -> bool:
    """Whether the picture is in a file of its own, whose header says its size."""
    return is_file(picture.picture) if isinstance(picture, ShrunkPicture) else isinstance(picture, FilePicture)


def _digest_of(data: bytes) -> str:
    """sha256 of the bytes of a file and of the rules by which they are decoded."""
    return hashlib.sha256(b"decoder %d\n" % DECODER + data).hexdigest()
