"""The tables of ablations and of tests.

Ablations of GGSS: its components, the gate's sharpness and floor, the geometry at the same gate, the gate's
calibration. Tests: GGSS against the unsteered model and the strongest baseline, what it costs, and PACE against every
other method on the same people.
"""

from collections.abc import Mapping
from dataclasses import replace

from ggss import probes
from ggss.analysis.comparison import AccuracyChange
from ggss.report import capability_tables, cells
from ggss.report.capability_tables import kept_at_best
from ggss.report.cells import ABLATED, Figures
from ggss.report.rendering import Column, Entry, Figure, Row, Table
from ggss.steering.fitting import OPEN, SHUT, Gates
from ggss.study import grid

AT = 1.0  # the strength of the component and sensitivity tables
PACE = "pace"


def _bias(figures: Figures, task: str) -> str:
    """What a task measures, in the words of a title: `MCQ race bias`."""
    return f"{probes.get(task).title} {figures.about(task)} bias"


def _measured(figures: Figures, task: str) -> str:
    display = figures.display(task)
    return f"{display.meaning}{display.unit} at α = {AT:g}."


def _reduction(figures: Figures, model: str, label: str, task: str) -> Entry:
    """The metric, and below it its reduction from the unsteered model in percent."""
    comparison = figures.comparison(model, label, task, AT)
    entry, change = cells.value(comparison), cells.changed(comparison, ".1f")
    if isinstance(entry, str) or not change or not change.interval:
        return entry
    low, high = change.interval
    centre = None if change.centre is None else -change.centre
    return *entry, replace(change, value=-change.value, interval=(-high, -low), centre=centre)


def components(figures: Figures) -> Table | str:
    models, task = cells.subjects(figures.results), figures.ablated
    if task is None or not any(figures.comparison(m, label, task, AT) for m in models for label in cells.COMPONENTS):
        return f"needs runs of ggss and its ablations on {task or ABLATED} at α = {AT:g}"
    name, better = figures.label(task), figures.display(task).better
    return Table(
        "component_ablation",
        f"How much {_bias(figures, task)} is left as the components of GGSS are put together (lower is better)",
        "Variant",
        tuple(Column(name, cells.model_title(model), better, ("", "bias reduction %")) for model in models),
        (
            Row("Unsteered", tuple(cells.value(figures.unsteered(model, task), ranked=False) for model in models)),
            *(
                Row(name, tuple(_reduction(figures, model, label, task) for model in models))
                for label, name in cells.COMPONENTS.items()
            ),
        ),
        _measured(figures, task),
        (cells.INTERVALS, cells.DEGENERATE),
    )


def sensitivity(figures: Figures) -> Table | str:
    points, task = cells.grid_points(figures.results), figures.ablated or ABLATED
    varied = [label for label in points.values() if label != cells.GGSS]
    models = [
        model
        for model in cells.subjects(figures.results)
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
            Row(f"floor {floor:g}", tuple(cell(model, (kappa, floor)) for kappa in kappas), cells.model_title(model))
            for model in models
            for floor in floors
        ),
        f"{_measured(figures, task)} The published setting is κ = 5, floor 0.3.",
        (cells.INTERVALS, cells.DEGENERATE),
    )


def geometry(figures: Figures) -> Table | str:
    models = cells.subjects(figures.results)
    pairs = (
        ("svd-pooled-euclidean", "svd-pooled-spherical", "p (geometry, no gate)", "No gate"),
        ("gated-euclidean", "ggss", "p (geometry, gate fixed)", "Calibrated gate"),
        ("gated-euclidean-renorm", "ggss", "p (renormalised against GGSS)", "Calibrated gate, renormalised"),
    )
    names: Mapping[str, str] = {
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
            averages = [cells.average(figures, m, label, figures.alpha(m, label), "+.1f") for m in models]
            rows.append(Row(names[label], tuple(averages), section))
        rows.append(Row(words, tuple(tests.next() for _ in models), section))
    return Table(
        "geometry_ablation",
        "Mean change of bias in percent, Euclidean against spherical at the same gate (lower is better)",
        "Variant",
        tuple(
            Column(cells.model_title(model), parts=("", "percentile or Holm", *cells.TEST_PARTS[2:]))
            for model in models
        ),
        tuple(rows),
        "Avg Δ%, each variant at its own best-avg-α. Rows of p: paired sign-flip test between the two rows above, "
        "tasks combined, all answers about an identity swapped together; below it the p-value adjusted by Holm over "
        "the table; then both with each item swapped alone, as published.",
        (cells.AVERAGED, cells.PARTIAL),
    )


def gate_calibration(figures: Figures) -> Table | str:
    models, task = cells.subjects(figures.results), figures.ablated
    if task is None or not cells.any_run(figures, ["ggss-token-gate"], models):
        return f"needs runs of ggss-token-gate on the bias tasks, {ABLATED} among them"
    alphas, benchmark = figures.results.alphas, figures.benchmark("multiple-choice")
    steered = grid.attribute_of(figures.plan, task)
    rows = []
    for model in models:
        for label, name in cells.CALIBRATION.items():
            accuracy = kept_at_best(figures, model, label, benchmark, steered)
            entries = (
                cells.average(figures, model, label, figures.alpha(model, label), "+.1f"),
                cells.measured(figures.comparison(model, label, task, figures.alpha(model, cells.GGSS))),
                *(cells.measured(figures.comparison(model, label, task, alpha)) for alpha in alphas),
                capability_tables.accuracy(accuracy, figures.display(benchmark)) if benchmark else cells.NOT_RUN,
                *_gate(figures.results.gates.get((model, label, steered))),
            )
            rows.append(Row(name, entries, cells.model_title(model)))
    column, benchmark_title = figures.label(task), probes.get(benchmark).title if benchmark else "capability"
    return Table(
        "gate_calibration",
        "How much bias is left with the gate calibrated on pooled or on per-token statistics (lower is better)",
        "Gate",
        (
            Column("Avg Δ% at own α", parts=cells.AVERAGE_PARTS),
            Column(f"{column} at the α of pooled", parts=("", "change %")),
            *(Column(f"{column}, α = {alpha:g}", parts=("", "change %")) for alpha in alphas),
            Column(f"{benchmark_title}, {steered} steering", parts=("", "change")),
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


def _rival(figures: Figures, model: str) -> str | None:
    """The external baseline with the lowest Avg on a model; only an Avg over all tasks counts."""
    candidates = []
    for _, label, _ in cells.families(cells.EXTERNAL):
        alpha = figures.alpha(model, label)
        average = figures.average(model, label, alpha) if alpha is not None else None
        over, of = figures.averaged(model, label, alpha) if average else (0, 1)
        if average and over == of:
            candidates.append((average.estimate, label))
    return min(candidates)[1] if candidates else None


def significance(figures: Figures) -> Table | str:
    tasks, attributes = figures.results.tasks, list(figures.plan.attributes)
    models = [model for model in figures.results.models if figures.alpha(model, cells.GGSS) is not None]
    if not models:
        return "needs runs of ggss on the bias tasks"
    rivals = {model: _rival(figures, model) for model in models}
    p_values: list[list[tuple[float | None, float | None]]] = []
    for model in models:
        rival = rivals[model]
        against_unsteered = [figures.p_values(model, cells.GGSS)]
        against_unsteered += [figures.p_values(model, cells.GGSS, tasks=[task]) for task in tasks]
        p_values.append([*against_unsteered, figures.p_values(model, cells.GGSS, rival) if rival else (None, None)])
    tests = cells.Tests([pair for row in p_values for pair in row])
    benchmark = figures.benchmark("multiple-choice")
    costs = [
        [kept_at_best(figures, model, cells.GGSS, benchmark, attribute) for attribute in attributes]
        for model in models
    ]
    adjusted = iter(cells.adjusted([cost and cost.p for row in costs for cost in row]))
    rows = []
    for model, row, costs_of_model in zip(models, p_values, costs, strict=True):
        entries: list[Entry] = [tests.next() for _ in row]
        rival = cells.method_title(rivals[model] or "") or "none run"
        cost_entries = [
            entry
            for cost in costs_of_model
            for entry in (_points(cost), cells.tested(cost and cost.p, next(adjusted)))
        ]
        rows.append(Row(cells.model_title(model), (*entries[:-1], rival, entries[-1], *cost_entries)))
    name = probes.get(benchmark).title if benchmark else "capability"
    return Table(
        "significance",
        "Is the change of bias under GGSS more than chance, and that of capability (a small p means that it is)",
        "Model",
        (
            Column("against unsteered, all tasks", parts=cells.TEST_PARTS),
            *(Column(f"against unsteered, {figures.label(task)}", parts=cells.TEST_PARTS) for task in tasks),
            Column("strongest external baseline"),
            Column("against it, all tasks", parts=cells.TEST_PARTS),
            *(
                column
                for attribute in attributes
                for column in (
                    Column(f"{name} Δ points, {attribute}"),
                    Column(f"{name} McNemar, {attribute}", parts=("p", "Holm")),
                )
            ),
        ),
        tuple(rows),
        "Bias: paired sign-flip permutation tests, two-sided, each method at its best-avg-α. First line p with the "
        "answers about one identity swapped together, second adjusted by Holm over all tests of bias in the table; "
        "then the same with each item swapped alone, as published, which rejects too often (docs/validity.md). "
        "Capability: exact McNemar tests, question by question, and below it Holm over the table.",
        (
            f"{figures.statistics.permutations:,} permutations; no p of bias is below one in that many.",
            "The strength was chosen on the same answers, which favours every method alike against unsteered; see "
            "heldout_alpha.",
            '"not run": not run, unreadable, or without an unsteered bias to change.',
            "Brackets: 95 % intervals, Tango's score interval of the paired change.",
        ),
    )


def capability_significance(figures: Figures) -> Table | str:
    task = figures.benchmark("multiple-choice")
    results: list[tuple[str, str, str, AccuracyChange]] = []
    for label in cells.compared(figures.results) if task else ():
        steers = figures.plan.method(label).steers
        for model in figures.results.models:
            # A method that does not steer was run once, for all attributes.
            for attribute in figures.plan.attributes if steers else ("",):
                result = kept_at_best(figures, model, label, task, attribute)
                if result:
                    results.append((label, model, attribute, result))
            results += [
                (label, model, attribute, run.accuracy())
                for attribute in figures.plan.joint
                if (run := figures.jointly(model, label, attribute).get(str(task)))
            ]
    if task is None or not results:
        return "needs runs of a method on a multiple-choice benchmark"
    corrected = cells.adjusted([result.p for *_, result in results])
    points = f"{100 * figures.statistics.margin:g}"
    title = probes.get(task).title
    return Table(
        "capability_significance",
        f"Change of {title} accuracy in points: real, none, or undecided (nearer zero is better)",
        "Model, steering",
        (
            Column("Δ points"),
            Column("McNemar p", parts=("p", "Holm")),
            Column(f"p of more than ±{points} points"),
            Column("verdict"),
        ),
        tuple(
            Row(
                ", ".join(word for word in (cells.model_title(model), attribute) if word),
                (
                    _points(result),
                    cells.tested(result.p, adjusted),
                    (Figure(result.change.p, spec=".2g"),),
                    _verdict(result, adjusted),
                ),
                cells.method_title(label),
            )
            for (label, model, attribute, result), adjusted in zip(results, corrected, strict=True)
        ),
        "Each method at its best-avg-α, question by question against the unsteered model.",
        (
            "McNemar's exact test asks whether accuracy changed; second line adjusted by Holm over the table.",
            f"Two one-sided tests: p at most 0.05 shows that the change lies within ±{points} points.",
            "A large McNemar p alone is no evidence that nothing changed.",
            "Brackets: 95 % intervals, Tango's score interval of the paired change.",
        ),
    )


def _points(result: AccuracyChange | None) -> Entry:
    if result is None:
        return cells.NOT_RUN
    change = result.change
    return (Figure(100 * change.difference, (100 * change.low, 100 * change.high), "+.2f"),)


def _verdict(result: AccuracyChange, adjusted: float | None) -> str:
    if adjusted is not None and adjusted <= 0.05:
        return "better" if result.change.difference > 0 else "worse"
    return "equivalent" if result.same.equivalent else "undecided"


def pace_against(figures: Figures) -> Table | str:
    """A row for each model and other method: PACE minus the other, both at their best-avg-alpha."""
    pairs = [
        (model, other)
        for model in figures.results.models
        if figures.alpha(model, PACE) is not None
        for other in cells.compared(figures.results)
        if other != PACE and figures.alpha(model, other) is not None
    ]
    if not pairs:
        return "needs runs of pace and of another method on the bias tasks"
    tests = cells.Tests([figures.p_values(model, PACE, other) for model, other in pairs])
    benchmark = figures.benchmark("multiple-choice")
    title = probes.get(benchmark).title if benchmark else "capability"
    attributes = tuple(figures.plan.attributes)
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
                cells.method_title(other),
                (
                    _difference(figures, model, other),
                    tests.next(),
                    *(_cost(figures, model, other, benchmark, attribute) for attribute in attributes),
                ),
                cells.model_title(model),
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
    """The accuracy under PACE minus that under the other method, in points: both changed from the same answers."""
    pace, rival = (kept_at_best(figures, model, method, benchmark, attribute) for method in (PACE, other))
    if benchmark is None or pace is None or rival is None:
        return cells.NOT_RUN
    return (Figure(100 * (pace.change.difference - rival.change.difference), spec="+.1f"),)
