"""Two runs on the same items, paired: did bias change, and is capability the same?

Tasks with right answers (capability, recognition) are compared question by question: exact McNemar for a difference,
TOST for equivalence. The others by their published metric: percent change, and the sign-flip test over clusters.
Every paired number that ggss prints comes from here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ggss.analysis.measured import Measured, percentile
from ggss.analysis.run import Run
from ggss.analysis.statistics import Statistics
from ggss.errors import InputError, problems
from ggss.stats import Equivalence, Interval, fieller, jackknife, mcnemar, minimum_detectable_change, signflip, tost
from ggss.stats.metric import TINY, Array


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


@dataclass(frozen=True)
class Comparison:
    """One task before and after. The numbers of `after` may depend on `before`, as a salary's cap does."""

    before: Measured
    after: Measured
    _known: dict[str, tuple[Interval, Interval | None]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def task(self) -> str:
        return self.before.task

    @property
    def statistics(self) -> Statistics:
        return self.before.statistics

    @property
    def degenerate(self) -> bool:
        """Most answers of one of the runs could not be parsed."""
        return self.before.degenerate or self.after.degenerate

    @property
    def baseline(self) -> float | None:
        """The bias before; None if it is zero or unreadable, because then no change can be computed."""
        value = self.before.value()
        return value if not self.before.degenerate and np.isfinite(value) and abs(value) > TINY else None

    @property
    def reached(self) -> float | None:
        """The bias after, None if most answers could not be parsed."""
        return None if self.after.degenerate else self.after.value()

    def value(self, name: str = "") -> Interval:
        """The metric after, with the paper's interval."""
        return self._measured(name)[0]

    def change(self, name: str = "") -> Interval | None:
        """The change in percent, with the paper's interval; None where the value before is zero or unreadable."""
        return self._measured(name)[1]

    @property
    def corrected_change(self) -> Interval | None:
        """The change between values corrected for small-sample bias (jackknife), with Fieller's interval."""
        if self.baseline is None:
            return None
        after, before = self.after.metric(), self.before.metric()
        return fieller(after, before, self.after.clusters, level=self.statistics.level)

    @property
    def p(self) -> float:
        """Sign-flip test over clusters that the published metric changed; NaN where it is not defined."""
        return sign_flip([self], None) or float("nan")

    @property
    def detectable(self) -> float | None:
        """The smallest change, in the unit of the printed one, that a test would find with a power of 80 %."""
        if self.has_right_answers:
            after, before, _ = self._rights("")
            return minimum_detectable_change(len(after), float(np.std(after - before)))
        change = self.change()
        draws = None if change is None else percent(self.after.draws(), self.before.draws())
        if draws is None or not np.isfinite(draws).any():
            return None
        return minimum_detectable_change(1, float(np.nanstd(np.where(np.isfinite(draws), draws, np.nan))))

    @property
    def has_right_answers(self) -> bool:
        return self.before.metric().name == "accuracy"

    def kept(self, question: str = "") -> Kept:
        """Right answers before and after: on all questions, or on those of one kind."""
        after, before, clusters = self._rights(question)
        level, margin = self.statistics.level, self.statistics.margin
        gained, lost = int(np.sum(after > before)), int(np.sum(after < before))
        return Kept(
            share(after, clusters, level),
            share(before, clusters, level),
            gained,
            lost,
            tost(after, before, margin, clusters, size=(1 - level) / 2),
            tost(after, before, margin, clusters),
            mcnemar(gained, lost),
        )

    def rights(self) -> tuple[Array, Array]:
        """Right (1) or wrong (0), item by item, after and before."""
        after, before = (run.metric().value(run.metric().terms) for run in (self.after, self.before))
        return after, before

    def _rights(self, question: str) -> tuple[Array, Array, Sequence[str] | None]:
        after, before = self.rights()
        chosen = np.full(len(after), True) if not question else np.array(self.after.questions) == question
        clusters = np.array(self.after.clusters)[chosen]
        return after[chosen], before[chosen], shared(clusters.tolist())

    def by_cluster(self) -> "Comparison":
        """The same with one row for each cluster; a baseline that has this form already is used as it is."""
        before = self.before if _reduced(self.before) else self.before.by_cluster()
        return Comparison(before, self.after.by_cluster())

    def within(self, fold: Collection[str]) -> "Comparison":
        """The same on the clusters of a fold."""
        return Comparison(self.before.within(fold), self.after.within(fold))

    def _measured(self, name: str) -> tuple[Interval, Interval | None]:
        if name not in self._known:
            self._known[name] = self._measure(name)
        return self._known[name]

    def _measure(self, name: str) -> tuple[Interval, Interval | None]:
        level, units = self.statistics.level, len(set(self.after.clusters))
        drawn = replace(self.after, _draws={}).draws(name)  # not cached: there are many runs, each is used once
        after, before = self.after.value(name), self.before.value(name)
        value = percentile(after, drawn, units, level)
        if self.before.degenerate or not abs(before) > TINY:
            return value, None
        changes = percent(drawn, self.before.draws(name))
        return value, percentile(100 * (after / before - 1), changes, units, level)


def compare(before: Run, after: Run, statistics: Statistics | None = None) -> Comparison:
    """From the unsteered run (or any baseline) to the steered one. InputError names all items that differ."""
    check_paired({before.task: before}, {after.task: after})
    after = _in_order(after, before)
    chosen = statistics or Statistics()
    return Comparison(before.measured(chosen), after.measured(chosen, baseline=before))


def compare_all(
    before: Mapping[str, Run], after: Mapping[str, Run], statistics: Statistics | None = None
) -> dict[str, Comparison]:
    """Task by task. InputError names all tasks and items that differ."""
    check_paired(before, after)
    return {task: compare(run, after[task], statistics) for task, run in before.items()}


def check_paired(before: Mapping[str, Run], after: Mapping[str, Run]) -> None:
    """Refuse runs of different questions, naming every difference."""
    if not before and not after:
        raise InputError("there is nothing to compare: both runs are empty")
    found = [f"task {task!r} is in the first run only" for task in before if task not in after]
    found += [f"task {task!r} is in the second run only" for task in after if task not in before]
    for task, old in before.items():
        if task in after and after[task].items is not old.items:
            found += [f"{task}: {text}" for text in _differences(old, after[task])]
    if found:
        raise problems("the two runs were not asked the same", found)


_ASKED = ("options", "attributes", "context", "cluster", "question", "expected", "about")


def _differences(old: Run, new: Run) -> list[str]:
    of_key, keys = {item.key: item for item in new.items}, {item.key for item in old.items}
    found = [f"item {key!r} is in the first run only" for key in sorted(keys - of_key.keys())]
    found += [f"item {key!r} is in the second run only" for key in sorted(of_key.keys() - keys)]
    for item in old.items:
        other = of_key.get(item.key)
        found += [f"item {item.key!r} has another {what}" for what in _ASKED if other and _differ(item, other, what)]
    if not found and old.source.suite_hash != new.source.suite_hash:
        found.append("the suites' hashes differ, so prompts or pictures do")
    return found


def _differ(one: object, other: object, what: str) -> bool:
    return getattr(one, what) != getattr(other, what)


def _in_order(run: Run, like: Run) -> Run:
    """The run with its items in the order of another."""
    if run.items is like.items:
        return run
    place = {item.key: number for number, item in enumerate(run.items)}
    order = [place[item.key] for item in like.items]
    return replace(
        run,
        items=tuple(run.items[i] for i in order),
        answers=tuple(run.answers[i] for i in order),
        probabilities=tuple(run.probabilities[i] for i in order),
    )


def sign_flip(ones: Sequence[Comparison], others: Sequence[Comparison] | None = None) -> float | None:
    """Paired sign-flip test over clusters between two steerings, or between one and its baseline; tasks combined.

    Several tasks are brought to one scale by dividing by the bias before; those without bias, or with unreadable
    answers, are left out. None if no task is left.
    """
    seconds = [one.before for one in ones] if others is None else [other.after for other in others]
    pairs = list(zip(ones, seconds, strict=True))
    alone = len(pairs) == 1
    chosen = [
        (one, second)
        for one, second in pairs
        if not one.degenerate and not second.degenerate and (alone or one.baseline is not None)
    ]
    if not chosen:
        return None
    statistics = ones[0].statistics
    scales = None if alone else [one.before.value() for one, _ in chosen]
    p = signflip(
        [one.after.metric() for one, _ in chosen],
        [second.metric() for _, second in chosen],
        scales,
        [one.after.clusters for one, _ in chosen],
        draws=statistics.permutations,
        seed=statistics.seed_of("sign-flip", *(one.task for one, _ in chosen)),
    ).p
    return float(p) if np.isfinite(p) else None


def overall(comparisons: Sequence[Comparison]) -> tuple[Interval, Interval]:
    """Mean accuracy and its mean change over runs of the same questions, each question averaged over them first."""
    rights = [comparison.rights() for comparison in comparisons]
    after, before = (np.mean([pair[k] for pair in rights], axis=0) for k in (0, 1))
    clusters, level = shared(list(comparisons[0].after.clusters)), comparisons[0].statistics.level
    return share(after, clusters, level), jackknife(after - before, clusters, level=level)


def shared(clusters: Sequence[str]) -> Sequence[str] | None:
    """The clusters if any of them has several items, else None: for independent items there are better tests."""
    return clusters if len(set(clusters)) < len(clusters) else None


def share(right: Array, clusters: Sequence[str] | None, level: float) -> Interval:
    """The share of right answers; its bounds stay between 0 and 1."""
    found = jackknife(right, clusters, level=level)
    return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))


def percent(after: Array, before: Array) -> Array:
    """Changes in percent, NaN where the value before is zero."""
    usable = np.abs(before) > TINY
    return 100 * np.divide(after - before, before, out=np.full_like(after, np.nan), where=usable)


def _reduced(run: Measured) -> bool:
    return len(set(run.clusters)) == len(run.clusters)
