"""Content hashes of everything that the answers of a plan depend on, besides the model.

Code is a part of it: that of ggss itself, and of each plug-in that has a say. A study that was begun before code was
recorded has none, and its hashes are those that it was begun with.
"""

from collections.abc import Iterable, Mapping

from ggss import hashing, probes
from ggss.methods import registry
from ggss.methods.registry import METHODS
from ggss.models.families import FAMILIES
from ggss.probes.base import PROBES
from ggss.probes.suites import SUITES
from ggss.study.plan import MethodPlan, Plan, PlanItems
from ggss.version import ggss_code, library_versions

Code = Mapping[str, str]
NOT_RECORDED: Code = {}


def code(plan: Plan) -> dict[str, str]:
    """The code that decides the answers of a plan as it is now: digests by name."""
    found = ggss_code()
    for method in plan.methods:
        found |= _of_method(method)
    for task in plan.tasks:
        found |= _of_task(plan, task)
    return found


def recipe(plan: Plan, model: str, label: str, attribute: str, known: Code = NOT_RECORDED) -> str:
    """sha256 of what the plan says about a fit, without labels, alphas and tasks. known: the code, from `code`."""
    method = plan.method(label)
    discovery = [plan.discovery, sorted(plan.steering[attribute].discover_on)] if attribute else []
    said = [
        plan.model(model).model_dump(exclude={"control"}),
        method.name,
        method.options,
        method.sites,
        attribute,
        discovery,
        plan.seed,
    ]
    return hashing.of(
        said + _prompted(method) + _pooled(plan, method) + _capped(plan) + _chosen(known, _code_of_fit(method))
    )


def steering(plan: Plan, label: str, attribute: str, data: str, known: Code = NOT_RECORDED) -> str:
    """sha256 of all that decides how answers are steered: the method and what it is fitted with, on which pictures.

    Not of the fitted numbers: their last digits differ between CPUs, and a study may continue on another one.
    data: the content hash of the discovery pictures. known: the code, from `code`.
    """
    method, versions = plan.method(label), library_versions()
    decides = [method.name, method.options, registry.get(method.name).prompt_suffix]
    if method.steers:
        decides += [method.sites, attribute, data, plan.seed, *_prompted(method), *_pooled(plan, method)]
    if known or not method.steers:
        del versions["ggss"]
    return hashing.of([decides, versions, *_chosen(known, _code_of_fit(method))])


def asked(items: PlanItems, task: str, known: Code = NOT_RECORDED) -> str:
    """sha256 of all that a task asks, of the longest answer, and of the code of plug-ins that ask it."""
    if not known:
        return items.hash(task)
    return hashing.of([items.hash(task), items.max_new_tokens(task), *_chosen(known, _of_task(items.plan, task))])


def _code_of_fit(method: MethodPlan) -> list[str]:
    """The names of the code that a method's answers depend on."""
    answering, fitting = ggss_code()
    return [answering, *([fitting] if method.steers else []), *_of_method(method)]


def _of_method(method: MethodPlan) -> dict[str, str]:
    """The plug-in that registered a method, and all that registered families: any model may be of one of these."""
    found = METHODS.code(method.name)
    for family in FAMILIES.names():
        found = found | FAMILIES.code(family)
    return found


def _of_task(plan: Plan, task: str) -> dict[str, str]:
    """The plug-ins that registered a task's probe and the suite that asks it."""
    probe = PROBES.code(probes.get(task).name)
    return probe if task in plan.benchmarks else probe | SUITES.code(plan.suite.name)


def _chosen(known: Code, names: Iterable[str]) -> list[dict[str, str]]:
    """Nothing for a study that was begun before code was recorded."""
    return [{name: known[name] for name in names}] if known else []


def _capped(plan: Plan) -> list[dict[str, int]]:
    """Nothing if pictures are as large as their files."""
    return [] if plan.max_side is None else [{"max_side": plan.max_side}]


def _pooled(plan: Plan, method: MethodPlan) -> list[dict[str, str]]:
    """Nothing if a pooled row is the mean of the kept tokens."""
    pooling = method.pooling or plan.pooling
    return [] if pooling == "kept" else [{"pooling": pooling}]


def _prompted(method: MethodPlan) -> list[str]:
    """Nothing if discovery has no prompt: then the hashes are those of plans that have never heard of prompts."""
    return [] if method.prompt is None else [method.prompt]
