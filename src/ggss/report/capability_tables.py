"""What steering costs: multiple choice, overall and by dimension, and the totals of yes-or-no questions."""

from collections.abc import Sequence

from ggss.report import cells, names
from ggss.report.figures import Figures
from ggss.report.kept import Kept
from ggss.report.rendering import Cell, Column, Figure, Row, Table
from ggss.study.results import Run

MULTIPLE_CHOICE = {"mmstar": "MMStar", "smallstar": "SmallStar"}
YES_OR_NO = {"mme": "MME", "smallmme": "SmallMME"}

_SHOWN = (
    "At each method's best-avg-α. First line accuracy in percent, second its change in points. Brackets: 95 % "
    "intervals, over questions (over pictures where several questions share one): jackknife for accuracy, Tango's "
    "score interval for the paired change."
)


def task_of(figures: Figures, known: Sequence[str]) -> str | None:
    """The benchmark of a kind that the plan has."""
    return next((task for task in known if task in figures.results.plan.tasks), None)


def kept(figures: Figures, model: str, method: str, task: str, attribute: str, dimension: str = "") -> Kept | None:
    """Under steering of an attribute at the method's best-avg-alpha."""
    return figures.kept(model, method, task, figures.alpha(model, method), attribute, dimension)


def shown(found: Kept | None) -> Cell:
    if found is None:
        return cells.NOT_RUN
    accuracy, change = found.accuracy, found.change
    return (
        cells.figure(accuracy, ".1f", 100),
        Figure(100 * change.difference, (100 * change.low, 100 * change.high), "+.1f", "points"),
    )


def capability(figures: Figures) -> Table | str:
    task = task_of(figures, list(MULTIPLE_CHOICE))
    models, attributes = figures.results.models, list(figures.results.plan.steering)
    if task is None or not any(figures.results.run(model, names.UNSTEERED, task) for model in models):
        return "the plan measures no multiple-choice benchmark (mmstar, smallstar), or it was not run"
    rows = [_unsteered(figures, task, models, attributes)]
    for label in figures.results.methods:
        if label != names.UNSTEERED:
            row = _row(figures, label, task, models, attributes)
            if any(isinstance(cell, tuple) for cell in row.cells):
                rows.append(row)
    if len(rows) == 1:
        return f"no method was run on {task} yet"
    columns = [
        Column(names.model(model), f"{attribute} steering", "higher", ("", "change"))
        for attribute in attributes
        for model in models
    ]
    return Table(
        "capability",
        f"General capability under steering: {MULTIPLE_CHOICE[task]} accuracy in percent (higher is better)",
        "Method",
        (*columns, Column("Avg.", better="higher", parts=("", "change"))),
        tuple(rows),
        _SHOWN,
        ("Avg. is over the row, its interval over questions, each averaged over the runs first (jackknife).",),
    )


def _unsteered(figures: Figures, task: str, models: Sequence[str], attributes: Sequence[str]) -> Row:
    one: list[Cell] = []
    for model in models:
        found = figures.kept(model, names.UNSTEERED, task, None, attributes[0])
        one.append((cells.figure(found.accuracy, ".1f", 100, ranked=False),) if found else cells.NOT_RUN)
    return Row(
        names.method(names.UNSTEERED),
        (*one * len(attributes), _mean(figures, names.UNSTEERED, task, models, attributes)),
    )


def _row(figures: Figures, label: str, task: str, models: Sequence[str], attributes: Sequence[str]) -> Row:
    found = [shown(kept(figures, model, label, task, attribute)) for attribute in attributes for model in models]
    return Row(names.method(label), (*found, _mean(figures, label, task, models, attributes)))


def _mean(figures: Figures, label: str, task: str, models: Sequence[str], attributes: Sequence[str]) -> Cell:
    found = figures.kept_across(models, label, task, attributes)
    if found is None:
        return cells.NOT_RUN
    accuracy, change = found
    if label == names.UNSTEERED:
        return (cells.figure(accuracy, ".1f", 100, ranked=False),)
    return cells.figure(accuracy, ".1f", 100), cells.figure(change, "+.1f", 100, "points")


def dimensions(figures: Figures) -> Table | str:
    task = task_of(figures, list(MULTIPLE_CHOICE)) or ""
    models, attributes = figures.results.models, list(figures.results.plan.steering)
    unsteered = [figures.results.whole(model, names.UNSTEERED, task) for model in models] if task else []
    asked = list(dict.fromkeys(item.question for run in unsteered if run for item in run.items))
    rows = []
    for model in models:
        for attribute in attributes:
            found = [kept(figures, model, names.GGSS, task, attribute, part) for part in asked]
            if any(found):
                rows.append(Row(f"{names.model(model)}, {attribute}", tuple(_arrow(one) for one in found)))
    if not rows:
        return "needs runs of ggss on a multiple-choice benchmark (mmstar, smallstar)"
    return Table(
        "capability_dimensions",
        f"{MULTIPLE_CHOICE[task]} accuracy in percent in each dimension, under GGSS (higher is better)",
        "Model, steering",
        tuple(Column(part, parts=("", "unsteered", "change")) for part in asked),
        tuple(rows),
        f"GGSS. {_SHOWN} Between the two lines the unsteered accuracy.",
    )


def _arrow(found: Kept | None) -> Cell:
    cell = shown(found)
    if found is None or isinstance(cell, str):
        return cell
    before = cells.figure(found.before, ".1f", 100, "unsteered")
    return cell[0], before, cell[1]


def yes_or_no(figures: Figures) -> Table | str:
    task = task_of(figures, list(YES_OR_NO))
    totals = ("perception", "reasoning")
    rows = []
    for model in figures.results.models if task else ():
        for attribute in figures.results.plan.steering:
            run = figures.whole(model, names.GGSS, str(task), figures.alpha(model, names.GGSS), attribute)
            before = figures.results.whole(model, names.UNSTEERED, str(task))
            if run and before:
                shown = [cell for total in totals for cell in _total(figures, run, before, total)]
                rows.append(Row(f"{names.model(model)}, {attribute}", tuple(shown)))
    if not task or not rows:
        return "needs runs of ggss on a yes-or-no benchmark (mme, smallmme)"
    return Table(
        "mme",
        f"{YES_OR_NO[task]} totals, unsteered and under GGSS (higher is better)",
        "Model, steering",
        tuple(
            column
            for total in totals
            for column in (Column("unsteered", total), Column("GGSS", total, parts=("", "change %")))
        ),
        tuple(rows),
        "A category scores 100 accuracy + 100 accuracy+ (both questions about a picture right); totals are sums over "
        "the categories of perception and of reasoning. At GGSS's best-avg-α.",
        ("Brackets: 95 % intervals, percentile bootstrap over pictures.",),
    )


def _total(figures: Figures, run: Run, before: Run, total: str) -> tuple[Cell, Cell]:
    if total not in run.metrics:
        return cells.NOT_RUN, cells.NOT_RUN
    steered = (cells.figure(figures.value(run, total), ".1f"),)
    change = figures.change(run, total)
    below = () if change is None else (cells.figure(change, "+.1f", unit="%"),)
    return (cells.figure(figures.value(before, total), ".1f"),), (*steered, *below)
