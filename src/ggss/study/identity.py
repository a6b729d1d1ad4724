"""Content hashes: which weights answered, and what a plan says of a fit."""

import hashlib
import json
from typing import TYPE_CHECKING, Any

from ggss import hashing
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
    """sha256 of what the plan says of a fit; labels, alphas and tasks are no part of it."""
    method = plan.method(label)
    discovery = [plan.discovery, sorted(plan.steering[attribute].discover_on)] if attribute else []
    said = [
        plan.model(model).model_dump(),
        method.name,
        method.options,
        method.sites,
        attribute,
        discovery,
        plan.seed,
    ]
    return of(said)


def made_with(weights: str, data: str) -> str:
    """sha256 of what a fit depends on besides its recipe: the weights, the pictures, the libraries."""
    return of([weights, data, library_versions()])


def of(value: Any) -> str:
    """sha256 of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
