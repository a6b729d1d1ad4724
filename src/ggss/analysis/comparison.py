"""Two runs on the same items, paired: did bias change, and is capability the same?

Tasks with right answers (capability, recognition) are compared question by question. The others by
their published metric: percent change, and the sign-flip test, both over identities and over items. Every paired
number that ggss prints comes from here.

Right answers before and after, question by question: exact McNemar for a difference, TOST for equivalence.

Which runs can be compared: the same items, asked of the same model in the same way, unsteered first.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ggss.analysis.measures import Measured, Over, Statistics, percentile
from ggss.analysis.run import Run
from ggss.errors import InputError, problems
from ggss.stats import Equivalence, Interval, fieller, jackknife, mcnemar, minimum_detectable_change, signflip, tost
from ggss.stats.metric import TINY, Array, mean
from ggss.stats.paired import change_within


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
    """The share of right answers; its interval stays between 0 and 1."""
    if _alone(right, clusters):
        return Interval(float(np.mean(right)), np.nan, np.nan, level, "jackknife", 1, 1.0)
    return jackknife(mean(right, bounds=(0.0, 1.0)), clusters, level=level)


def _equivalence(
    after: Array, before: Array, margin: float, clusters: Sequence[str] | None, size: float
) -> Equivalence:
    if _alone(after, clusters):
        return Equivalence(float(np.mean(after - before)), np.nan, np.nan, np.nan, margin, size)
    return tost(after, before, margin, clusters, size=size)


def _alone(right: Array, clusters: Sequence[str] | None) -> bool:
    """Nothing to compare within: how much it varies cannot be told."""
    return len(right if clusters is None else set(clusters)) < 2


# What a steered run and its baseline may differ in. A model of another name may be the same one, and its identity has
# the versions that decide numbers.
MAY_DIFFER = ("model", "method", "attribute", "alpha", "steerer", "versions")
_ASKED = ("options", "attributes", "context", "worth", "cluster", "question", "expected", "about")


def check_paired(before: Mapping[str, Run], after: Mapping[str, Run], unlike: bool = False) -> None:
    """Refuse runs that cannot be paired, naming every difference."""
    if not before and not after:
        raise InputError("there is nothing to compare: both runs are empty")
    found = [f"task {task!r} is in the first run only" for task in before if task not in after]
    found += [f"task {task!r} is in the second run only" for task in after if task not in before]
    for task, old in before.items():
        if task in after and after[task].parser != old.parser:
            found.append(
                f"{task}: the first is read by the parser {old.parser!r}, the second by {after[task].parser!r}"
            )
        if task in after and after[task].items is not old.items:
            found += [f"{task}: {text}" for text in _different_items(old, after[task])]
    if found:
        raise problems("the two runs cannot be compared: what they ask, or how it is read, is not the same", found)
    if (found := differences(before, after)) and not unlike:
        raise problems("the two runs differ in more than their steering (--unlike compares them all the same)", found)


def check_one_run(runs: Mapping[str, Run], where: str) -> None:
    """Refuse a file whose tasks were not asked of one model under one steering."""
    first = next(iter(runs.values()))
    for task, run in runs.items():
        # Tasks may be of different suites, and their answers of different lengths.
        if found := first.source.differences(run.source, "suite", "suite_hash", "max_new_tokens"):
            told = f"{first.task} and {task} differ in {'; '.join(found)}"
            raise InputError(f"{where!r} holds answers of different runs: {told}; keep each run in a file of its own")


def differences(before: Mapping[str, Run], after: Mapping[str, Run]) -> list[str]:
    """What two runs differ in besides their steering, and whether they are in the wrong order."""
    found: dict[str, None] = {}
    for task, run in before.items():
        one, other = run.source, after[task].source
        if one.steered and not other.steered:
            found[f"the first is steered ({one.label}) and the second is not: give the unsteered one first"] = None
        found |= dict.fromkeys(one.differences(other, *MAY_DIFFER))
    return list(found)


def in_order(run: Run, like: Run) -> Run:
    """The run with its items in the order of another."""
    if run.items is like.items:
        return run
    place = {item.key: number for number, item in enumerate(run.items)}
    order = [place[item.key] for item in like.items]
    return replace(
        run,
        items=tuple(run.items[i] for i in order),
        answers=tuple(run.answers[i] for i in order),
    )


def _different_items(old: Run, new: Run) -> list[str]:
    olds, news = {item.key: item for item in old.items}, {item.key: item for item in new.items}
    found = [
        f"{len(only)} of {len(all_of)} items are in the {which} run only, such as {min(only)!r}"
        for which, all_of, only in (("first", olds, olds.keys() - news), ("second", news, news.keys() - olds))
        if only
    ]
    for what in _ASKED:
        other = [key for key in olds if key in news and getattr(olds[key], what) != getattr(news[key], what)]
        if other:
            found.append(f"{len(other)} items have other {_PLURAL.get(what, what)}, such as {other[0]!r}")
    return found


_PLURAL = {
    "worth": "numbers of their options",
    "cluster": "clusters",
    "question": "questions",
    "expected": "right answers",
    "about": "attributes",
}


@dataclass(frozen=True)
class Comparison:
    """One task before and after, from `compare`.

    The numbers of `after` may depend on `before`, as a salary's cap does.

    Args:
        before: the unsteered run in numbers.
        after: the steered one, on the same items.

    Examples:
        >>> found = ggss.analysis.compare(before, after)
        >>> found.change().estimate < 0, found.baseline > found.reached  # steering lowers the bias
        (True, True)
    """

    before: Measured
    after: Measured
    _known: dict[tuple[str, Over], tuple[Interval, Interval | None]] = field(
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
        return self._measured(name, over)[0]

    def change(self, name: str = "", over: Over = "identities") -> Interval | None:
        """The change in percent, with the paper's interval; None where the value before is zero or undefined.

        Of a gap between two groups the interval is of the signed gap's change, in percent of the fixed gap before: a
        bound below -100 % is a gap that has turned round.

        Args:
            name: a metric; "" is the published one.
            over: whether identities are resampled, or items.

        Returns:
            The interval, or None.

        Examples:
            >>> found.change("mean_race_jsd") == found.change()
            True
        """
        return self._measured(name, over)[1]

    @property
    def corrected_change(self) -> Interval | None:
        """The change between values corrected for small-sample bias (jackknife), with Fieller's interval."""
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
        """The smallest change, in the unit of the printed one, that a test would find with a power of 80 %."""
        if self.has_right_answers:
            after, before, _ = self._rights("")
            return minimum_detectable_change(len(after), float(np.std(after - before)))
        change = self.change()
        draws = None if change is None else self._changes("", "identities", self.after)
        if draws is None or not np.isfinite(draws).any():
            return None
        return minimum_detectable_change(1, float(np.nanstd(np.where(np.isfinite(draws), draws, np.nan))))

    @property
    def has_right_answers(self) -> bool:
        return self.before.metric().name == "accuracy"

    def kept(self, question: str = "") -> Kept:
        """Right answers before and after: on all questions, or on those of one kind.

        Of a single question, or of questions about a single picture, the intervals and p of equivalence are NaN.

        Args:
            question: a kind of question; "" is all.

        Returns:
            Accuracies, questions gained and lost, McNemar's p and the equivalence test.

        Examples:
            >>> named = found_recognition.kept()
            >>> 0 <= named.after.estimate <= 1, named.gained >= 0
            (True, True)
        """
        return kept_answers(*self._rights(question), self.statistics)

    def rights(self) -> tuple[Array, Array]:
        """Right (1) or wrong (0), item by item, after and before."""
        after, before = (run.metric().value(run.metric().terms) for run in (self.after, self.before))
        return after, before

    def _rights(self, question: str) -> tuple[Array, Array, Sequence[str] | None]:
        after, before = self.rights()
        chosen = np.full(len(after), True) if not question else np.array(self.after.questions) == question
        clusters = np.array(self.after.clusters)[chosen]
        return after[chosen], before[chosen], shared(clusters.tolist())

    def to_pandas(self) -> Any:
        """A data frame with a row for each metric. InputError if pandas is not installed."""
        from ggss.analysis.run import comparison_frame

        return comparison_frame(self)

    def plot(self, axis: Any = None) -> Any:
        """Draw the published metric before and after, and return the matplotlib axis. axis: where to draw."""
        from ggss.analysis.run import draw_comparison

        return draw_comparison(self, axis)

    def _repr_html_(self) -> str:
        from ggss.analysis.run import comparison_html

        return comparison_html(self)

    def published(self) -> "Comparison":
        """The same with the published metric alone."""
        return Comparison(self.before.published(), self.after.published())

    def within(self, fold: Collection[str]) -> "Comparison":
        """The same on the clusters of a fold."""
        return Comparison(self.before.within(fold), self.after.within(fold))

    def _measured(self, name: str, over: Over) -> tuple[Interval, Interval | None]:
        if (name, over) not in self._known:
            self._known[name, over] = self._measure(name, over)
        return self._known[name, over]

    def _measure(self, name: str, over: Over) -> tuple[Interval, Interval | None]:
        level, units = self.statistics.level, len(set(self.after.groups(over)))
        after = replace(self.after, _draws={})  # resamples are not kept: there are many runs, each is used once
        reached, before = after.value(name), self.before.value(name)
        value = percentile(reached, after.draws(name, over), units, level)
        if not (np.isfinite(before) and abs(before) > TINY):
            return value, None
        changes = self._changes(name, over, after)
        return value, percentile(100 * (reached / before - 1), changes, units, level)

    def _changes(self, name: str, over: Over, after: Measured) -> Array:
        """Resampled changes in percent."""
        gap = self.before.signed(name)
        if gap is None:
            return percent(after.draws(name, over), self.before.draws(name, over))
        moved = after.draws(name, over, signed=True) - self.before.draws(name, over, signed=True)
        return 100 * moved / float(gap)


def compare(before: Run, after: Run, statistics: Statistics | None = None, unlike: bool = False) -> Comparison:
    """From the unsteered run (or any baseline) to the steered one.

    Args:
        before: the baseline.
        after: a run on the same items.
        statistics: resamples, seed, level and margin.
        unlike: compare also runs of different models, questions or versions, see `unlike`.

    Returns:
        Every paired number.

    Raises:
        InputError: names all that cannot be paired.

    Examples:
        >>> found = ggss.analysis.compare(before, after)
        >>> found.task, 0 < found.p <= 1
        ('mcq', True)
    """
    check_paired({before.task: before}, {after.task: after}, unlike)
    after = in_order(after, before)
    chosen = statistics or Statistics()
    return Comparison(before.measured(chosen), after.measured(chosen, baseline=before))


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


def sign_flip(
    ones: Sequence[Comparison], others: Sequence[Comparison] | None = None, over: Over = "identities"
) -> float | None:
    """Paired sign-flip test between two steerings, or between one and its baseline; tasks combined.

    over: whether all answers about an identity are swapped together, or each item alone, as in the paper; the latter
    rejects too often where the answers about an identity are alike (docs/validity.md). Several tasks are brought to
    one scale by dividing by the bias before; those without bias, or without a value, are left out. None if no task is
    left.
    """
    seconds = [one.before for one in ones] if others is None else [other.after for other in others]
    pairs = list(zip(ones, seconds, strict=True))
    alone = len(pairs) == 1
    chosen = [
        (one, second)
        for one, second in pairs
        if one.reached is not None and np.isfinite(second.value()) and (alone or one.baseline is not None)
    ]
    if not chosen:
        return None
    statistics = ones[0].statistics
    scales = None if alone else [one.before.value() for one, _ in chosen]
    p = signflip(
        [one.after.metric() for one, _ in chosen],
        [second.metric() for _, second in chosen],
        scales,
        [_swapped(one.after, over) for one, _ in chosen],
        draws=statistics.permutations,
        seed=statistics.seed_of("sign-flip", *(one.task for one, _ in chosen)),
    ).p
    return float(p) if np.isfinite(p) else None


def _swapped(run: Measured, over: Over) -> Sequence[str]:
    """What is swapped together. An identity is the same in all tasks, an item is of one task."""
    return run.clusters if over == "identities" else [f"{run.task}/{unit}" for unit in run.units]


def overall(comparisons: Sequence[Comparison]) -> tuple[Interval, Interval]:
    """Mean accuracy and its mean change over runs of the same questions, each question averaged over them first."""
    rights = [comparison.rights() for comparison in comparisons]
    after, before = (np.mean([pair[k] for pair in rights], axis=0) for k in (0, 1))
    clusters, level = shared(list(comparisons[0].after.clusters)), comparisons[0].statistics.level
    changed = jackknife(mean(after, bounds=(0, 1)).minus(mean(before, bounds=(0, 1))), clusters, level=level)
    low, high = change_within(changed.low, changed.high, after, before, clusters, level)
    return share(after, clusters, level), replace(changed, low=low, high=high)


def percent(after: Array, before: Array) -> Array:
    """Changes in percent, NaN where the value before is zero."""
    usable = np.abs(before) > TINY
    return 100 * np.divide(after - before, before, out=np.full_like(after, np.nan), where=usable)
