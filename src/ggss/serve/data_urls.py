"""Pictures in a request: data URLs, decoded within limits. No other address is ever opened."""

import base64
import binascii

from ggss.data.decoding import header_size
from ggss.errors import InputError
from ggss.serve.limits import Limits
from ggss.serve.refusal import Refusal, wrong


def picture_bytes(url: str, limits: Limits, param: str) -> bytes:
    """The bytes of a data URL's file; a Refusal if there is anything but a picture of an allowed size in it.

    Of the picture only the header is read here. The model's process decodes it, by `ggss.data.decoding`.
    """
    head, comma, encoded = url.partition(",")
    if not head[:5].lower() == "data:":
        raise wrong(
            "an image must be a data URL, `data:image/png;base64,...`: this server opens no addresses, "
            f"seen one that begins with {url[:12]!r}",
            param,
        )
    kind, *settings = head[5:].lower().split(";")
    if not comma or not kind.strip().startswith("image/") or "base64" not in (one.strip() for one in settings):
        raise wrong(f"an image's data URL begins with `data:image/...;base64,`, seen {head[:40]!r}", param)
    if len(encoded) * 3 // 4 > limits.picture + 3:
        raise _large(len(encoded) * 3 // 4, limits, param)
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise wrong(f"an image's data URL is not base64 ({error})", param) from error
    if len(data) > limits.picture:
        raise _large(len(data), limits, param)
    try:
        width, height = header_size(data, "the image")
    except InputError as error:
        raise wrong(str(error), param) from error
    if width * height > limits.pixels:
        raise wrong(f"an image has {width} x {height} pixels, at most {limits.pixels:,} are allowed", param)
    return data


def _large(size: int, limits: Limits, param: str) -> Refusal:
    return wrong(f"an image has {size:,} bytes, at most {limits.picture:,} are allowed", param)
