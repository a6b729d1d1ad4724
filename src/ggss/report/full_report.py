"""results_report.md: every method at every strength on every model, with everything that was measured."""

from collections.abc import Sequence

from ggss import probes
from ggss.escaping import markdown as markdown_text
from ggss.methods.registry import UNSTEERED
from ggss.progress import track
from ggss.report import capability_tables as capability
from ggss.report import cells, names
from ggss.report.figures import Figures
from ggss.report.rendering import Column, Entry, Row, Table, pipe_table

TITLE = (
    "All results: bias left (lower is better), capability and recognition kept (higher is better), at every strength"
)
NOTES = (
    "Each bias cell: the metric with the jackknife's interval; its change in percent of the unsteered model with "
    "Fieller's interval; the paper's interval of the same change, a percentile bootstrap over identities.",
    cells.INTERVALS,
    cells.AVERAGED,
    "Capability: accuracy in percent, and its change in points with Tango's 95 % interval.",
    cells.UNDEFINED,
    cells.DEGENERATE,
    cells.PARTIAL,
)


def tables(figures: Figures, show: bool | None = None) -> list[Table] | str:
    """One for each model that anything was run on."""
    models = track(figures.results.models, "results_report", len(figures.results.models), show)
    return [one for model in models if (one := table(figures, model))] or "nothing was run yet"


def table(figures: Figures, model: str) -> Table | None:
    """All that was run on a model; the columns are the same for every model."""
    extras = _extras(figures)
    columns = (
        *(Column(figures.label(t), parts=cells.BIAS_PARTS[:3]) for t in figures.results.tasks),
        Column("Avg Δ%", parts=cells.AVERAGE_PARTS),
        *(column for _, _, column in extras),
    )
    rows = [row for label in figures.results.methods for row in _rows(figures, model, label, extras)]
    return Table("results_report", TITLE, "Method, α", columns, tuple(rows)) if rows else None


def markdown(found: Sequence[Table]) -> str:
    blocks = [f"# {TITLE}", "\n".join(f"- {markdown_text(note)}" for note in NOTES)]
    for table in found:
        blocks += [f"## {markdown_text(table.rows[0].section)}", pipe_table(_unsectioned(table))]
    return "\n\n".join(blocks) + "\n"


def together(found: Sequence[Table]) -> Table:
    """All models in one table, the model as its section."""
    return Table(
        "results_report", TITLE, "Method, α", found[0].columns, tuple(r for table in found for r in table.rows)
    )


def _unsectioned(table: Table) -> Table:
    rows = tuple(Row(row.label, row.cells) for row in table.rows)
    return Table(table.name, table.title, table.corner, table.columns, rows)


def _extras(figures: Figures) -> list[tuple[str, str, Column]]:
    """(task, attribute steered, column) of all that is measured besides bias."""
    found = []
    for task in figures.plan.tasks:
        if task in figures.results.tasks:
            continue
        name, parts = (
            (probes.get(task).title, ("", "change")) if _multiple_choice(task) else (figures.label(task), ("",))
        )
        found += [
            (task, attribute, Column(f"{name}, {attribute} steering", parts=parts))
            for attribute in figures.plan.steering
        ]
    return found


def _multiple_choice(task: str) -> bool:
    return probes.get(task).kind == "multiple-choice"


def _rows(figures: Figures, model: str, label: str, extras: list[tuple[str, str, Column]]) -> list[Row]:
    unsteered = label == UNSTEERED
    strengths: Sequence[float | None] = [None] if unsteered else figures.results.strengths(label)
    rows = []
    for alpha in strengths:
        found = [figures.comparison(model, label, task, alpha) for task in figures.results.tasks]
        extra = [_extra(figures, model, label, alpha, task, attribute) for task, attribute, _ in extras]
        if not any(found) and not any(isinstance(cell, tuple) for cell in extra):
            continue
        bias = [cells.value(one) if unsteered else cells.with_percentiles(one, cells.OVERS[:1]) for one in found]
        own = "" if unsteered else cells.average(figures, model, label, alpha, "+.1f")
        rows.append(Row(_label(figures, model, label, alpha), (*bias, own, *extra), names.model(model)))
    return rows


def _label(figures: Figures, model: str, label: str, alpha: float | None) -> str:
    if alpha is None or not figures.plan.method(label).steers:
        return names.method(label)
    text = f"{names.method(label)}, {alpha:g}"
    return f"{text} (best-avg-α)" if alpha == figures.alpha(model, label) else text


def _extra(figures: Figures, model: str, label: str, alpha: float | None, task: str, attribute: str) -> Entry:
    if _multiple_choice(task):
        cell = capability.shown(figures.kept(model, label, task, alpha, attribute), figures.display(task))
        return cell[:1] if label == UNSTEERED and isinstance(cell, tuple) else cell
    return cells.value(figures.comparison(model, label, task, alpha, attribute))
