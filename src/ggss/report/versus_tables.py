"""Is PACE better than the others? Paired with every other method, on the same people."""

from ggss import probes
from ggss.report import cells, names
from ggss.report.capability_tables import kept
from ggss.report.figures import Figures
from ggss.report.rendering import Column, Entry, Figure, Row, Table

PACE = "pace"


def pace_against(figures: Figures) -> Table | str:
    """Each row: PACE minus another method on one model, both at their best-avg-alpha."""
    pairs = [
        (model, other)
        for model in figures.results.models
        if figures.alpha(model, PACE) is not None
        for other in names.compared(figures.results)
        if other != PACE and figures.alpha(model, other) is not None
    ]
    if not pairs:
        return "needs runs of pace and of another method on the bias tasks"
    tests = cells.Tests([figures.p_values(model, PACE, other) for model, other in pairs])
    benchmark = figures.benchmark("multiple-choice")
    title = probes.get(benchmark).title if benchmark else "capability"
    attributes = tuple(figures.plan.steering)
    return Table(
        "pace_against",
        "PACE against every other method, paired (lower is better for PACE)",
        "Method",
        (
            Column("Avg Δ%, PACE minus it, points"),
            Column("sign-flip test", parts=cells.TEST_PARTS),
            *(Column(f"{title}, PACE minus it, points, {attribute} steering") for attribute in attributes),
        ),
        tuple(
            Row(
                names.method(other),
                (
                    _difference(figures, model, other),
                    tests.next(),
                    *(_cost(figures, model, other, benchmark, attribute) for attribute in attributes),
                ),
                names.model(model),
            )
            for model, other in pairs
        ),
        "Both methods at their best-avg-α, on the same identities; capability on the same questions.",
        (
            "Paired sign-flip permutation tests over all bias tasks, two-sided; p with answers about one identity "
            "swapped together, adjusted by Holm over the whole table; then the same with each item swapped alone, as "
            "published, which rejects too often (docs/validity.md).",
            "A method that was run at several strengths is shown at its best one, which favours it.",
            cells.PARTIAL,
        ),
    )


def _difference(figures: Figures, model: str, other: str) -> Entry:
    averages = [figures.average(model, method, figures.alpha(model, method)) for method in (PACE, other)]
    counted = [figures.averaged(model, method, figures.alpha(model, method)) for method in (PACE, other)]
    if averages[0] is None or averages[1] is None:
        return "undefined"
    partial = any(over < of for over, of in counted)
    return (Figure(averages[0].estimate - averages[1].estimate, spec="+.0f", mark="†" if partial else ""),)


def _cost(figures: Figures, model: str, other: str, benchmark: str | None, attribute: str) -> Entry:
    """The difference of two changes from the same unsteered answers: the accuracy under PACE minus that under it."""
    found = [kept(figures, model, method, benchmark, attribute) for method in (PACE, other)]
    if benchmark is None or found[0] is None or found[1] is None:
        return cells.NOT_RUN
    return (Figure(100 * (found[0].change.difference - found[1].change.difference), spec="+.1f"),)
