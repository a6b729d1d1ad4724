"""Right answers before and after, question by question: exact McNemar for a difference, TOST for equivalence."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ggss.analysis.statistics import Statistics
from ggss.stats import Equivalence, Interval, jackknife, mcnemar, tost
from ggss.stats.metric import Array


@dataclass(frozen=True)
class Kept:
    """Accuracy after and before; questions gained and lost; the change with a test that it is within the margin.

    change: its interval has the statistics' level. same: the interval of the equivalence test, at level 0.90.
    p: McNemar's.
    """

    after: Interval
    before: Interval
    gained: int
    lost: int
    change: Equivalence
    same: Equivalence
    p: float


def kept_answers(after: Array, before: Array, clusters: Sequence[str] | None, statistics: Statistics) -> Kept:
    """From right (1) or wrong (0), question by question. clusters: which questions belong together, see `shared`."""
    level, margin = statistics.level, statistics.margin
    gained, lost = int(np.sum(after > before)), int(np.sum(after < before))
    return Kept(
        share(after, clusters, level),
        share(before, clusters, level),
        gained,
        lost,
        _equivalence(after, before, margin, clusters, (1 - level) / 2),
        _equivalence(after, before, margin, clusters, 0.05),
        mcnemar(gained, lost),
    )


def shared(clusters: Sequence[str]) -> Sequence[str] | None:
    """The clusters if any of them has several items, else None: for independent items there are better tests."""
    return clusters if len(set(clusters)) < len(clusters) else None


def share(right: Array, clusters: Sequence[str] | None, level: float) -> Interval:
    """The share of right answers; its bounds stay between 0 and 1."""
    if _alone(right, clusters):
        return Interval(float(np.mean(right)), np.nan, np.nan, level, "jackknife", 1, 1.0)
    found = jackknife(right, clusters, level=level)
    return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))


def _equivalence(
    after: Array, before: Array, margin: float, clusters: Sequence[str] | None, size: float
) -> Equivalence:
    if _alone(after, clusters):
        return Equivalence(float(np.mean(after - before)), np.nan, np.nan, np.nan, margin, size)
    return tost(after, before, margin, clusters, size=size)


def _alone(right: Array, clusters: Sequence[str] | None) -> bool:
    """Nothing to compare within: how much it varies cannot be told."""
    return len(right if clusters is None else set(clusters)) < 2
