"""The modules at the sites: finding one in a model, and a fingerprint of the projectors that contain them."""

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from ggss import hashing
from ggss.errors import InputError
from ggss.models.families import Family
from ggss.models.site_search import family_of


def resolve(model: nn.Module, path: str) -> nn.Module:
    """The module at a site's path."""
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise InputError(
            f"a {type(model).__name__} has no module {path!r} ({error}): pass the model as transformers loads it"
        ) from error


def fingerprint(model: Any, family: Family | None = None) -> str:
    """SHA-256 over the names, shapes and values of the projectors' parameters: which model a steerer is for.

    The projectors are the parent modules of all the family's sites. Values are rounded to bfloat16, so that a model
    is recognised in whatever dtype it was loaded.
    """
    family = family or family_of(model)
    parents = {path.rpartition(".")[0] for path in family.site_paths(model.config).values()}
    named = {n: p for parent in parents for n, p in resolve(model, parent).named_parameters(prefix=parent)}
    return _digest({name: parameter.to(torch.bfloat16) for name, parameter in named.items()})


def vision_fingerprint(model: nn.Module) -> str:
    """SHA-256 over all parameters outside the text model, in their own dtype: equal means equal image features."""
    language = ("language_model.", "lm_head.")
    return _digest({n: p for n, p in model.named_parameters() if not any(part in n for part in language)})


def _digest(parameters: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    hashing.add(digest, parameters)
    return digest.hexdigest()
