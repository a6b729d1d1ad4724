"""Is it more than chance? GGSS against the unsteered model and its strongest rival; the same of what it costs."""

from ggss import probes
from ggss.analysis.right_answers import Kept
from ggss.report import cells, names
from ggss.report.capability_tables import kept
from ggss.report.figures import Figures
from ggss.report.rendering import Column, Entry, Figure, Row, Table


def _rival(figures: Figures, model: str) -> str | None:
    """The external baseline with the lowest Avg on a model; only an Avg over all tasks counts."""
    found = []
    for _, label, _ in cells.families(names.EXTERNAL):
        alpha = figures.alpha(model, label)
        average = figures.average(model, label, alpha) if alpha is not None else None
        over, of = figures.averaged(model, label, alpha) if average else (0, 1)
        if average and over == of:
            found.append((average.estimate, label))
    return min(found)[1] if found else None


def significance(figures: Figures) -> Table | str:
    tasks, attributes = figures.results.tasks, list(figures.plan.steering)
    models = [model for model in figures.results.models if figures.alpha(model, names.GGSS) is not None]
    if not models:
        return "needs runs of ggss on the bias tasks"
    rivals = {model: _rival(figures, model) for model in models}
    asked: list[list[tuple[float | None, float | None]]] = []
    for model in models:
        rival = rivals[model]
        own = [figures.p_values(model, names.GGSS)]
        own += [figures.p_values(model, names.GGSS, tasks=[task]) for task in tasks]
        asked.append([*own, figures.p_values(model, names.GGSS, rival) if rival else (None, None)])
    tests = cells.Tests([pair for row in asked for pair in row])
    benchmark = figures.benchmark("multiple-choice")
    costs = [[kept(figures, model, names.GGSS, benchmark, attribute) for attribute in attributes] for model in models]
    of_costs = iter(cells.adjusted([cost and cost.p for row in costs for cost in row]))
    rows = []
    for model, row, cost in zip(models, asked, costs, strict=True):
        shown: list[Entry] = [tests.next() for _ in row]
        rival = names.method(rivals[model] or "") or "none run"
        paid = [cell for one in cost for cell in (_points(one), cells.tested(one and one.p, next(of_costs)))]
        rows.append(Row(names.model(model), (*shown[:-1], rival, shown[-1], *paid)))
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
    found: list[tuple[str, str, str, Kept]] = []
    for label in names.compared(figures.results) if task else ():
        steers = figures.plan.method(label).steers
        for model in figures.results.models:
            # A method that does not steer was run once, for all attributes.
            for attribute in figures.plan.steering if steers else ("",):
                result = kept(figures, model, label, task, attribute)
                if result:
                    found.append((label, model, attribute, result))
    if task is None or not found:
        return "needs runs of a method on a multiple-choice benchmark"
    corrected = cells.adjusted([result.p for *_, result in found])
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
                ", ".join(word for word in (names.model(model), attribute) if word),
                (
                    _points(result),
                    cells.tested(result.p, adjusted),
                    (Figure(result.change.p, spec=".2g"),),
                    _verdict(result, adjusted),
                ),
                names.method(label),
            )
            for (label, model, attribute, result), adjusted in zip(found, corrected, strict=True)
        ),
        "Each method at its best-avg-α, question by question against the unsteered model.",
        (
            "McNemar's exact test asks whether accuracy changed; second line adjusted by Holm over the table.",
            f"Two one-sided tests: p at most 0.05 shows that the change lies within ±{points} points.",
            "A large McNemar p alone is no evidence that nothing changed.",
            "Brackets: 95 % intervals, Tango's score interval of the paired change.",
        ),
    )


def _points(result: Kept | None) -> Entry:
    if result is None:
        return cells.NOT_RUN
    change = result.change
    return (Figure(100 * change.difference, (100 * change.low, 100 * change.high), "+.2f"),)


def _verdict(result: Kept, adjusted: float | None) -> str:
    if adjusted is not None and adjusted <= 0.05:
        return "better" if result.change.difference > 0 else "worse"
    return "equivalent" if result.same.equivalent else "undecided"
