"""Entries that several tables share: what is printed for a run, an average or a p-value, or where there is none."""

import math
from collections.abc import Iterable, Mapping, Sequence

from ggss.analysis.comparison import Comparison
from ggss.analysis.measured import Over
from ggss.methods.registry import UNSTEERED
from ggss.probes import Display
from ggss.report import names
from ggss.report.figures import Figures
from ggss.report.rendering import Column, Entry, Figure, Row
from ggss.stats import Interval, holm

NOT_RUN = "not run"
OVERS: tuple[Over, ...] = ("identities", "items")
BIAS_PARTS = ("", "change %", "percentile over identities", "percentile over items")
AVERAGE_PARTS = ("", "percentile")
TEST_PARTS = ("p", "Holm", "p over items", "Holm over items")

INTERVALS = (
    "Brackets: 95 % intervals over identities, of the jackknife for a value and of Fieller for a change. They are "
    "about estimates that are freed of the upward bias of divergences and spreads in small samples, and of a gap "
    "about its change with sign: where such an estimate is not the published one, it stands in parentheses before "
    "its interval. Where the unsteered bias cannot be told from zero, the interval of a change is unbounded. A "
    "change below -100 % is a gap that has turned round."
)
PERCENTILES = (
    "Lines below: the paper's 95 % intervals of the same change, percentile bootstraps over identities and over "
    "items. On divergences and spreads they are often wide of the truth (docs/validity.md)."
)
AVERAGED = (
    "Brackets of Avg: jackknife over identities, each in all its tasks, in parentheses with its own estimate; below "
    "it the paper's percentile bootstrap."
)
DEGENERATE = "* more than half of the answers could not be read."
PARTIAL = "† averaged over fewer tasks than have an unsteered bias; excluded from the comparison of methods."
UNDEFINED = "No second line: the unsteered bias is zero, so percent change is undefined and the task is not averaged."
RECOGNITION = "Brackets of recognition: 95 % intervals, percentile bootstrap over identities."
CHOSEN = "Each method on each model is shown at one strength, its best-avg-α: the lowest Avg over the bias tasks."


def figure(
    interval: Interval,
    spec: str,
    scale: float = 1.0,
    unit: str = "",
    mark: str = "",
    ranked: bool = True,
    published: float | None = None,
) -> Figure:
    """published: the estimate to print, where that is not the one which the interval is about."""
    bounds, centre = (scale * interval.low, scale * interval.high), scale * interval.estimate
    if published is None:
        return Figure(centre, bounds, spec, unit, mark, ranked)
    return Figure(scale * published, bounds, spec, unit, mark, ranked, centre=centre)


def displayed(
    interval: Interval, shown: Display, mark: str = "", ranked: bool = True, published: float | None = None
) -> Figure:
    """A metric with the factor and the digits that its probe asks for."""
    return figure(interval, f".{shown.digits}f", shown.scale, mark=mark, ranked=ranked, published=published)


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


def value(found: Comparison | None, ranked: bool = True) -> Entry:
    """The published metric alone."""
    if found is None:
        return NOT_RUN
    metric, plain = found.after.metric(), found.after.value()
    if not math.isfinite(plain):
        return f"* {metric.unparsed} of {metric.asked} unreadable"
    mark = "*" if found.after.degenerate else ""
    own = found.value() if found.has_right_answers else found.after.corrected()
    return (displayed(own, found.after.display(), mark, ranked, plain),)


def measured(found: Comparison | None, ranked: bool = True) -> Entry:
    """The published metric, and below it its change in percent."""
    first, change = value(found, ranked), changed(found)
    return first if isinstance(first, str) or change is None else (*first, change)


def changed(found: Comparison | None, spec: str = "+.0f") -> Figure | None:
    """The published change of a metric in percent, with our interval; None where it has none."""
    if found is None or found.baseline is None or found.reached is None:
        return None
    plain = 100 * (found.reached / found.baseline - 1)
    own = found.change() if found.has_right_answers else found.corrected_change
    if own is None:
        return Figure(plain, (math.nan, math.nan), spec, "%")
    return figure(own, spec, unit="%", published=plain)


def with_percentiles(found: Comparison | None, overs: Sequence[Over] = OVERS) -> Entry:
    """The same with the paper's intervals of the change below: over identities and over items."""
    cell = measured(found)
    if found is None or isinstance(cell, str) or len(cell) < 2:
        return cell
    return *cell, *(_line(found.change(over=over), over) for over in overs)


def _line(interval: Interval | None, words: str) -> Figure:
    bounds = (math.nan, math.nan) if interval is None else (interval.low, interval.high)
    return Figure(math.nan if interval is None else interval.estimate, bounds, "+.0f", words=words, ranked=False)


def average(figures: Figures, model: str, method: str, alpha: float | None, spec: str = "+.0f") -> Entry:
    """Avg, marked where tasks are missing from it."""
    found = figures.average(model, method, alpha)
    if found is None:
        run = any(figures.comparison(model, method, task, alpha) for task in figures.results.tasks)
        return "undefined" if run else NOT_RUN
    over, of = figures.averaged(model, method, alpha)
    own = figures.corrected_average(model, method, alpha)
    mark, ranked = "†" if over < of else "", over == of
    first = figure(own or found, spec, unit="%", mark=mark, ranked=ranked, published=found.estimate)
    return first, _line(found, "percentile")


def bias_columns(figures: Figures, models: Iterable[str]) -> tuple[Column, ...]:
    """The tasks and Avg, model by model."""
    tasks = figures.results.tasks
    return tuple(
        column
        for model in map(names.model, models)
        for column in (
            *(Column(figures.label(t), model, figures.display(t).better, BIAS_PARTS) for t in tasks),
            Column("Avg Δ%", model, "lower", AVERAGE_PARTS),
        )
    )


def bias_row(figures: Figures, label: str, method: str, models: Iterable[str], section: str = "") -> Row:
    """A method at its best-avg-alpha on every model."""
    cells: list[Entry] = []
    for model in models:
        cells += [with_percentiles(figures.at_best(model, method, task)) for task in figures.results.tasks]
        cells.append(average(figures, model, method, figures.alpha(model, method)))
    return Row(label, tuple(cells), section)


def unsteered_row(figures: Figures, models: Iterable[str]) -> Row:
    cells: list[Entry] = []
    for model in models:
        cells += [value(figures.unsteered(model, task), ranked=False) for task in figures.results.tasks]
        cells.append((Figure(0.0, spec=".0f", unit="%", ranked=False),))
    return Row(names.method(UNSTEERED), tuple(cells))


def adjusted(values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjustment of the tests that there are."""
    there = [v for v in values if v is not None]
    corrected = iter(holm(there).tolist() if there else [])
    return [None if v is None else next(corrected) for v in values]


def any_run(figures: Figures, methods: Iterable[str], models: Sequence[str]) -> bool:
    """Was any of the methods run on any of the models, so that a strength can be chosen?"""
    return any(figures.alpha(model, method) is not None for method in methods for model in models)


def families(groups: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str, str]]:
    """(family, label, published name) of every method."""
    return [(family, label, name) for family, members in groups.items() for label, name in members.items()]
