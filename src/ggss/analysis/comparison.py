"""A comparison: two runs on the same items, paired. Did bias change, and is capability the same?

Tasks that compare groups have a percent change of their published metric and a sign-flip test, both over identities
and over items. Tasks with right answers (capability, recognition) are compared question by question: exact McNemar
for a difference, TOST for equivalence. Every paired number that ggss prints comes from here.

Two runs can be compared if the same items were asked of the same model in the same way. The unsteered one is first.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ggss.analysis.notebook import comparison_frame, comparison_html, draw_comparison
from ggss.analysis.run import Measured, Over, Run, Statistics, percentile, steered_attributes
from ggss.errors import InputError, problems
from ggss.probes.base import FLIP_RATE
from ggss.probes.endpoint import NOT_KNOWN
from ggss.stats import (
    Equivalence,
    Interval,
    Metric,
    difference,
    fieller,
    jackknife,
    mcnemar,
    minimum_detectable_change,
    share_change,
    signflip,
    tost,
)
from ggss.stats.metric import TINY, Array, mean, pseudovalues

# Fields of Source in which a steered run and its baseline may differ. Two names may be of the same model, and the
# model's identity includes the library versions that decide numbers.
MAY_DIFFER = ("model", "method", "attribute", "alpha", "steerer", "versions")
_ITEM_FIELDS = ("options", "attributes", "context", "worth", "lexicons", "cluster", "question", "expected", "about")
_PLURAL = {
    "worth": "numbers of their options",
    "cluster": "clusters",
    "question": "questions",
    "expected": "right answers",
    "about": "attributes",
}


@dataclass(frozen=True)
class AccuracyChange:
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


@dataclass(frozen=True)
class FlipChange:
    """For how many cases (a person and a question) the answer depends on an attribute, before and after.

    Args:
        task: the task.
        attribute: the one that is varied in the pictures; the task may be about another, or another may be steered.
        steered: the attributes that are steered in the second run.
        cases: how many there are.
        flips: those whose answer depends on the attribute, before and after.
        before: their share, with an interval over identities.
        after: the same after.
        change: of the share, between -1 and 1.
        p: sign-flip test over identities; of one case for each identity it is McNemar's test.
        detectable: the smallest change that would have been found with a power of 80 %.
    """

    task: str
    attribute: str
    steered: tuple[str, ...]
    cases: int
    flips: tuple[int, int]
    before: Interval
    after: Interval
    change: Interval
    p: float
    detectable: float


def flip_change(
    task: str,
    attribute: str,
    steered: Sequence[str],
    flips: Sequence[tuple[int, int]],
    rates: Sequence[Metric],
    clusters: Sequence[str] | None,
    statistics: Statistics,
) -> FlipChange | None:
    """From the flips (of cases) and their rates, before and after; None where nothing can be read.

    clusters: the identity of each row of the rates; None if each row is an identity.
    """
    before, after = rates
    if not np.isfinite([float(after), float(before)]).all():
        return None
    level = statistics.level
    units = pseudovalues(after.minus(before).by(clusters))
    if not np.isfinite(units).all():  # without one identity nothing can be read
        return None
    seed = statistics.seed_of("flip", task, attribute)
    return FlipChange(
        task,
        attribute,
        tuple(steered),
        flips[0][1],
        (flips[0][0], flips[1][0]),
        jackknife(before, clusters, level=level),
        jackknife(after, clusters, level=level),
        share_change(after, before, clusters, level=level),
        float(signflip(after, before, clusters=clusters, draws=statistics.permutations, seed=seed).p),
        minimum_detectable_change(len(units), float(np.std(units))),
    )


def _accuracy_change(
    after: Array, before: Array, clusters: Sequence[str] | None, statistics: Statistics
) -> AccuracyChange:
    """after, before: [N], right (1) or wrong (0). clusters: from `_dependent_clusters`."""
    level, margin = statistics.level, statistics.margin
    gained, lost = int(np.sum(after > before)), int(np.sum(after < before))
    return AccuracyChange(
        _share(after, clusters, level),
        _share(before, clusters, level),
        gained,
        lost,
        _equivalence(after, before, margin, clusters, (1 - level) / 2),
        _equivalence(after, before, margin, clusters, 0.05),
        mcnemar(gained, lost),
    )


def _dependent_clusters(clusters: Sequence[str]) -> Sequence[str] | None:
    """The clusters if any of them has several items, else None: for independent items there are better tests."""
    return clusters if len(set(clusters)) < len(clusters) else None


def _share(right: Array, clusters: Sequence[str] | None, level: float) -> Interval:
    """The share of right answers; its interval stays between 0 and 1."""
    if _single(right, clusters):
        return Interval(float(np.mean(right)), np.nan, np.nan, level, "jackknife", 1, 1.0)
    return jackknife(mean(right, bounds=(0.0, 1.0)), clusters, level=level)


def _equivalence(
    after: Array, before: Array, margin: float, clusters: Sequence[str] | None, size: float
) -> Equivalence:
    if _single(after, clusters):
        return Equivalence(float(np.mean(after - before)), np.nan, np.nan, np.nan, margin, size)
    return tost(after, before, margin, clusters, size=size)


def _single(right: Array, clusters: Sequence[str] | None) -> bool:
    """Whether there is one cluster only, so that no variance can be computed."""
    return len(right if clusters is None else set(clusters)) < 2


@dataclass(frozen=True)
class Comparison:
    """One task before and after, from `compare`.

    The metrics of `after` may depend on `before`: a salary's cap does.

    Args:
        before: the metrics of the unsteered run.
        after: those of the steered run, on the same items.

    Examples:
        >>> comparison = ggss.analysis.compare(before, after)
        >>> comparison.change().estimate < 0, comparison.baseline > comparison.reached  # steering lowers the bias
        (True, True)
    """

    before: Measured
    after: Measured
    _intervals: dict[tuple[str, Over], tuple[Interval, Interval | None]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def task(self) -> str:
        return self.before.task

    @property
    def statistics(self) -> Statistics:
        return self.before.statistics

    @property
    def degenerate(self) -> bool:
        """Most answers of one of the runs could not be parsed: a warning, the numbers are used all the same."""
        return self.before.degenerate or self.after.degenerate

    @property
    def baseline(self) -> float | None:
        """The bias before; None if it is zero or nothing could be read, because then no change can be computed."""
        value = self.before.value()
        return value if np.isfinite(value) and abs(value) > TINY else None

    @property
    def reached(self) -> float | None:
        """The bias after; None if nothing could be read."""
        value = self.after.value()
        return value if np.isfinite(value) else None

    def value(self, name: str = "", over: Over = "identities") -> Interval:
        """The metric after, with the paper's interval."""
        return self._value_and_change(name, over)[0]

    def change(self, name: str = "", over: Over = "identities") -> Interval | None:
        """The change in percent, with the paper's interval; None where the value before is zero or undefined.

        For a gap between two groups it is the interval of the signed gap's change, in percent of the gap before: a
        bound below -100 % is a gap that has changed its sign.

        Args:
            name: a metric; "" is the published one.
            over: what is resampled: identities or items.

        Returns:
            The interval, or None.

        Examples:
            >>> comparison.change("mean_race_jsd") == comparison.change()
            True
        """
        return self._value_and_change(name, over)[1]

    def difference(self, name: str) -> Interval:
        """The metric after less before, with an interval over identities; NaN for a single identity."""
        after, before = self.after.metric(name), self.before.metric(name)
        level, clusters = self.statistics.level, self.after.clusters
        if len(set(clusters)) < 2:
            return Interval(float(after) - float(before), np.nan, np.nan, level, "jackknife", 1, 1.0)
        return difference(after, before, clusters, level=level)

    @property
    def corrected_change(self) -> Interval | None:
        """The change between values corrected for small-sample bias (jackknife), with Fieller's interval.

        Its estimate is NaN where the corrected value before is zero or has another sign than the published one: a
        divergence or a spread corrected to below zero. Nothing can be said in percent of such a value.
        """
        if self.baseline is None or len(set(self.after.clusters)) < 2:
            return None
        after, before = self.after.signed() or self.after.metric(), self.before.signed() or self.before.metric()
        return fieller(after, before, self.after.clusters, level=self.statistics.level)

    @property
    def p(self) -> float:
        """Sign-flip test over identities that the published metric changed; NaN where it is not defined."""
        return sign_flip([self], None) or float("nan")

    @property
    def detectable(self) -> float | None:
        """The smallest change that a test would detect with a power of 80 %, in the unit of the printed change."""
        if self.has_right_answers:
            after, before, _ = self._rights("")
            return minimum_detectable_change(len(after), float(np.std(after - before)))
        change = self.change()
        draws = None if change is None else self._changes("", "identities", self.after)
        if draws is None or not np.isfinite(draws).any():
            return None
        return minimum_detectable_change(1, float(np.nanstd(np.where(np.isfinite(draws), draws, np.nan))))

    def flip(self, attribute: str = "") -> FlipChange | None:
        """Whose answer depends on an attribute, before and after.

        Args:
            attribute: one of the pictures' attributes; "" is that of the task.

        Returns:
            The shares and their change; None if no pictures differ in this attribute alone, if nothing can be read,
            or if what can be read is about one identity only.

        Examples:
            >>> flip = comparison.flip()
            >>> flip.attribute, flip.flips[1] < flip.flips[0] <= flip.cases
            ('race', True)
        """
        attribute = attribute or self.before.about
        name = f"{attribute}{FLIP_RATE}"
        clusters = self.after.clusters
        if name not in self.before.metrics or len(set(clusters)) < 2:
            return None
        runs, steered = (self.before, self.after), steered_attributes(self.after.source.attribute)
        return flip_change(
            self.task,
            attribute,
            steered,
            [run.flips(attribute) for run in runs],
            [run.metric(name) for run in runs],
            clusters,
            self.statistics,
        )

    @property
    def has_right_answers(self) -> bool:
        return self.before.metric().name == "accuracy"

    def accuracy(self, question: str = "") -> AccuracyChange:
        """Right answers before and after: on all questions, or on those of one kind.

        For a single question, or questions about a single picture, intervals and the equivalence test's p are NaN.

        Args:
            question: a kind of question; "" is all.

        Returns:
            Accuracies, questions gained and lost, McNemar's p and the equivalence test.

        Examples:
            >>> accuracy = recognition.accuracy()
            >>> 0 <= accuracy.after.estimate <= 1, accuracy.gained >= 0
            (True, True)
        """
        return _accuracy_change(*self._rights(question), self.statistics)

    def rights(self) -> tuple[Array, Array]:
        """Right (1) or wrong (0), item by item, after and before."""
        after, before = (run.metric().value(run.metric().terms) for run in (self.after, self.before))
        return after, before

    def _rights(self, question: str) -> tuple[Array, Array, Sequence[str] | None]:
        after, before = self.rights()
        inside = np.full(len(after), True) if not question else np.array(self.after.questions) == question
        clusters = np.array(self.after.clusters)[inside]
        return after[inside], before[inside], _dependent_clusters(clusters.tolist())

    def to_pandas(self) -> Any:
        """A data frame with a row for each metric. InputError if pandas is not installed."""
        return comparison_frame(self)

    def plot(self, axis: Any = None) -> Any:
        """Draw the published metric before and after, and return the matplotlib axis. axis: where to draw."""
        return draw_comparison(self, axis)

    def _repr_html_(self) -> str:
        return comparison_html(self)

    def published(self) -> "Comparison":
        """The comparison of the published metric alone."""
        return Comparison(self.before.published(), self.after.published())

    def within(self, fold: Collection[str]) -> "Comparison":
        """The comparison on the clusters of a fold."""
        return Comparison(self.before.within(fold), self.after.within(fold))

    def _value_and_change(self, name: str, over: Over) -> tuple[Interval, Interval | None]:
        if (name, over) not in self._intervals:
            self._intervals[name, over] = self._compute(name, over)
        return self._intervals[name, over]

    def _compute(self, name: str, over: Over) -> tuple[Interval, Interval | None]:
        level, units = self.statistics.level, len(set(self.after.groups(over)))
        after = replace(self.after, _draws={})  # resamples of steered runs are used once and not kept
        reached, before = after.value(name), self.before.value(name)
        value = percentile(reached, after.draws(name, over), units, level)
        if not (np.isfinite(before) and abs(before) > TINY):
            return value, None
        changes = self._changes(name, over, after)
        return value, percentile(100 * (reached / before - 1), changes, units, level)

    def _changes(self, name: str, over: Over, after: Measured) -> Array:
        """Resampled changes in percent; of a gap, in percent of the fixed gap before."""
        gap = self.before.signed(name)
        if gap is None:
            return percent(after.draws(name, over), self.before.draws(name, over))
        shifts = after.draws(name, over, signed=True) - self.before.draws(name, over, signed=True)
        return 100 * shifts / float(gap)


def compare(before: Run, after: Run, statistics: Statistics | None = None, unlike: bool = False) -> Comparison:
    """Compare a steered run with the unsteered one, or with any baseline.

    Args:
        before: the baseline.
        after: a run on the same items.
        statistics: resamples, seed, level and margin.
        unlike: compare also runs of different models, questions or versions.

    Returns:
        The comparison: every paired number.

    Raises:
        InputError: names all that cannot be paired.

    Examples:
        >>> comparison = ggss.analysis.compare(before, after)
        >>> comparison.task, 0 < comparison.p <= 1
        ('mcq', True)
    """
    check_paired({before.task: before}, {after.task: after}, unlike)
    after = in_order(after, before)
    statistics = statistics or Statistics()
    return Comparison(before.measured(statistics), after.measured(statistics, baseline=before))


def compare_all(
    before: Mapping[str, Run], after: Mapping[str, Run], statistics: Statistics | None = None, unlike: bool = False
) -> dict[str, Comparison]:
    """Compare many tasks.

    Args:
        before: runs by task.
        after: the same tasks, steered.
        statistics: resamples, seed, level and margin.
        unlike: as in `compare`.

    Returns:
        A comparison for each task.

    Raises:
        InputError: names all that cannot be paired.

    Examples:
        >>> list(ggss.analysis.compare_all({"mcq": before}, {"mcq": after}))
        ['mcq']
    """
    check_paired(before, after, unlike)
    return {task: compare(run, after[task], statistics, unlike) for task, run in before.items()}


def check_paired(before: Mapping[str, Run], after: Mapping[str, Run], unlike: bool = False) -> None:
    """InputError, with every difference, if the runs cannot be paired. unlike: models and versions may differ."""
    if not before and not after:
        raise InputError("there is nothing to compare: both runs are empty")
    mismatches = [f"task {task!r} is in the first run only" for task in before if task not in after]
    mismatches += [f"task {task!r} is in the second run only" for task in after if task not in before]
    for task, old in before.items():
        if task in after and after[task].parser != old.parser:
            mismatches.append(
                f"{task}: the first is read by the parser {old.parser!r}, the second by {after[task].parser!r}"
            )
        if task in after and after[task].items is not old.items:
            mismatches += [f"{task}: {text}" for text in _different_items(old, after[task])]
    if mismatches:
        raise problems("the two runs cannot be compared: their items or their parsers differ", mismatches)
    if (others := differences(before, after)) and not unlike:
        raise problems(
            "the two runs differ in more than their steering (--unlike compares them all the same)", others
        )


def check_one_run(runs: Mapping[str, Run], path: str) -> None:
    """InputError if the tasks of a file were asked of different models or under different steerings."""
    first = next(iter(runs.values()))
    for task, run in runs.items():
        # Tasks may be of different suites, and their answers of different lengths.
        if others := first.source.differences(run.source, "suite", "suite_hash", "max_new_tokens"):
            text = f"{first.task} and {task} differ in {'; '.join(others)}"
            raise InputError(f"{path!r} has answers of different runs: {text}; keep each run in a file of its own")


def differences(before: Mapping[str, Run], after: Mapping[str, Run]) -> list[str]:
    """What two runs differ in besides their steering, and whether they are in the wrong order."""
    texts: dict[str, None] = {}  # an ordered set
    for task, run in before.items():
        first, second = run.source, after[task].source
        served = first.endpoint or second.endpoint  # then its identity cannot be compared, see `unchecked`
        if first.steered and not second.steered and not served:
            texts[f"the first is steered ({first.label}) and the second is not: give the unsteered one first"] = None
        texts |= dict.fromkeys(first.differences(second, *MAY_DIFFER, *(("identity",) if served else ())))
    return list(texts)


def unchecked(before: Mapping[str, Run], after: Mapping[str, Run]) -> list[str]:
    """What could not be checked, because a run was asked through an endpoint."""
    sides = {"first": next(iter(before.values())).source, "second": next(iter(after.values())).source}
    return [
        f"that both runs are of one model apart from its steering: the {side} was asked at {source.endpoint}, "
        f"and its {', '.join(NOT_KNOWN)} are not known"
        for side, source in sides.items()
        if source.endpoint
    ]


def in_order(run: Run, reference: Run) -> Run:
    """The run with its items in the order of another run's."""
    if run.items is reference.items:
        return run
    places = {item.key: place for place, item in enumerate(run.items)}
    order = [places[item.key] for item in reference.items]
    return replace(
        run,
        items=tuple(run.items[i] for i in order),
        answers=tuple(run.answers[i] for i in order),
    )


def _different_items(old: Run, new: Run) -> list[str]:
    olds, news = {item.key: item for item in old.items}, {item.key: item for item in new.items}
    mismatches = [
        f"{len(only)} of {len(items)} items are in the {which} run only, such as {min(only)!r}"
        for which, items, only in (("first", olds, olds.keys() - news), ("second", news, news.keys() - olds))
        if only
    ]
    for name in (name for name in _ITEM_FIELDS if name != "expected" or not old.probe.labelled):
        changed = [key for key in olds if key in news and getattr(olds[key], name) != getattr(news[key], name)]
        if changed:
            mismatches.append(f"{len(changed)} items have other {_PLURAL.get(name, name)}, such as {changed[0]!r}")
    return mismatches


def sign_flip(
    comparisons: Sequence[Comparison], others: Sequence[Comparison] | None = None, over: Over = "identities"
) -> float | None:
    """p of the paired sign-flip test between a steering and its baseline, tasks combined; None if no task is left.

    others: comparisons with another steering on the same tasks, which then takes the baseline's place.
    over: what is swapped together: all answers about an identity, or each item alone, as in the paper. Items reject
    too often where the answers about an identity are alike (docs/validity.md).
    Several tasks are brought to one scale by dividing by the bias before; those without bias, or without a value, are
    left out.
    """
    references = [task.before for task in comparisons] if others is None else [task.after for task in others]
    pairs = list(zip(comparisons, references, strict=True))
    single = len(pairs) == 1
    usable = [
        (task, reference)
        for task, reference in pairs
        if task.reached is not None and np.isfinite(reference.value()) and (single or task.baseline is not None)
    ]
    if not usable:
        return None
    statistics = comparisons[0].statistics
    scales = None if single else [task.before.value() for task, _ in usable]
    p = signflip(
        [task.after.metric() for task, _ in usable],
        [reference.metric() for _, reference in usable],
        scales,
        [_swapped(task.after, over) for task, _ in usable],
        draws=statistics.permutations,
        seed=statistics.seed_of("sign-flip", *(task.task for task, _ in usable)),
    ).p
    return float(p) if np.isfinite(p) else None


def _swapped(run: Measured, over: Over) -> Sequence[str]:
    """Labels of what is swapped together. An identity is the same in all tasks, an item belongs to one task."""
    return run.clusters if over == "identities" else [f"{run.task}/{unit}" for unit in run.units]


def overall(comparisons: Sequence[Comparison]) -> tuple[Interval, Interval]:
    """Mean accuracy and mean change over runs of the same questions. A question is averaged over the runs first."""
    rights = [comparison.rights() for comparison in comparisons]
    after, before = (np.mean([pair[k] for pair in rights], axis=0) for k in (0, 1))
    clusters, level = _dependent_clusters(list(comparisons[0].after.clusters)), comparisons[0].statistics.level
    return _share(after, clusters, level), share_change(after, before, clusters, level=level)


def percent(after: Array, before: Array) -> Array:
    """Changes in percent, NaN where the value before is zero."""
    usable = np.abs(before) > TINY
    return 100 * np.divide(after - before, before, out=np.full_like(after, np.nan), where=usable)
