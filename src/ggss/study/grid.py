"""The grid of a plan: its cells, the units of work, their order, and hashes of what determines their answers.

The hashes cover everything but the model. They include code: that of ggss, and of each plug-in that a method or a
task uses. For a study that was begun before code was recorded they do not, so that they stay the hashes that it was
begun with.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ggss import hashing, probes
from ggss.errors import InputError
from ggss.methods import registry
from ggss.methods.registry import METHODS, UNSTEERED
from ggss.models.families import FAMILIES
from ggss.probes.base import PROBES, attribute_named
from ggss.probes.suites import SUITES
from ggss.study.plan import MethodPlan, Plan, PlanItems
from ggss.version import ggss_code, library_versions

Code = Mapping[str, str]
NOT_RECORDED: Code = {}


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
    """What a method is fitted for, `race x gender` among them; one empty name if it does not steer."""
    return (*plan.attributes, *joint(plan, method)) if method.steers else ("",)


def joint(plan: Plan, method: MethodPlan) -> list[str]:
    """The steerings of several attributes at once that a method is run for."""
    limits = {name: plan.steering[name].methods for name in plan.joint}
    return [name for name, labels in limits.items() if method.steers and (labels is None or method.label in labels)]


def joint_alphas(plan: Plan, method: MethodPlan, name: str) -> list[float]:
    """The strengths at which a method is run for the steering of several attributes."""
    chosen = plan.steering[name].alphas
    return [float(alpha) for alpha in method.alphas or plan.alphas if chosen is None or alpha in chosen]


def cell(plan: Plan, model: str, label: str, task: str, alpha: float | None, attribute: str | None) -> Cell:
    """The cell with these names. attribute: None is the one of `attribute_of`."""
    if not plan.method(label).steers:
        return Cell(model, label, "", 0.0, task)
    if alpha is None:
        raise InputError(f"{label!r} was run at several strengths: say which alpha")
    return Cell(model, label, attribute or attribute_of(plan, task), float(alpha), task)


def attribute_of(plan: Plan, task: str) -> str:
    """The attribute whose steering a task is measured under by default. InputError if there are several."""
    for attribute in plan.attributes:
        if task in plan.steering[attribute].tasks:
            return attribute
    if (named := attribute_named(task)) in plan.attributes:
        return named
    raise InputError(f"{task} was measured under {' and '.join(plan.attributes)} steering: say which attribute")


def sweep(plan: Plan, unit: Unit) -> Iterator[Cell]:
    """The cells that do not depend on the chosen alpha; each steering is finished before the next begins."""
    method = plan.method(unit.method)
    everywhere = _measured(plan, method, "all")
    if not method.steers:
        tasks = [*plan.bias_tasks, *everywhere, *_measured(plan, method, "best")]
        yield from (Cell(*unit, "", 0.0, task) for task in _limited(method, tasks))
        return
    for attribute in plan.attributes:
        for alpha in plan.alphas if method.alphas is None else method.alphas:
            for task in _limited(method, [*plan.steering[attribute].tasks, *everywhere]):
                yield Cell(*unit, attribute, float(alpha), task)
    for attribute in joint(plan, method):
        for alpha in joint_alphas(plan, method, attribute):
            for task in _limited(method, plan.steering[attribute].tasks):
                yield Cell(*unit, attribute, alpha, task)


def at_best(plan: Plan, unit: Unit, alpha: float) -> Iterator[Cell]:
    """The cells that are measured at the chosen alpha only."""
    method = plan.method(unit.method)
    if method.steers:
        everywhere = _measured(plan, method, "all")
        tasks = [task for task in _measured(plan, method, "best") if task not in everywhere]
        for attribute in plan.attributes:
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


def code_digests(plan: Plan) -> dict[str, str]:
    """Digests of the code that determines a plan's answers, as it is now, by name."""
    digests = ggss_code()
    for method in plan.methods:
        digests |= _of_method(method)
    for task in plan.tasks:
        digests |= _of_task(plan, task)
    return digests


def recipe(plan: Plan, model: str, label: str, attribute: str, known: Code = NOT_RECORDED) -> str:
    """sha256 of what the plan says about a fit, without labels, alphas and tasks. known: from `code_digests`."""
    method = plan.method(label)
    discovery = [plan.discovery, sorted(plan.steering[attribute].discover_on)] if attribute else []
    if discovery and plan.held_out:
        discovery.append({column: sorted(values) for column, values in plan.held_out.items()})
    settings = [
        plan.model(model).model_dump(exclude={"control"}),
        method.name,
        method.options,
        method.sites,
        attribute,
        discovery,
        plan.seed,
    ]
    return hashing.of(
        settings
        + _prompted(method)
        + _pooled(plan, method)
        + _capped(plan)
        + _compared(plan)
        + _chosen(known, _code_of_fit(method))
    )


def steering_hash(plan: Plan, label: str, attribute: str, data: str, known: Code = NOT_RECORDED) -> str:
    """sha256 of all that determines how answers are steered: the method, its options, the pictures it is fitted on.

    Not of the fitted numbers: their last digits differ between CPUs, and a study may continue on another one.
    data: the content hash of the discovery pictures. known: what `code_digests` returns.
    """
    method, versions = plan.method(label), library_versions()
    decides = [method.name, method.options, registry.get(method.name).prompt_suffix]
    if method.steers:
        decides += [method.sites, attribute, data, plan.seed, *_prompted(method), *_pooled(plan, method)]
    if known or not method.steers:
        del versions["ggss"]
    return hashing.of([decides, versions, *_chosen(known, _code_of_fit(method))])


def questions_hash(items: PlanItems, task: str, known: Code = NOT_RECORDED) -> str:
    """sha256 of all questions of a task, of the longest answer, and of the code of plug-ins that ask them."""
    if not known:
        return items.hash(task)
    return hashing.of([items.hash(task), items.max_new_tokens(task), *_chosen(known, _of_task(items.plan, task))])


def _code_of_fit(method: MethodPlan) -> list[str]:
    """The names of the code that a method's answers depend on."""
    answering, fitting = ggss_code()
    return [answering, *([fitting] if method.steers else []), *_of_method(method)]


def _of_method(method: MethodPlan) -> dict[str, str]:
    """The code of the plug-in that registered a method, and of all that registered families, as any may be used."""
    digests = METHODS.code(method.name)
    for family in FAMILIES.names():
        digests = digests | FAMILIES.code(family)
    return digests


def _of_task(plan: Plan, task: str) -> dict[str, str]:
    """The code of the plug-ins that registered a task's probe and the suite that asks it."""
    probe = PROBES.code(probes.get(task).name)
    return probe if task in plan.benchmarks else probe | SUITES.code(plan.suite.name)


def _chosen(known: Code, names: Iterable[str]) -> list[dict[str, str]]:
    """The named digests, in a list; an empty list for a study that was begun before code was recorded."""
    return [{name: known[name] for name in names}] if known else []


def _capped(plan: Plan) -> list[dict[str, int]]:
    """Nothing if pictures are as large as their files."""
    return [] if plan.max_side is None else [{"max_side": plan.max_side}]


def _compared(plan: Plan) -> list[dict[str, list[str]]]:
    """Nothing for a complete counterfactual set whose attributes are classes."""
    unpaired = {} if plan.unpaired is None else {"unpaired": sorted(plan.unpaired)}
    ordered = {"ordered": sorted(plan.ordered)} if plan.ordered else {}
    return [unpaired | ordered] if unpaired or ordered else []


def _pooled(plan: Plan, method: MethodPlan) -> list[dict[str, str]]:
    """Nothing if a pooled row is the mean of the kept tokens."""
    pooling = method.pooling or plan.pooling
    return [] if pooling == "kept" else [{"pooling": pooling}]


def _prompted(method: MethodPlan) -> list[str]:
    """The discovery prompt, in a list; an empty list without one, so that the hashes of older plans stay valid."""
    return [] if method.prompt is None else [method.prompt]
