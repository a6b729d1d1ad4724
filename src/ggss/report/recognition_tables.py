"""Recognition: the attribute that is not steered should stay recognisable, the steered one is lost as α grows."""

from ggss.report import cells, names
from ggss.report.figures import Figures
from ggss.report.rendering import Column, Entry, Row, Table


def other_attribute(figures: Figures) -> Table | str:
    tasks = figures.recognition()
    pairs = [(steered, asked) for steered in figures.plan.steering for asked in tasks if asked != steered]
    rows = []
    for model in figures.results.models:
        shown: list[Entry] = []
        for steered, asked in pairs:
            shown.append(cells.value(figures.unsteered(model, tasks[asked])))
            shown.append(cells.value(figures.at_best(model, names.GGSS, tasks[asked], steered)))
        if any(isinstance(cell, tuple) for cell in shown[1::2]):
            rows.append(Row(names.model(model), tuple(shown)))
    if not rows:
        return "needs runs of ggss on recognition of an attribute that is not the steered one"
    return Table(
        "recognition",
        "How often the attribute that is not steered is still recognised, in percent (higher is better)",
        "Model",
        tuple(
            Column(name, f"{asked} recognition, {steered} steering")
            for steered, asked in pairs
            for name in ("unsteered", "GGSS")
        ),
        tuple(rows),
        "At GGSS's best-avg-α.",
        (cells.RECOGNITION,),
    )


def alpha_dial(figures: Figures) -> Table | str:
    recognition = figures.recognition()
    asked = [
        (attribute, task)
        for attribute, steering in figures.plan.steering.items()
        for task in dict.fromkeys([recognition.get(attribute), *steering.tasks])
        if task is not None
    ]
    rows, steered = [], []
    for model in figures.results.models:
        for alpha in (None, *figures.results.alphas):
            shown = tuple(_at(figures, model, alpha, attribute, task) for attribute, task in asked)
            chosen = " (best-avg-α)" if alpha is not None and alpha == figures.alpha(model, names.GGSS) else ""
            rows.append(Row("0 (unsteered)" if alpha is None else f"{alpha:g}{chosen}", shown, names.model(model)))
            steered += shown if alpha is not None else ()
    if not any(isinstance(cell, tuple) for cell in steered):
        return "needs runs of ggss on the bias tasks or on recognition at several strengths"
    return Table(
        "alpha_dial",
        "Recognition of the steered attribute (higher is better) against bias (lower is better), as α grows",
        "α",
        tuple(Column(_head(figures, task), parts=("", "change %")) for _, task in asked),
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
    return cells.measured(figures.comparison(model, names.GGSS, task, alpha, attribute))
