"""A brush that draws in portrait pixels on a canvas four times as fine, so that edges come out smooth."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from math import cos, pi, sin

import numpy as np
import PIL
from PIL import Image, ImageDraw

SIZE = 64
SCALE = 4
PAINTER = "painter-1"
"""The version of all that is painted. Change it with any change to a pixel: what was computed from pictures is kept
by their digest, and a digest does not look at pixels."""

Colour = tuple[int, ...]  # red, green, blue and, for a transparent colour, alpha
Point = tuple[float, float]


class Brush:
    """Draws on `canvas`; every coordinate and width is in pixels of the finished picture."""

    def __init__(self, canvas: Image.Image) -> None:
        self.canvas = canvas
        self._draw = ImageDraw.Draw(canvas, "RGBA" if canvas.mode == "RGB" else None)

    def ellipse(self, x: float, y: float, rx: float, ry: float, fill: Colour | int) -> None:
        box = [(x - rx) * SCALE, (y - ry) * SCALE, (x + rx) * SCALE, (y + ry) * SCALE]
        self._draw.ellipse(box, fill=fill)

    def rect(self, left: float, top: float, right: float, bottom: float, fill: Colour, round: float = 0) -> None:
        box = [left * SCALE, top * SCALE, right * SCALE - 1, bottom * SCALE - 1]
        self._draw.rounded_rectangle(box, radius=round * SCALE, fill=fill)

    def polygon(self, points: Sequence[Point], fill: Colour | int) -> None:
        self._draw.polygon([(x * SCALE, y * SCALE) for x, y in points], fill=fill)

    def line(self, points: Sequence[Point], fill: Colour, width: float) -> None:
        """A line with round ends."""
        self._draw.line(
            [(x * SCALE, y * SCALE) for x, y in points], fill=fill, width=round(width * SCALE), joint="curve"
        )
        for x, y in (points[0], points[-1]):
            self.ellipse(x, y, width / 2, width / 2, fill)

    def curve(self, start: Point, bend: Point, end: Point, fill: Colour, width: float) -> None:
        """A quadratic curve that leaves `start` towards `bend` and arrives at `end`."""
        steps = np.linspace(0, 1, 9)[:, None]
        a, b, c = np.array(start), np.array(bend), np.array(end)
        path = (1 - steps) ** 2 * a + 2 * steps * (1 - steps) * b + steps**2 * c
        self.line([(float(x), float(y)) for x, y in path], fill, width)

    def ring(self, x: float, y: float, rx: float, ry: float, fill: Colour, width: float) -> None:
        box = [(x - rx) * SCALE, (y - ry) * SCALE, (x + rx) * SCALE, (y + ry) * SCALE]
        self._draw.ellipse(box, outline=fill, width=round(width * SCALE))

    def faded(self, paint: Callable[["Brush"], None], opacity: float) -> None:
        """Paint with the given opacity."""
        if opacity > 0:
            glass = self.canvas.copy()
            paint(Brush(glass))
            self.canvas.paste(Image.blend(self.canvas, glass, min(opacity, 1.0)))


def painted_digest(description: str) -> str:
    """The digest of a painted picture: sha256 of all that decides its pixels, which need not be painted for it."""
    painted_by = f"{PAINTER}, Pillow {PIL.__version__}, numpy {np.__version__}"
    return sha256(f"{painted_by}\n{description}".encode()).hexdigest()


def canvas(fill: Colour) -> Image.Image:
    return Image.new("RGB", (SIZE * SCALE, SIZE * SCALE), fill)


def shrink(fine: Image.Image) -> np.ndarray:
    """The finished picture as float [64, 64, 3]. Box filter: each pixel is the mean of its own fine pixels."""
    return np.asarray(fine.reduce(SCALE), dtype=np.float32)


def shade(colour: Colour, amount: float) -> Colour:
    """Towards white for a positive amount, towards black for a negative one."""
    target = 255 if amount > 0 else 0
    return tuple(round(c + (target - c) * abs(amount)) for c in colour[:3])


def mix(dark: Colour, bright: Colour, share: float) -> Colour:
    return tuple(round(a + (b - a) * share) for a, b in zip(dark, bright, strict=True))


def star(x: float, y: float, outer: float, inner: float, tips: int = 5) -> list[Point]:
    """The outline of a star, one tip up."""
    turns = [(k * pi / tips, outer if k % 2 == 0 else inner) for k in range(2 * tips)]
    return [(x + r * sin(t), y - r * cos(t)) for t, r in turns]
