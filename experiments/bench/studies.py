"""Simulated studies whose truth is known: a planted bias, or none, in the sizes of the published protocol.

An answer follows a score: what an identity gives every picture of it, what a picture adds, the planted effect of the
group shown, and what one run adds of its own to a picture and to an identity (`whim`). Both runs of a study are
of the same identities and pictures. The truth is what infinitely many identities would give.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from ggss.probes.metrics import (
    answer_gap,
    consistent_preference_std,
    jsd_to_overall,
    mean_jsd,
    preference_std,
    salary_gap,
)
from ggss.stats import Metric, mean

RACES = np.array(["amber", "cobalt", "jade", "rose", "violet"])
RACE_EFFECT = np.array([0.9, 0.35, -0.85, 0.0, -0.4])
CUTS, OPTIONS = np.array([-0.9, 0.0, 0.9]), "ABCD"
IDENTITY, PICTURE, OWN = 0.5, 0.5, 0.3  # standard deviations of the score's parts
PREFERENCE = 0.3  # of an identity's own preference among its races in a forced choice
BIOGRAPHIES, PAID_IDENTITIES = 10, 8

Rng = np.random.Generator


@dataclass(frozen=True)
class Study:
    """Two runs on the same items, the clusters of these items (None if independent), and the runs' true values."""

    unsteered: Metric
    steered: Metric
    clusters: NDArray[np.intp] | None
    truth: tuple[float, float]
    blocks: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))  # counterfactual sets


Simulate = Callable[[Rng, int, tuple[float, float], float], Study]


def mcq(
    rng: Rng,
    identities: int,
    effects: tuple[float, float],
    whim: float = 0.0,
    questions: int = 1,
    published: bool = False,
) -> Study:
    """Four options; each identity as five races in two versions; the JSD between races.

    published: the JSD of each race from everybody instead, of one question.
    """
    identity, version, question, race = _crossed(identities, 2, questions, 5)
    shared = rng.normal(0, IDENTITY, (identities, questions))[identity, question] + rng.normal(0, PICTURE, len(race))

    def run(effect: float) -> Metric:
        score = shared + effect * RACE_EFFECT[race] + _own(rng, identity, whim)
        answers = [OPTIONS[k] for k in np.searchsorted(CUTS, score)]
        if published:
            return jsd_to_overall(RACES[race], answers, OPTIONS, question == 0)
        return mean_jsd(question.astype(str), RACES[race], answers, OPTIONS)

    def true(effect: float) -> float:
        below = norm.cdf((CUTS - effect * RACE_EFFECT[:, None]) / _spread(whim))
        shares = np.diff(below, axis=1, prepend=0, append=1)
        if published:
            return float(jsd_to_overall(RACES, shares, OPTIONS, np.full(5, True)))
        return float(mean_jsd(["q"] * 5, RACES, shares, OPTIONS))

    blocks = (identity * 2 + version) * questions + question
    return Study(run(effects[0]), run(effects[1]), identity, (true(effects[0]), true(effects[1])), blocks)


def two_afc(
    rng: Rng, identities: int, effects: tuple[float, float], whim: float = 0.0, published: bool = False
) -> Study:
    """Every ordered pair of races of each identity in two versions; the standard deviation of net preference.

    published: of win rates in the pairs whose two orders name the same picture instead.
    """
    identity, version, first, second = _crossed(identities, 2, 5, 5)
    identity, version, first, second = (column[first != second] for column in (identity, version, first, second))
    both = [
        f"{who}/{which}/{min(a, b)}-{max(a, b)}"
        for who, which, a, b in zip(identity, version, first, second, strict=True)
    ]
    liked = rng.normal(0, PREFERENCE, (identities, 5))
    shared = liked[identity, first] - liked[identity, second] + rng.normal(0, PICTURE, len(identity))

    def run(effect: float) -> Metric:
        fancy = rng.normal(0, whim, (identities, 5))
        own = fancy[identity, first] - fancy[identity, second] + rng.normal(0, OWN, len(identity))
        score = shared + effect * (RACE_EFFECT[first] - RACE_EFFECT[second]) + own
        chosen = np.where(score > 0, "first", "second").tolist()
        if published:
            return consistent_preference_std(RACES[first], RACES[second], both, chosen, np.full(len(first), True))
        return preference_std(RACES[first], RACES[second], chosen)

    def true(effect: float) -> float:
        if published:
            return _true_win_rates(effect, whim)
        noise = np.sqrt(2 * PREFERENCE**2 + PICTURE**2 + OWN**2 + 2 * whim**2)
        wins = norm.cdf(effect * (RACE_EFFECT[:, None] - RACE_EFFECT) / noise)
        return float(((2 * wins - 1).sum(1) / 4).std())

    return Study(run(effects[0]), run(effects[1]), identity, (true(effects[0]), true(effects[1])))


def _true_win_rates(effect: float, whim: float) -> float:
    """Their standard deviation over races. What an identity prefers is the same in both orders of a pair."""
    node, weight = np.polynomial.hermite_e.hermegauss(60)
    own = np.sqrt(2 * PREFERENCE**2 + 2 * whim**2) * node
    gap = effect * (RACE_EFFECT[:, None] - RACE_EFFECT)
    chosen = norm.cdf((gap[..., None] + own) / np.hypot(PICTURE, OWN))
    won, lost = ((share**2 @ weight / weight.sum()) * (1 - np.eye(5)) for share in (chosen, 1 - chosen))
    return float((won.sum(1) / (won + lost).sum(1)).std())


def nurse_doctor(
    rng: Rng, identities: int, effects: tuple[float, float], whim: float = 0.0, signed: bool = True
) -> Study:
    """Nurse or doctor, each identity as two genders of five races; the gap in "nurse"."""
    identity, _, gender = _crossed(identities, 5, 2)
    shared = rng.normal(0, IDENTITY, identities)[identity] + rng.normal(0, PICTURE, len(gender))

    def run(effect: float) -> Metric:
        # An identity's whim is about gender, or it would cancel in the gap.
        own = rng.normal(0, whim, identities)[identity] * (2 * gender - 1) + rng.normal(0, OWN, len(gender))
        said = np.where(shared + effect * (2 * gender - 1) + own > 0, "nurse", "doctor").tolist()
        return answer_gap(np.array(["man", "woman"])[gender], said, "nurse", signed)

    def true(effect: float) -> float:
        gap = float(norm.cdf(-effect / _spread(whim)) - norm.cdf(effect / _spread(whim)))
        return gap if signed else abs(gap)

    return Study(run(effects[0]), run(effects[1]), identity, (true(effects[0]), true(effects[1])))


def ceo_salary(rng: Rng, biographies: int, effects: tuple[float, float], whim: float = 0.0) -> Study:
    """Salaries in thousands for each biography, identity, race and gender; the gender gap, by biography."""
    biography, _, _, gender = _crossed(biographies, PAID_IDENTITIES, 5, 2)
    slope = rng.normal(0, 0.3 + whim, biographies)  # a biography has a gender gap of its own
    shared = 120 + 20 * rng.normal(0, 1, biographies)[biography] + 10 * rng.normal(0, 1, len(gender))

    def run(effect: float) -> Metric:
        lead = (effect + slope[biography]) * (0.5 - gender)
        paid = np.round(shared + 20 * lead + 5 * rng.normal(0, 1, len(gender)))
        return salary_gap(np.array(["man", "woman"])[gender], np.maximum(paid, 0).tolist())

    return Study(run(effects[0]), run(effects[1]), biography, (20 * effects[0], 20 * effects[1]))


def benchmark(rng: Rng, questions: int, changed: tuple[float, float]) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    """Right-or-wrong answers of an unsteered and a steered run, given the shares of answers gained and lost."""
    gained, lost = changed
    kind = rng.choice(4, size=questions, p=[gained, lost, 0.5 - lost, 0.5 - gained])
    return np.isin(kind, (1, 2)).astype(int), np.isin(kind, (0, 2)).astype(int)


def accuracy(rng: Rng, questions: int, effects: tuple[float, float], whim: float = 0.0) -> Study:
    """A benchmark of independent questions; `effects` are accuracies; 4 % of answers go each way besides."""
    change = effects[1] - effects[0]
    unsteered, steered = benchmark(rng, questions, (0.04 + max(change, 0), 0.04 + max(-change, 0)))
    return Study(mean(unsteered), mean(steered), None, (0.5, 0.5 + change))


def _crossed(*sizes: int) -> list[NDArray[np.intp]]:
    return [grid.ravel() for grid in np.meshgrid(*map(np.arange, sizes), indexing="ij")]


def _own(rng: Rng, identity: NDArray[np.intp], whim: float) -> NDArray[np.float64]:
    return rng.normal(0, whim, identity.max() + 1)[identity] + rng.normal(0, OWN, len(identity))


def _spread(whim: float) -> float:
    return float(np.sqrt(IDENTITY**2 + PICTURE**2 + OWN**2 + whim**2))
