"""Which part does what: components, the gate's two numbers, geometry at matched gate, the gate's calibration."""

from collections.abc import Mapping

from ggss.report import capability_tables as capability
from ggss.report import cells, names
from ggss.report.figures import Figures
from ggss.report.rendering import Cell, Column, Figure, Row, Table
from ggss.steering.gates import OPEN, SHUT, Gates

AT = 1.0  # the strength of the component and sensitivity tables
TASK = "mcq"


def _at_one(figures: Figures, model: str, label: str) -> Cell:
    return cells.measured(figures, figures.run(model, label, TASK, AT))


def _reduction(figures: Figures, model: str, label: str) -> Cell:
    """The metric, and below it by how many percent it is less than unsteered."""
    run = figures.run(model, label, TASK, AT)
    shown, change = cells.value(figures, run), run and figures.change(run)
    if isinstance(shown, str) or not change:
        return shown
    return *shown, Figure(-change.estimate, (-change.high, -change.low), ".1f", "%")


def components(figures: Figures) -> Table | str:
    models = names.subjects(figures.results)
    if not any(figures.run(model, label, TASK, AT) for model in models for label in names.COMPONENTS):
        return f"needs runs of ggss and its ablations on {TASK} at α = {AT:g}"
    columns = tuple(Column(names.task(TASK).name, names.model(m), "lower", ("", "bias reduction %")) for m in models)
    unsteered = [figures.run(model, names.UNSTEERED, TASK, None) for model in models]
    return Table(
        "component_ablation",
        "How much MCQ race bias is left as the components of GGSS are put together (lower is better)",
        "Variant",
        columns,
        (
            Row("Unsteered", tuple(cells.value(figures, run, ranked=False) for run in unsteered)),
            *(
                Row(name, tuple(_reduction(figures, model, label) for model in models))
                for label, name in names.COMPONENTS.items()
            ),
        ),
        f"{names.task(TASK).measured} ×10³ at α = {AT:g}.",
        (cells.INTERVALS, cells.DEGENERATE),
    )


def sensitivity(figures: Figures) -> Table | str:
    models, grid = names.subjects(figures.results), names.grid_points(figures.results)
    run = {m: any(figures.run(m, label, TASK, AT) for label in grid.values() if label != names.GGSS) for m in models}
    if not any(run.values()):
        return f"needs runs of ggss with other kappa and floor on {TASK} at α = {AT:g}"
    kappas, floors = sorted({kappa for kappa, _ in grid}), sorted({floor for _, floor in grid})
    rows = [
        Row(
            f"floor {floor:g}",
            tuple(
                _at_one(figures, model, grid[kappa, floor]) if (kappa, floor) in grid else cells.NOT_RUN
                for kappa in kappas
            ),
            names.model(model),
        )
        for model in models
        if run[model]
        for floor in floors
    ]
    return Table(
        "sensitivity",
        "How much MCQ race bias is left as the gate's sharpness κ and floor are varied (lower is better)",
        "Gate floor",
        tuple(Column(f"κ = {kappa:g}", parts=("", "change %")) for kappa in kappas),
        tuple(rows),
        f"{names.task(TASK).measured} ×10³ at α = {AT:g}. The published setting is κ = 5, floor 0.3.",
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
    tests = [[figures.p_value(model, curved, flat) for model in models] for flat, curved, *_ in pairs]
    corrected = iter(cells.adjusted([p for row in tests for p in row]))
    rows = []
    for (flat, curved, words, section), values in zip(pairs, tests, strict=True):
        for label in (flat, curved):
            shown = [cells.average(figures, m, label, figures.alpha(m, label), "+.1f") for m in models]
            rows.append(Row(said[label], tuple(shown), section))
        rows.append(Row(words, tuple(cells.tested(value, next(corrected)) for value in values), section))
    return Table(
        "geometry_ablation",
        "Mean change of bias in percent, Euclidean against spherical at the same gate (lower is better)",
        "Variant",
        tuple(Column(names.model(model), parts=("", "Holm")) for model in models),
        tuple(rows),
        "Avg Δ%, each variant at its own best-avg-α. Rows of p: paired sign-flip test of the contrast above, tasks "
        "combined, identities swapped whole; below it the p-value adjusted by Holm over the table.",
        (cells.INTERVALS, cells.PARTIAL),
    )


def gate_calibration(figures: Figures) -> Table | str:
    models = names.subjects(figures.results)
    if not cells.any_run(figures, ["ggss-token-gate"], models):
        return "needs runs of ggss-token-gate on the bias tasks"
    alphas, task = figures.results.alphas, capability.task_of(figures, list(capability.MULTIPLE_CHOICE))
    rows = []
    for model in models:
        chosen = figures.alpha(model, names.GGSS)
        for label, name in names.CALIBRATION.items():
            own = figures.alpha(model, label)
            swept = [cells.measured(figures, figures.run(model, label, TASK, alpha)) for alpha in alphas]
            shown = cells.measured(figures, figures.run(model, label, TASK, chosen))
            star = capability.shown(capability.kept(figures, model, label, task, "race")) if task else cells.NOT_RUN
            bias = cells.average(figures, model, label, own, "+.1f")
            gate = _gate(figures.results.gates.get((model, label, "race")))
            rows.append(Row(name, (bias, shown, *swept, star, *gate), names.model(model)))
    mcq = names.task(TASK).name
    return Table(
        "gate_calibration",
        "How much bias is left with the gate calibrated on pooled or on per-token statistics (lower is better)",
        "Gate",
        (
            Column("Avg Δ% at own α"),
            Column(f"{mcq} at the α of pooled", parts=("", "change %")),
            *(Column(f"{mcq}, α = {alpha:g}", parts=("", "change %")) for alpha in alphas),
            Column(
                f"{capability.MULTIPLE_CHOICE.get(task or '', 'capability')}, race steering", parts=("", "change")
            ),
            Column("Gate's median", parts=("", "std")),
            Column("Tokens' median"),
            Column("Mean gate"),
            Column(f"Tokens above {OPEN:g}"),
            Column(f"Tokens below {SHUT:g}"),
        ),
        tuple(rows),
        "The same subspace; the gate's median and spread come from pooled representatives, or from single tokens. "
        "The last columns are of all tokens of the pictures that race was discovered on, so they have no interval.",
        (cells.INTERVALS, cells.DEGENERATE),
    )


def _gate(gates: Gates | None) -> tuple[Cell, ...]:
    if gates is None:
        return (cells.NOT_RUN,) * 5
    calibrated = (Figure(gates.median, spec=".3f"), Figure(gates.std, spec=".3f"))
    shares = ((Figure(100 * share, spec=".0f", unit="%"),) for share in (gates.open, gates.shut))
    return calibrated, (Figure(gates.tokens, spec=".3f"),), (Figure(gates.mean),), *shares
