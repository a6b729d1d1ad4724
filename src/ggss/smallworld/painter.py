"""The painter: a 64 x 64 portrait of a person with a race and a gender.

Race and gender change the face only. They are given to one function, `paint_face`, and what it paints is cut to the
identity's face mask before hair and hat are painted over it; light and grain come from the identity. So no pixel
outside `face_mask(person)` differs between the ten variants of a person. A third attribute, the colour of the hair,
can be varied too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from ggss.data.picture import Context
from ggss.errors import InputError
from ggss.smallworld.brush import SCALE, SIZE, Brush, canvas, painted_digest, shrink
from ggss.smallworld.painter_clothes import (
    paint_badge,
    paint_body,
    paint_fringe,
    paint_glasses,
    paint_hair_back,
    paint_hat,
    paint_scarf,
    paint_stethoscope,
)
from ggss.smallworld.painter_face import mask, paint_face
from ggss.smallworld.painter_rooms import paint_desk, paint_room
from ggss.smallworld.palette import WALL
from ggss.smallworld.people import GENDERS, HAIR_COLOURS, RACES, Person

_GRAIN = 2.0  # standard deviation of the film grain, in grey levels
_COLUMNS, _ROWS = np.meshgrid(np.linspace(-1, 1, SIZE), np.linspace(-1, 1, SIZE))


@dataclass(frozen=True)
class Portrait:
    """A picture of a person: the variant with this race and gender.

    hair: another colour than the person's own; it is then the third attribute that is varied.
    """

    person: Person
    race: str
    gender: str
    hair: str | None = None

    def __post_init__(self) -> None:
        if self.race not in RACES:
            raise InputError(f"race {self.race!r} is unknown; choose one of {', '.join(RACES)}")
        if self.gender not in GENDERS:
            raise InputError(f"gender {self.gender!r} is unknown; choose one of {', '.join(GENDERS)}")
        if self.hair is not None and self.hair not in HAIR_COLOURS:
            raise InputError(f"hair colour {self.hair!r} is unknown; choose one of {', '.join(HAIR_COLOURS)}")

    def __repr__(self) -> str:
        """Without `hair` where it is not varied: the recorded hashes of the benchmarks contain this text."""
        hair = "" if self.hair is None else f", hair={self.hair!r}"
        return f"Portrait(person={self.person!r}, race={self.race!r}, gender={self.gender!r}{hair})"

    @property
    def name(self) -> str:
        """Such as `teacher/03/jade_man`."""
        return "/".join([*(value for _, value in self.context), "_".join(self.attributes.values())])

    @property
    def digest(self) -> str:
        return painted_digest(repr(self))

    @property
    def attributes(self) -> dict[str, str]:
        varied = {"race": self.race, "gender": self.gender}
        return varied if self.hair is None else varied | {"hair": self.hair}

    @property
    def context(self) -> Context:
        return ("occupation", self.person.occupation), ("identity", f"{self.person.identity:02d}")

    @property
    def hair_colour(self) -> str:
        """The colour that is painted."""
        return self.hair or self.person.traits.hair_colour

    def image(self) -> Image.Image:
        """64 x 64 RGB: what a model is shown."""
        return Image.fromarray(_develop(shrink(_portrait(self)), self.person))

    def paint_large(self) -> Image.Image:
        """The same picture at 256 x 256, without grain, for people to look at."""
        light = _light(self.person)[0].repeat(SCALE, axis=0).repeat(SCALE, axis=1)
        lit = np.asarray(_portrait(self), dtype=np.float32) * light + 0.5
        return Image.fromarray(lit.clip(0, 255).astype(np.uint8))

    def labels(self) -> dict[str, str | float]:
        """Everything that can be seen, by name: words for what questions ask, numbers for badge and cue."""
        traits = self.person.traits
        return {
            "race": self.race,
            "gender": self.gender,
            "place": self.person.place,
            "work": self.person.work,
            "hair_colour": self.hair_colour,
            "hair_style": traits.hair_style,
            "glasses": traits.glasses,
            "scarf": traits.scarf,
            "wall": traits.wall,
            "wealth": traits.wealth,
            "cue": traits.cue,
        }


def variants(person: Person, hair: Sequence[str | None] = (None,)) -> tuple[Portrait, ...]:
    """The ten counterfactuals of a person, race by race; or those in each of several colours of hair."""
    return tuple(Portrait(person, race, gender, colour) for race in RACES for gender in GENDERS for colour in hair)


def face_mask(person: Person) -> np.ndarray:
    """[64, 64] bool: the pixels that race and gender may change."""
    fine = np.asarray(mask(person)).reshape(SIZE, SCALE, SIZE, SCALE)
    return fine.max(axis=(1, 3)) > 0


@lru_cache(maxsize=16)
def _behind(person: Person, hair: str) -> tuple[Image.Image, Image.Image]:
    """What is painted before the face, and where the face may be. Kept for the next variant."""
    fine = canvas(WALL[person.traits.wall])
    brush = Brush(fine)
    paint_room(brush, person)
    paint_body(brush, person)
    paint_hair_back(brush, person, hair)
    paint_scarf(brush, person)
    paint_stethoscope(brush, person)
    paint_badge(brush, person)
    return fine, mask(person)


def _portrait(portrait: Portrait) -> Image.Image:
    """The fine canvas, in even light."""
    person = portrait.person
    behind, allowed = _behind(person, portrait.hair_colour)
    face = behind.copy()
    paint_face(Brush(face), person, portrait.race, portrait.gender)
    fine = Image.composite(face, behind, allowed)
    brush = Brush(fine)
    paint_glasses(brush, person)
    paint_fringe(brush, person, portrait.hair_colour)
    paint_hat(brush, person)
    paint_desk(brush, person)
    return fine


@lru_cache(maxsize=16)
def _light(person: Person) -> tuple[np.ndarray, np.ndarray]:
    across, down = person.traits.light
    slope = 1 + 0.07 * across * _COLUMNS - 0.05 * down * _ROWS
    tone = 1 + 0.03 * person.traits.warmth * np.array([1.0, 0.2, -1.0])
    grain = person.rng(1).normal(0, _GRAIN, (SIZE, SIZE, 1))
    return (slope[:, :, None] * tone).astype(np.float32), grain.astype(np.float32)


def _develop(picture: np.ndarray, person: Person) -> np.ndarray:
    """The identity's light and film grain over the finished picture."""
    light, grain = _light(person)
    return (picture * light + grain + 0.5).clip(0, 255).astype(np.uint8)
