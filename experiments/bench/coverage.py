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
GOAL = (0.93, 0.97)
TINY = 1e-9  # rounding
FEWEST = 6  # signs that are all alike in less than 5 % of cases: 2 of 2^6
METHODS = ("percentile, items", "percentile, clusters", "BCa, clusters", "jackknife or Fieller, clusters")


@dataclass(frozen=True)
class Held:
    """How often intervals hold the truth: as they are, and with ends 5 % nearer to the estimate or further off.

    least: how often every valid interval holds it (`indistinct`); 0 where that is not known.
    """

    share: float
    nearer: float
    further: float
    least: float = 0.0

    def __str__(self) -> str:
        """Bold within the goal. Outside of it the other coverage is told, too."""
        if (share := round(self.share, 4)) > GOAL[1]:
            least = f"; every valid one: {100 * self.least:.1f} %" if self.least > GOAL[1] else ""
            return f"{100 * share:.1f} % (nearer: {100 * self.nearer:.1f} %{least})"
        if share < GOAL[0]:
            return f"{100 * share:.1f} % (further: {100 * self.further:.1f} %)"
        return f"**{100 * share:.1f} %**"


def held(found: Sequence[Interval], truth: float, samples: Sequence[Metric] = ()) -> Held:
    """samples: what the intervals are of, by identity, where identities vary symmetrically around a truth of 0."""
    middle, low, high = np.array([(one.estimate, one.low, one.high) for one in found]).T
    share, nearer, further = (
        float(np.mean((middle + f * (low - middle) - TINY <= truth) & (truth <= middle + f * (high - middle) + TINY)))
        for f in (1.0, 0.95, 1.05)
    )
    least = float(np.mean([indistinct(sample) for sample in samples])) if samples else 0.0
    return Held(share, nearer, further, least)


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
