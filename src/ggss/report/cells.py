"""Cells that several tables share: what is printed for a run, an average, a p-value, or in their absence."""

from collections.abc import Iterable, Mapping, Sequence

from ggss.report import names
from ggss.report.figures import Figures
from ggss.report.rendering import Cell, Column, Figure, Row
from ggss.stats import Interval, holm
from ggss.study.results import Run

NOT_RUN = "not run"

INTERVALS = (
    "Brackets: 95 % intervals, percentile bootstrap over identities. A divergence or spread is too high in a small "
    "sample and its resamples are higher still, so that an estimate may lie below its own interval; "
    "results_report.md has the corrected changes."
)
DEGENERATE = (
    "* most answers could not be read: a bias then has no value and takes no part in averages or in the choice of α; "
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


def percent(interval: Interval | None, mark: str = "", ranked: bool = True, spec: str = "+.0f") -> Cell:
    return NOT_RUN if interval is None else (figure(interval, spec, unit="%", mark=mark, ranked=ranked),)


def tested(p: float | None, adjusted: float | None) -> Cell:
    """A p-value, and below it the one adjusted for the table."""
    if p is None or adjusted is None:
        return NOT_RUN
    return Figure(p, spec=".2g", ranked=False), Figure(adjusted, spec=".2g", ranked=False)


def unreadable(run: Run) -> str:
    return f"* {run.metric.unparsed} of {run.metric.asked} unreadable"


def value(figures: Figures, run: Run | None, ranked: bool = True) -> Cell:
    """The published metric alone."""
    if run is None:
        return NOT_RUN
    if run.degenerate and run.task in figures.results.tasks:
        return unreadable(run)
    shown = names.task(run.task)
    mark = "*" if run.degenerate else ""
    return (figure(figures.value(run), shown.spec, shown.scale, mark=mark, ranked=ranked),)


def measured(figures: Figures, run: Run | None, ranked: bool = True) -> Cell:
    """The published metric, and below it its change in percent."""
    first = value(figures, run, ranked)
    if run is None or isinstance(first, str):
        return first
    change = figures.change(run)
    return first if change is None else (*first, figure(change, "+.0f", unit="%"))


def average(figures: Figures, model: str, method: str, alpha: float | None, spec: str = "+.0f") -> Cell:
    """Avg, marked where tasks are missing from it."""
    found = figures.average(model, method, alpha)
    if found is None:
        run = any(figures.run(model, method, task, alpha) for task in figures.results.tasks)
        return "undefined" if run else NOT_RUN
    over, of = figures.averaged(model, method, alpha)
    return percent(found, "†" if over < of else "", over == of, spec)


def bias_columns(figures: Figures, models: Iterable[str]) -> tuple[Column, ...]:
    """The tasks and Avg, model by model."""
    return tuple(
        column
        for model in models
        for column in (
            *(
                Column(names.task(task).name, names.model(model), "lower", ("", "change %"))
                for task in figures.results.tasks
            ),
            Column("Avg Δ%", names.model(model), "lower"),
        )
    )


def bias_row(figures: Figures, label: str, method: str, models: Iterable[str], section: str = "") -> Row:
    """A method at its best-avg-alpha on every model."""
    cells: list[Cell] = []
    for model in models:
        alpha = figures.alpha(model, method)
        cells += [measured(figures, figures.run(model, method, task, alpha)) for task in figures.results.tasks]
        cells.append(average(figures, model, method, alpha))
    return Row(label, tuple(cells), section)


def unsteered_row(figures: Figures, models: Iterable[str]) -> Row:
    cells: list[Cell] = []
    for model in models:
        runs = [figures.run(model, names.UNSTEERED, task, None) for task in figures.results.tasks]
        cells += [value(figures, run, ranked=False) for run in runs]
        cells.append((Figure(0.0, spec=".0f", unit="%", ranked=False),))
    return Row(names.method(names.UNSTEERED), tuple(cells))


def adjusted(values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjustment of the tests that there are."""
    there = [v for v in values if v is not None]
    corrected = iter(holm(there).tolist() if there else [])
    return [None if v is None else next(corrected) for v in values]


def any_run(figures: Figures, methods: Iterable[str], models: Iterable[str]) -> bool:
    """Was any of the methods run on any of the models, so that a strength can be chosen?"""
    return any(figures.alpha(model, method) is not None for method in methods for model in list(models))


def families(groups: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str, str]]:
    """(family, label, published name) of every method."""
    return [(family, label, name) for family, members in groups.items() for label, name in members.items()]
