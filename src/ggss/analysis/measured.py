"""One run in numbers: its metrics with intervals over clusters, their bias-corrected values and soft versions."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ggss import probes
from ggss.analysis.statistics import Statistics
from ggss.errors import InputError
from ggss.probes import Display
from ggss.stats import Interval, Metric, bootstrap, jackknife
from ggss.stats.metric import Array

if TYPE_CHECKING:
    from ggss.analysis.run import Source

SOFT = "soft_"


@dataclass(frozen=True)
class Measured:
    """`metrics` by name, the published one first; a metric named "" is the published one.

    clusters and questions: of each row of the metrics.
    """

    task: str
    about: str
    source: "Source"
    metrics: Mapping[str, Metric] = field(repr=False)
    clusters: tuple[str, ...] = field(repr=False)
    questions: tuple[str, ...] = field(repr=False)
    statistics: Statistics = field(repr=False)
    _draws: dict[object, Array] = field(default_factory=dict, repr=False, compare=False)

    def metric(self, name: str = "") -> Metric:
        return self.metrics[name] if name else next(iter(self.metrics.values()))

    def value(self, name: str = "") -> float:
        return float(self.metric(name))

    @property
    def degenerate(self) -> bool:
        """Most answers could not be parsed: the run is marked, never averaged in."""
        return self.metric().degenerate

    @property
    def names(self) -> list[str]:
        """The metrics that have a row of their own; a soft version is shown in the row of its metric."""
        return [name for name in self.metrics if not name.startswith(SOFT)]

    def display(self, name: str = "") -> Display:
        """How a metric is shown."""
        return probes.get(self.task).display(name or self.metric().name, self.about)

    def interval(self, name: str = "") -> Interval:
        """The paper's: a percentile bootstrap over clusters."""
        return percentile(self.value(name), self.draws(name), len(set(self.clusters)), self.statistics.level)

    def corrected(self, name: str = "") -> Interval | None:
        """Corrected for the upward bias of small samples by the jackknife; None for a metric without such bias."""
        if not self.display(name).biased_upwards:
            return None
        return jackknife(self.metric(name), self.clusters, level=self.statistics.level)

    def soft(self, name: str) -> float | None:
        """The metric of the options' probabilities instead of answers, if they were scored."""
        soft = self.metrics.get(SOFT + name)
        return None if soft is None else float(soft)

    def draws(self, name: str = "") -> Array:
        """The metric's resamples. All runs of a task draw the same items, so that those of two runs are paired."""
        if name not in self._draws:
            seed, resamples = self.statistics.seed_of(self.task), self.statistics.resamples
            self._draws[name] = bootstrap(self.metric(name), self.clusters, resamples=resamples, seed=seed).draws
        return self._draws[name]

    def by_cluster(self) -> "Measured":
        """The same with one row for each cluster, which is all that intervals and tests over clusters need."""
        names = sorted(set(self.clusters))
        if len(names) < 2:
            return self  # a single cluster has a value, but nothing that could be resampled
        reduced = {name: metric.by(self.clusters) for name, metric in self.metrics.items()}
        return replace(self, metrics=reduced, clusters=tuple(names), questions=("",) * len(names), _draws={})

    def within(self, fold: Collection[str]) -> "Measured":
        """The same on the clusters of a fold. InputError if it has none of them."""
        kept = np.array([cluster in fold for cluster in self.clusters])
        if not kept.any():
            raise InputError(f"{self.task}: the fold has none of its {len(set(self.clusters))} identities")
        return replace(
            self,
            metrics={name: _part(metric, kept) for name, metric in self.metrics.items()},
            clusters=tuple(cluster for cluster, keep in zip(self.clusters, kept, strict=True) if keep),
            questions=tuple(question for question, keep in zip(self.questions, kept, strict=True) if keep),
            _draws={},
        )


def _part(metric: Metric, kept: NDArray[np.bool_]) -> Metric:
    return replace(
        metric,
        terms=metric.terms[kept],
        groups=None if metric.groups is None else metric.groups[kept],
        evidence=None if metric.evidence is None else metric.evidence[kept],
    )


def percentile(estimate: float, draws: Array, units: int, level: float = 0.95) -> Interval:
    """The interval that `bootstrap` computes from its resamples, without keeping them."""
    kept = draws[np.isfinite(draws)]
    undefined = 1 - len(kept) / len(draws)
    low = high = float("nan")
    if undefined <= 0.5 and np.isfinite(estimate):
        low, high = (float(bound) for bound in np.quantile(kept, [(1 - level) / 2, (1 + level) / 2]))
    return Interval(estimate, low, high, level, "percentile", units, undefined)
