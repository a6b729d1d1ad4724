"""The people of the small world: who lives in the town, and what each identity looks like apart from the face.

A person is an identity number in an occupation. Race and gender are *not* part of a person: they are the two
attributes that a portrait varies (see `painter`). Everything else that can be seen is a trait, drawn once from
the identity. The peoples are invented, so nobody real is drawn.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ggss.errors import InputError

OCCUPATIONS = ("cook", "doctor", "lawyer", "nurse", "teacher", "ceo")
RACES = ("amber", "coral", "indigo", "jade", "pearl")
GENDERS = ("man", "woman")

HAIR_COLOURS = ("black", "red", "white", "yellow")
HAIR_STYLES = ("curly", "long", "short", "tied")
SCARVES = ("blue", "green", "purple", "red", "yellow")
WALLS = ("blue", "green", "pink", "yellow")
GLASSES = ("none", "round", "square")

PLACES = {
    "cook": "kitchen",
    "doctor": "hospital",
    "lawyer": "court",
    "nurse": "hospital",
    "teacher": "school",
    "ceo": "office",
}
WORK = {
    "cook": "cooks",
    "doctor": "heals",
    "lawyer": "judges",
    "nurse": "heals",
    "teacher": "teaches",
    "ceo": "leads",
}

# Identity numbers of each split. The town that discovery uses is painted from the discovery identities.
SPLITS = {
    "discovery": range(0, 8),
    "selection": range(100, 200),
    "evaluation": range(1_000, 2_000),
    "training": range(10_000, 1_000_000),
}

# The range of `Traits.cue`: nurses and doctors overlap around zero, where a viewer must guess.
_CUE = {"nurse": (-0.2, 1.0), "doctor": (-1.0, 0.2)}


@dataclass(frozen=True)
class Traits:
    """What an identity determines. Lengths are in pixels of the 64 x 64 portrait."""

    shift: tuple[float, float]  # of the head, from the middle of the picture
    turn: float  # of the features within the face: a small change of pose
    face_width: float
    face_height: float
    hair_style: str
    hair_colour: str
    glasses: str
    scarf: str
    wall: str
    cloth: float  # brightness of the clothes, in [-1, 1]
    light: tuple[float, float]  # where the light comes from: slope to the right and downwards
    warmth: float  # of the light, in [-1, 1]
    wealth: float  # the badge, from dark (-1) to gold (1)
    cue: float  # doctor's stethoscope (-1) to nurse's cap (1); 0 for the other occupations


@dataclass(frozen=True)
class Person:
    """An identity in an occupation; the same three numbers always give the same person."""

    identity: int
    occupation: str
    seed: int = 0

    def __post_init__(self) -> None:
        if self.occupation not in OCCUPATIONS:
            raise InputError(f"occupation {self.occupation!r} is unknown; choose one of {', '.join(OCCUPATIONS)}")
        if self.identity < 0:
            raise InputError(f"identity {self.identity} is negative; identities are counted from 0")

    @property
    def traits(self) -> Traits:
        return _traits(self)

    @property
    def place(self) -> str:
        return PLACES[self.occupation]

    @property
    def work(self) -> str:
        return WORK[self.occupation]

    def rng(self, stream: int) -> np.random.Generator:
        """A separate generator for each use (0: traits, 1: film grain), so that uses do not affect each other."""
        return np.random.default_rng([self.seed, self.identity, OCCUPATIONS.index(self.occupation), stream])


@lru_cache(maxsize=4096)
def _traits(person: Person) -> Traits:
    rng = person.rng(0)

    def within(low: float, high: float) -> float:
        return float(rng.uniform(low, high))

    def choice(values: tuple[str, ...]) -> str:
        return values[int(rng.integers(len(values)))]

    return Traits(
        shift=(within(-2.5, 2.5), within(-1, 1)),
        turn=within(-1.4, 1.4),
        face_width=within(11.2, 12.8),
        face_height=within(13.6, 15.2),
        hair_style=choice(HAIR_STYLES),
        hair_colour=choice(HAIR_COLOURS),
        glasses=choice(GLASSES),
        scarf=choice(SCARVES),
        wall=choice(WALLS),
        cloth=within(-1, 1),
        light=(within(-1, 1), within(-0.3, 1)),
        warmth=within(-1, 1),
        wealth=_spread(person, 0.6180339887, -1, 1),
        cue=_spread(person, 0.7548776662, *_CUE.get(person.occupation, (0, 0))),
    )


def _spread(person: Person, step: float, low: float, high: float) -> float:
    """A value that consecutive identities spread evenly over the interval, so that eight people cover it."""
    start = OCCUPATIONS.index(person.occupation) * 0.37 + person.seed * 0.29
    return low + (high - low) * ((start + person.identity * step) % 1.0)


def identities(split: str) -> range:
    """The identity numbers of a split."""
    if split not in SPLITS:
        raise InputError(f"split {split!r} is unknown; choose one of {', '.join(SPLITS)}")
    return SPLITS[split]


def people(split: str, count: int, occupations: tuple[str, ...] = OCCUPATIONS, seed: int = 0) -> Iterator[Person]:
    """The first `count` identities of a split in each of the occupations, all different people."""
    numbers = identities(split)
    if count > len(numbers):
        raise InputError(f"split {split!r} has {len(numbers)} identities an occupation; {count} were asked for")
    return (Person(identity, job, seed) for job in occupations for identity in numbers[:count])


def draw_person(rng: np.random.Generator, split: str = "training", occupation: str | None = None) -> Person:
    """A random person of the split, with this occupation or a random one."""
    numbers = identities(split)
    job = occupation or OCCUPATIONS[int(rng.integers(len(OCCUPATIONS)))]
    return Person(numbers[int(rng.integers(len(numbers)))], job)
