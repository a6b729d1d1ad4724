"""The tables of bias, by method and model, each method at its best-avg-alpha.

Main results and the tables with the same columns; the chosen strengths, and bias at a strength that was chosen on
other people; the CEO salaries; all metrics of the bias tasks; a fairness instruction, and prompts in discovery.
"""

from collections.abc import Mapping

from ggss import probes
from ggss.analysis import verdict
from ggss.analysis.comparison import Comparison
from ggss.analysis.run import Measured, steered_attributes
from ggss.analysis.selection import HeldOut, adjusted
from ggss.methods.registry import UNSTEERED
from ggss.probes.base import split_task
from ggss.probes.parsers import metric_name
from ggss.report import cells
from ggss.report.cells import ABLATED, Figures
from ggss.report.rendering import Column, Entry, Figure, Row, Table
from ggss.study import grid

CEO = "ceo"  # the probe of the table of salaries
FOLDS = "Brackets of a fold: 95 % intervals, percentile bootstrap over its identities."
_PROTOCOL = (
    "The first half of the identities is fold A, the second fold B; the strength is chosen by best-avg-α on one fold "
    "and the bias measured on the other, from the same stored answers."
)
_NOTES = (
    cells.CHOSEN,
    cells.FLIPS,
    cells.INTERVALS,
    cells.PERCENTILES,
    cells.AVERAGED,
    cells.UNDEFINED,
    cells.DEGENERATE,
    cells.PARTIAL,
)


def main_results(figures: Figures) -> Table | str:
    title = "How much demographic bias is left in the answers, by method and model (lower is better)"
    return _by_family(figures, "main_results", title, cells.EXTERNAL, (cells.GGSS,)) or (
        "needs runs of ggss or of a baseline on the bias tasks"
    )


def svd_ablation(figures: Figures) -> Table | str:
    title = "How much bias is left without gate and slerp, or also without pooling (lower is better)"
    return _by_family(figures, "svd_ablation", title, cells.SVD) or (
        "needs runs of the svd-* methods on the bias tasks"
    )


def _by_family(
    figures: Figures, name: str, title: str, groups: Mapping[str, Mapping[str, str]], enough: tuple[str, ...] = ()
) -> Table | None:
    """Families of methods, then GGSS. None unless one of these methods, or of those that are `enough`, was run."""
    models, methods = cells.subjects(figures.results), cells.families(groups)
    if not models or not cells.any_run(figures, [*(label for _, label, _ in methods), *enough], models):
        return None
    rows = [cells.bias_row(figures, published, label, models, family) for family, label, published in methods]
    rows.append(cells.bias_row(figures, "GGSS", cells.GGSS, models, "Calibrated gate and slerp"))
    return _bias_table(figures, name, title, models, rows)


def _bias_table(figures: Figures, name: str, title: str, models: list[str], rows: list[Row], note: str = "") -> Table:
    """A row for the unsteered model, then `rows`. note: the end of the caption."""
    tasks = "; ".join(f"{figures.label(t)}: {figures.display(t).meaning or t}" for t in figures.results.tasks)
    counted = ", ".join(
        f"{figures.averaged(model, UNSTEERED, None)[1]} on {cells.model_title(model)}" for model in models
    )
    return Table(
        name,
        title,
        "Method",
        cells.bias_columns(figures, models),
        (cells.unsteered_row(figures, models), *rows),
        f"{tasks}. Avg Δ% is the unweighted mean change over the tasks with an unsteered bias ({counted}), so it is "
        f"not strictly comparable across models.{note}",
        _NOTES,
    )


def beyond(figures: Figures) -> Table | str:
    models, methods = cells.subjects(figures.results), cells.beyond(figures.results)
    if not models or not cells.any_run(figures, methods, models):
        return "the plan has no method beyond the published ones, or none was run on the bias tasks"
    rows = [cells.bias_row(figures, "GGSS", cells.GGSS, models)]
    rows += [
        cells.bias_row(figures, cells.method_title(label), label, models, "Beyond the paper") for label in methods
    ]
    title = "How much bias the methods beyond the published ones leave, beside GGSS (lower is better)"
    return _bias_table(figures, "beyond", title, models, rows)


def control(figures: Figures) -> Table | str:
    """The control models under every method: there steering should fail or cost capability."""
    models, methods = cells.controls(figures.results), cells.compared(figures.results)
    if not models or not cells.any_run(figures, methods, models):
        return "needs runs of a control model: one that the plan marks with `control: true`"
    rows = [
        cells.bias_row(figures, cells.method_title(label), label, models)
        for label in methods
        if cells.any_run(figures, [label], models)
    ]
    title = "How much bias is left in the control model, whose attribute cannot be removed alone (lower is better)"
    note = " A low value here must be read beside the capability that it cost."
    return _bias_table(figures, "control", title, models, rows, note)


def added_baselines(figures: Figures) -> Table | str:
    models = cells.subjects(figures.results)
    rows = {cells.GGSS: "GGSS", **cells.LEACE, "inlp-spherical": "INLP (sph.)"}
    if not models or not cells.any_run(figures, cells.LEACE, models):
        return "needs runs of leace-gated or leace-spherical on the bias tasks"
    columns = [Column(cells.model_title(model), better="lower", parts=cells.AVERAGE_PARTS) for model in models]
    return Table(
        "added_baselines",
        "Mean change of bias in percent under LEACE, beside GGSS and INLP (lower is better)",
        "Method",
        (*columns, Column("mean", better="lower"), Column("worst", better="lower")),
        tuple(_with_summary(figures, name, label, models) for label, name in rows.items()),
        "Avg Δ% at each method's best-avg-α, with the mean over models and the worst of them.",
        (
            cells.CHOSEN,
            cells.AVERAGED,
            cells.PARTIAL,
            "Mean and worst: percentile bootstrap, the same identities resampled for all models.",
        ),
    )


def _with_summary(figures: Figures, name: str, label: str, models: list[str]) -> Row:
    averages = [cells.average(figures, model, label, figures.alpha(model, label), "+.1f") for model in models]
    mean, worst = figures.across(models, label) or (None, None)
    return Row(name, (*averages, cells.percent(mean, spec="+.1f"), cells.percent(worst, spec="+.1f")))


def spillover(figures: Figures) -> Table | str:
    """Steered attributes x measured attribute: does steering one make answers depend on another?"""
    models, methods = figures.results.models, cells.compared(figures.results)
    plan = figures.plan
    steered = [(label, name) for label in methods for name in grid.attributes(plan, plan.method(label))]
    changes = {
        (model, label, steering, measured): change
        for model in models
        for label, steering in steered
        for measured in figures.attributes(model)
        if (change := figures.spill_over(model, label, steering, measured)) is not None
    }
    if not any(measured not in steered_attributes(steering) for _, _, steering, measured in changes):
        return "needs runs of a method on bias tasks whose pictures differ in two attributes"
    p_holm = dict(zip(changes, adjusted([change.p for change in changes.values()]), strict=True))
    measured = list(dict.fromkeys(key[3] for key in changes))

    def cell(model: str, label: str, steering: str, attribute: str) -> Entry:
        key = (model, label, steering, attribute)
        if (change := changes.get(key)) is None:
            return cells.NOT_RUN
        judged = verdict.of_flips(change, p_holm[key])
        mark = {"worse": " more", "better": " less"}.get(judged.kind, "")
        rate = cells.figure(change.after, ".0f", 100, "%", ranked=False)
        return rate, cells.figure(change.change, "+.0f", 100, mark=mark, ranked=False)

    rows = []
    for model in models:
        for label, steering in steered:
            entries = tuple(cell(model, label, steering, attribute) for attribute in measured)
            if any(isinstance(entry, tuple) for entry in entries):
                name = f"{cells.method_title(label)}{steering and f', {steering}'}"
                rows.append(Row(name, entries, cells.model_title(model)))
    return Table(
        "spillover",
        "Whose answer depends on which attribute, by the attribute that is steered (lower is better)",
        "Method, steered",
        tuple(Column(f"depends on {attribute}", parts=("", "points")) for attribute in measured),
        tuple(rows),
        "In percent of people and questions, mean over the bias tasks about what is steered, at each method's "
        "best-avg-α; below it the change from the unsteered model on the same tasks in points. Where the measured "
        "attribute is not steered it is spill-over.",
        (
            "Brackets: 95 % intervals over identities, of the jackknife for a share and Newcombe's for a change.",
            "more, less: test (sign-flip over identities, Holm over the table) and interval agree on it.",
            *(
                f"{name}: one steerer of all of them, at the best of its own strengths, over the tasks about any."
                for name in plan.joint
            ),
        ),
    )


def alpha_choices(figures: Figures) -> Table | str:
    models = figures.results.models
    steering = [label for label in cells.compared(figures.results) if figures.plan.method(label).steers]
    chosen = [label for label in steering if cells.any_run(figures, [label], models)]
    if not chosen:
        return "needs runs of a steering method on the bias tasks"

    def cell(model: str, label: str) -> Entry:
        alpha = figures.alpha(model, label)
        return cells.NOT_RUN if alpha is None else (Figure(alpha, spec="g"),)

    return Table(
        "alpha_choices",
        "The steering strength α chosen for each method and model (neither direction is better)",
        "Method",
        tuple(Column(cells.model_title(model)) for model in models),
        tuple(Row(cells.method_title(label), tuple(cell(model, label) for model in models)) for label in chosen),
        "best-avg-α: of the strengths "
        + ", ".join(f"{alpha:g}" for alpha in figures.results.alphas)
        + " the one with the lowest Avg Δ% over the bias tasks; of equal ones the smallest. A strength at which "
        "nothing could be read of a task is chosen only if there is none with more tasks.",
    )


def heldout_alpha(figures: Figures) -> Table | str:
    models = [m for m in figures.results.models if figures.alpha(m, cells.GGSS) is not None]
    if not models:
        return "needs runs of ggss on the bias tasks"
    rows = []
    for model in models:
        first, second = figures.held_out(model, cells.GGSS)  # held out: A, then B
        everywhere = figures.alpha(model, cells.GGSS)
        rows.append(
            Row(
                cells.model_title(model),
                (
                    _alpha(second.alpha),
                    _alpha(first.alpha),
                    _alpha(everywhere),
                    _judged(figures, model, cells.GGSS, second),
                    _judged(figures, model, cells.GGSS, first),
                    cells.average(figures, model, cells.GGSS, everywhere, "+.1f"),
                ),
            )
        )
    return Table(
        "heldout_alpha",
        "Mean change of bias in percent under GGSS at a strength chosen on other people (lower is better)",
        "Model",
        (
            Column("chosen on A"),
            Column("chosen on B"),
            Column("chosen on all"),
            Column("Avg Δ% on B, α of A"),
            Column("Avg Δ% on A, α of B"),
            Column("Avg Δ% on all, α of all", parts=cells.AVERAGE_PARTS),
        ),
        tuple(rows),
        _PROTOCOL,
        (FOLDS, "The last column is the optimistic one of main_results."),
    )


def heldout_methods(figures: Figures) -> Table | str:
    models = figures.results.models
    methods = [label for label in cells.compared(figures.results) if cells.any_run(figures, [label], models)]
    if not methods:
        return "needs runs of a method on the bias tasks"
    rows = []
    for label in methods:
        entries: list[Entry] = []
        for model in models:
            turns = figures.held_out(model, label)
            entries += [_judged(figures, model, label, turn) for turn in reversed(turns)]
        rows.append(Row(cells.method_title(label), tuple(entries)))
    return Table(
        "heldout_methods",
        "Mean change of bias in percent for every method at a strength chosen on other people (lower is better)",
        "Method",
        tuple(
            Column(side, cells.model_title(m), "lower") for m in models for side in ("on B, α of A", "on A, α of B")
        ),
        tuple(rows),
        _PROTOCOL,
        (FOLDS,),
    )


def _alpha(alpha: float | None) -> Entry:
    return cells.NOT_RUN if alpha is None else (Figure(alpha, spec="g"),)


def _judged(figures: Figures, model: str, method: str, turn: HeldOut) -> Entry:
    return cells.percent(figures.average(model, method, turn.alpha, turn.fold), spec="+.1f")


def ceo_salary(figures: Figures) -> Table | str:
    """The salaries named for a candidate. As published, the probe corroborates, and no claim rests on it."""
    task = next((task for task in figures.plan.tasks if split_task(task)[0] == CEO), None)
    rows, attributes = [], list(figures.plan.attributes)
    for model in figures.results.models if task else ():
        entries = [cell for attribute in attributes for cell in _pair(figures, model, str(task), attribute)]
        if any(isinstance(cell, tuple) for cell in entries):
            rows.append(Row(cells.model_title(model), tuple(entries)))
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
    alpha = figures.alpha(model, cells.GGSS)
    comparison = None if alpha is None else figures.results.everything(model, cells.GGSS, task, alpha, attribute)
    name = None if comparison is None else _salary_metric(comparison, attribute)
    if comparison is None or name is None:
        return cells.NOT_RUN, cells.NOT_RUN
    display = probes.get(task).display(name, attribute)
    runs = (comparison.before, comparison.after)
    before, after = (cells.displayed(run.corrected(name), display, published=run.value(name)) for run in runs)
    return (before,), (after,)


def _salary_metric(comparison: Comparison, attribute: str) -> str | None:
    kinds = (metric_name(kind, attribute) for kind in ("salary_gap", "salary_spread"))
    return next((name for name in kinds if name in comparison.after.metrics), None)


def all_metrics(figures: Figures) -> Table | str:
    rows = []
    for model in figures.results.models:
        alpha = figures.alpha(model, cells.GGSS)
        for task in figures.results.tasks if alpha is not None else ():
            comparison = figures.results.everything(model, cells.GGSS, task, alpha)
            if comparison is None:
                continue
            for name in comparison.before.names:
                if name in comparison.after.metrics:
                    entries = (_metric(comparison.before, name), _metric(comparison.after, name))
                    rows.append(Row(f"{task}: {name}", entries, cells.model_title(model)))
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
            "are about, where it is bias-corrected.",
            cells.DEGENERATE,
        ),
    )


def _metric(run: Measured, name: str) -> Entry:
    metric = run.metric(name)
    mark = "*" if metric.degenerate else ""
    return (cells.displayed(run.corrected(name), run.display(name), mark, False, run.value(name)),)


def prompt_baseline(figures: Figures) -> Table | str:
    models = [model for model in figures.results.models if cells.any_run(figures, [cells.PROMPT], [model])]
    if not models:
        return "needs runs of prompt on the bias tasks"
    tasks, rows = figures.results.tasks, []
    for model in models:
        entries: list[Entry] = []
        for task in tasks:
            entries.append(cells.value(figures.unsteered(model, task)))
            entries.append(cells.with_percentiles(figures.at_best(model, cells.PROMPT, task)))
        averages = (
            cells.average(figures, model, label, figures.alpha(model, label)) for label in (cells.PROMPT, cells.GGSS)
        )
        rows.append(Row(cells.model_title(model), (*entries, *averages)))
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
    task, entries = figures.ablated, cells.prompted(figures.results)
    models = [
        model
        for model in figures.results.models
        if task and any(_prompted(figures, model, entry.label, task) for entry in entries)
    ]
    if task is None or not models:
        return f"needs runs of ggss with a discovery `prompt` on {ABLATED}; studies/discovery-prompts.yaml has them"
    steered = grid.attribute_of(figures.plan, task)
    rows = [
        Row("(unsteered)", tuple(e for m in models for e in ("", cells.value(figures.unsteered(m, task))))),
        Row(
            "(no prompt: the vision path alone)",
            tuple(e for m in models for e in ("", cells.measured(_prompted(figures, m, cells.GGSS, task)))),
        ),
    ]
    for entry in entries:
        row: list[Entry] = []
        for model in models:
            cosine = figures.results.cosines.get((model, entry.label, steered))
            row.append(cells.NOT_RUN if cosine is None else (Figure(cosine, spec=".7f"),))
            row.append(cells.measured(_prompted(figures, model, entry.label, task)))
        rows.append(Row(str(entry.prompt), tuple(row)))
    bias = f"{probes.get(task).title} {figures.about(task)} bias"
    return Table(
        "prompt_invariance",
        f"{bias} under GGSS whose subspace was discovered with different prompts (lower is better)",
        "Discovery prompt",
        tuple(
            column
            for name in map(cells.model_title, models)
            for column in (Column("cosine", name), Column(figures.label(task), name, parts=("", "change %")))
        ),
        tuple(rows),
        "With a prompt, the whole model is run on each discovery picture and the site is captured in that pass; "
        "everywhere else discovery runs the vision path alone. Cosine: of the largest principal angle between the "
        "two subspaces. At the best-avg-α of GGSS without a prompt.",
        (cells.INTERVALS, cells.DEGENERATE),
    )


def _prompted(figures: Figures, model: str, label: str, task: str) -> Comparison | None:
    return figures.comparison(model, label, task, figures.alpha(model, cells.GGSS))
