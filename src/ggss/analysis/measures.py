"""The metrics of a run with intervals, bias-corrected values and soft versions, and the settings of all statistics.

Intervals are over identities (the clusters: people, biographies, pictures) or over items, as the paper has both.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ggss import errors, probes
from ggss.errors import InputError
from ggss.probes import Display
from ggss.probes.base import SIGNED, SOFT
from ggss.stats import Interval, Metric, bootstrap, jackknife
from ggss.stats.metric import Array
from ggss.stats.paired import MARGIN

if TYPE_CHECKING:
    from ggss.analysis.run import Source


@dataclass(frozen=True)
class Statistics:
    """Settings of all intervals and tests.

    Args:
        resamples: how many a bootstrap draws.
        permutations: how many a test draws.
        seed: of both.
        level: of an interval.
        margin: a change of accuracy within it counts as no change.

    Raises:
        InputError: for a seed out of its range.

    Examples:
        >>> ggss.analysis.compare(before, after, ggss.analysis.Statistics(level=0.9)).change().level
        0.9
    """

    resamples: int = 10_000
    permutations: int = 10_000
    seed: int = 0
    level: float = 0.95
    margin: float = MARGIN

    def __post_init__(self) -> None:
        errors.SEED.check("the seed of the resamples", self.seed)

    def seed_of(self, *words: str) -> int:
        """A separate seed for each use, the same wherever that number is computed."""
        name = "/".join([str(self.seed), *words])
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])


Over = Literal["identities", "items"]


@dataclass(frozen=True)
class Measured:
    """The metrics of a run, from `Run.measured`. In its methods a metric named "" is the published one.

    Args:
        task: the task.
        about: the attribute whose values it compares.
        source: all that decided the answers.
        metrics: by name, the published one first.
        clusters: of each row of the metrics.
        units: of each row; rows of one unit are one item in a test over items.
        questions: of each row.
        statistics: resamples, seed and level.

    Examples:
        >>> measured = before.measured()
        >>> measured.value() == float(measured.metric()), measured.names[0]
        (True, 'mean_race_jsd')
    """

    task: str
    about: str
    source: "Source"
    metrics: Mapping[str, Metric] = field(repr=False)
    clusters: tuple[str, ...] = field(repr=False)
    units: tuple[str, ...] = field(repr=False)
    questions: tuple[str, ...] = field(repr=False)
    statistics: Statistics = field(repr=False)
    _draws: dict[object, Array] = field(default_factory=dict, repr=False, compare=False)

    def metric(self, name: str = "") -> Metric:
        return self.metrics[name] if name else next(iter(self.metrics.values()))

    def value(self, name: str = "") -> float:
        return float(self.metric(name))

    @property
    def degenerate(self) -> bool:
        """Most answers could not be parsed: a warning. The value is used as long as it is defined."""
        return self.metric().degenerate

    @property
    def names(self) -> list[str]:
        """The metrics that have a row of their own; a soft version is shown in the row of its metric."""
        return [name for name in self.metrics if not name.startswith((SOFT, SIGNED))]

    def signed(self, name: str = "") -> Metric | None:
        """A gap with its sign; None for a metric that is no gap between two groups."""
        return self.metrics.get(SIGNED + (name or self.metric().name))

    def groups(self, over: Over = "identities") -> tuple[str, ...]:
        """The label of each row; rows of one label are resampled or swapped together."""
        return self.clusters if over == "identities" else self.units

    def display(self, name: str = "") -> Display:
        """How a metric is shown."""
        return probes.get(self.task).display(name or self.metric().name, self.about)

    def interval(self, name: str = "", over: Over = "identities") -> Interval:
        """The paper's interval: a percentile bootstrap."""
        draws = self.draws(name, over)
        return percentile(self.value(name), draws, len(set(self.groups(over))), self.statistics.level)

    def corrected(self, name: str = "") -> Interval:
        """The bias-corrected value, with an interval over identities that is valid for few of them.

        By the jackknife; NaN for a single identity. Of a gap the signed form is corrected, and its absolute value
        returned.
        """
        level, signed = self.statistics.level, self.signed(name)
        if len(set(self.clusters)) < 2:
            return Interval(self.value(name), float("nan"), float("nan"), level, "jackknife", 1, 1.0)
        interval = jackknife(signed or self.metric(name), self.clusters, level=level)
        return interval if signed is None else _absolute(interval)

    def soft(self, name: str) -> float | None:
        """The metric computed from the options' probabilities instead of the answers; None if there are none."""
        soft = self.metrics.get(SOFT + name)
        return None if soft is None else float(soft)

    def draws(self, name: str = "", over: Over = "identities", signed: bool = False) -> Array:
        """The metric's resamples, [resamples]. All runs of a task draw the same items, so resamples are paired."""
        key = (name, over, signed)
        if key not in self._draws:
            metric = self.signed(name) if signed else None
            seed = self.statistics.seed_of(self.task, *((over,) if over == "items" else ()))
            self._draws[key] = bootstrap(
                metric or self.metric(name), self.groups(over), resamples=self.statistics.resamples, seed=seed
            ).draws
        return self._draws[key]

    def published(self) -> "Measured":
        """The published metric alone (and its signed form), which takes little memory for many runs."""
        published = self.metric().name
        names = (published, SIGNED + published)
        metrics = {name: metric for name, metric in self.metrics.items() if name in names}
        return replace(self, metrics=metrics, _draws={})

    def within(self, fold: Collection[str]) -> "Measured":
        """The metrics on the clusters of a fold. InputError if the run has none of them."""
        inside = np.array([cluster in fold for cluster in self.clusters])
        if not inside.any():
            raise InputError(f"{self.task}: the fold has none of its {len(set(self.clusters))} identities")
        return replace(
            self,
            metrics={name: _rows(metric, inside) for name, metric in self.metrics.items()},
            clusters=tuple(compress(self.clusters, inside)),
            units=tuple(compress(self.units, inside)),
            questions=tuple(compress(self.questions, inside)),
            _draws={},
        )


def _rows(metric: Metric, inside: NDArray[np.bool_]) -> Metric:
    """The metric of some of its rows."""
    return replace(
        metric,
        terms=metric.terms[inside],
        groups=None if metric.groups is None else metric.groups[inside],
        evidence=None if metric.evidence is None else metric.evidence[inside],
    )


def _absolute(signed: Interval) -> Interval:
    """The interval of the absolute value."""
    ends = sorted((abs(signed.low), abs(signed.high)))
    low = 0.0 if signed.low <= 0 <= signed.high else ends[0]
    return replace(signed, estimate=abs(signed.estimate), low=low, high=ends[1])


def percentile(estimate: float, draws: Array, units: int, level: float = 0.95) -> Interval:
    """The interval that `bootstrap` computes from its resamples. Unlike that one, it does not hold them in memory."""
    defined = draws[np.isfinite(draws)]
    undefined = 1 - len(defined) / len(draws)
    low = high = float("nan")
    if undefined <= 0.5 and np.isfinite(estimate):
        low, high = (float(bound) for bound in np.quantile(defined, [(1 - level) / 2, (1 + level) / 2]))
    return Interval(estimate, low, high, level, "percentile", units, undefined)
