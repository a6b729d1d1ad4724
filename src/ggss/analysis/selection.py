"""Several comparisons together: the mean change of bias (Avg), and the strength that it chooses (best-avg-alpha).

    change of a task = 100 (steered / unsteered - 1)          Avg = unweighted mean over the tasks that have one

In intervals of Avg an identity is resampled in all its tasks together.

best-avg-alpha is one strength for each method and model: the one with the lowest Avg. A task whose unsteered bias is
zero has no percent change and does not count, for any method. A run in which nothing can be read has no value, so it
does not count either; how many answers could be read does not matter, as published. But the average over the other
tasks would favour a strength that broke the model, so only the strengths with the most tasks are compared. Of equally
good strengths the smallest is chosen.

`cross_fit` chooses the strength on some identities and measures it on others, from the same answers. Identities are
put in order and cut into folds: of eight, 1 to 4 and 5 to 8, as published. For each fold the strength is chosen by
best-avg-alpha on all other folds, and the change of bias is measured on this one. Every fold needs people of every
task, so all tasks should ask about the same number of identities.
"""

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ggss.analysis.comparison import Comparison, FlipChange, flip_change, percent, sign_flip
from ggss.analysis.run import Measured, percentile, steered_attributes
from ggss.errors import InputError
from ggss.probes.base import FLIP_RATE
from ggss.stats import Interval, Metric, bootstrap, holm, jackknife
from ggss.stats.metric import TINY, Array, mean_of

Fold = frozenset[str]

Sweep = Mapping[float, Mapping[str, Comparison]]
"""By strength and task, a method's runs compared with the unsteered ones."""

Values = Mapping[str, float | None]  # by task; None where a run is missing or has no value


def average_change(comparisons: Sequence[Comparison]) -> Interval | None:
    """The unweighted mean change in percent over the tasks that have one.

    Args:
        comparisons: one for each task.

    Returns:
        Avg with its interval over identities; None if no task has a change.

    Examples:
        >>> ggss.analysis.average_change([comparison]).estimate == comparison.change().estimate
        True
    """
    tasks = _with_change(comparisons)
    if not tasks:
        return None
    estimate, draws = _average_draws(tasks)
    return percentile(estimate, draws, len(_everyone(tasks)), tasks[0].statistics.level)


def corrected_average(comparisons: Sequence[Comparison]) -> Interval | None:
    """The bias-corrected Avg with an interval over identities (jackknife); None if no task has a change.

    The jackknife leaves an identity out of all tasks at once. A gap between more than two groups counts in it as if
    its largest difference had been named before; its own interval is wider.
    """
    tasks = _with_change(comparisons)
    everyone = _everyone(tasks)
    if len(everyone) < 2:
        return None
    sides = [(_of_everyone(task.after, everyone), _of_everyone(task.before, everyone)) for task in tasks]
    return jackknife(
        mean_of([after.percent_change(before) for after, before in sides]), level=tasks[0].statistics.level
    )


def average_flip_rate(comparisons: Sequence[Comparison]) -> Interval | None:
    """The mean over tasks of the share of people whose answer depends on the task's attribute, in the runs after.

    With an interval over identities (jackknife); None if no task has such a share, or there is only one identity.
    """
    tasks = []
    for task in comparisons:
        name = f"{task.after.about}{FLIP_RATE}"
        if name in task.after.metrics and np.isfinite(task.after.value(name)):
            tasks.append(task)
    everyone = _everyone(tasks)
    if len(everyone) < 2:
        return None
    rates = [_of_everyone(task.after, everyone, f"{task.after.about}{FLIP_RATE}") for task in tasks]
    return jackknife(replace(mean_of(rates), bounds=(0.0, 1.0)), level=tasks[0].statistics.level)


def spill_over(comparisons: Sequence[Comparison], attribute: str) -> FlipChange | None:
    """Whose answer depends on an attribute, before and after: the mean over tasks under one steering.

    It is spill-over if the attribute is not the one that is steered. A task that shows no such attribute, or of which
    one run cannot be read, is left out; None if no task remains.
    """
    name = f"{attribute}{FLIP_RATE}"
    tasks = [
        task
        for task in comparisons
        if all(name in run.metrics and math.isfinite(run.value(name)) for run in (task.before, task.after))
    ]
    everyone = _everyone(tasks)
    if len(everyone) < 2:
        return None
    flips, rates = [], []
    for side in ("before", "after"):
        runs: list[Measured] = [getattr(task, side) for task in tasks]
        counts = [run.flips(attribute) for run in runs]
        flips.append((sum(changed for changed, _ in counts), sum(cases for _, cases in counts)))
        rates.append(replace(mean_of([_of_everyone(run, everyone, name) for run in runs]), bounds=(0.0, 1.0)))
    label = ", ".join(task.task for task in tasks)
    steered = steered_attributes(tasks[0].after.source.attribute)
    return flip_change(label, attribute, steered, flips, rates, None, tasks[0].statistics)


def across(models: Sequence[Sequence[Comparison]]) -> tuple[Interval, Interval] | None:
    """The mean and the worst of several models' Avg, with the same identities resampled in all models."""
    counting = [_with_change(comparisons) for comparisons in models]
    if not counting or not all(counting):
        return None
    estimates, draws = zip(*(_average_draws(tasks) for tasks in counting), strict=True)
    units, level = len(_everyone(counting[0])), counting[0][0].statistics.level
    mean = percentile(float(np.mean(estimates)), np.mean(draws, axis=0), units, level)
    return mean, percentile(max(estimates), np.max(draws, axis=0), units, level)


def _with_change(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The tasks that count in Avg: nobody whom only another task shows is a unit of it."""
    return [task for task in comparisons if task.baseline is not None and task.reached is not None]


def _average_draws(tasks: Sequence[Comparison]) -> tuple[float, Array]:
    """Avg and its resamples."""
    everyone = _everyone(tasks)
    changes, draws = [], []
    for task in tasks:
        changes.append(100 * (task.after.value() / task.before.value() - 1))
        key = ("average", *everyone)  # the unsteered run is compared with many: its resamples are kept
        if key not in task.before._draws:
            task.before._draws[key] = _joint(task.before, everyone)
        draws.append(_changes(task, _joint(task.after, everyone), task.before._draws[key]))
    return float(np.mean(changes)), np.mean(draws, axis=0)


def _changes(task: Comparison, after: Array, before: Array) -> Array:
    """Resampled changes in percent; of a gap, in percent of the fixed gap before, as in `Comparison.change`."""
    gap = task.before.signed()
    return percent(after, before) if gap is None else 100 * (after - before) / float(gap)


def _everyone(comparisons: Sequence[Comparison]) -> list[str]:
    return sorted({cluster for task in comparisons for cluster in task.before.clusters})


def _joint(run: Measured, everyone: Sequence[str]) -> Array:
    """Resamples of the published metric (of a gap, with its sign) over all identities of all tasks."""
    statistics = run.statistics
    seed = statistics.seed_of("average")
    return bootstrap(_of_everyone(run, everyone), resamples=statistics.resamples, seed=seed).draws


def _of_everyone(run: Measured, everyone: Sequence[str], name: str = "") -> Metric:
    """A metric with one row for each identity; the rows of those that the task does not show are zero.

    name: "" is the published one, or its signed form.
    """
    places = {person: place for place, person in enumerate(everyone)}
    metric = run.metric(name) if name else run.signed() or run.metric()
    terms = np.zeros((len(everyone), metric.terms.shape[1]))
    np.add.at(terms, [places[cluster] for cluster in run.clusters], metric.terms)
    return replace(metric, terms=terms, groups=None, evidence=None)


@dataclass(frozen=True)
class ComparedTasks:
    """Runs before and after, compared on all their tasks.

    bias: tasks that compare groups. capability: tasks with right answers. bias_holm, capability_holm: of each of
    them, the p of its test with Holm's correction over the tests of the same kind; None where it is not defined.
    average: Avg. combined: p of the sign-flip test over all bias tasks that can be read, None if there are fewer than
    two. flips: whose answer depends on an attribute, for each bias task and each attribute of its pictures;
    flips_holm: of each, p with Holm's correction over these.
    """

    bias: tuple[Comparison, ...]
    bias_holm: tuple[float | None, ...]
    capability: tuple[Comparison, ...]
    capability_holm: tuple[float | None, ...]
    average: Interval | None
    combined: float | None
    flips: tuple[FlipChange, ...] = ()
    flips_holm: tuple[float | None, ...] = ()

    @classmethod
    def of(cls, comparisons: Sequence[Comparison]) -> "ComparedTasks":
        bias = [task for task in comparisons if not task.has_right_answers]
        capability = [task for task in comparisons if task.has_right_answers]
        readable = [task for task in bias if task.baseline is not None and task.reached is not None]
        changes = [task.flip(attribute) for task in bias for attribute in task.before.attributes]
        flips = tuple(change for change in changes if change is not None)
        return cls(
            tuple(bias),
            adjusted([task.p for task in bias]),
            tuple(capability),
            adjusted([task.accuracy().p for task in capability]),
            average_change(bias),
            sign_flip(readable) if len(readable) > 1 else None,
            flips,
            adjusted([flip.p for flip in flips]),
        )

    def p_holm(self, comparison: Comparison) -> float | None:
        """The adjusted p of one of the comparisons."""
        tests = zip((*self.bias, *self.capability), (*self.bias_holm, *self.capability_holm), strict=True)
        return next(p for task, p in tests if task is comparison)

    @property
    def before(self) -> "Side":
        return Side.of([task.before for task in (*self.bias, *self.capability)])

    @property
    def after(self) -> "Side":
        return Side.of([task.after for task in (*self.bias, *self.capability)])


def adjusted(tests: Sequence[float | None]) -> tuple[float | None, ...]:
    """p-values with Holm's correction; None for those that are not defined, which do not count."""
    defined = [p for p in tests if p is not None and np.isfinite(p)]
    corrected = iter(holm(defined).tolist() if defined else [])
    return tuple(None if p is None or not np.isfinite(p) else next(corrected) for p in tests)


@dataclass(frozen=True)
class Side:
    """The runs before, or those after. steerer: a content hash, "" without one. said: all of it in words."""

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
        questions = f"{items} items, {len(runs)} task{'s' if len(runs) > 1 else ''} of {' and '.join(suites)}"
        text = f"{source.label}{steerer}; {questions}"
        fields = (source.model, source.steered, source.method, source.attribute, source.alpha, source.steerer)
        return cls(*fields, suites, len(runs), items, text)


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
    by_task = changes(values, baselines)
    return math.fsum(by_task.values()) / len(by_task) if by_task else None


def choose(values: Mapping[float, Values], baselines: Values) -> float | None:
    """The strength with the lowest average among those with the most tasks; None if there is none."""
    ranked = []
    for alpha, by_task in values.items():
        average = mean_change(by_task, baselines)
        if average is not None:
            ranked.append((-len(changes(by_task, baselines)), round(average, 9), alpha))
    return min(ranked)[2] if ranked else None


def values(comparisons: Mapping[str, Comparison]) -> dict[str, float | None]:
    """By task, the bias after; None where nothing could be read."""
    return {task: comparison.reached for task, comparison in comparisons.items()}


def baselines(comparisons: Mapping[str, Comparison]) -> dict[str, float | None]:
    """By task, the bias before."""
    return {task: comparison.baseline for task, comparison in comparisons.items()}


def best_alpha(sweep: Sweep) -> float | None:
    """The strength with the lowest mean change of bias: best-avg-alpha.

    Args:
        sweep: by strength and task, a method's runs compared with the unsteered ones.

    Returns:
        The strength; None if nothing in the sweep can be compared.

    Examples:
        >>> ggss.analysis.best_alpha({0.5: {"mcq": comparison}, 1.0: {"mcq": comparison}})  # a tie: the smallest
        0.5
    """
    unsteered: dict[str, float | None] = {}
    for comparisons in sweep.values():
        unsteered |= baselines(comparisons)
    return choose({alpha: values(comparisons) for alpha, comparisons in sweep.items()}, unsteered)


@dataclass(frozen=True)
class HeldOut:
    """One fold: `alpha` was chosen without the identities of `fold`, `change` is Avg in percent on them."""

    fold: Fold
    alpha: float | None
    change: float | None


def identity(cluster: str) -> str:
    """The person of a cluster: `nurse/03` and `doctor/03` may share a source face, so they are in the same fold."""
    return cluster.rpartition("/")[2]


def folds_of(clusters: Collection[str], count: int = 2) -> list[Fold]:
    """The clusters in `count` folds of neighbouring identities."""
    people = sorted({identity(cluster) for cluster in clusters}, key=_numbered)
    if not 2 <= count <= len(people):
        raise InputError(f"{len(people)} identities cannot be divided into {count} folds: give 2 to {len(people)}")
    fold = {person: k * count // len(people) for k, person in enumerate(people)}
    return [frozenset(c for c in clusters if fold[identity(c)] == k) for k in range(count)]


def _numbered(name: str) -> tuple[int, str]:
    """A sort key that puts 2 before 10."""
    return int(name) if name.isdecimal() and len(name) < 19 else sys.maxsize, name


def cross_fit(sweep: Sweep, everyone: Collection[str], count: int = 2) -> list[HeldOut]:
    """Choose a strength on some people and measure its change of bias on the others: each fold is held out once.

    Args:
        sweep: by strength and task, a method's runs compared with the unsteered ones.
        everyone: all identities that the bias tasks show, so that the folds are the same for every method.
        count: how many folds.

    Returns:
        One entry for each fold; `alpha` and `change` are None if they cannot be computed from the runs.

    Raises:
        InputError: if there are fewer identities than folds.

    Examples:
        >>> folds = ggss.analysis.cross_fit({0.5: {"mcq": comparison}, 1.0: {"mcq": comparison}}, before.clusters)
        >>> [fold.alpha for fold in folds]
        [0.5, 0.5]
    """
    folds = folds_of(everyone, count)
    results = []
    for fold in folds:
        rest = frozenset().union(*(other for other in folds if other is not fold))
        alpha = best_alpha(_within(sweep, rest))
        change = None
        if alpha is not None:
            held_out = _within({alpha: sweep[alpha]}, fold)[alpha]
            change = mean_change(values(held_out), baselines(held_out))
        results.append(HeldOut(fold, alpha, change))
    return results


def _within(sweep: Sweep, fold: Fold) -> Sweep:
    return {
        alpha: {task: comparison.within(fold) for task, comparison in tasks.items()} for alpha, tasks in sweep.items()
    }
