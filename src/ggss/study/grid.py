"""The grid of a plan: its cells, the units of work, and the order in which they are run."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ggss.errors import InputError
from ggss.methods.registry import UNSTEERED
from ggss.probes.base import attribute_named
from ggss.study.plan import MethodPlan, Plan


class Cell(NamedTuple):
    """One task asked of one model under one steering; attribute "" and alpha 0 if nothing is steered."""

    model: str
    method: str
    attribute: str
    alpha: float
    task: str


class Unit(NamedTuple):
    """What a worker does at a time: a method on a model, for all attributes, alphas and tasks."""

    model: str
    method: str


def units(plan: Plan) -> list[Unit]:
    """All units, model by model. The unsteered baseline comes first: the others are compared with it."""
    first = [method for method in plan.methods if method.label == UNSTEERED]
    ordered = [*first, *(method for method in plan.methods if method.label != UNSTEERED)]
    return [
        Unit(model.name, method.label)
        for model in plan.models
        for method in ordered
        if method.models is None or model.name in method.models
    ]


def attributes(plan: Plan, method: MethodPlan) -> tuple[str, ...]:
    """The attributes for which a method is fitted; one empty name if it does not steer."""
    return tuple(plan.steering) if method.steers else ("",)


def cell(plan: Plan, model: str, label: str, task: str, alpha: float | None, attribute: str | None) -> Cell:
    """The cell with these names. attribute: None is the one of `attribute_of`."""
    if not plan.method(label).steers:
        return Cell(model, label, "", 0.0, task)
    if alpha is None:
        raise InputError(f"{label!r} was run at several strengths: say which alpha")
    return Cell(model, label, attribute or attribute_of(plan, task), float(alpha), task)


def attribute_of(plan: Plan, task: str) -> str:
    """The attribute whose steering a task is measured under by default. InputError if there are several."""
    for attribute, steering in plan.steering.items():
        if task in steering.tasks:
            return attribute
    if (named := attribute_named(task)) in plan.steering:
        return named
    raise InputError(f"{task} was measured under {' and '.join(plan.steering)} steering: say which attribute")


def sweep(plan: Plan, unit: Unit) -> Iterator[Cell]:
    """The cells that do not depend on the chosen alpha; each steering is finished before the next begins."""
    method = plan.method(unit.method)
    everywhere = _measured(plan, method, "all")
    if not method.steers:
        tasks = [*plan.bias_tasks, *everywhere, *_measured(plan, method, "best")]
        yield from (Cell(*unit, "", 0.0, task) for task in _limited(method, tasks))
        return
    for attribute, steering in plan.steering.items():
        for alpha in plan.alphas if method.alphas is None else method.alphas:
            for task in _limited(method, [*steering.tasks, *everywhere]):
                yield Cell(*unit, attribute, float(alpha), task)


def at_best(plan: Plan, unit: Unit, alpha: float) -> Iterator[Cell]:
    """The cells that are measured at the chosen alpha only."""
    method = plan.method(unit.method)
    if method.steers:
        everywhere = _measured(plan, method, "all")
        tasks = [task for task in _measured(plan, method, "best") if task not in everywhere]
        for attribute in plan.steering:
            yield from (Cell(*unit, attribute, float(alpha), task) for task in _limited(method, tasks))


def all_cells(plan: Plan) -> Iterator[Cell]:
    """Every cell that the plan may have, for every choice of alpha."""
    for unit in units(plan):
        method = plan.method(unit.method)
        alphas = plan.alphas if method.alphas is None else method.alphas
        chosen = (cell for alpha in alphas for cell in at_best(plan, unit, alpha))
        yield from dict.fromkeys([*sweep(plan, unit), *chosen])


def _measured(plan: Plan, method: MethodPlan, at: str) -> list[str]:
    """The tasks of the plan's `measures` for a method. at: "best" or "all"."""
    return [
        task
        for measure in plan.measures
        if measure.at == at and (measure.methods is None or method.label in measure.methods)
        for task in measure.tasks
    ]


def _limited(method: MethodPlan, tasks: Sequence[str]) -> list[str]:
    """The tasks, each once, that a method is not excluded from."""
    return [task for task in dict.fromkeys(tasks) if method.tasks is None or task in method.tasks]
