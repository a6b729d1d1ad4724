"""Which part does what: components, the gate's two numbers, geometry at the same gate, the gate's calibration."""

from collections.abc import Mapping
from dataclasses import replace

from ggss import probes
from ggss.report import capability_tables as capability
from ggss.report import cells, names
from ggss.report.figures import ABLATED, Figures
from ggss.report.rendering import Column, Entry, Figure, Row, Table
from ggss.steering.gates import OPEN, SHUT, Gates
from ggss.study import grid

AT = 1.0  # the strength of the component and sensitivity tables


def _bias(figures: Figures, task: str) -> str:
    """What a task measures, in the words of a title: `MCQ race bias`."""
    return f"{probes.get(task).title} {figures.about(task)} bias"


def _measured(figures: Figures, task: str) -> str:
    shown = figures.display(task)
    return f"{shown.meaning}{shown.unit} at α = {AT:g}."


def _reduction(figures: Figures, model: str, label: str, task: str) -> Entry:
    """The metric, and below it by how many percent it is less than unsteered."""
    found = figures.comparison(model, label, task, AT)
    shown, change = cells.value(found), cells.changed(found, ".1f")
    if isinstance(shown, str) or not change or not change.interval:
        return shown
    low, high = change.interval
    centre = None if change.centre is None else -change.centre
    return *shown, replace(change, value=-change.value, interval=(-high, -low), centre=centre)


def components(figures: Figures) -> Table | str:
    models, task = names.subjects(figures.results), figures.ablated
    if task is None or not any(figures.comparison(m, label, task, AT) for m in models for label in names.COMPONENTS):
        return f"needs runs of ggss and its ablations on {task or ABLATED} at α = {AT:g}"
    name, better = figures.label(task), figures.display(task).better
    return Table(
        "component_ablation",
        f"How much {_bias(figures, task)} is left as the components of GGSS are put together (lower is better)",
        "Variant",
        tuple(Column(name, names.model(model), better, ("", "bias reduction %")) for model in models),
        (
            Row("Unsteered", tuple(cells.value(figures.unsteered(model, task), ranked=False) for model in models)),
            *(
                Row(name, tuple(_reduction(figures, model, label, task) for model in models))
                for label, name in names.COMPONENTS.items()
            ),
        ),
        _measured(figures, task),
        (cells.INTERVALS, cells.DEGENERATE),
    )


def sensitivity(figures: Figures) -> Table | str:
    points, task = names.grid_points(figures.results), figures.ablated or ABLATED
    varied = [label for label in points.values() if label != names.GGSS]
    models = [
        model
        for model in names.subjects(figures.results)
        if any(figures.comparison(model, label, task, AT) for label in varied)
    ]
    if not models:
        return f"needs runs of ggss with other kappa and floor on {task} at α = {AT:g}"
    kappas, floors = sorted({kappa for kappa, _ in points}), sorted({floor for _, floor in points})

    def cell(model: str, point: tuple[float, float]) -> Entry:
        return cells.measured(figures.comparison(model, points[point], task, AT) if point in points else None)

    return Table(
        "sensitivity",
        f"How much {_bias(figures, task)} is left as the gate's sharpness κ and floor are varied (lower is better)",
        "Gate floor",
        tuple(Column(f"κ = {kappa:g}", parts=("", "change %")) for kappa in kappas),
        tuple(
            Row(f"floor {floor:g}", tuple(cell(model, (kappa, floor)) for kappa in kappas), names.model(model))
            for model in models
            for floor in floors
        ),
        f"{_measured(figures, task)} The published setting is κ = 5, floor 0.3.",
        (cells.INTERVALS, cells.DEGENERATE),
    )


def geometry(figures: Figures) -> Table | str:
    models = names.subjects(figures.results)
    pairs = (
        ("svd-pooled-euclidean", "svd-pooled-spherical", "p (geometry, no gate)", "No gate"),
        ("gated-euclidean", "ggss", "p (geometry, gate fixed)", "Calibrated gate"),
        ("gated-euclidean-renorm", "ggss", "p (renormalised against GGSS)", "Calibrated gate, renormalised"),
    )
    said: Mapping[str, str] = {
        "svd-pooled-euclidean": "Euclidean hard projection",
        "svd-pooled-spherical": "Spherical hard projection",
        "gated-euclidean": "Euclidean + calibrated gate",
        "gated-euclidean-renorm": "Euclidean + calibrated gate, renormalised",
        "ggss": "GGSS (spherical + calibrated gate)",
    }
    if not cells.any_run(figures, [flat for flat, *_ in pairs], models):
        return "needs runs of svd-pooled-euclidean or gated-euclidean on the bias tasks"
    tests = cells.Tests([figures.p_values(model, curved, flat) for flat, curved, *_ in pairs for model in models])
    rows = []
    for flat, curved, words, section in pairs:
        for label in (flat, curved):
            shown = [cells.average(figures, m, label, figures.alpha(m, label), "+.1f") for m in models]
            rows.append(Row(said[label], tuple(shown), section))
        rows.append(Row(words, tuple(tests.next() for _ in models), section))
    return Table(
        "geometry_ablation",
        "Mean change of bias in percent, Euclidean against spherical at the same gate (lower is better)",
        "Variant",
        tuple(
            Column(names.model(model), parts=("", "percentile or Holm", *cells.TEST_PARTS[2:])) for model in models
        ),
        tuple(rows),
        "Avg Δ%, each variant at its own best-avg-α. Rows of p: paired sign-flip test between the two rows above, "
        "tasks combined, all answers about an identity swapped together; below it the p-value adjusted by Holm over "
        "the table; then both with each item swapped alone, as published.",
        (cells.AVERAGED, cells.PARTIAL),
    )


def gate_calibration(figures: Figures) -> Table | str:
    models, task = names.subjects(figures.results), figures.ablated
    if task is None or not cells.any_run(figures, ["ggss-token-gate"], models):
        return f"needs runs of ggss-token-gate on the bias tasks, {ABLATED} among them"
    alphas, benchmark = figures.results.alphas, figures.benchmark("multiple-choice")
    steered = grid.own_attribute(figures.plan, task)
    rows = []
    for model in models:
        for label, name in names.CALIBRATION.items():
            kept = capability.kept(figures, model, label, benchmark, steered)
            shown = (
                cells.average(figures, model, label, figures.alpha(model, label), "+.1f"),
                cells.measured(figures.comparison(model, label, task, figures.alpha(model, names.GGSS))),
                *(cells.measured(figures.comparison(model, label, task, alpha)) for alpha in alphas),
                capability.shown(kept, figures.display(benchmark)) if benchmark else cells.NOT_RUN,
                *_gate(figures.results.gates.get((model, label, steered))),
            )
            rows.append(Row(name, shown, names.model(model)))
    column, kept_in = figures.label(task), probes.get(benchmark).title if benchmark else "capability"
    return Table(
        "gate_calibration",
        "How much bias is left with the gate calibrated on pooled or on per-token statistics (lower is better)",
        "Gate",
        (
            Column("Avg Δ% at own α", parts=cells.AVERAGE_PARTS),
            Column(f"{column} at the α of pooled", parts=("", "change %")),
            *(Column(f"{column}, α = {alpha:g}", parts=("", "change %")) for alpha in alphas),
            Column(f"{kept_in}, {steered} steering", parts=("", "change")),
            Column("Gate's median", parts=("", "std")),
            Column("Tokens' median"),
            Column("Mean gate"),
            Column(f"Tokens above {OPEN:g}"),
            Column(f"Tokens below {SHUT:g}"),
        ),
        tuple(rows),
        "The same subspace; the gate's median and spread come from pooled representatives, or from single tokens. "
        f"The last columns are of all tokens of the pictures that {steered} was discovered on, so they have no "
        "interval.",
        (cells.INTERVALS, cells.DEGENERATE),
    )


def _gate(gates: Gates | None) -> tuple[Entry, ...]:
    if gates is None:
        return (cells.NOT_RUN,) * 5
    calibrated = (Figure(gates.median, spec=".3f"), Figure(gates.std, spec=".3f"))
    shares = ((Figure(100 * share, spec=".0f", unit="%"),) for share in (gates.open, gates.shut))
    return calibrated, (Figure(gates.tokens, spec=".3f"),), (Figure(gates.mean),), *shares
