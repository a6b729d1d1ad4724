"""Entries that several tables share: what is printed for a run, an average or a p-value, or where there is none."""

from collections.abc import Iterable, Mapping, Sequence

from ggss.analysis.comparison import Comparison
from ggss.methods.registry import UNSTEERED
from ggss.probes import Display
from ggss.report import names
from ggss.report.figures import Figures
from ggss.report.rendering import Column, Entry, Figure, Row
from ggss.stats import Interval, holm

NOT_RUN = "not run"

INTERVALS = (
    "Brackets: 95 % intervals, percentile bootstrap over identities. A divergence or spread comes out too high in a "
    "small sample, and higher still in resamples of it, so that an estimate may lie below its own interval; "
    "results_report.md has the corrected changes."
)
DEGENERATE = (
    "* most answers could not be read: a bias then has no value and is left out of averages and of the choice of α; "
    "in recognition and capability such answers count as wrong."
)
PARTIAL = "† averaged over fewer tasks than have an unsteered bias; excluded from the comparison of methods."
UNDEFINED = "No second line: the unsteered bias is zero, so percent change is undefined and the task is not averaged."
RECOGNITION = "Brackets of recognition: 95 % intervals, percentile bootstrap over identities."
CHOSEN = "Each method on each model is shown at one strength, its best-avg-α: the lowest Avg over the bias tasks."


def figure(
    interval: Interval, spec: str, scale: float = 1.0, unit: str = "", mark: str = "", ranked: bool = True
) -> Figure:
    bounds = (scale * interval.low, scale * interval.high)
    return Figure(scale * interval.estimate, bounds, spec, unit, mark, ranked)


def displayed(interval: Interval, shown: Display, mark: str = "", ranked: bool = True) -> Figure:
    """A metric with the factor and the digits that its probe asks for."""
    return figure(interval, f".{shown.digits}f", shown.scale, mark=mark, ranked=ranked)


def percent(interval: Interval | None, mark: str = "", ranked: bool = True, spec: str = "+.0f") -> Entry:
    return NOT_RUN if interval is None else (figure(interval, spec, unit="%", mark=mark, ranked=ranked),)


def tested(p: float | None, adjusted: float | None) -> Entry:
    """A p-value, and below it the one adjusted for the table."""
    if p is None or adjusted is None:
        return NOT_RUN
    return Figure(p, spec=".2g", ranked=False), Figure(adjusted, spec=".2g", ranked=False)


def value(found: Comparison | None, ranked: bool = True) -> Entry:
    """The published metric alone."""
    if found is None:
        return NOT_RUN
    metric = found.after.metric()
    if found.after.degenerate and not found.has_right_answers:
        return f"* {metric.unparsed} of {metric.asked} unreadable"
    mark = "*" if found.after.degenerate else ""
    return (displayed(found.value(), found.after.display(), mark, ranked),)


def measured(found: Comparison | None, ranked: bool = True) -> Entry:
    """The published metric, and below it its change in percent."""
    first = value(found, ranked)
    if found is None or isinstance(first, str):
        return first
    change = found.change()
    return first if change is None else (*first, figure(change, "+.0f", unit="%"))


def average(figures: Figures, model: str, method: str, alpha: float | None, spec: str = "+.0f") -> Entry:
    """Avg, marked where tasks are missing from it."""
    found = figures.average(model, method, alpha)
    if found is None:
        run = any(figures.comparison(model, method, task, alpha) for task in figures.results.tasks)
        return "undefined" if run else NOT_RUN
    over, of = figures.averaged(model, method, alpha)
    return percent(found, "†" if over < of else "", over == of, spec)


def bias_columns(figures: Figures, models: Iterable[str]) -> tuple[Column, ...]:
    """The tasks and Avg, model by model."""
    tasks = figures.results.tasks
    return tuple(
        column
        for model in map(names.model, models)
        for column in (
            *(Column(figures.label(t), model, figures.display(t).better, ("", "change %")) for t in tasks),
            Column("Avg Δ%", model, "lower"),
        )
    )


def bias_row(figures: Figures, label: str, method: str, models: Iterable[str], section: str = "") -> Row:
    """A method at its best-avg-alpha on every model."""
    cells: list[Entry] = []
    for model in models:
        cells += [measured(figures.at_best(model, method, task)) for task in figures.results.tasks]
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
