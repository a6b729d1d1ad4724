"""The strength chosen on one half of the identities, and the bias measured on the other half."""

from ggss.analysis.crossfit import HeldOut
from ggss.report import cells, names
from ggss.report.figures import Figures
from ggss.report.rendering import Column, Entry, Figure, Row, Table

_PROTOCOL = (
    "The first half of the identities is fold A, the second fold B; the strength is chosen by best-avg-α on one fold "
    "and the bias measured on the other, from the same stored answers."
)

FOLDS = "Brackets of a fold: 95 % intervals, percentile bootstrap over its identities."


def heldout_alpha(figures: Figures) -> Table | str:
    models = [m for m in figures.results.models if figures.alpha(m, names.GGSS) is not None]
    if not models:
        return "needs runs of ggss on the bias tasks"
    rows = []
    for model in models:
        first, second = figures.held_out(model, names.GGSS)  # held out: A, then B
        everywhere = figures.alpha(model, names.GGSS)
        rows.append(
            Row(
                names.model(model),
                (
                    _alpha(second.alpha),
                    _alpha(first.alpha),
                    _alpha(everywhere),
                    _judged(figures, model, names.GGSS, second),
                    _judged(figures, model, names.GGSS, first),
                    cells.average(figures, model, names.GGSS, everywhere, "+.1f"),
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
    methods = [label for label in names.compared(figures.results) if cells.any_run(figures, [label], models)]
    if not methods:
        return "needs runs of a method on the bias tasks"
    rows = []
    for label in methods:
        shown: list[Entry] = []
        for model in models:
            turns = figures.held_out(model, label)
            shown += [_judged(figures, model, label, turn) for turn in reversed(turns)]
        rows.append(Row(names.method(label), tuple(shown)))
    return Table(
        "heldout_methods",
        "Mean change of bias in percent for every method at a strength chosen on other people (lower is better)",
        "Method",
        tuple(Column(side, names.model(m), "lower") for m in models for side in ("on B, α of A", "on A, α of B")),
        tuple(rows),
        _PROTOCOL,
        (FOLDS,),
    )


def _alpha(alpha: float | None) -> Entry:
    return cells.NOT_RUN if alpha is None else (Figure(alpha, spec="g"),)


def _judged(figures: Figures, model: str, method: str, turn: HeldOut) -> Entry:
    return cells.percent(figures.average(model, method, turn.alpha, turn.fold), spec="+.1f")
