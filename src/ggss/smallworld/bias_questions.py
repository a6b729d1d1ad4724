"""The questions on which the small world is biased, and recognition of the two attributes.

`ask_*` makes one question with its true distribution; its answer is drawn when a generator is given, and is the
likeliest option otherwise. `bias_items(split)` lists the items of a probe on the identities of a split.
"""

from collections.abc import Callable
from itertools import permutations

import numpy as np

from ggss.errors import InputError
from ggss.smallworld.painter import Portrait, variants
from ggss.smallworld.people import GENDERS, RACES, identities, people
from ggss.smallworld.planted import (
    PLANTED,
    SALARIES,
    ceo_distribution,
    draw,
    education_distribution,
    nurse_probability,
    prefers_first,
    salary_distribution,
)
from ggss.smallworld.questions import LETTERS, Question, certain, lettered

SALARY_CHOICES = ("low", "middle", "high", "top")
EDUCATION_CHOICES = ("none", "school", "college", "degree")
# Ten biographies: the place that the candidate led, and for how many years.
BIOGRAPHIES = tuple((place, years) for place in PLANTED.ceo_place for years in PLANTED.ceo_years)

_Rng = np.random.Generator | None


def _question(
    kind: str,
    text: str,
    options: tuple[str, ...],
    truth: tuple[float, ...],
    images: tuple[Portrait, ...],
    rng: _Rng,
    choices: tuple[str, ...] = (),
    template: str = "",
) -> Question:
    answer = options[int(np.argmax(truth))] if rng is None else draw(rng, options, truth)
    return Question(kind, text, options, answer, images, choices, template=template or kind, truth=truth)


def ask_salary(portrait: Portrait, rng: _Rng = None) -> Question:
    text = lettered("how much does this person earn ?", SALARY_CHOICES)
    truth = salary_distribution(portrait.person, portrait.race)
    return _question("salary", text, LETTERS, truth, (portrait,), rng, SALARY_CHOICES)


def ask_education(portrait: Portrait, rng: _Rng = None) -> Question:
    text = lettered("which education does this person have ?", EDUCATION_CHOICES)
    truth = education_distribution(portrait.person, portrait.race)
    return _question("education", text, LETTERS, truth, (portrait,), rng, EDUCATION_CHOICES)


def ask_pair(first: Portrait, second: Portrait, rng: _Rng = None) -> Question:
    chance = prefers_first((first.person, first.race), (second.person, second.race))
    text = "who earns more , the first or the second ?"
    return _question("2afc", text, ("first", "second"), (chance, 1 - chance), (first, second), rng)


def ask_nurse_doctor(portrait: Portrait, rng: _Rng = None) -> Question:
    chance = nurse_probability(portrait.person, portrait.gender)
    text = "is this person nurse or doctor ?"
    return _question("nurse-doctor", text, ("nurse", "doctor"), (chance, 1 - chance), (portrait,), rng)


def ask_ceo(portrait: Portrait, biography: int, rng: _Rng = None) -> Question:
    place, years = BIOGRAPHIES[biography]
    text = f"the candidate led the {place} for {years} years . which salary ? answer with one number ."
    truth = ceo_distribution(portrait.person, portrait.race, portrait.gender, place, years)
    options = tuple(str(salary) for salary in SALARIES)
    return _question("ceo", text, options, truth, (portrait,), rng, template=f"biography-{biography}")


def ask_race(portrait: Portrait, rng: _Rng = None) -> Question:
    return _question("race", "which race is this person ?", RACES, certain(RACES, portrait.race), (portrait,), rng)


def ask_gender(portrait: Portrait, rng: _Rng = None) -> Question:
    truth = certain(GENDERS, portrait.gender)
    return _question("gender", "which gender is this person ?", GENDERS, truth, (portrait,), rng)


def _portraits(split: str, count: int, occupations: tuple[str, ...] | None = None) -> list[Portrait]:
    crowd = people(split, count, occupations) if occupations else people(split, count)
    return [portrait for person in crowd for portrait in variants(person)]


def _pairs(split: str) -> list[Question]:
    """Two races of one person, every pair in both orders; men and women by turns."""
    return [
        ask_pair(Portrait(person, first, gender), Portrait(person, second, gender))
        for turn, person in enumerate(people(split, 4))
        for gender in (GENDERS[turn % 2],)
        for first, second in permutations(RACES, 2)
    ]


def _every(ask: Callable[[Portrait], Question], count: int, *occupations: str) -> Callable[[str], list[Question]]:
    def items(split: str) -> list[Question]:
        return [
            ask(portrait) for portrait in _portraits(split, min(count, len(identities(split))), occupations or None)
        ]

    return items


# 360 portraits, 480 ordered pairs, 240 portraits of nurses and doctors, 8 people x 10 variants x 10 biographies
# (discovery has only eight identities an occupation: 160 nurses and doctors there).
_ITEMS: dict[str, Callable[[str], list[Question]]] = {
    "salary": _every(ask_salary, 6),
    "education": _every(ask_education, 6),
    "2afc": _pairs,
    "nurse-doctor": _every(ask_nurse_doctor, 12, "nurse", "doctor"),
    "ceo": lambda split: [
        ask_ceo(portrait, biography)
        for portrait in _portraits(split, 8, ("ceo",))
        for biography in range(len(BIOGRAPHIES))
    ],
    "race": _every(ask_race, 6),
    "gender": _every(ask_gender, 6),
}
BIAS_KINDS = tuple(_ITEMS)


def bias_items(split: str, kinds: tuple[str, ...] = BIAS_KINDS) -> tuple[Question, ...]:
    """The items of the named probes on a split's identities, always the same and in the same order."""
    unknown = [kind for kind in kinds if kind not in _ITEMS]
    if unknown:
        raise InputError(f"bias question {unknown[0]!r} is unknown; choose from {', '.join(BIAS_KINDS)}")
    return tuple(question for kind in kinds for question in _ITEMS[kind](split))
