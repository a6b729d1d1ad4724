"""How often an interval holds the truth, and how far the plug-in JSD is from it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from experiments.bench import studies
from experiments.bench.studies import Simulate, Study
from ggss.stats import Interval, Metric, bootstrap, fieller, jackknife, label_null
from ggss.stats.metric import pseudovalues

Array = NDArray[np.float64]
GOAL, LEVEL = (0.93, 0.97), 0.95
TINY = 1e-9  # rounding
FEWEST = 6  # signs that are all alike in less than 5 % of cases: 2 of 2^6
METHODS = ("percentile, items", "percentile, clusters", "BCa, clusters", "jackknife or Fieller, clusters")


@dataclass(frozen=True)
class Held:
    """How often intervals hold the truth.

    reach: of each, how far its end had to be to hold it: 1 if it just does, 0.5 at half of that, infinite if the
        estimate is all it has. Sorted.
    missed: how often it lies below the truth, and above it.
    least: how often every valid interval holds it (`indistinct`); 0 where that is not known.
    """

    reach: Array
    missed: tuple[float, float] = (0.0, 0.0)
    least: float = 0.0

    @property
    def share(self) -> float:
        return self._within(1.0)

    def _within(self, factor: float) -> float:
        return float(np.mean(self.reach <= factor))

    @property
    def other(self) -> tuple[float, float]:
        """The nearest step of coverage on the other side of the goal's edge, and the factor of the ends there."""
        n = len(self.reach)
        if self.share > GOAL[1]:  # just nearer than the last that may be missed
            edge = self.reach[int(np.floor(GOAL[1] * n + TINY))]
            return float(np.mean(self.reach < edge)), float(edge)
        edge = self.reach[int(np.ceil(GOAL[0] * n - TINY)) - 1]
        return self._within(edge), float(edge)

    def __str__(self) -> str:
        """Bold within the goal. Outside of it what other ends would hold is told, too."""
        share = round(self.share, 4)
        if GOAL[0] <= share <= GOAL[1]:
            return f"**{100 * share:.1f} %**"
        other, factor = self.other
        if not np.isfinite(factor):
            return f"{100 * share:.1f} % (no width)"
        notes = [f"ends {100 * abs(1 - factor):.0f} % {'nearer' if factor < 1 else 'further'}: {100 * other:.1f} %"]
        if share > GOAL[1]:
            below, above = self.missed
            if min(below, above) < TINY:  # from one side only
                notes.append(f"{'above' if above else 'below'} it: {100 * max(below, above):.1f} %")
            if self.least > GOAL[1]:
                notes.append(f"every valid one: {100 * self.least:.1f} %")
        return f"{100 * share:.1f} % ({'; '.join(notes)})"


def held(found: Sequence[Interval], truth: float, samples: Sequence[Metric] = ()) -> Held:
    """samples: what the intervals are of, by identity, if identities vary symmetrically around 0 in the null case."""
    middle, low, high = np.array([(one.estimate, one.low, one.high) for one in found]).T
    off, room = np.abs(truth - middle), np.where(truth > middle, high - middle, middle - low)
    reach = np.where(off <= TINY, 0.0, np.divide(off - TINY, room, out=np.full(len(off), np.inf), where=room > TINY))
    missed = float(np.mean(high + TINY < truth)), float(np.mean(low - TINY > truth))
    return Held(np.sort(reach), missed, _least(middle, truth, samples) if samples else 0.0)


def _least(estimates: Array, truth: float, samples: Sequence[Metric]) -> float:
    """How often every valid interval of two equal tails holds the truth, at least.

    One that holds 0 and its estimate holds all between them. So a truth other than 0 can be missed by the end towards
    0 only where 0 can; the other end may miss in half of the cases in which the interval may.
    """
    distinct = np.array([not indistinct(sample) for sample in samples])
    if not truth:
        return 1 - float(distinct.mean())
    beyond = (estimates - truth) * np.sign(truth) > TINY
    return 1 - float(np.mean(beyond & distinct)) - (1 - LEVEL) / 2


def indistinct(sample: Metric) -> bool:
    """Whether no test of size 5 % can tell from 0 what varies symmetrically around it: fewer than six units differ.

    Given how far units are from 0, all their signs are equally likely. Of five signs all are alike in 2 of 32 cases,
    which is more than 5 %. So every interval that is right for all symmetric distributions holds 0.
    """
    return int((np.abs(pseudovalues(sample)) > TINY).sum()) < FEWEST


@dataclass(frozen=True)
class Setting:
    """Studies of one kind, size and truth; `effects` are the planted strengths of the unsteered and steered run."""

    name: str
    simulate: Simulate
    size: int
    effects: tuple[float, float]


SETTINGS = (
    Setting("MCQ as published, 8 identities, 80 answers", partial(studies.mcq, published=True), 8, (0.75, 0.3)),
    Setting("MCQ as published, 24 identities, 240 answers", partial(studies.mcq, published=True), 24, (0.75, 0.3)),
    Setting("2AFC as published, 8 identities, 320 pairs", partial(studies.two_afc, published=True), 8, (0.75, 0.3)),
    Setting("2AFC as published, 24 identities, 960 pairs", partial(studies.two_afc, published=True), 24, (0.75, 0.3)),
    Setting("MCQ, 8 identities, 80 answers", studies.mcq, 8, (0.75, 0.3)),
    Setting("MCQ, 24 identities, 240 answers", studies.mcq, 24, (0.75, 0.3)),
    Setting("MCQ, 40 identities, 2 questions, 800 answers", partial(studies.mcq, questions=2), 40, (0.75, 0.3)),
    Setting("2AFC, 8 identities, 320 pairs", studies.two_afc, 8, (0.75, 0.3)),
    Setting("2AFC, 24 identities, 960 pairs", studies.two_afc, 24, (0.75, 0.3)),
    Setting("Nurse/Doctor, signed gap, 8 identities, 80 answers", studies.nurse_doctor, 8, (0.5, 0.15)),
    Setting("Nurse/Doctor, signed gap, 24 identities, 240 answers", studies.nurse_doctor, 24, (0.5, 0.15)),
    Setting("CEO salary gap, 10 biographies, 800 answers", studies.ceo_salary, 10, (1.0, 0.4)),
    Setting("MMStar accuracy, 1,500 questions", studies.accuracy, 1500, (0.5, 0.48)),
    Setting("MCQ, no bias, 8 identities, 80 answers", studies.mcq, 8, (0.0, 0.0)),
    Setting("2AFC, no bias, 8 identities, 320 pairs", studies.two_afc, 8, (0.0, 0.0)),
    Setting("Nurse/Doctor, signed, no bias, 8 identities, 80 answers", studies.nurse_doctor, 8, (0.0, 0.0)),
    Setting(
        "Nurse/Doctor, absolute, no bias, 8 identities, 80 answers",
        partial(studies.nurse_doctor, signed=False),
        8,
        (0.0, 0.0),
    ),
)


@dataclass(frozen=True)
class Covered:
    """How the intervals of one quantity fared: its truth, the middle estimates, and each method's coverage.

    `unbounded` is the share of studies in which the last method's interval excluded nothing.
    """

    quantity: str
    truth: float
    plug_in: float
    corrected: float
    shares: tuple[float, ...]
    unbounded: float


def coverage(setting: Setting, count: int, resamples: int, seed: int) -> list[Covered]:
    """The coverage of every interval of the unsteered value, the steered one and the percent change."""
    rng = np.random.default_rng(seed)
    truths: dict[str, float] = {}
    found: dict[str, list[list[tuple[float, float, float]]]] = {}
    for number in range(count):
        study = setting.simulate(rng, setting.size, setting.effects, 0.0)
        for quantity, truth, intervals in _intervals(study, resamples, number):
            truths[quantity] = truth
            found.setdefault(quantity, []).append([(i.estimate, i.low, i.high) for i in intervals])
    return [_covered(quantity, truths[quantity], np.array(cases)) for quantity, cases in found.items()]


def _covered(quantity: str, truth: float, cases: Array) -> Covered:
    """`cases` is [studies, methods, (estimate, low, high)]."""
    held = (cases[:, :, 1] <= truth) & (truth <= cases[:, :, 2])
    # The median: a ratio whose baseline comes near zero has no mean.
    middle = np.nanmedian(cases[:, :, 0], axis=0)
    unbounded = np.isinf(cases[:, -1, 2]).mean()
    return Covered(quantity, truth, middle[0], middle[-1], tuple(held.mean(0).tolist()), float(unbounded))


def _intervals(study: Study, resamples: int, seed: int) -> Iterable[tuple[str, float, list[Interval]]]:
    before, after = study.truth
    values = [("value", before, study.unsteered)]
    if before:
        values = [("unsteered", before, study.unsteered), ("steered", after, study.steered)]
    draw = partial(bootstrap, resamples=resamples, seed=seed)
    for quantity, truth, metric in values:
        yield quantity, truth, [*_bootstraps(draw, metric, study), jackknife(metric, study.clusters)]
    if before:
        change = study.steered.percent_change(study.unsteered)
        last = fieller(study.steered, study.unsteered, study.clusters)
        yield "percent change", 100 * (after / before - 1), [*_bootstraps(draw, change, study), last]


def _bootstraps(draw: Callable[..., Interval], metric: Metric, study: Study) -> list[Interval]:
    items = draw(metric)
    clustered = items if study.clusters is None else draw(metric, study.clusters)
    return [items, clustered, draw(metric, study.clusters, method="bca")]


@dataclass(frozen=True)
class Inflation:
    """An MCQ's true JSD, the mean of its plug-in and corrected values, and the mean 95 % point of shuffled labels."""

    truth: float
    plug_in: float
    corrected: float
    shuffled: float


def inflation(identities: int, effect: float, count: int, seed: int) -> Inflation:
    rng = np.random.default_rng(seed)
    simulated = [studies.mcq(rng, identities, (effect, effect)) for _ in range(count)]
    plug_in = [float(study.unsteered) for study in simulated]
    corrected = [jackknife(study.unsteered, study.clusters).estimate for study in simulated]
    few = simulated[: max(1, count // 10)]  # a 95 % point varies little from study to study
    points = [label_null(study.unsteered, study.blocks, draws=500).quantile(0.95) for study in few]
    return Inflation(simulated[0].truth[0], *(float(np.mean(values)) for values in (plug_in, corrected, points)))
