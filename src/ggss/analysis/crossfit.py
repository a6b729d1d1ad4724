"""The strength chosen on some identities and judged on others, from stored answers alone.

Identities are dealt out to folds by turns. For each fold the strength is chosen by best-avg-alpha on all other folds
and the change of bias is measured on this one. With two folds that is the published protocol; there the first four
identities made one fold and the last four the other, while here turns are taken, because tasks ask about different
numbers of identities and each fold needs some of every task.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ggss.analysis.selection import UNSTEERED, Values, average_change, choose, strengths
from ggss.errors import InputError
from ggss.stats import Metric

if TYPE_CHECKING:
    from ggss.study.results import Results, Run

Fold = frozenset[str]


@dataclass(frozen=True)
class HeldOut:
    """One turn: `alpha` was chosen without the identities of `fold`, `change` is Avg in percent on them."""

    fold: Fold
    alpha: float | None
    change: float | None


def identity(cluster: str) -> str:
    """Who is shown: `nurse/03` and `doctor/03` may share a source face, so they are never parted."""
    return cluster.rsplit("/", 1)[-1]


def deal(clusters: Collection[str], count: int = 2) -> list[Fold]:
    """The clusters in `count` folds, identity by identity in turns."""
    people = sorted({identity(cluster) for cluster in clusters})
    if not 2 <= count <= len(people):
        raise InputError(f"{len(people)} identities can be dealt to 2 to {len(people)} folds, got {count}")
    turn = {person: k % count for k, person in enumerate(people)}
    return [frozenset(c for c in clusters if turn[identity(c)] == k) for k in range(count)]


def within(metric: Metric, clusters: Sequence[str], fold: Fold) -> tuple[Metric, list[str]]:
    """A run's metric on the items of a fold, and their clusters."""
    kept = np.array([cluster in fold for cluster in clusters])
    if not kept.any():
        raise InputError(f"{metric.name}: the fold has none of its {len(set(clusters))} identities; use fewer folds")
    part = replace(
        metric,
        terms=metric.terms[kept],
        groups=None if metric.groups is None else metric.groups[kept],
        evidence=None if metric.evidence is None else metric.evidence[kept],
    )
    return part, [cluster for cluster in clusters if cluster in fold]


def folds(results: "Results", model: str, count: int = 2) -> list[Fold]:
    """The folds of all identities that a model's bias tasks show; the same for every method."""
    unsteered = [results.run(model, UNSTEERED, task) for task in results.tasks]
    return deal({cluster for run in unsteered if run is not None for cluster in run.clusters}, count)


def cross_fit(results: "Results", model: str, method: str, count: int = 2) -> list[HeldOut]:
    """Every fold in turn held out; `alpha` and `change` are None where the runs do not allow one."""
    everyone = folds(results, model, count)
    turns = []
    for fold in everyone:
        rest = frozenset().union(*(other for other in everyone if other is not fold))
        alpha = choose(
            {a: fold_values(results, model, method, a, rest) for a in strengths(results, method)},
            fold_values(results, model, UNSTEERED, None, rest),
        )
        change = None
        if alpha is not None:
            steered = fold_values(results, model, method, alpha, fold)
            change = average_change(steered, fold_values(results, model, UNSTEERED, None, fold))
        turns.append(HeldOut(fold, alpha, change))
    return turns


def fold_values(results: "Results", model: str, method: str, alpha: float | None, fold: Fold) -> Values:
    """As `selection.task_values`, on the identities of a fold."""
    return {task: _value(results.run(model, method, task, alpha), fold) for task in results.tasks}


def _value(run: "Run | None", fold: Fold) -> float | None:
    return None if run is None or run.degenerate else float(within(run.metric, run.clusters, fold)[0])
