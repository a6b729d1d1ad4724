"""The face: the only part of a portrait that race and gender may change.

Race shows in the tint and in the geometry of eyes, nose and lips; gender in brows, lashes, cheeks, lips and jaw.
"""

from dataclasses import dataclass
from math import copysign, cos, pi, sin

from PIL import Image

from ggss.smallworld.brush import SCALE, SIZE, Brush, Colour, Point, shade
from ggss.smallworld.palette import INK
from ggss.smallworld.people import Person

HEAD = (32.0, 28.0)  # the middle of an unshifted face
_JAW = {"man": 0.72, "woman": 1.12}  # exponent of the lower outline: square below 1, pointed above
_ROUNDEST = min(_JAW.values())


@dataclass(frozen=True)
class Look:
    """How a people looks: tints, the half-axes and slant of an eye, the nose, the mouth."""

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
