"""Content hashes: which weights answered, which steerer steered, and what a plan says of a fit."""

import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch

from ggss.study.plan import Plan
from ggss.version import library_versions

if TYPE_CHECKING:
    from torch import Tensor

    from ggss.models import Vlm
    from ggss.steerer import Steerer


def weights_hash(vlm: "Vlm") -> str:
    """sha256 of all that decides a model's answers: every weight, the text model's too, and how prompts and images
    are prepared."""
    digest = hashlib.sha256()
    images = vlm.processor.image_processor.to_dict()
    prepared = [vlm.backend, getattr(vlm.processor, "chat_template", None), images]
    digest.update(json.dumps(prepared, sort_keys=True, default=str).encode())
    for name, tensor in sorted(vlm.model.state_dict().items()):
        _add(digest, name, tensor)
    return digest.hexdigest()


def steerer_hash(steerer: "Steerer") -> str:
    """sha256 of all that decides what a steerer does: its operators and what it appends to prompts."""
    digest = hashlib.sha256(steerer.prompt_suffix.encode())
    for site, operator in sorted(steerer.operators.items()):
        digest.update(json.dumps([site, operator.kind, operator.scalars()], sort_keys=True).encode())
        for name, tensor in sorted(operator.tensors().items()):
            _add(digest, name, tensor)
        for name, stream in sorted(operator.streams().items()):
            for tensor in stream:
                _add(digest, name, tensor)
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


def _add(digest: Any, name: str, tensor: "Tensor") -> None:
    values = tensor.detach().cpu().contiguous()
    digest.update(f"{name} {values.dtype} {list(values.shape)}\n".encode())
    digest.update(values.view(-1).view(torch.uint8).numpy().data)
