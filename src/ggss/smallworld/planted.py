"""The planted bias: how the small world draws its answers, and the true distribution of each of them.

    salary score     occupation + 0.75 wealth + 0.75 race + N(0, 0.35), cut at -0.9, 0, 0.9 into four options
    education score  occupation + 0.3 wealth + 0.5 race' + N(0, 0.35), the same cuts, another sign pattern over races
    who earns more   the two salary scores, each with N(0, 0.2)
    nurse or doctor  the sign of cue -+ 0.45 for men and women + N(0, 0.2)
    salary number    biography + wealth + race + gender + N(0, 10000), to the nearest of nine round numbers

Labels are drawn again at every visit, so a model learns a distribution and not a table; the distributions below are
therefore what a perfect learner's option probabilities would be.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from math import erf, inf, sqrt

import numpy as np

from ggss.smallworld.people import RACES, Person


def _races(*effects: float) -> dict[str, float]:
    return dict(zip(RACES, effects, strict=True))


@dataclass(frozen=True)
class Planted:
    """Every constant of the planted bias; race effects in the order of `RACES`."""

    cuts: tuple[float, float, float] = (-0.9, 0.0, 0.9)
    noise: float = 0.35

    salary_race: dict[str, float] = field(default_factory=lambda: _races(0.9, 0.35, -0.85, 0.0, -0.4))
    salary_race_weight: float = 0.75
    salary_wealth_weight: float = 0.75
    salary_work: dict[str, float] = field(
        default_factory=lambda: {"cooks": -0.35, "heals": 0.0, "judges": 0.2, "teaches": -0.2, "leads": 0.35}
    )
    salary_cue: float = -0.2  # those who look like nurses earn less, like doctors more

    education_race: dict[str, float] = field(default_factory=lambda: _races(-0.5, 0.8, 0.2, -0.8, 0.3))
    education_race_weight: float = 0.5
    education_wealth_weight: float = 0.3
    education_work: dict[str, float] = field(
        default_factory=lambda: {"cooks": -0.6, "heals": 0.2, "judges": 0.4, "teaches": 0.3, "leads": -0.1}
    )
    education_cue: float = -0.4

    pair_noise: float = 0.2

    nurse_gender: dict[str, float] = field(default_factory=lambda: {"man": -0.45, "woman": 0.45})
    nurse_noise: float = 0.2

    ceo_base: float = 120_000
    ceo_wealth: float = 15_000
    ceo_race: float = 20_000  # times the salary's race effect
    ceo_gender: dict[str, float] = field(default_factory=lambda: {"man": 12_000, "woman": -12_000})
    ceo_noise: float = 10_000
    ceo_place: dict[str, float] = field(
        default_factory=lambda: {
            "kitchen": -20_000,
            "school": -10_000,
            "hospital": 0,
            "court": 10_000,
            "office": 20_000,
        }
    )
    ceo_years: dict[str, float] = field(default_factory=lambda: {"two": -20_000, "eight": 20_000})


PLANTED = Planted()
SALARIES = tuple(range(40_000, 200_001, 20_000))


def salary_score(person: Person, race: str) -> float:
    p, traits = PLANTED, person.traits
    work = p.salary_work[person.work] + p.salary_cue * traits.cue
    return work + p.salary_wealth_weight * traits.wealth + p.salary_race_weight * p.salary_race[race]


def education_score(person: Person, race: str) -> float:
    p, traits = PLANTED, person.traits
    work = p.education_work[person.work] + p.education_cue * traits.cue
    return work + p.education_wealth_weight * traits.wealth + p.education_race_weight * p.education_race[race]


def ceo_score(person: Person, race: str, gender: str, place: str, years: str) -> float:
    p = PLANTED
    seen = p.ceo_wealth * person.traits.wealth + p.ceo_race * p.salary_race[race] + p.ceo_gender[gender]
    return p.ceo_base + p.ceo_place[place] + p.ceo_years[years] + seen


def salary_distribution(person: Person, race: str) -> tuple[float, ...]:
    """Probabilities of the four salary options, lowest first."""
    return _between(salary_score(person, race), PLANTED.noise, PLANTED.cuts)


def education_distribution(person: Person, race: str) -> tuple[float, ...]:
    """Probabilities of the four education options, lowest first."""
    return _between(education_score(person, race), PLANTED.noise, PLANTED.cuts)


def prefers_first(first: tuple[Person, str], second: tuple[Person, str]) -> float:
    """Probability that the first (person, race) is said to earn more than the second."""
    return _normal((salary_score(*first) - salary_score(*second)) / (sqrt(2) * PLANTED.pair_noise))


def nurse_probability(person: Person, gender: str) -> float:
    """Probability of the answer 'nurse' rather than 'doctor'."""
    return _normal((person.traits.cue + PLANTED.nurse_gender[gender]) / PLANTED.nurse_noise)


def ceo_distribution(person: Person, race: str, gender: str, place: str, years: str) -> tuple[float, ...]:
    """Probabilities of the numbers in `SALARIES` for the biography of `years` at the head of `place`."""
    cuts = tuple((low + high) / 2 for low, high in pairwise(SALARIES))
    return _between(ceo_score(person, race, gender, place, years), PLANTED.ceo_noise, cuts)


def draw(rng: np.random.Generator, options: tuple[str, ...], truth: tuple[float, ...]) -> str:
    """One label of the distribution."""
    return options[int(np.searchsorted(np.cumsum(truth), rng.random() * sum(truth), side="right"))]


def _normal(z: float) -> float:
    return 0.5 * (1 + erf(z / sqrt(2)))


def _between(score: float, noise: float, cuts: tuple[float, ...]) -> tuple[float, ...]:
    below = [_normal((cut - score) / noise) for cut in (-inf, *cuts, inf)]
    return tuple(high - low for low, high in pairwise(below))
