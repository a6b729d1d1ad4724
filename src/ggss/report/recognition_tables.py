"""Debiased or blinded? Recognition of the attribute not steered, and the dial between bias and recognition."""

from ggss.report import cells, names
from ggss.report.figures import Figures
from ggss.report.rendering import Cell, Column, Row, Table


def _probe(attribute: str) -> str:
    return f"recognition-{attribute}"


def other_attribute(figures: Figures) -> Table | str:
    models, attributes = figures.results.models, list(figures.results.plan.steering)
    pairs = [
        (steered, asked)
        for steered in attributes
        for asked in ("race", "gender")
        if asked != steered and _probe(asked) in figures.results.plan.tasks
    ]
    rows = []
    for model in models:
        shown: list[Cell] = []
        for steered, asked in pairs:
            shown.append(cells.value(figures, figures.run(model, names.UNSTEERED, _probe(asked), None)))
            alpha = figures.alpha(model, names.GGSS)
            shown.append(cells.value(figures, figures.run(model, names.GGSS, _probe(asked), alpha, steered)))
        if any(isinstance(cell, tuple) for cell in shown[1::2]):
            rows.append(Row(names.model(model), tuple(shown)))
    if not rows:
        return "needs runs of ggss on recognition-race or recognition-gender"
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
    asked = [
        (attribute, task)
        for attribute, steering in figures.results.plan.steering.items()
        for task in (_probe(attribute), *steering.tasks)
        if task in figures.results.plan.tasks
    ]
    rows, steered = [], []
    for model in figures.results.models:
        for alpha in (None, *figures.results.alphas):
            shown = tuple(_dial(figures, model, alpha, attribute, task) for attribute, task in asked)
            chosen = " (best-avg-α)" if alpha is not None and alpha == figures.alpha(model, names.GGSS) else ""
            rows.append(Row("0 (unsteered)" if alpha is None else f"{alpha:g}{chosen}", shown, names.model(model)))
            steered += shown if alpha is not None else ()
    if not any(isinstance(cell, tuple) for cell in steered):
        return "needs runs of ggss on the bias tasks or on recognition at several strengths"
    return Table(
        "alpha_dial",
        "Recognition of the steered attribute (higher is better) against bias (lower is better), as α grows",
        "α",
        tuple(
            Column(names.task(task).name + (" ↑" if task == _probe(attribute) else " ↓"), parts=("", "change %"))
            for attribute, task in asked
        ),
        tuple(rows),
        "GGSS. Recognition and bias are both measured under the steering of the attribute that they are about: the "
        "more of it is removed, the less it can be named.",
        (cells.INTERVALS, cells.RECOGNITION, cells.DEGENERATE),
    )


def _dial(figures: Figures, model: str, alpha: float | None, attribute: str, task: str) -> Cell:
    if alpha is None:
        return cells.value(figures, figures.run(model, names.UNSTEERED, task, None))
    return cells.measured(figures, figures.run(model, names.GGSS, task, alpha, attribute))
