"""The tables of what steering costs, and of the settings of GGSS.

Accuracy on multiple-choice and yes-or-no benchmarks, overall and by kind of question. Recognition: the attribute that
is not steered should stay recognisable, the steered one is lost as α grows.
"""

from collections.abc import Sequence

from ggss import probes
from ggss.analysis.comparison import AccuracyChange, Comparison
from ggss.methods import registry
from ggss.methods.registry import UNSTEERED
from ggss.probes import Display
from ggss.probes.base import Kind
from ggss.probes.benchmarks import TOTALS
from ggss.report import cells
from ggss.report.cells import Figures
from ggss.report.rendering import Column, Entry, Figure, Row, Table

_CAPTION = (
    "At each method's best-avg-α. First line accuracy in percent, second its change in points. Brackets: 95 % "
    "intervals, over questions (over pictures where several questions share one): jackknife for accuracy, Tango's "
    "score interval for the paired change."
)


def kept_at_best(
    figures: Figures, model: str, method: str, task: str | None, attribute: str, question: str = ""
) -> AccuracyChange | None:
    """Right answers before and after the steering of an attribute at the method's best-avg-alpha."""
    if task is None:
        return None
    return figures.kept(model, method, task, figures.alpha(model, method), attribute, question)


def accuracy(result: AccuracyChange | None, display: Display) -> Entry:
    """Accuracy after steering, and below it its change in points."""
    if result is None:
        return cells.NOT_RUN
    change, scale = result.change, display.scale
    bounds = scale * change.low, scale * change.high
    return (
        cells.displayed(result.after, display),
        Figure(scale * change.difference, bounds, f"+.{display.digits}f", "points"),
    )


def capability(figures: Figures) -> Table | str:
    task = figures.benchmark("multiple-choice")
    models, attributes = figures.results.models, list(figures.plan.attributes)
    if task is None or not any(figures.unsteered(model, task) for model in models):
        return "the plan measures no multiple-choice benchmark, or it was not run"
    rows = [_unsteered(figures, task, models, attributes)]
    for method in figures.plan.methods:
        label = method.label
        if label != UNSTEERED and (method.tasks is None or task in method.tasks):
            row = _row(figures, label, task, models, attributes)
            if any(isinstance(cell, tuple) for cell in row.cells):
                rows.append(row)
    if len(rows) == 1:
        return f"no method was run on {task} yet"
    columns = [
        Column(cells.model_title(model), f"{attribute} steering", "higher", ("", "change"))
        for attribute in attributes
        for model in models
    ]
    return Table(
        "capability",
        f"General capability under steering: {probes.get(task).title} accuracy in percent (higher is better)",
        "Method",
        (*columns, Column("Avg.", better="higher", parts=("", "change"))),
        tuple(rows),
        _CAPTION,
        ("Avg. is over the row, its interval over questions, each averaged over the runs first (jackknife).",),
    )


def _unsteered(figures: Figures, task: str, models: Sequence[str], attributes: Sequence[str]) -> Row:
    accuracies: list[Entry] = []
    for model in models:
        result = figures.kept(model, UNSTEERED, task, None, attributes[0])
        accuracies.append(
            (cells.displayed(result.after, figures.display(task), ranked=False),) if result else cells.NOT_RUN
        )
    return Row(
        cells.method_title(UNSTEERED),
        (*accuracies * len(attributes), _mean(figures, UNSTEERED, task, models, attributes)),
    )


def _row(figures: Figures, label: str, task: str, models: Sequence[str], attributes: Sequence[str]) -> Row:
    results = [kept_at_best(figures, model, label, task, attribute) for attribute in attributes for model in models]
    entries = [accuracy(result, figures.display(task)) for result in results]
    return Row(cells.method_title(label), (*entries, _mean(figures, label, task, models, attributes)))


def _mean(figures: Figures, label: str, task: str, models: Sequence[str], attributes: Sequence[str]) -> Entry:
    means, display = figures.kept_across(models, label, task, attributes), figures.display(task)
    if means is None:
        return cells.NOT_RUN
    mean, change = means
    if label == UNSTEERED:
        return (cells.displayed(mean, display, ranked=False),)
    return cells.displayed(mean, display), cells.figure(change, f"+.{display.digits}f", display.scale, "points")


def dimensions(figures: Figures) -> Table | str:
    return _by_question(figures, "multiple-choice", "capability_dimensions", "dimension")


def categories(figures: Figures) -> Table | str:
    """Whether any category of a yes-or-no benchmark collapses under steering."""
    return _by_question(figures, "yes-or-no", "mme_categories", "category")


def _by_question(figures: Figures, kind: Kind, name: str, what: str) -> Table | str:
    """Accuracy on each kind of question of a benchmark. what: how the benchmark calls a kind of question."""
    task, rows = figures.benchmark(kind), []
    if task is None:
        return f"needs runs of ggss on a {kind} benchmark"
    unsteered = [figures.unsteered(model, task) for model in figures.results.models]
    questions = list(dict.fromkeys(question for run in unsteered if run for question in run.before.questions))
    for model in figures.results.models:
        for attribute in figures.plan.attributes:
            results = [kept_at_best(figures, model, cells.GGSS, task, attribute, question) for question in questions]
            if any(results):
                entries = tuple(_with_unsteered(result, figures.display(task)) for result in results)
                rows.append(Row(f"{cells.model_title(model)}, {attribute}", entries))
    if not rows:
        return f"needs runs of ggss on a {kind} benchmark"
    return Table(
        name,
        f"{probes.get(task).title} accuracy in percent in each {what}, under GGSS (higher is better)",
        "Model, steering",
        tuple(Column(question, parts=("", "unsteered", "change")) for question in questions),
        tuple(rows),
        f"GGSS. {_CAPTION} Between the two lines the unsteered accuracy.",
    )


def _with_unsteered(result: AccuracyChange | None, display: Display) -> Entry:
    cell = accuracy(result, display)
    if result is None or isinstance(cell, str):
        return cell
    before = cells.figure(result.before, f".{display.digits}f", display.scale, "unsteered")
    return cell[0], before, cell[1]


def yes_or_no(figures: Figures) -> Table | str:
    task, rows = figures.benchmark("yes-or-no"), []
    for model in figures.results.models if task else ():
        for attribute in figures.plan.attributes:
            steered = figures.at_best(model, cells.GGSS, str(task), attribute)
            unsteered = figures.unsteered(model, str(task))
            if steered and unsteered:
                entries = [cell for total in TOTALS for cell in _total(steered, unsteered, total)]
                rows.append(Row(f"{cells.model_title(model)}, {attribute}", tuple(entries)))
    if task is None or not rows:
        return "needs runs of ggss on a yes-or-no benchmark"
    return Table(
        "mme",
        f"{probes.get(task).title} totals, unsteered and under GGSS (higher is better)",
        "Model, steering",
        tuple(
            column
            for total in TOTALS
            for column in (Column("unsteered", total), Column("GGSS", total, parts=("", "change %")))
        ),
        tuple(rows),
        "A category scores 100 accuracy + 100 accuracy+ (both questions about a picture right); totals are sums over "
        "the categories of perception and of reasoning. At GGSS's best-avg-α.",
        ("Brackets: 95 % intervals, percentile bootstrap over pictures.",),
    )


def _total(steered: Comparison, unsteered: Comparison, total: str) -> tuple[Entry, Entry]:
    if total not in steered.after.metrics:
        return cells.NOT_RUN, cells.NOT_RUN
    display, change = steered.after.display(total), steered.change(total)
    before, after = (cells.displayed(comparison.value(total), display) for comparison in (unsteered, steered))
    below = () if change is None else (cells.figure(change, "+.1f", unit="%"),)
    return (before,), (after, *below)


def other_attribute(figures: Figures) -> Table | str:
    tasks = figures.recognition()
    pairs = [(steered, named) for steered in figures.plan.attributes for named in tasks if named != steered]
    rows = []
    for model in figures.results.models:
        entries: list[Entry] = []
        for steered, named in pairs:
            entries.append(cells.value(figures.unsteered(model, tasks[named])))
            entries.append(cells.value(figures.at_best(model, cells.GGSS, tasks[named], steered)))
        if any(isinstance(cell, tuple) for cell in entries[1::2]):
            rows.append(Row(cells.model_title(model), tuple(entries)))
    if not rows:
        return "needs runs of ggss on recognition of an attribute that is not the steered one"
    return Table(
        "recognition",
        "How often the attribute that is not steered is still recognised, in percent (higher is better)",
        "Model",
        tuple(
            Column(name, f"{named} recognition, {steered} steering")
            for steered, named in pairs
            for name in ("unsteered", "GGSS")
        ),
        tuple(rows),
        "At GGSS's best-avg-α.",
        (cells.RECOGNITION,),
    )


def alpha_dial(figures: Figures) -> Table | str:
    recognition = figures.recognition()
    columns = [
        (attribute, task)
        for attribute in figures.plan.attributes
        for task in dict.fromkeys([recognition.get(attribute), *figures.plan.steering[attribute].tasks])
        if task is not None
    ]
    rows, steered = [], []
    for model in figures.results.models:
        for alpha in (None, *figures.results.alphas):
            entries = tuple(_at(figures, model, alpha, attribute, task) for attribute, task in columns)
            chosen = " (best-avg-α)" if alpha is not None and alpha == figures.alpha(model, cells.GGSS) else ""
            rows.append(
                Row("0 (unsteered)" if alpha is None else f"{alpha:g}{chosen}", entries, cells.model_title(model))
            )
            steered += entries if alpha is not None else ()
    if not any(isinstance(cell, tuple) for cell in steered):
        return "needs runs of ggss on the bias tasks or on recognition at several strengths"
    return Table(
        "alpha_dial",
        "Recognition of the steered attribute (higher is better) against bias (lower is better), as α grows",
        "α",
        tuple(Column(_head(figures, task), parts=("", "change %")) for _, task in columns),
        tuple(rows),
        "GGSS. Recognition and bias are both measured under the steering of the attribute that they are about: the "
        "more of it is removed, the less it can be named.",
        (cells.INTERVALS, cells.RECOGNITION, cells.DEGENERATE),
    )


def _head(figures: Figures, task: str) -> str:
    return figures.label(task) + (" ↑" if figures.display(task).better == "higher" else " ↓")


def _at(figures: Figures, model: str, alpha: float | None, attribute: str, task: str) -> Entry:
    if alpha is None:
        return cells.value(figures.unsteered(model, task))
    return cells.measured(figures.comparison(model, cells.GGSS, task, alpha, attribute))


def hyperparameters(figures: Figures) -> Table | str:
    if not cells.any_run(figures, [cells.GGSS], figures.results.models):
        return "needs runs of ggss on the bias tasks"
    defaults = registry.checked_options(registry.get(cells.GGSS), {}).model_dump()
    points = cells.grid_points(figures.results)
    explored = {
        "κ (gate sharpness)": ("kappa", sorted({kappa for kappa, _ in points})),
        "floor (of the gate)": ("floor", sorted({floor for _, floor in points})),
    }
    rows = [Row("α (strength)", ("best-avg-α", _listed(figures.results.alphas)))]
    for label, (option, values) in explored.items():
        rows.append(Row(label, (f"{defaults[option]:g}", _listed(values))))
    rows.append(Row("k (dimensions of the subspace)", ("values of the attribute less one", "fixed")))
    return Table(
        "hyperparameters",
        "The settings of GGSS and the values that were explored (neither direction is better)",
        "Setting",
        (Column("default"), Column("explored")),
        tuple(rows),
        "κ, floor and k are the same in all tables but sensitivity; α is chosen once for each model.",
    )


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
