"""What the tables and the page print: names of methods and models, entries of tables, numbers with intervals.

`Figures` has the numbers of a study as tables need them: comparisons with the unsteered model, averages over tasks,
tests, changes of capability. Each is computed once, by `ggss.analysis`. A table never measures a run by itself: what
a steered run measures may depend on the unsteered one, as the cap of the CEO salaries does. How a task is named and
printed is decided by its probe (`ggss.probes.Display`).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from ggss import probes
from ggss.activations import SITE
from ggss.analysis import selection
from ggss.analysis.comparison import AccuracyChange, Comparison, FlipChange, overall, sign_flip
from ggss.analysis.run import Over
from ggss.analysis.selection import Fold, HeldOut, adjusted
from ggss.methods.ggss import GgssOptions
from ggss.methods.registry import UNSTEERED
from ggss.probes import Display
from ggss.probes.base import Kind, attribute_named, split_task, task_label
from ggss.report.rendering import Column, Entry, Figure, Row, signless_zero
from ggss.stats import Interval
from ggss.study import grid
from ggss.study.plan import MethodPlan
from ggss.study.results import Results

T = TypeVar("T")

ABLATED = "mcq"  # the probe of the published tables of components, sensitivity, calibration and discovery prompts
GGSS, PROMPT = "ggss", "prompt"

# The published methods by family, in the order of the published tables.
EXTERNAL: Mapping[str, Mapping[str, str]] = {
    "INLP": {"inlp-euclidean": "INLP (Eucl.)", "inlp-spherical": "INLP (sph.)"},
    "MeanDiff": {
        "meandiff-svm-euclidean": "MeanDiff-SVM (Eucl.)",
        "meandiff-svm-spherical": "MeanDiff-SVM (sph.)",
        "meandiff-lr-euclidean": "MeanDiff-LR (Eucl.)",
        "meandiff-lr-spherical": "MeanDiff-LR (sph.)",
    },
    "BendVLM": {"bend-euclidean": "BendVLM (Eucl.)", "bend-spherical": "BendVLM (sph.)"},
}
LEACE = {"leace-gated": "LEACE + our gate", "leace-spherical": "LEACE (sph.)"}
SVD: Mapping[str, Mapping[str, str]] = {
    "Hard projection, no slerp, no gate": {
        "svd-pooled-euclidean": "Pooled SVD (Eucl.)",
        "svd-pooled-spherical": "Pooled SVD (sph.)",
    },
    "Per-token hard projection": {
        "svd-token-euclidean": "Per-token SVD (Eucl.)",
        "svd-token-spherical": "Per-token SVD (sph.)",
    },
}
COMPONENTS = {
    "svd-pooled-euclidean": "Pooled SVD (Eucl.; hard projection, no gate)",
    "svd-pooled-spherical": "Pooled SVD (sph.; hard projection, no gate)",
    "ggss-no-gate": "GGSS without gate (g = 1)",
    "ggss-no-slerp": "GGSS without slerp (hard projection + gate)",
    "ggss": "GGSS (full)",
}
GEOMETRY = {"gated-euclidean": "Euclidean + calibrated gate", "gated-euclidean-renorm": "the same, renormalised"}
CALIBRATION = {"ggss": "GGSS, pooled statistics", "ggss-token-gate": "GGSS, per-token statistics"}

_PUBLISHED = {
    **{label: name for family in (*EXTERNAL.values(), *SVD.values()) for label, name in family.items()},
    **LEACE,
    **GEOMETRY,
    "ggss-no-gate": "GGSS without gate",
    "ggss-no-slerp": "GGSS without slerp",
    "ggss-token-gate": "GGSS, per-token gate",
    GGSS: "GGSS",
    UNSTEERED: "Unsteered",
    PROMPT: "Fairness instruction",
}

NOT_RUN = "not run"
OVERS: tuple[Over, ...] = ("identities", "items")
BIAS_PARTS = ("", "change %", "percentile over identities", "percentile over items")
AVERAGE_PARTS = ("", "percentile")
TEST_PARTS = ("p", "Holm", "p over items", "Holm over items")

INTERVALS = (
    "Brackets: 95 % intervals over identities, of the jackknife for a value and of Fieller for a change. They are "
    "about bias-corrected estimates, because divergences and spreads are too high in small samples, and of a gap "
    "about its change with sign: where such an estimate is not the published one, it stands in parentheses before "
    "its interval. Where the unsteered bias does not differ significantly from zero, the interval of a change is "
    "unbounded. A change below -100 % is a gap whose sign has changed."
)
PERCENTILES = (
    "Lines below: the paper's 95 % intervals of the same change, percentile bootstraps over identities and over "
    "items. On divergences and spreads they are often wide of the truth (docs/validity.md)."
)
AVERAGED = (
    "Brackets of Avg: jackknife over identities, each in all its tasks, in parentheses with its own estimate; below "
    "it the paper's percentile bootstrap."
)
DEPENDS = "depends"
FLIPS = (
    f"{DEPENDS}: for how many people and questions the answer changes if only the attribute shown does, in percent, "
    "mean over the tasks; jackknife over identities."
)
DEGENERATE = "* more than half of the answers could not be read."
PARTIAL = "† averaged over fewer tasks than have an unsteered bias; excluded from the comparison of methods."
UNDEFINED = "No second line: the unsteered bias is zero, so percent change is undefined and the task is not averaged."
RECOGNITION = "Brackets of recognition: 95 % intervals, percentile bootstrap over identities."
CHOSEN = "Each method on each model is shown at one strength, its best-avg-α: the lowest Avg over the bias tasks."
MINUS = "−"


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
            lambda: selection.average_change(self._bias(model, method, alpha, fold)),
        )

    def corrected_average(self, model: str, method: str, alpha: float | None) -> Interval | None:
        """Avg from bias-corrected values, with the jackknife's interval."""
        return self._once(
            ("corrected", model, method, alpha),
            lambda: selection.corrected_average(self._bias(model, method, alpha)),
        )

    def flip_rate(self, model: str, method: str, alpha: float | None) -> Interval | None:
        """The share of people whose answer depends on the attribute of a task, mean over the bias tasks."""
        return self._once(
            ("flips", model, method, alpha), lambda: selection.average_flip_rate(self._bias(model, method, alpha))
        )

    def attributes(self, model: str) -> list[str]:
        """The attributes on which the answers to the bias tasks may depend."""
        runs = (self.unsteered(model, task) for task in self.results.tasks)
        return list(dict.fromkeys(name for run in runs if run for name in run.before.attributes))

    def spill_over(self, model: str, method: str, steered: str, measured: str) -> FlipChange | None:
        """Whose answer depends on an attribute under a steering, over the bias tasks about what is steered.

        steered: "" if the method does not steer; then it is over all bias tasks.
        """
        if steered in self.plan.joint:
            runs = list(self.jointly(model, method, steered).values())
        else:
            tasks = [task for task in self.results.tasks if not steered or self.about(task) == steered]
            runs = [run for task in tasks if (run := self.at_best(model, method, task))]
        return selection.spill_over(runs, measured) if runs else None

    def jointly(self, model: str, method: str, steered: str) -> dict[str, Comparison]:
        """The plan's tasks under the steering of several attributes at once, at the best-avg-alpha of that steering.

        Empty if the method was not run for it, or no strength can be chosen.
        """
        if steered not in grid.joint(self.plan, self.plan.method(method)):
            return {}
        alpha = self._once(
            ("joint alpha", model, method, steered), lambda: self.results.joint_alpha(model, method, steered)
        )
        if alpha is None:
            return {}
        tasks = self.plan.steering[steered].tasks
        runs = {task: self.comparison(model, method, task, alpha, steered) for task in tasks}
        return {task: run for task, run in runs.items() if run}

    def across(self, models: Sequence[str], method: str) -> tuple[Interval, Interval] | None:
        """The mean and the worst of a method's averages over models, each at its best-avg-alpha."""
        return selection.across([self._bias(model, method, self.alpha(model, method)) for model in models])

    def averaged(self, model: str, method: str, alpha: float | None) -> tuple[int, int]:
        """How many tasks an average is over, and how many have an unsteered bias that can be averaged."""
        before = selection.baselines(self.results.bias(model, UNSTEERED, None))
        after = selection.values(self.results.bias(model, method, alpha))
        return len(selection.changes(after, before)), len(selection.counted(before))

    def p_values(
        self, model: str, method: str, other: str = UNSTEERED, tasks: Sequence[str] = ()
    ) -> tuple[float | None, float | None]:
        """The sign-flip test between two methods, each at its own best-avg-alpha: by identity and by item.

        tasks: which bias tasks are combined; all if empty. Tasks without an unsteered bias are left out. None if no
        task can be compared.
        """
        return self._once(("p", model, method, other, *tasks), lambda: self._p_values(model, method, other, tasks))

    def kept(
        self, model: str, method: str, task: str, alpha: float | None, attribute: str, question: str = ""
    ) -> AccuracyChange | None:
        """Right answers before and after steering: to all questions, or to those of one kind."""
        comparison = self.comparison(model, method, task, alpha, attribute)
        key = ("kept", model, method, task, alpha, attribute, question)
        return self._once(key, lambda: comparison and comparison.accuracy(question))

    def kept_across(
        self, models: Sequence[str], method: str, task: str, attributes: Sequence[str]
    ) -> tuple[Interval, Interval] | None:
        """Mean accuracy and its mean change over models and steerings; None if one of the runs is missing."""
        comparisons = [self.at_best(model, method, task, attribute) for attribute in attributes for model in models]
        present = [comparison for comparison in comparisons if comparison]
        return overall(present) if present and len(present) == len(comparisons) else None

    @cached_property
    def ablated(self) -> str | None:
        """The bias task that the published ablations are of; None if the plan has no task of that probe."""
        return next((task for task in self.results.tasks if split_task(task)[0] == ABLATED), None)

    def benchmark(self, kind: Kind) -> str | None:
        """The plan's first task of a kind."""
        return next((task for task in self.plan.tasks if probes.get(task).kind == kind), None)

    def recognition(self) -> dict[str, str]:
        """By attribute, the task that asks for it."""
        return {self.about(task): task for task in self.plan.tasks if probes.get(task).kind == "recognition"}

    def about(self, task: str) -> str:
        """The attribute whose values a task compares, "" for a capability."""
        return self._about_and_display(task)[0]

    def display(self, task: str) -> Display:
        """How a task's published metric is shown."""
        return self._about_and_display(task)[1]

    def label(self, task: str) -> str:
        """What the column of a task's published metric is called."""
        return task_label(task, self.about(task))

    def _about_and_display(self, task: str) -> tuple[str, Display]:
        """From the answers; from the plan while there are none."""

        def compute() -> tuple[str, Display]:
            comparisons = (self.unsteered(model, task) for model in self.results.models)
            if unsteered := next(filter(None, comparisons), None):
                return unsteered.before.about, unsteered.before.display()
            probe, about = probes.get(task), attribute_named(task)
            if not about and task in self.results.tasks:
                about = grid.attribute_of(self.plan, task)
            return about, probe.display(next(iter(probe.displays)).format(about=about), about)

        return self._once(("display", task), compute)

    def _bias(self, model: str, method: str, alpha: float | None, fold: Fold | None = None) -> list[Comparison]:
        if alpha is None and method != UNSTEERED:
            return []
        comparisons = self.results.bias(model, method, alpha).values()
        return [comparison if fold is None else self._within(model, comparison, fold) for comparison in comparisons]

    def _within(self, model: str, comparison: Comparison, fold: Fold) -> Comparison:
        """The comparison on a fold's identities. Its unsteered part is cached: all methods are compared with it."""
        before = self._once(("before", model, comparison.task, fold), lambda: comparison.before.within(fold))
        return Comparison(before, comparison.after.within(fold))

    def _p_values(
        self, model: str, method: str, other: str, tasks: Sequence[str]
    ) -> tuple[float | None, float | None]:
        pairs: list[tuple[Comparison, Comparison]] = []
        for task in tasks or self.results.tasks:
            first, second = self.at_best(model, method, task), self.at_best(model, other, task)
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


def method_title(label: str) -> str:
    """The published name of a method; its label in the plan if it has none."""
    return _PUBLISHED.get(label, label)


def model_title(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]


def controls(results: Results) -> list[str]:
    """The models that the plan marks as controls."""
    return [model.name for model in results.plan.models if model.control]


def subjects(results: Results) -> list[str]:
    """The models that the published tables are about: all but the controls."""
    return [model.name for model in results.plan.models if not model.control]


def compared(results: Results) -> list[str]:
    """The labels that tables compare: all but the unsteered one, the sensitivity grid and discovery prompts."""
    points = (entry.label for entry in results.plan.methods if _on_grid(entry) or entry.prompt)
    left_out = {UNSTEERED, *points} - {GGSS}
    return [label for label in results.methods if label not in left_out]


def beyond(results: Results) -> list[str]:
    """The plan's methods that have no published row and are not points of the sensitivity grid."""
    return [label for label in compared(results) if label not in _PUBLISHED]


def grid_points(results: Results) -> dict[tuple[float, float], str]:
    """The methods of the sensitivity grid by (kappa, floor)."""
    return {
        (float(entry.options["kappa"]), float(entry.options["floor"])): entry.label
        for entry in results.plan.methods
        if _on_grid(entry)
    }


def prompted(results: Results) -> list[MethodPlan]:
    """The plan's `ggss` entries that differ from the published method only in a discovery prompt."""
    published = GgssOptions.model_validate({}).model_dump()
    return [
        entry
        for entry in results.plan.methods
        if entry.prompt and entry.name == GGSS and entry.sites == SITE and entry.options == published
    ]


def _on_grid(entry: MethodPlan) -> bool:
    """Whether an entry is `ggss` at the published site with no changed option but kappa and floor."""
    if entry.name != GGSS or entry.sites != SITE or entry.prompt:
        return False
    varied = {name: entry.options[name] for name in ("kappa", "floor")}
    return entry.options == GgssOptions.model_validate(varied).model_dump()


def figure(
    interval: Interval,
    spec: str,
    scale: float = 1.0,
    unit: str = "",
    mark: str = "",
    ranked: bool = True,
    published: float | None = None,
) -> Figure:
    """An interval as a figure. published: the estimate to print, if it is not the one that the interval is about."""
    bounds, centre = (scale * interval.low, scale * interval.high), scale * interval.estimate
    if published is None:
        return Figure(centre, bounds, spec, unit, mark, ranked)
    return Figure(scale * published, bounds, spec, unit, mark, ranked, centre=centre)


def displayed(
    interval: Interval, display: Display, mark: str = "", ranked: bool = True, published: float | None = None
) -> Figure:
    """A metric as a figure, with the factor and the digits that its probe asks for."""
    return figure(interval, f".{display.digits}f", display.scale, mark=mark, ranked=ranked, published=published)


def percent(interval: Interval | None, mark: str = "", ranked: bool = True, spec: str = "+.0f") -> Entry:
    return NOT_RUN if interval is None else (figure(interval, spec, unit="%", mark=mark, ranked=ranked),)


def tested(p: float | None, adjusted: float | None) -> Entry:
    """A p-value, and below it the one adjusted for the table."""
    if p is None or adjusted is None:
        return NOT_RUN
    return Figure(p, spec=".2g", ranked=False), Figure(adjusted, spec=".2g", ranked=False)


class Tests:
    """The sign-flip tests of a table, over identities and over items, each adjusted by Holm over the table."""

    def __init__(self, pairs: Sequence[tuple[float | None, float | None]]) -> None:
        columns = [[pair[k] for pair in pairs] for k in range(len(OVERS))]
        self._pairs = iter(list(zip(pairs, *map(adjusted, columns), strict=True)))

    def next(self) -> Entry:
        """The next test: p over identities, adjusted, p over items, adjusted."""
        (people, items), of_people, of_items = next(self._pairs)
        first, second = tested(people, of_people), tested(items, of_items)
        return first if isinstance(first, str) or isinstance(second, str) else (*first, *second)


def value(comparison: Comparison | None, ranked: bool = True) -> Entry:
    """The published metric of a run."""
    if comparison is None:
        return NOT_RUN
    metric, plain = comparison.after.metric(), comparison.after.value()
    if not math.isfinite(plain):
        return f"* {metric.unparsed} of {metric.asked} unreadable"
    mark = "*" if comparison.after.degenerate else ""
    interval = comparison.value() if comparison.has_right_answers else comparison.after.corrected()
    return (displayed(interval, comparison.after.display(), mark, ranked, plain),)


def measured(comparison: Comparison | None, ranked: bool = True) -> Entry:
    """The published metric, and below it its change in percent."""
    first, change = value(comparison, ranked), changed(comparison)
    return first if isinstance(first, str) or change is None else (*first, change)


def changed(comparison: Comparison | None, spec: str = "+.0f") -> Figure | None:
    """The published change of a metric in percent, with the bias-corrected interval; None if it is undefined."""
    if comparison is None or comparison.baseline is None or comparison.reached is None:
        return None
    plain = 100 * (comparison.reached / comparison.baseline - 1)
    interval = comparison.change() if comparison.has_right_answers else comparison.corrected_change
    if interval is None:
        return Figure(plain, (math.nan, math.nan), spec, "%")
    return figure(interval, spec, unit="%", published=plain)


def with_percentiles(comparison: Comparison | None, overs: Sequence[Over] = OVERS) -> Entry:
    """The metric, its change, and below them the paper's intervals of the change: over identities and over items."""
    cell = measured(comparison)
    if comparison is None or isinstance(cell, str) or len(cell) < 2:
        return cell
    return *cell, *(_line(comparison.change(over=over), over) for over in overs)


def _line(interval: Interval | None, words: str) -> Figure:
    bounds = (math.nan, math.nan) if interval is None else (interval.low, interval.high)
    return Figure(math.nan if interval is None else interval.estimate, bounds, "+.0f", words=words, ranked=False)


def average(figures: Figures, model: str, method: str, alpha: float | None, spec: str = "+.0f") -> Entry:
    """Avg, with a mark if tasks are missing from it; below it the paper's interval."""
    published = figures.average(model, method, alpha)
    if published is None:
        run = any(figures.comparison(model, method, task, alpha) for task in figures.results.tasks)
        return "undefined" if run else NOT_RUN
    over, of = figures.averaged(model, method, alpha)
    corrected = figures.corrected_average(model, method, alpha)
    mark, ranked = "†" if over < of else "", over == of
    first = figure(corrected or published, spec, unit="%", mark=mark, ranked=ranked, published=published.estimate)
    return first, _line(published, "percentile")


def flip_rate(figures: Figures, model: str, method: str, ranked: bool = True) -> Entry:
    """Whose answer depends on the attribute, in percent, at the method's best-avg-alpha."""
    rate = figures.flip_rate(model, method, figures.alpha(model, method))
    return NOT_RUN if rate is None else (figure(rate, ".0f", 100, "%", ranked=ranked),)


def bias_columns(figures: Figures, models: Iterable[str]) -> tuple[Column, ...]:
    """Whose answer depends on the attribute, a column for each task, and one for Avg, model by model."""
    tasks = figures.results.tasks
    return tuple(
        column
        for model in map(model_title, models)
        for column in (
            Column(DEPENDS, model, "lower"),
            *(Column(figures.label(t), model, figures.display(t).better, BIAS_PARTS) for t in tasks),
            Column("Avg Δ%", model, "lower", AVERAGE_PARTS),
        )
    )


def bias_row(figures: Figures, label: str, method: str, models: Iterable[str], section: str = "") -> Row:
    """The cells of `bias_columns` for a method at its best-avg-alpha on every model."""
    cells: list[Entry] = []
    for model in models:
        cells.append(flip_rate(figures, model, method))
        cells += [with_percentiles(figures.at_best(model, method, task)) for task in figures.results.tasks]
        cells.append(average(figures, model, method, figures.alpha(model, method)))
    return Row(label, tuple(cells), section)


def unsteered_row(figures: Figures, models: Iterable[str]) -> Row:
    cells: list[Entry] = []
    for model in models:
        cells.append(flip_rate(figures, model, UNSTEERED, ranked=False))
        cells += [value(figures.unsteered(model, task), ranked=False) for task in figures.results.tasks]
        cells.append((Figure(0.0, spec=".0f", unit="%", ranked=False),))
    return Row(method_title(UNSTEERED), tuple(cells))


def any_run(figures: Figures, methods: Iterable[str], models: Sequence[str]) -> bool:
    """Whether any of the methods was run on any of the models, so that a strength can be chosen."""
    return any(figures.alpha(model, method) is not None for method in methods for model in models)


def families(groups: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str, str]]:
    """(family, label, published name) of every method."""
    return [(family, label, name) for family, members in groups.items() for label, name in members.items()]


def number(value: float, spec: str = ".1f") -> str:
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return f"{MINUS if value < 0 else '+'}∞"
    return signless_zero(format(value, spec), spec).replace("-", MINUS)


def span(interval: Interval, spec: str = ".1f", scale: float = 1.0, unit: str = "") -> str:
    """`−61 % [−79, −47]`."""
    return f"{number(scale * interval.estimate, spec)}{unit} {bounds(interval.low, interval.high, spec, scale)}"


def bounds(low: float, high: float, spec: str = ".1f", scale: float = 1.0) -> str:
    if math.isnan(low) or math.isnan(high):
        return "[interval undefined]"
    if math.isinf(low) and math.isinf(high):
        return "[no bound]"
    return f"[{number(scale * low, spec)}, {number(scale * high, spec)}]"


def displayed_text(interval: Interval, display: Display) -> str:
    return span(interval, f",.{display.digits}f", display.scale)


def chance(p: float | None) -> str:
    if p is None or math.isnan(p):
        return "not defined"
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
