"""How a portrait is painted: colours, the brush, the face, hair and clothes.

Race and gender are used in `paint_face` only. Race shows in the tint and in the geometry of eyes, nose and lips;
gender in brows, lashes, cheeks, lips and jaw.

Every hair style shows at the sides of the head and every hat sits above the fringe, so no hat hides the hair; a scarf
covers the neck, so that skin is visible in the face alone.

The brush draws in portrait pixels on a canvas four times as fine, so that edges come out smooth.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import copysign, cos, pi, sin

import numpy as np
import PIL
from PIL import Image, ImageDraw

from ggss.smallworld.people import Person

# The colours that questions ask about differ clearly.
PAINT = {
    "red": (214, 52, 52),
    "green": (52, 158, 82),
    "blue": (48, 98, 214),
    "yellow": (246, 204, 62),
    "purple": (140, 66, 176),
    "white": (248, 248, 244),
}
WALL = {
    "pink": (244, 198, 208),
    "blue": (186, 214, 242),
    "green": (198, 228, 190),
    "yellow": (248, 232, 180),
}
HAIR = {
    "black": (50, 44, 58),
    "red": (190, 66, 38),
    "yellow": (240, 200, 92),
    "white": (238, 238, 244),
}
INK = (52, 44, 60)
CREAM = (252, 248, 240)
_CLOTH = {
    "cook": (246, 246, 248),
    "doctor": (112, 186, 190),
    "lawyer": (62, 58, 74),
    "nurse": (112, 186, 190),
    "teacher": (168, 112, 70),
    "ceo": (44, 62, 110),
}
_DARK_BADGE, _GOLD_BADGE = (46, 38, 52), (255, 206, 40)
_STEEL = (92, 100, 116)

SIZE = 64
SCALE = 4
HEAD = (32.0, 28.0)  # the middle of an unshifted face
_JAW = {"man": 0.72, "woman": 1.12}  # exponent of the lower outline: square below 1, pointed above
_ROUNDEST = min(_JAW.values())

PAINTER = "painter-1"
"""The version of all that is painted. Change it with any change to a pixel: what is computed from pictures is cached
by their digest, and a digest is not computed from pixels."""

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
        """Call `paint` and blend its result into the canvas with this opacity."""
        if opacity > 0:
            layer = self.canvas.copy()
            paint(Brush(layer))
            self.canvas.paste(Image.blend(self.canvas, layer, min(opacity, 1.0)))


def painted_digest(description: str) -> str:
    """The digest of a painted picture: sha256 of all that decides its pixels, without painting them."""
    versions = f"{PAINTER}, Pillow {PIL.__version__}, numpy {np.__version__}"
    return sha256(f"{versions}\n{description}".encode()).hexdigest()


def canvas(fill: Colour) -> Image.Image:
    return Image.new("RGB", (SIZE * SCALE, SIZE * SCALE), fill)


def shrink(fine: Image.Image) -> np.ndarray:
    """The finished picture as float [64, 64, 3]. Box filter: each pixel is the mean of its 16 fine pixels."""
    return np.asarray(fine.reduce(SCALE), dtype=np.float32)


def shade(colour: Colour, amount: float) -> Colour:
    """The colour, lighter for a positive amount and darker for a negative one."""
    target = 255 if amount > 0 else 0
    return tuple(round(c + (target - c) * abs(amount)) for c in colour[:3])


def mix(dark: Colour, bright: Colour, share: float) -> Colour:
    return tuple(round(a + (b - a) * share) for a, b in zip(dark, bright, strict=True))


def star(x: float, y: float, outer: float, inner: float, tips: int = 5) -> list[Point]:
    """The outline of a star, one tip up."""
    turns = [(k * pi / tips, outer if k % 2 == 0 else inner) for k in range(2 * tips)]
    return [(x + r * sin(t), y - r * cos(t)) for t, r in turns]


@dataclass(frozen=True)
class Look:
    """How people of a race look: tints, the half-axes and slant of an eye, the nose, the mouth."""

    skin: Colour
    iris: Colour
    lips: Colour
    eye: tuple[float, float]
    slant: float
    nose: str
    mouth: float


LOOKS = {
    "amber": Look((240, 174, 84), (112, 62, 30), (206, 84, 58), (2.8, 2.8), 0.0, "button", 4.2),
    "coral": Look((248, 146, 132), (24, 124, 136), (190, 44, 72), (3.4, 2.2), 0.8, "peak", 3.4),
    "indigo": Look((126, 126, 222), (250, 206, 84), (226, 116, 178), (2.3, 3.3), 0.0, "long", 3.0),
    "jade": Look((108, 196, 150), (160, 50, 62), (206, 86, 104), (3.3, 2.3), -0.7, "wide", 4.8),
    "pearl": Look((228, 222, 240), (132, 80, 192), (204, 112, 160), (2.5, 2.5), 0.3, "dots", 2.6),
}


def centre(person: Person) -> Point:
    dx, dy = person.traits.shift
    return HEAD[0] + dx, HEAD[1] + dy


def outline(person: Person, jaw: float, grow: float = 0.0) -> list[Point]:
    """The face's edge. The upper half is an ellipse; the smaller `jaw`, the more square is the lower half."""
    (x, y), traits = centre(person), person.traits
    points = []
    for k in range(48):
        angle = 2 * pi * k / 48
        power = jaw if sin(angle) > 0 else 1.0
        side = copysign(abs(cos(angle)) ** power, cos(angle))
        points.append((x + (traits.face_width + grow) * side, y + (traits.face_height + grow) * sin(angle)))
    return points


def mask(person: Person) -> Image.Image:
    """Where the face may be, on the fine canvas: the widest jaw of the identity and its ears."""
    area = Image.new("L", (SIZE * SCALE, SIZE * SCALE), 0)
    brush = Brush(area)
    brush.polygon(outline(person, _ROUNDEST, grow=0.4), 255)
    for x, y in _ears(person):
        brush.ellipse(x, y, 2.6, 3.2, 255)
    return area


def paint_face(brush: Brush, person: Person, race: str, gender: str) -> None:
    look = LOOKS[race]
    x, y = centre(person)
    for ear_x, ear_y in _ears(person):
        brush.ellipse(ear_x, ear_y, 2.4, 3.0, shade(look.skin, -0.12))
    brush.polygon(outline(person, _JAW[gender]), shade(look.skin, -0.1))
    brush.polygon(outline(person, _JAW[gender], grow=-0.9), look.skin)
    brush.ellipse(x + person.traits.light[0] * 3, y - 7, 6.5, 4.5, (255, 255, 255, 34))
    x += person.traits.turn
    _cheeks(brush, x, y, look, gender)
    for side in (-1, 1):
        _eye(brush, x + side * 5.1, y - 0.2, side, look, gender)
        _brow(brush, x + side * 5.1, y - 4.6, side, gender)
    _nose(brush, x, y + 3.6, look)
    _mouth(brush, x, y + 8.2, look, gender)


def _ears(person: Person) -> tuple[Point, Point]:
    x, y = centre(person)
    reach = person.traits.face_width + 0.2
    return (x - reach, y + 0.8), (x + reach, y + 0.8)


def _cheeks(brush: Brush, x: float, y: float, look: Look, gender: str) -> None:
    if gender == "woman":
        for side in (-1, 1):
            brush.ellipse(x + side * 7.3, y + 4.6, 2.9, 2.1, (*look.lips, 60))
            brush.ellipse(x + side * 7.3, y + 4.6, 2.0, 1.4, (*look.lips, 90))
    else:  # the shadow of a beard
        for spread, depth in ((7.0, 45), (5.4, 60)):
            brush.ellipse(x, y + 11.4, spread, spread * 0.52, (*shade(look.skin, -0.5), depth))


def _eye(brush: Brush, x: float, y: float, side: int, look: Look, gender: str) -> None:
    edge = _almond(x, y, side, look)
    brush.polygon(edge, (255, 255, 255))
    iris = min(look.eye) * 0.84
    brush.ellipse(x, y + 0.1, iris, iris, look.iris)
    brush.ellipse(x, y + 0.1, iris * 0.56, iris * 0.56, INK)
    brush.ellipse(x - 0.7, y - 0.8, 0.7, 0.7, (255, 255, 255))
    brush.ellipse(x + 0.8, y + 0.8, 0.35, 0.35, (255, 255, 255, 200))
    lid = edge[: len(edge) // 2 + 1]
    brush.line(lid, INK, 1.0 if gender == "woman" else 0.6)
    if gender == "woman":
        outer_x, outer_y = lid[0] if side > 0 else lid[-1]
        brush.line([(outer_x, outer_y), (outer_x + side * 1.4, outer_y - 1.4)], INK, 0.8)


def _almond(x: float, y: float, side: int, look: Look) -> list[Point]:
    """The edge of an eye from its right corner over the upper lid; pointed at the corners where it is slanted."""
    (rx, ry), lift = look.eye, look.slant * side
    points = []
    for k in range(24):
        angle = 2 * pi * k / 24
        height = copysign(abs(sin(angle)) ** (1.5 if look.slant else 1.0), sin(angle))
        points.append((x + rx * cos(angle), y - ry * height - lift * cos(angle)))
    return points


def _brow(brush: Brush, x: float, y: float, side: int, gender: str) -> None:
    if gender == "woman":
        brush.curve((x - 2.8, y + 0.6), (x, y - 1.8), (x + 2.8, y + 0.6), INK, 0.7)
    else:
        inner, outer = x - side * 2.9, x + side * 3.2
        brush.curve((inner, y + 0.4), (x, y - 0.9), (outer, y + 0.6), INK, 1.7)


def _nose(brush: Brush, x: float, y: float, look: Look) -> None:
    dark = shade(look.skin, -0.32)
    match look.nose:
        case "button":
            brush.ellipse(x, y, 1.7, 1.4, dark)
            brush.ellipse(x - 0.4, y - 0.4, 0.6, 0.5, shade(look.skin, 0.3))
        case "peak":
            brush.polygon([(x, y - 3.2), (x - 1.7, y + 1.1), (x + 1.7, y + 1.1)], dark)
        case "long":
            brush.line([(x, y - 3.8), (x, y + 1.0), (x + 1.3, y + 1.2)], dark, 0.9)
        case "wide":
            brush.curve((x - 3.0, y + 0.2), (x, y + 2.8), (x + 3.0, y + 0.2), dark, 1.1)
        case _:
            for side in (-1, 1):
                brush.ellipse(x + side * 0.95, y + 0.7, 0.55, 0.6, dark)


def _mouth(brush: Brush, x: float, y: float, look: Look, gender: str) -> None:
    half, left, right = look.mouth, (x - look.mouth, y - 0.8), (x + look.mouth, y - 0.8)
    if gender == "woman":
        brush.curve(left, (x, y + 3.2), right, look.lips, 1.5)
        brush.polygon([left, (x - 1.1, y - 1.3), (x, y - 0.8), (x + 1.1, y - 1.3), right, (x, y + 1.8)], look.lips)
        brush.curve(left, (x, y + 1.6), right, shade(look.lips, -0.4), 0.5)
        brush.ellipse(x, y + 1.5, half * 0.3, 0.4, shade(look.lips, 0.45))
    else:
        brush.curve(left, (x, y + 3.2), right, shade(look.skin, -0.62), 1.0)
        brush.line([left, (left[0] - 0.4, left[1] - 0.5)], shade(look.skin, -0.62), 0.7)
        brush.line([right, (right[0] + 0.4, right[1] - 0.5)], shade(look.skin, -0.62), 0.7)


def paint_hair_back(brush: Brush, person: Person, colour: str) -> None:
    """Paint the hair behind the face, whose outline differs between the four styles."""
    traits = person.traits
    (x, y), (w, h) = centre(person), (traits.face_width, traits.face_height)
    tone = shade(HAIR[colour], -0.1)
    brush.ellipse(x, y - 2.5, w + 2.6, h + 1.4, tone)
    match traits.hair_style:
        case "long":
            brush.ellipse(x, y + 4, w + 4.2, h + 2, tone)
            brush.rect(x - w - 4.2, y + 2, x + w + 4.2, y + h + 10, tone, round=4)
        case "curly":
            for k in range(13):
                angle = pi * (k / 12 * 1.44 - 0.22)
                brush.ellipse(x - (w + 2.6) * cos(angle), y - 2 - (h + 0.6) * sin(angle), 4.1, 4.1, tone)
        case "tied":
            for side in (-1, 1):
                brush.ellipse(x + side * (w + 5.6), y + 3, 4.2, 5.6, tone)
                brush.ellipse(x + side * (w + 2.0), y + 0.2, 1.6, 1.6, PAINT[traits.scarf])


def paint_fringe(brush: Brush, person: Person, colour: str) -> None:
    """Paint the hair in front of the forehead; its top stays under every hat."""
    traits = person.traits
    (x, y), (w, h) = centre(person), (traits.face_width, traits.face_height)
    tone, gloss = HAIR[colour], shade(HAIR[colour], 0.3)
    if traits.hair_style == "curly":
        for k in range(7):
            brush.ellipse(x + (k - 3) * w / 3.4, y - h * 0.82 + abs(k - 3) * 0.95, 3.2, 3.2, tone)
    else:
        part = x + (3.5 if traits.turn > 0 else -3.5)
        top = [(x - (w + 1) * cos(pi * k / 12), y - 2.2 - (h + 0.6) * sin(pi * k / 12)) for k in range(13)]
        brush.polygon([*top, (x + w - 1.2, y - h * 0.42), (part, y - h * 0.72), (x - w + 1.2, y - h * 0.42)], tone)
    for side in (-1, 1):  # locks in front of the ears
        brush.ellipse(x + side * (w + 0.6), y - 3.6, 1.7, 4.4, tone)
    brush.curve((x - w * 0.6, y - h * 0.82), (x - w * 0.2, y - h - 0.2), (x + w * 0.3, y - h * 0.9), gloss, 0.9)


def paint_body(brush: Brush, person: Person) -> None:
    """Paint shoulders and the clothes of the occupation."""
    x = 32 + person.traits.shift[0] * 0.6
    cloth = shade(_CLOTH[person.occupation], 0.1 * person.traits.cloth)
    brush.ellipse(x, 66, 24, 20.5, shade(cloth, -0.14))
    brush.ellipse(x, 66.6, 23.2, 20, cloth)
    match person.occupation:
        case "cook":
            brush.line([(x + 1, 50), (x - 1, 64)], shade(cloth, -0.2), 0.8)
            for row in (54, 58.5, 63):
                for side in (-5, 3.4):
                    brush.ellipse(x + side, row, 1.1, 1.1, INK)
        case "doctor" | "nurse":
            for side in (-1, 1):  # the white coat open over scrubs
                brush.polygon(
                    [(x + side * 9, 47), (x + side * 26, 54), (x + side * 26, 66), (x + side * 8, 66)], CREAM
                )
                brush.line([(x + side * 9, 48), (x + side * 8, 65)], shade(CREAM, -0.22), 0.8)
        case "lawyer":
            brush.polygon([(x - 6, 46), (x + 6, 46), (x, 63)], CREAM)
            for side in (-1, 1):  # a barrister's white bands
                brush.polygon(
                    [(x, 47), (x + side * 1.2, 47), (x + side * 4.2, 59), (x + side * 0.4, 59)], (226, 226, 236)
                )
                brush.polygon([(x + side * 6, 46), (x + side * 10.5, 49), (x, 64.5)], shade(cloth, -0.3))
        case "teacher":
            brush.polygon([(x - 6, 46), (x + 6, 46), (x, 60)], (240, 224, 196))
            brush.line([(x, 58), (x, 64)], shade(cloth, -0.4), 0.9)
            for side in (-1, 1):
                brush.line([(x + side * 6.5, 47), (x, 60.5)], shade(cloth, -0.35), 1.6)
        case _:
            brush.polygon([(x - 6, 46), (x + 6, 46), (x, 62)], CREAM)
            brush.polygon([(x - 1.7, 50), (x + 1.7, 50), (x + 2.1, 60), (x, 63), (x - 2.1, 60)], (150, 34, 52))
            for side in (-1, 1):
                brush.polygon([(x + side * 6, 46), (x + side * 11, 50), (x, 64)], shade(cloth, -0.35))


def paint_scarf(brush: Brush, person: Person) -> None:
    (x, y), h = centre(person), person.traits.face_height
    tone = PAINT[person.traits.scarf]
    brush.ellipse(x, y + h + 3.2, 10.6, 4.8, shade(tone, -0.2))
    brush.ellipse(x, y + h + 2.6, 10.2, 4.2, tone)
    brush.polygon([(x - 8, y + h + 4), (x - 3.5, y + h + 5), (x - 5, y + h + 13), (x - 10, y + h + 12)], tone)
    brush.line([(x - 7.5, y + h + 5.4), (x - 3.6, y + h + 6.2)], shade(tone, -0.28), 0.9)


def paint_glasses(brush: Brush, person: Person) -> None:
    if person.traits.glasses == "none":
        return
    middle, y = centre(person)
    x = middle + person.traits.turn
    for side in (-1, 1):
        eye = x + side * 5.1
        if person.traits.glasses == "round":
            brush.ellipse(eye, y, 4.3, 4.3, (255, 255, 255, 40))
            brush.ring(eye, y, 4.4, 4.4, INK, 0.9)
        else:
            corners = [(eye - 4.0, y - 3.5), (eye + 4.0, y - 3.5), (eye + 4.0, y + 3.5), (eye - 4.0, y + 3.5)]
            brush.polygon(corners, (255, 255, 255, 40))
            brush.line([*corners, corners[0]], INK, 0.9)
        brush.line([(eye + side * 4.4, y - 0.6), (middle + side * person.traits.face_width, y - 1.2)], INK, 0.8)
    brush.line([(x - 0.8, y - 0.6), (x + 0.8, y - 0.6)], INK, 0.9)


def paint_hat(brush: Brush, person: Person) -> None:
    (x, y), traits = centre(person), person.traits
    top = y - traits.face_height
    if person.occupation == "cook":
        for dx, dy, r in ((-6.2, -5.2, 4.6), (6.2, -5.2, 4.6), (0, -6.0, 5.4)):
            brush.ellipse(x + dx, top + dy + 0.5, r + 0.4, r + 0.2, (206, 206, 220))
        for dx, dy, r in ((-6.2, -5.2, 4.4), (6.2, -5.2, 4.4), (0, -6.0, 5.1)):
            brush.ellipse(x + dx, top + dy, r, r, (252, 252, 254))
        brush.rect(x - 8.2, top - 5.2, x + 8.2, top + 0.8, (246, 246, 250), round=1.4)
        brush.line([(x - 8, top + 0.4), (x + 8, top + 0.4)], (198, 198, 214), 0.9)
    brush.faded(lambda layer: _nurse_cap(layer, x, top), (1 + traits.cue) / 2 if traits.cue else 0)


def _nurse_cap(brush: Brush, x: float, top: float) -> None:
    brush.polygon(
        [(x - 9, top + 1.6), (x - 11, top - 5.6), (x, top - 7.6), (x + 11, top - 5.6), (x + 9, top + 1.6)], CREAM
    )
    brush.line([(x - 9, top + 1.2), (x + 9, top + 1.2)], (150, 160, 190), 1.0)
    brush.rect(x - 1.1, top - 5.8, x + 1.1, top - 0.2, PAINT["red"])
    brush.rect(x - 2.8, top - 4.1, x + 2.8, top - 1.9, PAINT["red"])


def paint_badge(brush: Brush, person: Person) -> None:
    """Paint the badge on the right of the chest: dark for the poor, gold for the rich."""
    x = 45.5 + person.traits.shift[0] * 0.6
    metal = mix(_DARK_BADGE, _GOLD_BADGE, (1 + person.traits.wealth) / 2)
    brush.ellipse(x, 57.5, 4.6, 4.6, shade(metal, -0.4))
    brush.ellipse(x, 57.5, 3.9, 3.9, metal)
    brush.polygon(star(x, 57.6, 2.8, 1.2), shade(metal, 0.45))


def paint_stethoscope(brush: Brush, person: Person) -> None:
    cue = person.traits.cue
    brush.faded(lambda layer: _stethoscope(layer, 32 + person.traits.shift[0] * 0.6), (1 - cue) / 2 if cue else 0)


def _stethoscope(brush: Brush, x: float) -> None:
    for side in (-1, 1):
        brush.curve((x + side * 8.5, 46), (x + side * 8, 56), (x + 0.5, 57), _STEEL, 1.5)
    brush.line([(x + 0.5, 57), (x + 0.5, 60)], _STEEL, 1.5)
    brush.ellipse(x + 0.5, 60.4, 2.9, 2.9, _STEEL)
    brush.ellipse(x + 0.5, 60.4, 1.7, 1.7, (214, 220, 230))
