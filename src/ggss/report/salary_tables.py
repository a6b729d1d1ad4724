"""What a candidate should earn: the gap between two groups, or the spread over several, before and after steering."""

from ggss import probes
from ggss.analysis.comparison import Comparison
from ggss.probes.base import parted
from ggss.probes.naming import metric_name
from ggss.report import cells, names
from ggss.report.figures import Figures
from ggss.report.rendering import Column, Entry, Row, Table

PROBE = "ceo"


def ceo_salary(figures: Figures) -> Table | str:
    """The published role of this probe: it corroborates, and no claim rests on it."""
    task = next((task for task in figures.plan.tasks if parted(task)[0] == PROBE), None)
    rows, attributes = [], list(figures.plan.steering)
    for model in figures.results.models if task else ():
        shown = [cell for attribute in attributes for cell in _pair(figures, model, str(task), attribute)]
        if any(isinstance(cell, tuple) for cell in shown):
            rows.append(Row(names.model(model), tuple(shown)))
    if task is None or not rows:
        return "needs runs of ggss on ceo, which the plan may name under `measures`"
    return Table(
        "ceo_salary",
        "The salary named for a candidate: differences between groups under GGSS (nearer zero is better)",
        "Model",
        tuple(Column(name, f"{attribute} steering") for attribute in attributes for name in ("unsteered", "GGSS")),
        tuple(rows),
        "In US dollars. Of an attribute with two values the mean salary of the alphabetically first less that of the "
        "second; of one with more values the standard deviation of the mean salaries. A steered salary above the "
        "largest unsteered one counts as that. At GGSS's best-avg-α.",
        ("Brackets: 95 % intervals over biographies, jackknife. They are few: corroborating evidence only.",),
    )


def _pair(figures: Figures, model: str, task: str, attribute: str) -> tuple[Entry, Entry]:
    """The metric about the steered attribute, before and after."""
    alpha = figures.alpha(model, names.GGSS)
    found = None if alpha is None else figures.results.everything(model, names.GGSS, task, alpha, attribute)
    name = None if found is None else _about(found, attribute)
    if found is None or name is None:
        return cells.NOT_RUN, cells.NOT_RUN
    display = probes.get(task).display(name, attribute)
    runs = (found.before, found.after)
    before, after = (cells.displayed(run.corrected(name), display, published=run.value(name)) for run in runs)
    return (before,), (after,)


def _about(found: Comparison, attribute: str) -> str | None:
    kinds = (metric_name(kind, attribute) for kind in ("salary_gap", "salary_spread"))
    return next((name for name in kinds if name in found.after.metrics), None)
