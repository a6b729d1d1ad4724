"""The strength chosen on some identities and judged on others, from the same answers.

Identities are put in order and cut into folds: of eight, 1 to 4 and 5 to 8, as published. For each fold the strength
is chosen by best-avg-alpha on all other folds and the change of bias is measured on this one. Every fold needs people
of every task, so all tasks should ask about the same number of identities.
"""

import sys
from collections.abc import Collection
from dataclasses import dataclass

from ggss.analysis.selection import Sweep, average_change, baselines, best_alpha, values
from ggss.errors import InputError

Fold = frozenset[str]


@dataclass(frozen=True)
class HeldOut:
    """One fold: `alpha` was chosen without the identities of `fold`, `change` is Avg in percent on them."""

    fold: Fold
    alpha: float | None
    change: float | None


def identity(cluster: str) -> str:
    """Who is shown: `nurse/03` and `doctor/03` may share a source face, so they are always in the same fold."""
    return cluster.rsplit("/", 1)[-1]


def folds_of(clusters: Collection[str], count: int = 2) -> list[Fold]:
    """The clusters in `count` folds of neighbouring identities."""
    people = sorted({identity(cluster) for cluster in clusters}, key=_numbered)
    if not 2 <= count <= len(people):
        raise InputError(f"{len(people)} identities cannot be divided into {count} folds: give 2 to {len(people)}")
    fold = {person: k * count // len(people) for k, person in enumerate(people)}
    return [frozenset(c for c in clusters if fold[identity(c)] == k) for k in range(count)]


def _numbered(name: str) -> tuple[int, str]:
    """2 before 10."""
    return int(name) if name.isdecimal() and len(name) < 19 else sys.maxsize, name


def cross_fit(sweep: Sweep, everyone: Collection[str], count: int = 2) -> list[HeldOut]:
    """Choose a strength on some people and judge it on others: hold out each fold in turn.

    Args:
        sweep: by strength and task, a method's runs compared with the unsteered ones.
        everyone: all identities that the bias tasks show, so that the folds are the same for every method.
        count: of folds.

    Returns:
        One entry for each fold; `alpha` and `change` are None if they cannot be computed from the runs.

    Raises:
        InputError: if there are fewer identities than folds.

    Examples:
        >>> folds = ggss.analysis.cross_fit({0.5: {"mcq": found}, 1.0: {"mcq": found}}, before.clusters)
        >>> [one.alpha for one in folds]
        [0.5, 0.5]
    """
    folds = folds_of(everyone, count)
    turns = []
    for fold in folds:
        rest = frozenset().union(*(other for other in folds if other is not fold))
        alpha = best_alpha(_within(sweep, rest))
        change = None
        if alpha is not None:
            held_out = _within({alpha: sweep[alpha]}, fold)[alpha]
            change = average_change(values(held_out), baselines(held_out))
        turns.append(HeldOut(fold, alpha, change))
    return turns


def _within(sweep: Sweep, fold: Fold) -> Sweep:
    return {alpha: {task: one.within(fold) for task, one in tasks.items()} for alpha, tasks in sweep.items()}
