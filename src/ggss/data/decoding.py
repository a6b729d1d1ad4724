"""The one decoder: from the bytes of an image file, or an image in memory, to an upright 8-bit RGB image.

| in the file | what is made of it |
| --- | --- |
| RGB, grey, black and white, palette, YCbCr | the same colours in RGB |
| 16-bit grey | scaled to 8 bits: 0 stays black, 65535 becomes white |
| 12-bit grey, and 16 bits where 0 is white (TIFF) | the same, from the range and the direction that the file tells |
| transparency, of any kind | laid over `BACKGROUND`, white |
| CMYK | RGB by the plain formula |
| an EXIF orientation | turned or mirrored as it says |
| several pictures in a photograph (MPO) | the first, which is the photograph |
| several frames or pages; float, 32-bit and other modes; more pixels than `PIL.Image.MAX_IMAGE_PIXELS` | refused |
| any format that is not in `FORMATS` | refused; some are programs that other programs would run, such as PostScript |

Colour profiles are not applied: the numbers of the file are taken as sRGB, as image processors of models do.
What changes a picture visibly (transparency, orientation, MPO) is said once for all pictures, by the logger `ggss`,
which prints to stderr unless a program configures it.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ggss.errors import InputError

DECODER = 3
"""The version of this file's rules. It is part of every digest of a file, so that no cache mixes two decoders."""

FORMATS = ("PNG", "JPEG", "JPEG2000", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM")

BACKGROUND = (255, 255, 255)
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)  # EXIF's tag, and its values for a quarter turn
BITS, PHOTOMETRIC = 258, 262  # TIFF's tags: how many bits a sample has, and (0) whether zero is white

_CONVERTED = {"1", "L", "P", "RGB", "YCbCr", "CMYK", "LA", "PA", "RGBA", "RGBa"}
_SIXTEEN_BITS = {"I;16", "I;16L", "I;16B", "I;16N"}
_REFUSED = {"F": "floating point", "I": "32-bit integers", "LAB": "L*a*b* colours", "HSV": "hue and saturation"}

_log = logging.getLogger("ggss")
_said: set[str] = set()


def decoded(data: bytes, name: str) -> Image.Image:
    """The image in the bytes of a file. InputError unless all of them decode, by the rules above."""
    with _opened(data, name) as image:
        if image.getexif().get(ORIENTATION, 1) not in (0, 1):
            _say(f"{name} is turned as its EXIF orientation says")
        if image.format == "MPO" and getattr(image, "n_frames", 1) > 1:
            _say(f"{name} holds several pictures (MPO), and the first is used")
        sixteen = _has_sixteen_bits(image)
        tags = _tags(image)  # before it is turned: then it has none
        upright = ImageOps.exif_transpose(image)
        return _scaled(upright, tags) if sixteen else in_rgb(upright, name)


def header_size(data: bytes, name: str) -> tuple[int, int]:
    """Width and height of the upright image, from the header and the checksums alone."""
    with _opened(data, name) as image:
        width, height = image.size
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
    shown = image.convert("RGBA")
    if shown.getchannel("A").getextrema() != (255, 255):
        _say(f"{name} has transparent parts, which are shown over white")
    return Image.alpha_composite(Image.new("RGBA", shown.size, BACKGROUND), shown).convert("RGB")


@contextmanager
def _opened(data: bytes, name: str) -> Iterator[Image.Image]:
    """The image of a file, not yet decoded; what goes wrong while it is used becomes an InputError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(BytesIO(data), formats=_formats()) as image:
                image.verify()  # checksums and the end of a PNG, which decoding alone does not look at
            with Image.open(BytesIO(data), formats=_formats()) as image:
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
    except UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise InputError(f"{name} has no known image format ({known}): save it as one of them") from error
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise InputError(f"{name} has more than {Image.MAX_IMAGE_PIXELS:,} pixels: make it smaller") from error
    except Exception as error:  # decoders raise exceptions of many types, such as struct.error
        raise InputError(f"{name} does not decode ({error}): replace it") from error


@cache
def _formats() -> list[str]:
    """Those of `FORMATS` that this Pillow has."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _tags(image: Image.Image) -> Mapping[int, Any]:
    """The tags of a TIFF; of other images none."""
    return getattr(image, "tag_v2", {})


def _has_sixteen_bits(image: Image.Image) -> bool:
    """Whether it is grey with 16 bits; PPM files have them in Pillow's mode for 32 bits."""
    return image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format in ("PNG", "PPM"))


def _require_mode(image: Image.Image, name: str) -> None:
    if image.mode not in _CONVERTED:
        kind = f"mode {image.mode!r}{f', {_REFUSED[image.mode]}' if image.mode in _REFUSED else ''}"
        raise InputError(f"{name} is of {kind}, which 8-bit RGB cannot show faithfully: save it in 8 or 16 bits")


def _scaled(image: Image.Image, tags: Mapping[int, Any]) -> Image.Image:
    """16-bit grey in RGB; of a file with a transparent value, that value is the background.

    Pillow gives what a TIFF holds, whatever its tags say of it.
    """
    values = np.asarray(image).astype(np.uint32)
    most = 4095 if tags.get(BITS) == (12,) else 65535
    level = (values * 255 + most // 2) // most
    grey = Image.fromarray((255 - level if tags.get(PHOTOMETRIC) == 0 else level).astype(np.uint8))
    shown = grey.convert("RGB")
    if isinstance(clear := image.info.get("transparency"), int):
        shown.paste(BACKGROUND, mask=Image.fromarray(values == clear))
    return shown


def _say(what: str) -> None:
    """Log this once for all pictures: of a message only the picture's name differs."""
    kind = what.rpartition("' ")[2]
    if kind not in _said:
        _said.add(kind)
        _log.warning("%s; the same holds for every picture like it", what)
