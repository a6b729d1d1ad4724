"""The numbers of a study as the tables ask for them: each is computed once, by `ggss.analysis`.

A table asks for a comparison of a run with the unsteered model, at a strength or at the method's best-avg-alpha, for
an average over tasks, a test, or a change of capability. It never reads a run by itself: what a steered run measures
may depend on the unsteered one, as the cap of the CEO salaries does.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

from ggss import probes
from ggss.analysis import averages, selection
from ggss.analysis.comparison import Comparison, overall, sign_flip
from ggss.analysis.crossfit import Fold, HeldOut
from ggss.analysis.right_answers import Kept
from ggss.methods.registry import UNSTEERED
from ggss.probes import Display
from ggss.probes.base import Kind, parted, task_label
from ggss.stats import Interval
from ggss.study import grid
from ggss.study.results import Results

ABLATED = "mcq"  # the probe of the published tables of components, sensitivity, calibration and discovery prompts

T = TypeVar("T")


class Figures:
    """A cached view of a study's results."""

    def __init__(self, results: Results) -> None:
        self.results, self.plan, self.statistics = results, results.plan, results.statistics
        self._known: dict[tuple[object, ...], object] = {}

    def comparison(
        self, model: str, method: str, task: str, alpha: float | None, attribute: str | None = None
    ) -> Comparison | None:
        """A run beside the unsteered one; None if one of them is missing, or if no strength could be chosen."""
        if alpha is None and method != UNSTEERED:
            return None
        return self.results.comparison(model, method, task, alpha, attribute)

    def unsteered(self, model: str, task: str) -> Comparison | None:
        """The unsteered run beside itself."""
        return self.comparison(model, UNSTEERED, task, None)

    def at_best(self, model: str, method: str, task: str, attribute: str | None = None) -> Comparison | None:
        """A run at the method's best-avg-alpha."""
        return self.comparison(model, method, task, self.alpha(model, method), attribute)

    def alpha(self, model: str, method: str) -> float | None:
        """best-avg-alpha. A method that does not steer has 0, even if none of its answers can be read."""
        if any(entry.label == method and not entry.steers for entry in self.plan.methods):
            return 0.0 if self.results.bias(model, method, 0.0) else None
        return self._once(("alpha", model, method), lambda: self.results.best_alpha(model, method))

    def held_out(self, model: str, method: str) -> list[HeldOut]:
        """The cross-fitted protocol with two folds."""
        return self._once(("held out", model, method), lambda: self.results.held_out(model, method))

    def average(self, model: str, method: str, alpha: float | None, fold: Fold | None = None) -> Interval | None:
        """Avg: the mean change over the bias tasks that have one; of all identities, or of those in a fold."""
        return self._once(
            ("average", model, method, alpha, fold),
            lambda: averages.average_change(self._bias(model, method, alpha, fold)),
        )

    def corrected_average(self, model: str, method: str, alpha: float | None) -> Interval | None:
        """Avg with our interval."""
        return self._once(
            ("corrected", model, method, alpha),
            lambda: averages.corrected_average(self._bias(model, method, alpha)),
        )

    def across(self, models: Sequence[str], method: str) -> tuple[Interval, Interval] | None:
        """The mean and the worst of a method's averages over models, each at its best-avg-alpha."""
        return averages.across([self._bias(model, method, self.alpha(model, method)) for model in models])

    def averaged(self, model: str, method: str, alpha: float | None) -> tuple[int, int]:
        """How many tasks an average is over, and how many have an unsteered bias that can be averaged."""
        before = selection.baselines(self.results.bias(model, UNSTEERED, None))
        after = selection.values(self.results.bias(model, method, alpha))
        return len(selection.changes(after, before)), len(selection.counted(before))

    def p_values(
        self, model: str, one: str, other: str = UNSTEERED, tasks: Sequence[str] = ()
    ) -> tuple[float | None, float | None]:
        """The sign-flip test between two methods, each at its own best-avg-alpha: by identity and by item.

        The tasks with an unsteered bias are combined: all of them, or those given. None if none can be compared.
        """
        return self._once(("p", model, one, other, *tasks), lambda: self._p_values(model, one, other, tasks))

    def kept(
        self, model: str, method: str, task: str, alpha: float | None, attribute: str, question: str = ""
    ) -> Kept | None:
        """Right answers before and after steering: to all questions, or to those of one kind."""
        found = self.comparison(model, method, task, alpha, attribute)
        key = ("kept", model, method, task, alpha, attribute, question)
        return self._once(key, lambda: found and found.kept(question))

    def kept_across(
        self, models: Sequence[str], method: str, task: str, attributes: Sequence[str]
    ) -> tuple[Interval, Interval] | None:
        """Mean accuracy and its mean change over models and steerings; None if one of the runs is missing."""
        found = [self.at_best(model, method, task, attribute) for attribute in attributes for model in models]
        there = [one for one in found if one]
        return overall(there) if there and len(there) == len(found) else None

    @cached_property
    def ablated(self) -> str | None:
        """The bias task that the published ablations are of; None if the plan has no task of that probe."""
        return next((task for task in self.results.tasks if parted(task)[0] == ABLATED), None)

    def benchmark(self, kind: Kind) -> str | None:
        """The plan's first task of a kind."""
        return next((task for task in self.plan.tasks if probes.get(task).kind == kind), None)

    def recognition(self) -> dict[str, str]:
        """By attribute, the task that asks for it."""
        return {self.about(task): task for task in self.plan.tasks if probes.get(task).kind == "recognition"}

    def about(self, task: str) -> str:
        """The attribute whose values a task compares, "" for a capability."""
        return self._shown(task)[0]

    def display(self, task: str) -> Display:
        """How a task's published metric is shown."""
        return self._shown(task)[1]

    def label(self, task: str) -> str:
        """What the column of a task's published metric is called."""
        return task_label(task, self.about(task))

    def _shown(self, task: str) -> tuple[str, Display]:
        """As the answers say; as the plan says while there are none."""

        def shown() -> tuple[str, Display]:
            asked = (self.unsteered(model, task) for model in self.results.models)
            if found := next((one for one in asked if one), None):
                return found.before.about, found.before.display()
            probe, about = probes.get(task), parted(task)[1]
            if not about and task in self.results.tasks:
                about = grid.own_attribute(self.plan, task)
            return about, probe.display(next(iter(probe.displays)).format(about=about), about)

        return self._once(("shown", task), shown)

    def _bias(self, model: str, method: str, alpha: float | None, fold: Fold | None = None) -> list[Comparison]:
        if alpha is None and method != UNSTEERED:
            return []
        found = self.results.bias(model, method, alpha)
        return [one if fold is None else self._within(model, one, fold) for one in found.values()]

    def _within(self, model: str, one: Comparison, fold: Fold) -> Comparison:
        """The unsteered part of a fold is kept, with its resamples: every method is compared with it."""
        before = self._once(("before", model, one.task, fold), lambda: one.before.within(fold))
        return Comparison(before, one.after.within(fold))

    def _p_values(self, model: str, one: str, other: str, tasks: Sequence[str]) -> tuple[float | None, float | None]:
        pairs: list[tuple[Comparison, Comparison]] = []
        for task in tasks or self.results.tasks:
            first, second = (self.at_best(model, method, task) for method in (one, other))
            if first and second and first.baseline is not None:
                pairs.append((first, second))
        if not pairs:
            return None, None
        firsts, seconds = zip(*pairs, strict=True)
        return sign_flip(firsts, seconds), sign_flip(firsts, seconds, "items")

    def _once(self, key: tuple[object, ...], compute: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]  # pyright: ignore[reportReturnType]
