"""The questions on which the small world is biased, and recognition of the two attributes.

`ask_*` makes one question with its true distribution. Its answer is drawn when a generator is given, and is the
likeliest option otherwise. `portraits(probe, split)` are the people that a probe asks about; `bias_items(split)` are
the questions about them.
"""

from collections.abc import Callable
from itertools import groupby, permutations

import numpy as np

from ggss.errors import InputError
from ggss.probes.base import get
from ggss.probes.wording import HELD_OUT, Prompt
from ggss.smallworld.bias_wording import (
    BIOGRAPHIES,
    EDUCATION,
    NURSE_OR_DOCTOR,
    PAIR,
    SALARY,
    candidate,
    recognition,
)
from ggss.smallworld.painter import Portrait, variants
from ggss.smallworld.people import GENDERS, RACES, identities, people
from ggss.smallworld.planted import (
    ceo_distribution,
    draw,
    education_distribution,
    nurse_probability,
    prefers_first,
    salary_distribution,
)
from ggss.smallworld.questions import Question, certain

_Rng = np.random.Generator | None

# The same number of people for every probe, so that each fold of a cross-fit has some of each: 120 portraits of the
# occupation that is held out from discovery, 1,080 ordered pairs of them, 240 portraits of nurses and doctors.
# Discovery has only eight identities of an occupation.
PEOPLE = 12


def portraits(probe: str, split: str) -> list[Portrait]:
    """The portraits of a split that a probe asks about, always the same and in the same order."""
    crowd = people(split, min(PEOPLE, len(identities(split))), get(probe).occupations or (HELD_OUT,))
    return [portrait for person in crowd for portrait in variants(person)]


def _question(
    kind: str, prompt: Prompt, truth: tuple[float, ...], images: tuple[Portrait, ...], rng: _Rng, template: str = ""
) -> Question:
    options, meanings = tuple(prompt.options), tuple(prompt.options.values())
    answer = options[int(np.argmax(truth))] if rng is None else draw(rng, options, truth)
    choices = meanings if meanings != options else ()
    return Question(kind, prompt.text, options, answer, images, choices, template=template or kind, truth=truth)


def ask_salary(portrait: Portrait, rng: _Rng = None) -> Question:
    return _question("salary", SALARY, salary_distribution(portrait.person, portrait.race), (portrait,), rng)


def ask_education(portrait: Portrait, rng: _Rng = None) -> Question:
    return _question("education", EDUCATION, education_distribution(portrait.person, portrait.race), (portrait,), rng)


def ask_pair(first: Portrait, second: Portrait, rng: _Rng = None) -> Question:
    chance = prefers_first((first.person, first.race), (second.person, second.race))
    return _question("2afc", PAIR, (chance, 1 - chance), (first, second), rng)


def ask_nurse_doctor(portrait: Portrait, rng: _Rng = None) -> Question:
    chance = nurse_probability(portrait.person, portrait.gender)
    return _question("nurse-doctor", NURSE_OR_DOCTOR, (chance, 1 - chance), (portrait,), rng)


def ask_ceo(portrait: Portrait, biography: int, rng: _Rng = None) -> Question:
    truth = ceo_distribution(portrait.person, portrait.race, portrait.gender, *BIOGRAPHIES[biography])
    return _question("ceo", candidate(biography), truth, (portrait,), rng, template=f"biography-{biography}")


def ask_race(portrait: Portrait, rng: _Rng = None) -> Question:
    return _question("race", recognition("race", RACES), certain(RACES, portrait.race), (portrait,), rng)


def ask_gender(portrait: Portrait, rng: _Rng = None) -> Question:
    return _question("gender", recognition("gender", GENDERS), certain(GENDERS, portrait.gender), (portrait,), rng)


def _about_each(probe: str, ask: Callable[[Portrait], Question]) -> Callable[[str], list[Question]]:
    return lambda split: [ask(portrait) for portrait in portraits(probe, split)]


def _pairs(split: str) -> list[Question]:
    """Two portraits of one person, every pair in both orders."""
    by_person = groupby(portraits("2afc", split), key=lambda portrait: portrait.person)
    return [ask_pair(first, second) for _, own in by_person for first, second in permutations(own, 2)]


def _candidates(split: str) -> list[Question]:
    return [
        ask_ceo(portrait, biography) for portrait in portraits("ceo", split) for biography in range(len(BIOGRAPHIES))
    ]


_ITEMS: dict[str, Callable[[str], list[Question]]] = {
    "salary": _about_each("mcq", ask_salary),
    "education": _about_each("mcq", ask_education),
    "2afc": _pairs,
    "nurse-doctor": _about_each("nurse-doctor", ask_nurse_doctor),
    "ceo": _candidates,
    "race": _about_each("recognition", ask_race),
    "gender": _about_each("recognition", ask_gender),
}
BIAS_KINDS = tuple(_ITEMS)


def bias_items(split: str, kinds: tuple[str, ...] = BIAS_KINDS) -> tuple[Question, ...]:
    """The questions of the named kinds about a split's people, always the same and in the same order."""
    unknown = [kind for kind in kinds if kind not in _ITEMS]
    if unknown:
        raise InputError(f"bias question {unknown[0]!r} is unknown; choose from {', '.join(BIAS_KINDS)}")
    return tuple(question for kind in kinds for question in _ITEMS[kind](split))
