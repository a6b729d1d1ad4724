"""best-avg-alpha: one strength for each method and model, the one with the lowest mean change of bias.

    change of a task = 100 (steered / unsteered - 1)          Avg = unweighted mean over the tasks that have one

A task whose unsteered bias is zero has no percent change and does not count, for any method. A run in which nothing
can be read has no value, so it does not count either; how many answers could be read does not enter the choice, as
published. But the average over the other tasks would favour a strength that broke the model, so only the strengths
with the most tasks are compared. Of equally good strengths the smallest is chosen.

Avg: the mean change of bias over tasks; an identity is resampled in all its tasks together.

Several comparisons judged together: bias and capability, and Holm's correction over all their tests.

The strength chosen on some identities and judged on others, from the same answers.

Identities are put in order and cut into folds: of eight, 1 to 4 and 5 to 8, as published. For each fold the strength
is chosen by best-avg-alpha on all other folds and the change of bias is measured on this one. Every fold needs people
of every task, so all tasks should ask about the same number of identities.
"""

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ggss.analysis.comparison import Comparison, percent, sign_flip
from ggss.analysis.measures import Measured, percentile
from ggss.errors import InputError
from ggss.stats import Interval, Metric, bootstrap, holm, jackknife
from ggss.stats.metric import TINY, Array, mean_of


def average_change(comparisons: Sequence[Comparison]) -> Interval | None:
    """The unweighted mean change in percent over the tasks that have one.

    Args:
        comparisons: one for each task.

    Returns:
        Avg with its interval over identities; None if no task has a change.

    Examples:
        >>> ggss.analysis.average_change([found]).estimate == found.change().estimate
        True
    """
    found = average_draws(comparisons)
    if found is None:
        return None
    estimate, draws = found
    return percentile(estimate, draws, len(_everyone(comparisons)), comparisons[0].statistics.level)


def corrected_average(comparisons: Sequence[Comparison]) -> Interval | None:
    """Avg, bias-corrected, with an interval over identities (jackknife); None if no task has a change.

    Leaving out an identity leaves it out of all tasks.
    """
    everyone = _everyone(comparisons)
    ratios = []
    for one in comparisons:
        if one.baseline is not None and one.reached is not None:
            after, before = _of_everyone(one.after, everyone), _of_everyone(one.before, everyone)
            ratios.append(after.percent_change(before))
    if not ratios or len(everyone) < 2:
        return None
    return jackknife(mean_of(ratios), level=comparisons[0].statistics.level)


def across(models: Sequence[Sequence[Comparison]]) -> tuple[Interval, Interval] | None:
    """The mean and the worst of several models' averages, the same identities resampled in all of them."""
    found = [average_draws(comparisons) for comparisons in models]
    if not found or any(one is None for one in found):
        return None
    estimates, drawn = zip(*(one for one in found if one), strict=True)
    units, level = len(_everyone(models[0])), models[0][0].statistics.level
    mean = percentile(float(np.mean(estimates)), np.mean(drawn, axis=0), units, level)
    return mean, percentile(max(estimates), np.max(drawn, axis=0), units, level)


def average_draws(comparisons: Sequence[Comparison]) -> tuple[float, Array] | None:
    """The mean change and its resamples."""
    everyone = _everyone(comparisons)
    changes, drawn = [], []
    for one in comparisons:
        if one.baseline is not None and one.reached is not None and np.isfinite(one.reached):
            changes.append(100 * (one.reached / one.baseline - 1))
            key = ("average", *everyone)  # the unsteered run is compared with many: its resamples are kept
            if key not in one.before._draws:
                one.before._draws[key] = _joint(one.before, everyone)
            drawn.append(_changes(one, _joint(one.after, everyone), one.before._draws[key]))
    return (float(np.mean(changes)), np.mean(drawn, axis=0)) if changes else None


def _changes(one: Comparison, after: Array, before: Array) -> Array:
    """Resampled changes in percent: of a gap in percent of the fixed one, as in `Comparison.change`."""
    gap = one.before.signed()
    return percent(after, before) if gap is None else 100 * (after - before) / float(gap)


def _everyone(comparisons: Sequence[Comparison]) -> list[str]:
    return sorted({cluster for one in comparisons for cluster in one.before.clusters})


def _joint(run: Measured, everyone: Sequence[str]) -> Array:
    """Resamples of the published metric (a gap with its sign), a row for every identity, zero for those not shown."""
    statistics = run.statistics
    seed = statistics.seed_of("average")
    return bootstrap(_of_everyone(run, everyone), resamples=statistics.resamples, seed=seed).draws


def _of_everyone(run: Measured, everyone: Sequence[str]) -> Metric:
    place = {person: k for k, person in enumerate(everyone)}
    metric = run.signed() or run.metric()
    terms = np.zeros((len(everyone), metric.terms.shape[1]))
    np.add.at(terms, [place[cluster] for cluster in run.clusters], metric.terms)
    return replace(metric, terms=terms, groups=None, evidence=None)


COMBINED = "combined"


@dataclass(frozen=True)
class ComparedTasks:
    """Two runs compared on all their tasks.

    bias: tasks that compare groups. capability: tasks with right answers. average: the mean change of bias. combined:
    the sign-flip test over all bias tasks that can be read, None where there are fewer than two. p_holm: by task,
    Holm's correction over every test of a difference.
    """

    bias: tuple[Comparison, ...]
    capability: tuple[Comparison, ...]
    average: Interval | None
    combined: float | None
    p_holm: Mapping[str, float]

    @classmethod
    def of(cls, comparisons: Mapping[str, Comparison]) -> "ComparedTasks":
        bias = tuple(one for one in comparisons.values() if not one.has_right_answers)
        capability = tuple(one for one in comparisons.values() if one.has_right_answers)
        readable = [one for one in bias if one.baseline is not None and one.reached is not None]
        combined = sign_flip(readable) if len(readable) > 1 else None
        tests = {one.task: one.p for one in bias} | {one.task: one.kept().p for one in capability}
        tests = {task: p for task, p in tests.items() if np.isfinite(p)}
        if combined is not None:
            tests[COMBINED] = combined
        adjusted = dict(zip(tests, holm(list(tests.values())).tolist(), strict=True)) if tests else {}
        return cls(bias, capability, average_change(bias) if bias else None, combined, adjusted)

    @property
    def combined_holm(self) -> float | None:
        return self.p_holm.get(COMBINED)

    @property
    def before(self) -> "Side":
        return Side.of([one.before for one in (*self.bias, *self.capability)])

    @property
    def after(self) -> "Side":
        return Side.of([one.after for one in (*self.bias, *self.capability)])


@dataclass(frozen=True)
class Side:
    """What is on one side of a comparison; steerer: a content hash, "" without one."""

    model: str
    steered: bool
    method: str
    attribute: str
    alpha: float
    steerer: str
    suites: tuple[str, ...]
    tasks: int
    items: int
    said: str

    @classmethod
    def of(cls, runs: Sequence[Measured]) -> "Side":
        source, items = runs[0].source, sum(len(run.clusters) for run in runs)
        suites = tuple(dict.fromkeys(run.source.suite for run in runs))
        steerer = f", steerer {source.steerer[:12]}" if source.steerer else ""
        asked = f"{items} items, {len(runs)} task{'s' if len(runs) > 1 else ''} of {' and '.join(suites)}"
        said = f"{source.label}{steerer}; {asked}"
        plain = (source.model, source.steered, source.method, source.attribute, source.alpha, source.steerer)
        return cls(*plain, suites, len(runs), items, said)


Sweep = Mapping[float, Mapping[str, Comparison]]
"""By strength and task, a method's runs compared with the unsteered ones."""

Values = Mapping[str, float | None]  # by task; None where a run is missing or has no value


def changes(values: Values, baselines: Values) -> dict[str, float]:
    """The change in percent of every task that has one: a value and an unsteered bias other than zero."""
    unsteered = counted(baselines)
    return {
        task: 100 * (value / unsteered[task] - 1)
        for task, value in values.items()
        if task in unsteered and value is not None and math.isfinite(value)
    }


def counted(baselines: Values) -> dict[str, float]:
    """The tasks that can count: those with an unsteered bias other than zero."""
    return {
        task: value
        for task, value in baselines.items()
        if value is not None and math.isfinite(value) and abs(value) > TINY
    }


def mean_change(values: Values, baselines: Values) -> float | None:
    """Avg, in percent; None if no task has a change."""
    found = changes(values, baselines)
    return math.fsum(found.values()) / len(found) if found else None


def choose(values: Mapping[float, Values], baselines: Values) -> float | None:
    """The strength with the lowest average among those with the most tasks; None if there is none."""
    ranked = []
    for alpha, of_alpha in values.items():
        average = mean_change(of_alpha, baselines)
        if average is not None:
            ranked.append((-len(changes(of_alpha, baselines)), round(average, 9), alpha))
    return min(ranked)[2] if ranked else None


def values(comparisons: Mapping[str, Comparison]) -> dict[str, float | None]:
    """By task, the bias reached; None where nothing could be read."""
    return {task: one.reached for task, one in comparisons.items()}


def baselines(comparisons: Mapping[str, Comparison]) -> dict[str, float | None]:
    """By task, the bias before."""
    return {task: one.baseline for task, one in comparisons.items()}


def best_alpha(sweep: Sweep) -> float | None:
    """The strength with the lowest mean change of bias: best-avg-alpha.

    Args:
        sweep: by strength and task, a method's runs compared with the unsteered ones.

    Returns:
        The strength; None if nothing in the sweep can be compared.

    Examples:
        >>> ggss.analysis.best_alpha({0.5: {"mcq": found}, 1.0: {"mcq": found}})  # of equally good ones the smallest
        0.5
    """
    unsteered: dict[str, float | None] = {}
    for comparisons in sweep.values():
        unsteered |= baselines(comparisons)
    return choose({alpha: values(comparisons) for alpha, comparisons in sweep.items()}, unsteered)


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
            change = mean_change(values(held_out), baselines(held_out))
        turns.append(HeldOut(fold, alpha, change))
    return turns


def _within(sweep: Sweep, fold: Fold) -> Sweep:
    return {alpha: {task: one.within(fold) for task, one in tasks.items()} for alpha, tasks in sweep.items()}
