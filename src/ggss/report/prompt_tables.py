"""What prompts do: a fairness instruction instead of steering, and the prompt that is used in discovery."""

from ggss import probes
from ggss.analysis.comparison import Comparison
from ggss.report import cells, names
from ggss.report.figures import ABLATED, Figures
from ggss.report.rendering import Column, Entry, Figure, Row, Table
from ggss.study import grid


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
    task, entries = figures.ablated, names.prompted(figures.results)
    models = [
        model
        for model in figures.results.models
        if task and any(_prompted(figures, model, entry.label, task) for entry in entries)
    ]
    if task is None or not models:
        return f"needs runs of ggss with a discovery `prompt` on {ABLATED}; studies/discovery-prompts.yaml has them"
    steered = grid.own_attribute(figures.plan, task)
    rows = [
        Row("(unsteered)", tuple(e for m in models for e in ("", cells.value(figures.unsteered(m, task))))),
        Row(
            "(no prompt: the vision path alone)",
            tuple(e for m in models for e in ("", cells.measured(_prompted(figures, m, names.GGSS, task)))),
        ),
    ]
    for entry in entries:
        shown: list[Entry] = []
        for model in models:
            cosine = figures.results.cosines.get((model, entry.label, steered))
            shown.append(cells.NOT_RUN if cosine is None else (Figure(cosine, spec=".7f"),))
            shown.append(cells.measured(_prompted(figures, model, entry.label, task)))
        rows.append(Row(str(entry.prompt), tuple(shown)))
    bias = f"{probes.get(task).title} {figures.about(task)} bias"
    return Table(
        "prompt_invariance",
        f"{bias} under GGSS whose subspace was discovered with different prompts (lower is better)",
        "Discovery prompt",
        tuple(
            column
            for name in map(names.model, models)
            for column in (Column("cosine", name), Column(figures.label(task), name, parts=("", "change %")))
        ),
        tuple(rows),
        "With a prompt, the whole model is run on each discovery picture and the site is captured in that pass; "
        "everywhere else discovery runs the vision path alone. Cosine: of the largest principal angle between the "
        "two subspaces. At the best-avg-α of GGSS without a prompt.",
        (cells.INTERVALS, cells.DEGENERATE),
    )


def _prompted(figures: Figures, model: str, label: str, task: str) -> Comparison | None:
    return figures.comparison(model, label, task, figures.alpha(model, names.GGSS))
