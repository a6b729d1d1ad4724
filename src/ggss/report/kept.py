"""What steering left of a capability, question by question against the unsteered model.

Questions that share a picture are kept together; where none do, the methods for independent questions hold: Tango's
score interval for the paired change, exact McNemar tests. Accuracies have jackknife intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ggss.stats import Equivalence, Interval, jackknife, mcnemar, tost
from ggss.stats.metric import Array
from ggss.study.results import Run

LEVEL = 0.95


@dataclass(frozen=True)
class Kept:
    """Accuracy after and before; its change with a test that it is within the margin; McNemar's p."""

    accuracy: Interval
    before: Interval
    change: Equivalence
    p: float


@dataclass(frozen=True)
class Rights:
    """Right (1) or wrong (0), item by item, steered and not."""

    after: Array
    before: Array
    clusters: NDArray[np.str_]
    questions: NDArray[np.str_]

    @classmethod
    def of(cls, run: Run, unsteered: Run) -> "Rights":
        after, before = (r.metric.value(r.metric.terms) for r in (run, unsteered))  # each item on its own
        return cls(after, before, np.array(run.clusters), np.array([item.question for item in run.items]))

    def kept(self, question: str = "") -> Kept:
        """On all questions, or on those of one kind."""
        chosen = np.full(len(self.after), True) if not question else self.questions == question
        after, before, clusters = self.after[chosen], self.before[chosen], _shared(self.clusters[chosen])
        change = tost(after, before, clusters=clusters, size=(1 - LEVEL) / 2)
        p = mcnemar(int(np.sum(after > before)), int(np.sum(after < before)))
        return Kept(_share(after, clusters), _share(before, clusters), change, p)


def overall(runs: Sequence[Rights]) -> tuple[Interval, Interval]:
    """Mean accuracy and its mean change over runs of the same questions, each question averaged over them first."""
    after = np.mean([run.after for run in runs], axis=0)
    before = np.mean([run.before for run in runs], axis=0)
    clusters = _shared(runs[0].clusters)
    return _share(after, clusters), jackknife(after - before, clusters, level=LEVEL)


def _shared(clusters: NDArray[np.str_]) -> NDArray[np.str_] | None:
    return clusters if len(np.unique(clusters)) < len(clusters) else None


def _share(right: Array, clusters: NDArray[np.str_] | None) -> Interval:
    """The mean; its bounds are not below none or above all."""
    found = jackknife(right, clusters, level=LEVEL)
    return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))
