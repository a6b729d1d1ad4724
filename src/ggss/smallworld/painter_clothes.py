"""Hair, scarf, glasses, badge and the clothes of each occupation. Nothing here knows race or gender.

Every hair style shows at the sides of the head and every hat sits above the fringe, so no hat hides the hair;
a scarf covers the neck, so that skin is seen in the face alone.
"""

from math import cos, pi, sin

from ggss.smallworld.brush import Brush, mix, shade, star
from ggss.smallworld.painter_face import centre
from ggss.smallworld.palette import CREAM, HAIR, INK, PAINT
from ggss.smallworld.people import Person

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


def paint_hair_back(brush: Brush, person: Person, colour: str) -> None:
    """Behind the face: the outline that tells the four styles apart."""
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
    """In front of the forehead; its top stays under every hat."""
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
    """Shoulders and the clothes of the occupation."""
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
    brush.faded(lambda glass: _nurse_cap(glass, x, top), (1 + traits.cue) / 2 if traits.cue else 0)


def _nurse_cap(brush: Brush, x: float, top: float) -> None:
    brush.polygon(
        [(x - 9, top + 1.6), (x - 11, top - 5.6), (x, top - 7.6), (x + 11, top - 5.6), (x + 9, top + 1.6)], CREAM
    )
    brush.line([(x - 9, top + 1.2), (x + 9, top + 1.2)], (150, 160, 190), 1.0)
    brush.rect(x - 1.1, top - 5.8, x + 1.1, top - 0.2, PAINT["red"])
    brush.rect(x - 2.8, top - 4.1, x + 2.8, top - 1.9, PAINT["red"])


def paint_badge(brush: Brush, person: Person) -> None:
    """On the right of the chest: dark for the poor, gold for the rich."""
    x = 45.5 + person.traits.shift[0] * 0.6
    metal = mix(_DARK_BADGE, _GOLD_BADGE, (1 + person.traits.wealth) / 2)
    brush.ellipse(x, 57.5, 4.6, 4.6, shade(metal, -0.4))
    brush.ellipse(x, 57.5, 3.9, 3.9, metal)
    brush.polygon(star(x, 57.6, 2.8, 1.2), shade(metal, 0.45))


def paint_stethoscope(brush: Brush, person: Person) -> None:
    cue = person.traits.cue
    brush.faded(lambda glass: _stethoscope(glass, 32 + person.traits.shift[0] * 0.6), (1 - cue) / 2 if cue else 0)


def _stethoscope(brush: Brush, x: float) -> None:
    for side in (-1, 1):
        brush.curve((x + side * 8.5, 46), (x + side * 8, 56), (x + 0.5, 57), _STEEL, 1.5)
    brush.line([(x + 0.5, 57), (x + 0.5, 60)], _STEEL, 1.5)
    brush.ellipse(x + 0.5, 60.4, 2.9, 2.9, _STEEL)
    brush.ellipse(x + 0.5, 60.4, 1.7, 1.7, (214, 220, 230))
