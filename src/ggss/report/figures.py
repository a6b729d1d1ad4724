"""Every number of the tables, computed once: values, changes, averages with their intervals, and p-values.

Intervals are 95 % percentile bootstraps over identities. All runs of a task are resampled alike (the seed belongs to
the task), so the change of a run is the ratio of its resamples to those of the unsteered run and costs no resampling
of its own; a cell does not depend on which other cells are made.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ggss.analysis import selection
from ggss.analysis.crossfit import Fold, HeldOut, cross_fit, within
from ggss.analysis.selection import UNSTEERED
from ggss.report.digests import Digests
from ggss.report.kept import LEVEL, Kept, Rights, overall
from ggss.stats import Interval, Metric, bootstrap, fieller, signflip
from ggss.stats.metric import TINY, Array
from ggss.study.results import Results, Run

T = TypeVar("T")


class Figures:
    """The statistics of a study's results, with the numbers of resamples and permutations that its plan asks for."""

    def __init__(self, results: Results) -> None:
        self.results = Digests(results)
        self.statistics = results.plan.statistics
        self._known: dict[tuple[object, ...], object] = {}

    def run(
        self, model: str, method: str, task: str, alpha: float | None, attribute: str | None = None
    ) -> Run | None:
        """A digest; None if it was not run, or if no strength could be chosen."""
        if alpha is None and method != UNSTEERED:
            return None
        return self.results.run(model, method, task, alpha, attribute)

    def whole(
        self, model: str, method: str, task: str, alpha: float | None, attribute: str | None = None
    ) -> Run | None:
        """The run with its items."""
        if alpha is None and method != UNSTEERED:
            return None
        return self.results.whole(model, method, task, alpha, attribute)

    def alpha(self, model: str, method: str) -> float | None:
        """best-avg-alpha; 0 of a method that does not steer, however few of its answers can be read."""
        if any(one.label == method and not one.steers for one in self.results.plan.methods):
            return 0.0 if any(self.run(model, method, task, 0.0) for task in self.results.tasks) else None
        return self._once(("alpha", model, method), lambda: selection.best_alpha(self.results, model, method))

    def held_out(self, model: str, method: str) -> list[HeldOut]:
        """The cross-fitted protocol with two folds."""
        return self._once(("held out", model, method), lambda: cross_fit(self.results, model, method))

    def value(self, run: Run, metric: str = "") -> Interval:
        """The run's metric: the published one unless another is named."""
        return self._measured(run, metric)[0]

    def change(self, run: Run, metric: str = "") -> Interval | None:
        """The change in percent of the unsteered run; None where that is zero, unreadable or not run."""
        return self._measured(run, metric)[1]

    def corrected_change(self, run: Run) -> Interval | None:
        """The change between values freed of their small-sample bias (jackknife), with Fieller's interval."""
        before = self._unsteered(run)
        if before is None or before.degenerate or not abs(float(before.metric)) > TINY:
            return None
        return fieller(run.metric, before.metric, run.clusters)

    def average(self, model: str, method: str, alpha: float | None, fold: Fold | None = None) -> Interval | None:
        """Avg: the mean change over the tasks that have one, identities resampled with all their tasks together."""
        return self._once(("average", model, method, alpha, fold), lambda: self._average(model, method, alpha, fold))

    def across(self, models: Sequence[str], method: str) -> tuple[Interval, Interval] | None:
        """The mean and the worst of a method's averages over models, the same identities resampled in all."""
        found = [self._average_draws(model, method, self.alpha(model, method)) for model in models]
        if any(one is None for one in found):
            return None
        estimates, drawn = zip(*(one for one in found if one), strict=True)
        units = len(self._people(models[0], None))
        mean = _percentile(float(np.mean(estimates)), np.mean(drawn, axis=0), units)
        return mean, _percentile(max(estimates), np.max(drawn, axis=0), units)

    def averaged(self, model: str, method: str, alpha: float | None) -> tuple[int, int]:
        """How many tasks an average is over, and how many it could be over."""
        base = selection.task_values(self.results, model, UNSTEERED)
        own = selection.task_values(self.results, model, method, alpha)
        return len(selection.changes(own, base)), len(selection.counted(base))

    def p_value(self, model: str, one: str, other: str = UNSTEERED, tasks: Sequence[str] = ()) -> float | None:
        """Paired sign-flip test between two methods, each at its own best-avg-alpha, by identity.

        The tasks with an unsteered bias are combined: all of them, or those given. None if none can be compared.
        """
        return self._once(("p", model, one, other, *tasks), lambda: self._p_value(model, one, other, tasks))

    def kept(
        self, model: str, method: str, task: str, alpha: float | None, attribute: str, question: str = ""
    ) -> Kept | None:
        """What steering left of a capability: on all questions, or on those of one kind."""
        rights = self._rights(model, method, task, alpha, attribute)
        key = ("kept", model, method, task, alpha, attribute, question)
        return self._once(key, lambda: rights and rights.kept(question))

    def kept_across(
        self, models: Sequence[str], method: str, task: str, attributes: Sequence[str]
    ) -> tuple[Interval, Interval] | None:
        """Mean accuracy and its mean change over models and steerings; None if one was not run."""
        found = [self._rights(m, method, task, self.alpha(m, method), a) for a in attributes for m in models]
        there = [one for one in found if one]
        return overall(there) if there and len(there) == len(found) else None

    def _rights(self, model: str, method: str, task: str, alpha: float | None, attribute: str) -> Rights | None:
        def read() -> Rights | None:
            run, before = self.whole(model, method, task, alpha, attribute), self.whole(model, UNSTEERED, task, None)
            return Rights.of(run, before) if run and before else None

        return self._once(("rights", model, method, task, alpha, attribute), read)

    def _measured(self, run: Run, metric: str) -> tuple[Interval, Interval | None]:
        return self._once(("measured", *_key(run), metric), lambda: self._measure(run, metric))

    def _measure(self, run: Run, metric: str) -> tuple[Interval, Interval | None]:
        after, before, units = _named(run, metric), self._unsteered(run), len(set(run.clusters))
        draws = self._draws(run, after)
        value = _percentile(float(after), draws, units)
        if before is None or before.degenerate or not abs(float(base := _named(before, metric))) > TINY:
            return value, None
        unsteered = self._once(("draws", *_key(before), metric), lambda: self._draws(before, base))
        return value, _percentile(100 * (float(after) / float(base) - 1), _percent(draws, unsteered), units)

    def _unsteered(self, run: Run) -> Run | None:
        read = self.results.whole if run.items else self.results.run
        return read(run.model, UNSTEERED, run.task)

    def _average(self, model: str, method: str, alpha: float | None, fold: Fold | None) -> Interval | None:
        found = self._average_draws(model, method, alpha, fold)
        return found and _percentile(*found, len(self._people(model, fold)))

    def _average_draws(
        self, model: str, method: str, alpha: float | None, fold: Fold | None = None
    ) -> tuple[float, Array] | None:
        changes, drawn = [], []
        for task in self.results.tasks:
            run, before = self.run(model, method, task, alpha), self.run(model, UNSTEERED, task, None)
            if run is None or before is None or run.degenerate or before.degenerate:
                continue
            after, base = self._of_everyone(run, fold), self._of_everyone(before, fold)
            if abs(float(base)) > TINY and np.isfinite(float(after)):
                changes.append(100 * (float(after) / float(base) - 1))
                drawn.append(_percent(self._joint(after), self._joint(base, model, task, fold)))
        return (float(np.mean(changes)), np.mean(drawn, axis=0)) if changes else None

    def _of_everyone(self, run: Run, fold: Fold | None) -> Metric:
        """The run's metric with a row for every identity of the study (of the fold), empty if the task has it not."""
        metric, clusters = (run.metric, run.clusters) if fold is None else within(run.metric, run.clusters, fold)
        place = {person: k for k, person in enumerate(self._people(run.model, fold))}
        terms = np.zeros((len(place), metric.terms.shape[1]))
        terms[[place[cluster] for cluster in clusters]] = metric.terms
        return replace(metric, terms=terms)

    def _people(self, model: str, fold: Fold | None) -> list[str]:
        """Everyone whom a bias task shows, or those of them in a fold."""
        runs = [self.results.run(model, UNSTEERED, task) for task in self.results.tasks]
        everyone = {cluster for run in runs if run is not None for cluster in run.clusters}
        return sorted(everyone if fold is None else everyone & fold)

    def _joint(self, metric: Metric, *key: object) -> Array:
        """Resamples of identities; those of the unsteered runs are kept, by their key."""

        def draw() -> Array:
            seed = self._seed("average")
            return bootstrap(metric, resamples=self.statistics.resamples, seed=seed).draws

        return self._once(("joint", *key), draw) if key else draw()

    def _draws(self, run: Run, metric: Metric) -> Array:
        seed = self._seed(run.task)
        return bootstrap(metric, run.clusters, resamples=self.statistics.resamples, seed=seed).draws

    def _p_value(self, model: str, one: str, other: str, tasks: Sequence[str]) -> float | None:
        compared: list[tuple[Metric, Metric, float, list[str]]] = []
        for task in tasks or self.results.tasks:
            runs = [self.run(model, method, task, self.alpha(model, method)) for method in (one, other, UNSTEERED)]
            a, b, base = (None if run is None or run.degenerate else run for run in runs)
            if a and b and base and abs(float(base.metric)) > TINY:
                compared.append((a.metric, b.metric, float(base.metric), a.clusters))
        if not compared:
            return None
        left, right, scales, clusters = (list(column) for column in zip(*compared, strict=True))
        draws, seed = self.statistics.permutations, self._seed(model, one, other, *tasks)
        p = signflip(left, right, scales, clusters, draws=draws, seed=seed).p
        return float(p) if np.isfinite(p) else None

    def _seed(self, *words: str) -> int:
        named = "/".join([str(self.statistics.seed), *words])
        return int.from_bytes(hashlib.sha256(named.encode()).digest()[:4])

    def _once(self, key: tuple[object, ...], compute: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]  # pyright: ignore[reportReturnType]


def _key(run: Run) -> tuple[object, ...]:
    return run.model, run.method, run.task, run.alpha, run.attribute


def _named(run: Run, metric: str) -> Metric:
    return run.metrics[metric] if metric else run.metric


def _percent(after: Array, before: Array) -> Array:
    usable = np.abs(before) > TINY
    return 100 * np.divide(after - before, before, out=np.full_like(after, np.nan), where=usable)


def _percentile(estimate: float, draws: Array, units: int) -> Interval:
    """As `bootstrap` makes it, without keeping the resamples."""
    kept = draws[np.isfinite(draws)]
    undefined = 1 - len(kept) / len(draws)
    low = high = float("nan")
    if undefined <= 0.5 and np.isfinite(estimate):
        low, high = (float(bound) for bound in np.quantile(kept, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    return Interval(estimate, low, high, LEVEL, "percentile", units, undefined)
