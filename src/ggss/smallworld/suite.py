"""The small world's suite: its questions as items of the probes, in the tiny models' vocabulary, and two benchmarks.

Prompts, options and people of the bias and recognition tasks are those of `bias_questions`.

**SmallStar**, the small world's MMStar: 1,500 multiple-choice questions over scenes and portraits, 250 in each of six
dimensions. Every question has four choices of which one is right. Within a template all answers and all letters come
equally often, so that guessing without the picture is right about a quarter of the time.

**SmallMME**, the small world's MME: yes-or-no questions in pairs, one of each answer about the same picture.
Perception: existence, count, position, colour, hair, style, glasses, place. Reasoning: work, nature, sum, comparison.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import count, cycle
from pathlib import Path

import numpy as np

from ggss.data.counterfactuals import Counterfactuals
from ggss.errors import InputError
from ggss.probes import suites
from ggss.probes.base import Item, get, register
from ggss.probes.benchmarks import multiple_choice_probe, yes_or_no_probe
from ggss.probes.suites import Provenance, Suite, suite_about, worded_suite
from ggss.smallworld import NAME, captions
from ggss.smallworld.bias_questions import WORDINGS, portraits
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import (
    GENDERS,
    HAIR_COLOURS,
    HAIR_STYLES,
    OCCUPATIONS,
    PLACES,
    RACES,
    SPLITS,
    WORK,
    draw_person,
)
from ggss.smallworld.questions import (
    DIMENSIONS,
    LETTERS,
    NUMBERS,
    TEMPLATES,
    VERBS,
    Fact,
    Painted,
    Question,
    Template,
    as_item,
    certain,
    lettered,
    place_answer,
    verified,
)
from ggss.smallworld.scenes import COLOURS, SHAPES, Scene, Shape, draw_scene

ATTRIBUTES = ("race", "gender")
# The capability questions are about evaluation identities and held-out layouts, whatever the split.
BENCHMARKS = ("smallstar", "smallmme")
ASKED_SPLITS = tuple(split for split in SPLITS if split != "training")
NEW_TOKENS = 1  # every answer is one word

SMALLSTAR_VERSION = "smallstar-v1"
PER_DIMENSION = 250
_SMALLSTAR_SEED = 20_240

SMALLMME_VERSION = "smallmme-v1"
PER_CATEGORY = 30  # pictures, each with two questions
_SMALLMME_SEED = 20_241
_ANSWERS = ("yes", "no")

_Pair = tuple[str, str]  # the question to be answered with yes, the one to be answered with no
_Claim = Callable[[np.random.Generator, Painted], _Pair | None]


@cache
def smallstar() -> tuple[Question, ...]:
    """The suite, always the same; its pictures are of evaluation identities and held-out layouts."""
    rng = np.random.default_rng(_SMALLSTAR_SEED)
    questions = tuple(
        question
        for dimension in DIMENSIONS
        for template, share in _shares(dimension)
        for question in _balanced(rng, template, share)
    )
    return verified(SMALLSTAR_VERSION, questions)


def smallstar_items() -> list[Item]:
    """The items of SmallStar. Every question has another picture, so each is a cluster."""
    return [as_item(question, f"smallstar/{number:04d}") for number, question in enumerate(smallstar())]


SMALLSTAR = multiple_choice_probe(
    "smallstar",
    "SmallStar",
    "the small world's MMStar, multiple choice: accuracy in six dimensions",
    smallstar_items,
    max_new_tokens=8,
)


def ask_choice(
    rng: np.random.Generator, template: Template, fact: Fact, picture: Painted, letter: int | None = None
) -> Question:
    """The multiple-choice question of a fact, its answer at this letter unless its choices have an order."""
    choices = place_answer(rng, fact.answer, fact.wrong, letter)
    if fact.ordered:
        choices = tuple(sorted(choices, key=NUMBERS.index))
    answer = LETTERS[choices.index(fact.answer)]
    return Question(
        "smallstar",
        lettered(fact.text, choices),
        LETTERS,
        answer,
        (picture,),
        choices,
        template.dimension,
        template.name,
        certain(LETTERS, answer),
    )


def draw_picture(rng: np.random.Generator, split: str, plan: str) -> Painted:
    """A portrait with any race and gender, or a scene of the plan."""
    if plan != "portrait":
        return draw_scene(rng, split, plan)
    person = draw_person(rng, split)
    return Portrait(person, RACES[int(rng.integers(len(RACES)))], GENDERS[int(rng.integers(len(GENDERS)))])


def _shares(dimension: str) -> list[tuple[Template, int]]:
    templates = [template for template in TEMPLATES if template.dimension == dimension]
    base, more = divmod(PER_DIMENSION, len(templates))
    return [(template, base + (k < more)) for k, template in enumerate(templates)]


def _balanced(rng: np.random.Generator, template: Template, share: int) -> list[Question]:
    turns, plans, letters = cycle(template.turns), cycle(template.plans), cycle(_shuffled(rng))
    questions: list[Question] = []
    while len(questions) < share:
        picture, fact = _find(rng, template, next(turns), next(plans))
        questions.append(ask_choice(rng, template, fact, picture, next(letters)))
    return questions


def _find(rng: np.random.Generator, template: Template, turn: str, plan: str) -> tuple[Painted, Fact]:
    """A picture whose answer is `turn`, and its fact."""
    for attempt in count():
        # Some answers never come from some plans ('person' from a scene): then any plan of the template will do.
        used_plan = plan if attempt < 50 else template.plans[attempt % len(template.plans)]
        picture = draw_picture(rng, "evaluation", used_plan)
        fact = template.ask(rng, picture)
        if fact and (fact.turn or fact.answer) == turn:
            return picture, fact
    raise AssertionError("unreachable")


def _shuffled(rng: np.random.Generator) -> list[int]:
    """All four letters, each time in another random order, so that they do not follow the order of the answers."""
    return [int(k) for _ in range(PER_DIMENSION) for k in rng.permutation(len(LETTERS))]


def _other(rng: np.random.Generator, values: tuple[str, ...], *excluded: str) -> str:
    others = [value for value in values if value not in excluded]
    return others[int(rng.integers(len(others)))]


def _any_of(rng: np.random.Generator, values: set[str]) -> str:
    return sorted(values)[int(rng.integers(len(values)))]


def _lone(rng: np.random.Generator, scene: Scene) -> tuple[int, Shape] | None:
    """The cell and the look of a random shape whose form occurs only once; None if there is none."""
    forms = [item.shape for item in scene.shapes]
    alone = [(k, item) for k, item in enumerate(scene.cells) if item and forms.count(item.shape) == 1]
    return alone[int(rng.integers(len(alone)))] if alone else None


def _existence(rng: np.random.Generator, scene: Scene) -> _Pair:
    present = {item.shape for item in scene.shapes}
    return f"is there any {_any_of(rng, present)} ?", f"is there any {_other(rng, SHAPES, *present)} ?"


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
    present = {item.shape for item in scene.shapes} & set(VERBS)
    if not present or len(present) == len(VERBS):
        return None
    true, false = _any_of(rng, present), _other(rng, tuple(VERBS), *present)
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
    """The pair of a category about a picture, that with the answer yes first; None where it makes no sense."""
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
    rng = np.random.default_rng(_SMALLMME_SEED)
    questions: list[Question] = []
    for category, (plan, _) in CATEGORIES.items():
        pictures = 0
        while pictures < PER_CATEGORY:
            pair = ask_yes_no(rng, category, draw_picture(rng, "evaluation", plan))
            if pair:
                questions += pair if rng.random() < 0.5 else pair[::-1]
                pictures += 1
    return verified(SMALLMME_VERSION, tuple(questions))


def smallmme_items() -> list[Item]:
    """The items of SmallMME. Two questions in a row are about the same picture, which is their cluster."""
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


def small_world(split: str = "evaluation", images: str | Path | Counterfactuals | None = None) -> Suite:
    """The suite about the people of a split.

    images: a manifest, a registered picture set or a counterfactual set to ask about instead of those people; every
    attribute that it varies has its tasks.
    """
    if split not in ASKED_SPLITS:
        raise InputError(f"split {split!r} cannot be asked about; choose one of {', '.join(ASKED_SPLITS)}")
    wordings = {**WORDINGS, "writing": captions.WORDING}
    if images is not None:
        about_people = suite_about(NAME, wordings, images, NEW_TOKENS)
    else:
        about_people = worded_suite(
            NAME,
            wordings,
            lambda probe, about: portraits(probe, split),
            ATTRIBUTES,
            OCCUPATIONS,
            NEW_TOKENS,
        )

    def items(task: str) -> Sequence[Item]:
        return get(task).items() if task in BENCHMARKS else about_people.make(task)

    tasks, default = (*about_people.tasks, *BENCHMARKS), (*about_people.default, BENCHMARKS[0])
    return replace(about_people, tasks=tasks, default=default, make=items)


register(SMALLSTAR)
register(SMALLMME)
suites.register(NAME, small_world)
suites.describe(
    NAME,
    Provenance(
        source="painted by ggss (docs/small-world.md)",
        licence="that of ggss",
        consent="not needed: nobody in these pictures exists",
        scope="A painted town: its people are invented and its bias is planted. This shows that the method works and "
        "is measured correctly. It is no evidence about any model trained on photographs.",
    ),
)
