"""SmallStar: 1,500 multiple-choice questions over scenes and portraits, 250 in each of six dimensions.

The small world's MMStar. Every question has four choices of which one is right. Within a template all answers and all
letters come equally often, so that guessing without the picture is right about a quarter of the time.
"""

from functools import cache
from itertools import count, cycle

import numpy as np

from ggss.probes.base import Item
from ggss.probes.multiple_choice import multiple_choice_probe
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import GENDERS, RACES, draw_person
from ggss.smallworld.questions import LETTERS, Painted, Question, as_item, certain, held_to, lettered, place_answer
from ggss.smallworld.scenes import draw_scene
from ggss.smallworld.templates import DIMENSIONS, NUMBERS, TEMPLATES, Fact, Template

SMALLSTAR_VERSION = "smallstar-v1"
PER_DIMENSION = 250
_SEED = 20_240


@cache
def smallstar() -> tuple[Question, ...]:
    """The suite, always the same; its pictures are of evaluation identities and held-out layouts."""
    rng = np.random.default_rng(_SEED)
    questions = tuple(
        question
        for dimension in DIMENSIONS
        for template, share in _shares(dimension)
        for question in _balanced(rng, template, share)
    )
    return held_to(SMALLSTAR_VERSION, questions)


def smallstar_items() -> list[Item]:
    """Every question has a picture of its own, so each is a cluster."""
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
    """The multiple-choice form of a fact, its answer at the given letter unless its choices have an order."""
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
    """A picture with the answer that is wanted next."""
    for attempt in count():
        # Some answers never come from some plans ('person' from a scene): then any plan of the template will do.
        tried = plan if attempt < 50 else template.plans[attempt % len(template.plans)]
        picture = draw_picture(rng, "evaluation", tried)
        fact = template.ask(rng, picture)
        if fact and (fact.turn or fact.answer) == turn:
            return picture, fact
    raise AssertionError("unreachable")


def _shuffled(rng: np.random.Generator) -> list[int]:
    """All four letters, in a random order again and again, so that they do not follow the order of the answers."""
    return [int(k) for _ in range(PER_DIMENSION) for k in rng.permutation(len(LETTERS))]
