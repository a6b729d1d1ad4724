"""What prompts do: a fairness instruction instead of steering, and the prompt that is used in discovery."""

from ggss import probes
from ggss.report import cells, names
from ggss.report.figures import ABLATED, Figures
from ggss.report.rendering import Column, Entry, Row, Table


def prompt_baseline(figures: Figures) -> Table | str:
    models = [model for model in figures.results.models if cells.any_run(figures, [names.PROMPT], [model])]
    if not models:
        return "needs runs of prompt on the bias tasks"
    tasks, rows = figures.results.tasks, []
    for model in models:
        shown: list[Entry] = []
        for task in tasks:
            shown.append(cells.value(figures.unsteered(model, task)))
            shown.append(cells.with_percentiles(figures.at_best(model, names.PROMPT, task)))
        averages = (
            cells.average(figures, model, label, figures.alpha(model, label)) for label in (names.PROMPT, names.GGSS)
        )
        rows.append(Row(names.model(model), (*shown, *averages)))
    return Table(
        "prompt_baseline",
        "How much bias is left when a fairness instruction is appended to every prompt (lower is better)",
        "Model",
        (
            *(
                column
                for label in map(figures.label, tasks)
                for column in (Column("unsteered", label), Column("instructed", label, parts=cells.BIAS_PARTS))
            ),
            Column("instructed", "Avg Δ%", parts=cells.AVERAGE_PARTS),
            Column("GGSS", "Avg Δ%", parts=cells.AVERAGE_PARTS),
        ),
        tuple(rows),
        "No steering; the same probes. GGSS's average at its best-avg-α is shown for reference.",
        (cells.INTERVALS, cells.PERCENTILES, cells.AVERAGED, cells.UNDEFINED, cells.DEGENERATE, cells.PARTIAL),
    )


def prompt_invariance(figures: Figures) -> Table | str:
    task = figures.ablated or ABLATED
    models = [model for model in figures.results.models if figures.at_best(model, names.GGSS, task)]
    if not models:
        return f"needs runs of ggss on {task}"
    bias = f"{probes.get(task).title} {figures.about(task)} bias"
    return Table(
        "prompt_invariance",
        f"{bias} under GGSS does not depend on the prompt of discovery, by construction (lower is better)",
        "Discovery prompt",
        tuple(Column(figures.label(task), names.model(model), parts=("", "change %")) for model in models),
        (
            Row("Unsteered", tuple(cells.value(figures.unsteered(model, task)) for model in models)),
            Row(
                "GGSS, whatever the discovery prompt",
                tuple(cells.measured(figures.at_best(model, names.GGSS, task)) for model in models),
            ),
        ),
        "The steered rows leave the vision-to-language projector before any text is read, and discovery captures "
        "them there: it runs the vision tower and the projector on pictures alone, with no prompt. So there is one "
        "subspace, and one row, for all prompts; nothing was measured twice. At GGSS's best-avg-α.",
        (cells.INTERVALS, cells.DEGENERATE),
    )
