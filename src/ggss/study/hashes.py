"""Hashes of everything that determines the answers of a plan, besides the model.

They include code: that of ggss, and of each plug-in that a method or a task uses. For a study that was begun before
code was recorded they do not, so that they stay the hashes that it was begun with.
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
    """Digests of the code that determines a plan's answers, as it is now, by name."""
    digests = ggss_code()
    for method in plan.methods:
        digests |= _of_method(method)
    for task in plan.tasks:
        digests |= _of_task(plan, task)
    return digests


def recipe(plan: Plan, model: str, label: str, attribute: str, known: Code = NOT_RECORDED) -> str:
    """sha256 of what the plan says about a fit, without labels, alphas and tasks. known: what `code` returns."""
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
        settings + _prompted(method) + _pooled(plan, method) + _capped(plan) + _chosen(known, _code_of_fit(method))
    )


def steering(plan: Plan, label: str, attribute: str, data: str, known: Code = NOT_RECORDED) -> str:
    """sha256 of all that determines how answers are steered: the method, its options, the pictures it is fitted on.

    Not of the fitted numbers: their last digits differ between CPUs, and a study may continue on another one.
    data: the content hash of the discovery pictures. known: what `code` returns.
    """
    method, versions = plan.method(label), library_versions()
    decides = [method.name, method.options, registry.get(method.name).prompt_suffix]
    if method.steers:
        decides += [method.sites, attribute, data, plan.seed, *_prompted(method), *_pooled(plan, method)]
    if known or not method.steers:
        del versions["ggss"]
    return hashing.of([decides, versions, *_chosen(known, _code_of_fit(method))])


def questions(items: PlanItems, task: str, known: Code = NOT_RECORDED) -> str:
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


def _pooled(plan: Plan, method: MethodPlan) -> list[dict[str, str]]:
    """Nothing if a pooled row is the mean of the kept tokens."""
    pooling = method.pooling or plan.pooling
    return [] if pooling == "kept" else [{"pooling": pooling}]


def _prompted(method: MethodPlan) -> list[str]:
    """The discovery prompt, in a list; an empty list without one, so that the hashes of older plans stay valid."""
    return [] if method.prompt is None else [method.prompt]
