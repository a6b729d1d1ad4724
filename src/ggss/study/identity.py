"""Content hashes of a model's weights and of everything that a fit depends on."""

import hashlib
import json
from typing import TYPE_CHECKING, Any

from ggss import hashing
from ggss.methods import registry
from ggss.study.plan import Plan
from ggss.version import library_versions

if TYPE_CHECKING:
    from ggss.models import Vlm


def weights_hash(vlm: "Vlm") -> str:
    """sha256 of all that decides a model's answers: every weight, the text model's too, and how prompts and images
    are prepared."""
    digest = hashlib.sha256()
    images = vlm.processor.image_processor.to_dict()
    prepared = [vlm.backend, getattr(vlm.processor, "chat_template", None), images]
    digest.update(json.dumps(prepared, sort_keys=True, default=str).encode())
    hashing.add(digest, vlm.model.state_dict())
    return digest.hexdigest()


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
    return of(said)


def steering(plan: Plan, label: str, attribute: str, data: str) -> str:
    """sha256 of all that decides how answers are steered: the method and what it is fitted with, on which pictures.

    Not of the fitted numbers: their last digits differ between processors, and a study may continue on another one.
    data: the content hash of the discovery pictures.
    """
    method, versions = plan.method(label), library_versions()
    decides = [method.name, method.options, registry.get(method.name).prompt_suffix]
    if method.steers:
        decides += [method.sites, attribute, data, plan.seed]
    else:
        del versions["ggss"]
    return of([decides, versions])


def of(value: Any) -> str:
    """sha256 of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
