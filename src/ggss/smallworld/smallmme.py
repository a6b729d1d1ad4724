"""SmallMME: yes-or-no questions in pairs, one of each answer about the same picture, like MME.

Perception: existence, count, position, colour, hair, style, glasses, place. Reasoning: work, nature, sum, comparison.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

from ggss.probes.base import Item
from ggss.probes.yes_or_no import yes_or_no_probe
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import HAIR_COLOURS, HAIR_STYLES, PLACES, WORK
from ggss.smallworld.questions import Painted, Question, as_item, certain, held_to
from ggss.smallworld.scenes import COLOURS, SHAPES, Scene, Shape
from ggss.smallworld.smallstar import draw_picture
from ggss.smallworld.templates import NUMBERS, VERBS

SMALLMME_VERSION = "smallmme-v1"
PER_CATEGORY = 30  # pictures, each with two questions
_SEED = 20_241
_ANSWERS = ("yes", "no")

_Pair = tuple[str, str]  # the question to be answered with yes, the one to be answered with no
_Claim = Callable[[np.random.Generator, Painted], _Pair | None]


def _other(rng: np.random.Generator, values: tuple[str, ...], *seen: str) -> str:
    left = [value for value in values if value not in seen]
    return left[int(rng.integers(len(left)))]


def _any_of(rng: np.random.Generator, values: set[str]) -> str:
    return sorted(values)[int(rng.integers(len(values)))]


def _lone(rng: np.random.Generator, scene: Scene) -> tuple[int, Shape] | None:
    """The cell and the look of a shape of which there is only one."""
    forms = [item.shape for item in scene.shapes]
    alone = [(k, item) for k, item in enumerate(scene.cells) if item and forms.count(item.shape) == 1]
    return alone[int(rng.integers(len(alone)))] if alone else None


def _existence(rng: np.random.Generator, scene: Scene) -> _Pair:
    seen = {item.shape for item in scene.shapes}
    return f"is there any {_any_of(rng, seen)} ?", f"is there any {_other(rng, SHAPES, *seen)} ?"


def _count(rng: np.random.Generator, scene: Scene) -> _Pair:
    true = NUMBERS[len(scene.shapes)]
    return f"is the number of shapes {true} ?", f"is the number of shapes {_other(rng, NUMBERS[1:5], true)} ?"


def _position(rng: np.random.Generator, scene: Scene) -> _Pair | None:
    lone = _lone(rng, scene)
    if not lone:
        return None
    cell, item = lone
    sides = (("top", "bottom")[cell // 2], ("left", "right")[cell % 2])
    axis = int(rng.integers(2))
    true, false = sides[axis], _other(rng, (("top", "bottom"), ("left", "right"))[axis], sides[axis])
    return f"is the {item.shape} at the {true} ?", f"is the {item.shape} at the {false} ?"


def _colour(rng: np.random.Generator, scene: Scene) -> _Pair | None:
    lone = _lone(rng, scene)
    if not lone:
        return None
    item = lone[1]
    return f"is the {item.shape} {item.colour} ?", f"is the {item.shape} {_other(rng, COLOURS, item.colour)} ?"


def _sum(rng: np.random.Generator, scene: Scene) -> _Pair:
    add = int(rng.integers(1, 5))
    true = NUMBERS[len(scene.shapes) + add]
    text = f"is {NUMBERS[add]} plus the number of shapes"
    return f"{text} {true} ?", f"{text} {_other(rng, NUMBERS[add + 1 : add + 5], true)} ?"


def _comparison(rng: np.random.Generator, scene: Scene) -> _Pair | None:
    counts = {colour: sum(item.colour == colour for item in scene.shapes) for colour in COLOURS}
    more, less = _any_of(rng, {c for c, n in counts.items() if n == max(counts.values())}), _any_of(rng, set(COLOURS))
    if counts[more] == counts[less]:
        return None
    text = "are there more {} shapes than {} shapes ?"
    return text.format(more, less), text.format(less, more)


def _nature(rng: np.random.Generator, scene: Scene) -> _Pair | None:
    seen = {item.shape for item in scene.shapes} & set(VERBS)
    if not seen or len(seen) == len(VERBS):
        return None
    true, false = _any_of(rng, seen), _other(rng, tuple(VERBS), *seen)
    return f"is there any shape that {VERBS[true]} ?", f"is there any shape that {VERBS[false]} ?"


def _of_scene(claim: Callable[[np.random.Generator, Scene], _Pair | None]) -> _Claim:
    return lambda rng, picture: claim(rng, picture) if isinstance(picture, Scene) else None


def _of_person(text: str, label: str, values: tuple[str, ...]) -> _Claim:
    def claim(rng: np.random.Generator, picture: Painted) -> _Pair | None:
        if not isinstance(picture, Portrait) or (true := str(picture.labels()[label])) not in values:
            return None
        return text.format(true), text.format(_other(rng, values, true))

    return claim


_PLACES, _WORK = tuple(sorted(set(PLACES.values()))), tuple(sorted(set(WORK.values())))
PERCEPTION: dict[str, tuple[str, _Claim]] = {
    "existence": ("any", _of_scene(_existence)),
    "count": ("any", _of_scene(_count)),
    "position": ("distinct", _of_scene(_position)),
    "colour": ("distinct", _of_scene(_colour)),
    "hair": ("portrait", _of_person("is the hair {} ?", "hair_colour", HAIR_COLOURS)),
    "style": ("portrait", _of_person("is the hair {} ?", "hair_style", HAIR_STYLES)),
    "glasses": ("portrait", _of_person("are the glasses {} ?", "glasses", ("round", "square"))),
    "place": ("portrait", _of_person("is this the {} ?", "place", _PLACES)),
}
REASONING: dict[str, tuple[str, _Claim]] = {
    "work": ("portrait", _of_person("is this person one that {} ?", "work", _WORK)),
    "nature": ("any", _of_scene(_nature)),
    "sum": ("any", _of_scene(_sum)),
    "comparison": ("odd", _of_scene(_comparison)),
}
CATEGORIES = PERCEPTION | REASONING


def ask_yes_no(rng: np.random.Generator, category: str, picture: Painted) -> tuple[Question, Question] | None:
    """The pair of a category about a picture, the one answered with yes first; None where it makes no sense."""
    pair = CATEGORIES[category][1](rng, picture)
    if pair is None:
        return None
    yes, no = (
        Question("smallmme", text, _ANSWERS, answer, (picture,), (), category, category, certain(_ANSWERS, answer))
        for text, answer in zip(pair, _ANSWERS, strict=True)
    )
    return yes, no


@cache
def smallmme() -> tuple[Question, ...]:
    """The suite, always the same: 30 pictures in each category, each asked twice, in either order."""
    rng = np.random.default_rng(_SEED)
    questions: list[Question] = []
    for category, (plan, _) in CATEGORIES.items():
        asked = 0
        while asked < PER_CATEGORY:
            pair = ask_yes_no(rng, category, draw_picture(rng, "evaluation", plan))
            if pair:
                questions += pair if rng.random() < 0.5 else pair[::-1]
                asked += 1
    return held_to(SMALLMME_VERSION, tuple(questions))


def smallmme_items() -> list[Item]:
    """Two questions in a row are about the same picture, which is their cluster."""
    pictures = [f"{question.dimension}/{number // 2:03d}" for number, question in enumerate(smallmme())]
    return [
        as_item(question, f"{picture}/{question.answer}", picture)
        for question, picture in zip(smallmme(), pictures, strict=True)
    ]


SMALLMME = yes_or_no_probe(
    "smallmme",
    "SmallMME",
    "the small world's MME, yes or no: accuracy, accuracy+, perception and reasoning",
    smallmme_items,
    REASONING,
)
