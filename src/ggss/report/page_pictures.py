"""The pictures of a report: each is in the file once, as a small thumbnail, and shown wherever it is needed.

An SVG `<use>` repeats a picture without a script, also in print. A gate's heat is a picture with one pixel for each
token, which the browser enlarges over the face.
"""

import base64
import io
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup, escape
from PIL import Image, features

from ggss.data.picture import Picture
from ggss.errors import InputError

SIDE = 72  # pixels of a thumbnail
LOWEST = 0.0  # of the gate, where the heat is black
# From a shut gate to an open one.
_HEAT = np.array([(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], dtype=float)


@dataclass
class Thumbnails:
    """Collects the pictures as they are shown. public: none are."""

    public: bool = False
    lost: int = 0
    _known: dict[str, str] = field(default_factory=dict)
    _symbols: list[Markup] = field(default_factory=list)

    def face(self, picture: Picture, words: str) -> Markup:
        """The picture; empty if the report is public, or if the picture cannot be loaded."""
        if self.public:
            return Markup()
        if picture.digest not in self._known:
            try:
                self._known[picture.digest] = self._added(_thumbnail(picture.image()))
            except InputError:
                self._known[picture.digest] = ""
                self.lost += 1
        return _use(words, self._known[picture.digest])

    def heat(self, picture: Picture, whose: str, gate: np.ndarray, words: str) -> Markup:
        """The gate over a picture in grey. whose: what makes the gate another one on the same picture."""
        if self.public or not self._known.get(picture.digest):
            return Markup()
        key = f"{picture.digest}/{whose}"
        if key not in self._known:
            self._known[key] = self._added(_png(heat_colours(gate)))
        return _use(words, self._known[picture.digest], self._known[key])

    @property
    def symbols(self) -> Markup:
        """All pictures, to stand once in the page."""
        return Markup().join(self._symbols)

    def _added(self, address: str) -> str:
        name = f"p{len(self._symbols)}"
        self._symbols.append(
            Markup(
                f'<symbol id="{name}" viewBox="0 0 1 1" preserveAspectRatio="none"><image href="{address}" width="1" '
                'height="1" preserveAspectRatio="none"/></symbol>'
            )
        )
        return name


def heat_colours(gate: np.ndarray) -> np.ndarray:
    """Colours [rows, columns, 3] of a gate between LOWEST and 1."""
    share = np.clip((gate - LOWEST) / (1 - LOWEST), 0, 1) * (len(_HEAT) - 1)
    below = np.minimum(share.astype(int), len(_HEAT) - 2)
    part = (share - below)[..., None]
    return np.rint(_HEAT[below] * (1 - part) + _HEAT[below + 1] * part).astype(np.uint8)


def _use(words: str, face: str, heat: str = "") -> Markup:
    if not face:
        return Markup()
    over = Markup(f'<use href="#{heat}" class="heat"/>') if heat else Markup()
    grey = Markup(' class="grey"') if heat else Markup()
    return Markup(
        f'<svg class="face" role="img" aria-label="{escape(words)}"><use href="#{face}"{grey}/>{over}</svg>'
    )


def _thumbnail(image: Image.Image) -> str:
    """The middle square, small."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.convert("RGB").crop((left, top, left + side, top + side))
    small = square.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    kind = "webp" if features.check("webp") else "jpeg"
    small.save(data, kind, quality=62)
    return _address(kind, data.getvalue())


def _png(colours: np.ndarray) -> str:
    data = io.BytesIO()
    Image.fromarray(colours).save(data, "png", optimize=True)
    return _address("png", data.getvalue())


def _address(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
