"""Content hashes of everything that a fit depends on, besides its model."""

from ggss import hashing
from ggss.methods import registry
from ggss.study.plan import MethodPlan, Plan
from ggss.version import library_versions


def recipe(plan: Plan, model: str, label: str, attribute: str) -> str:
    """sha256 of what the plan says about a fit, without labels, alphas and tasks."""
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
    return hashing.of(said + _prompted(method))


def steering(plan: Plan, label: str, attribute: str, data: str) -> str:
    """sha256 of all that decides how answers are steered: the method and what it is fitted with, on which pictures.

    Not of the fitted numbers: their last digits differ between processors, and a study may continue on another one.
    data: the content hash of the discovery pictures.
    """
    method, versions = plan.method(label), library_versions()
    decides = [method.name, method.options, registry.get(method.name).prompt_suffix]
    if method.steers:
        decides += [method.sites, attribute, data, plan.seed, *_prompted(method)]
    else:
        del versions["ggss"]
    return hashing.of([decides, versions])


def _prompted(method: MethodPlan) -> list[str]:
    """Nothing if discovery has no prompt: then the hashes are those of plans that have never heard of prompts."""
    return [] if method.prompt is None else [method.prompt]
