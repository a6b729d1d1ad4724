"""What words can do: a fairness instruction instead of steering, and the prompt of discovery."""

from ggss.report import cells, names
from ggss.report.figures import Figures
from ggss.report.rendering import Cell, Column, Row, Table


def prompt_baseline(figures: Figures) -> Table | str:
    models = [model for model in figures.results.models if cells.any_run(figures, [names.PROMPT], [model])]
    if not models:
        return "needs runs of prompt on the bias tasks"
    tasks, rows = figures.results.tasks, []
    for model in models:
        shown: list[Cell] = []
        for task in tasks:
            shown.append(cells.value(figures, figures.run(model, names.UNSTEERED, task, None)))
            shown.append(cells.measured(figures, figures.run(model, names.PROMPT, task, 0.0)))
        own = cells.average(figures, model, names.PROMPT, 0.0)
        ggss = cells.average(figures, model, names.GGSS, figures.alpha(model, names.GGSS))
        rows.append(Row(names.model(model), (*shown, own, ggss)))
    return Table(
        "prompt_baseline",
        "How much bias is left when a fairness instruction is appended to every prompt (lower is better)",
        "Model",
        (
            *(
                column
                for task in tasks
                for column in (
                    Column("unsteered", names.task(task).name),
                    Column("instructed", names.task(task).name, parts=("", "change %")),
                )
            ),
            Column("instructed", "Avg Δ%"),
            Column("GGSS", "Avg Δ%"),
        ),
        tuple(rows),
        "No steering; the same probes. GGSS's average at its best-avg-α is shown for reference.",
        (cells.INTERVALS, cells.UNDEFINED, cells.DEGENERATE, cells.PARTIAL),
    )


def prompt_invariance(figures: Figures) -> Table | str:
    task = "mcq"
    models = [
        model
        for model in figures.results.models
        if figures.run(model, names.GGSS, task, figures.alpha(model, names.GGSS))
    ]
    if not models:
        return f"needs runs of ggss on {task}"
    rows = [
        Row("Unsteered", tuple(cells.value(figures, figures.run(m, names.UNSTEERED, task, None)) for m in models)),
        Row(
            "GGSS, whatever the discovery prompt",
            tuple(
                cells.measured(figures, figures.run(m, names.GGSS, task, figures.alpha(m, names.GGSS)))
                for m in models
            ),
        ),
    ]
    return Table(
        "prompt_invariance",
        "MCQ race bias under GGSS does not depend on the prompt of discovery, by construction (lower is better)",
        "Discovery prompt",
        tuple(Column(names.task(task).name, names.model(model), parts=("", "change %")) for model in models),
        tuple(rows),
        "The steered rows leave the vision-to-language projector before any text is read, and discovery captures "
        "them there: it runs the vision tower and the projector on pictures alone, with no prompt. So there is one "
        "subspace, and one row, for all prompts; nothing was measured twice. At GGSS's best-avg-α.",
        (cells.INTERVALS, cells.DEGENERATE),
    )
