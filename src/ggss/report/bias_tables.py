"""The tables of bias at each method's best-avg-alpha: main results, and others with the same columns."""

from collections.abc import Mapping

from ggss.methods.registry import UNSTEERED
from ggss.report import cells, names
from ggss.report.figures import Figures
from ggss.report.rendering import Column, Entry, Figure, Row, Table

_NOTES = (
    cells.CHOSEN,
    cells.INTERVALS,
    cells.PERCENTILES,
    cells.AVERAGED,
    cells.UNDEFINED,
    cells.DEGENERATE,
    cells.PARTIAL,
)


def _caption(figures: Figures, models: list[str]) -> str:
    tasks = "; ".join(f"{figures.label(t)}: {figures.display(t).meaning or t}" for t in figures.results.tasks)
    counted = ", ".join(f"{figures.averaged(model, UNSTEERED, None)[1]} on {names.model(model)}" for model in models)
    return (
        f"{tasks}. Avg Δ% is the unweighted mean change over the tasks with an unsteered bias ({counted}), so it is "
        "not strictly comparable across models."
    )


def main_results(figures: Figures) -> Table | str:
    title = "How much demographic bias is left in the answers, by method and model (lower is better)"
    return _by_family(figures, "main_results", title, names.EXTERNAL, (names.GGSS,)) or (
        "needs runs of ggss or of a baseline on the bias tasks"
    )


def svd_ablation(figures: Figures) -> Table | str:
    title = "How much bias is left without gate and slerp, or also without pooling (lower is better)"
    return _by_family(figures, "svd_ablation", title, names.SVD) or (
        "needs runs of the svd-* methods on the bias tasks"
    )


def _by_family(
    figures: Figures, name: str, title: str, groups: Mapping[str, Mapping[str, str]], enough: tuple[str, ...] = ()
) -> Table | None:
    """Unsteered, families of methods, GGSS; None if none of the methods, or of those that are `enough`, was run."""
    models, rows = names.subjects(figures.results), cells.families(groups)
    if not models or not cells.any_run(figures, [*(label for _, label, _ in rows), *enough], models):
        return None
    return Table(
        name,
        title,
        "Method",
        cells.bias_columns(figures, models),
        (
            cells.unsteered_row(figures, models),
            *(cells.bias_row(figures, shown, label, models, family) for family, label, shown in rows),
            cells.bias_row(figures, "GGSS", names.GGSS, models, "Calibrated gate and slerp"),
        ),
        _caption(figures, models),
        _NOTES,
    )


def beyond(figures: Figures) -> Table | str:
    models, methods = names.subjects(figures.results), names.beyond(figures.results)
    if not models or not cells.any_run(figures, methods, models):
        return "the plan has no method beyond the published ones, or none was run on the bias tasks"
    return Table(
        "beyond",
        "How much bias the methods beyond the published ones leave, beside GGSS (lower is better)",
        "Method",
        cells.bias_columns(figures, models),
        (
            cells.unsteered_row(figures, models),
            cells.bias_row(figures, "GGSS", names.GGSS, models),
            *(cells.bias_row(figures, names.method(label), label, models, "Beyond the paper") for label in methods),
        ),
        _caption(figures, models),
        _NOTES,
    )


def control(figures: Figures) -> Table | str:
    """The control models under every method: there steering should fail or cost capability."""
    models, methods = names.controls(figures.results), names.compared(figures.results)
    if not models or not cells.any_run(figures, methods, models):
        return "needs runs of a control model: one that the plan marks with `control: true`"
    return Table(
        "control",
        "How much bias is left in the control model, whose attribute cannot be removed alone (lower is better)",
        "Method",
        cells.bias_columns(figures, models),
        (
            cells.unsteered_row(figures, models),
            *(
                cells.bias_row(figures, names.method(label), label, models)
                for label in methods
                if cells.any_run(figures, [label], models)
            ),
        ),
        _caption(figures, models) + " A low value here must be read beside the capability that it cost.",
        _NOTES,
    )


def added_baselines(figures: Figures) -> Table | str:
    models = names.subjects(figures.results)
    rows = {names.GGSS: "GGSS", **names.LEACE, "inlp-spherical": "INLP (sph.)"}
    if not models or not cells.any_run(figures, names.LEACE, models):
        return "needs runs of leace-gated or leace-spherical on the bias tasks"
    columns = [Column(names.model(model), better="lower", parts=cells.AVERAGE_PARTS) for model in models]
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
    shown = [cells.average(figures, model, label, figures.alpha(model, label), "+.1f") for model in models]
    mean, worst = figures.across(models, label) or (None, None)
    return Row(name, (*shown, cells.percent(mean, spec="+.1f"), cells.percent(worst, spec="+.1f")))


def alpha_choices(figures: Figures) -> Table | str:
    models = figures.results.models
    steering = [label for label in names.compared(figures.results) if figures.plan.method(label).steers]
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
        tuple(Column(names.model(model)) for model in models),
        tuple(Row(names.method(label), tuple(cell(model, label) for model in models)) for label in chosen),
        "best-avg-α: of the strengths "
        + ", ".join(f"{alpha:g}" for alpha in figures.results.alphas)
        + " the one with the lowest Avg Δ% over the bias tasks; of equal ones the smallest. A strength at which "
        "nothing could be read of a task is chosen only if there is none with more tasks.",
    )
