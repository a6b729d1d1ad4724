"""All that the bias tasks measure: the published metric and those beside it, unsteered and under GGSS."""

from ggss.analysis.measured import Measured
from ggss.report import cells, names
from ggss.report.figures import Figures
from ggss.report.rendering import Column, Entry, Row, Table


def all_metrics(figures: Figures) -> Table | str:
    rows = []
    for model in figures.results.models:
        alpha = figures.alpha(model, names.GGSS)
        for task in figures.results.tasks if alpha is not None else ():
            found = figures.results.everything(model, names.GGSS, task, alpha)
            for name in found.before.names if found else ():
                shown = (_shown(found.before, name), _shown(found.after, name))  # pyright: ignore
                rows.append(Row(f"{task}: {name}", shown, names.model(model)))
    if not rows:
        return "needs runs of ggss on the bias tasks"
    return Table(
        "all_metrics",
        "Everything that the bias tasks measure, the published metric of each first (lower is mostly better)",
        "Task: metric",
        (Column("unsteered"), Column("GGSS")),
        tuple(rows),
        "At GGSS's best-avg-α. consistency_rate is the share of pairs whose two orders name the same picture: the "
        "published 2AFC metric uses only those, so it is of few pairs where a model has no preference left. "
        "net_preference_std uses all answers.",
        (
            "Brackets: 95 % intervals over identities, jackknife; before them in parentheses the estimate that they "
            "are about, where it is freed of a small-sample bias.",
            cells.DEGENERATE,
        ),
    )


def _shown(run: Measured, name: str) -> Entry:
    metric = run.metric(name)
    mark = "*" if metric.degenerate else ""
    return (cells.displayed(run.corrected(name), run.display(name), mark, False, run.value(name)),)
