"""The modules at the sites, and the part of a model that computes what they return."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from ggss.errors import InputError


def resolve(model: nn.Module, path: str) -> nn.Module:
    """The module at a site's path."""
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise InputError(
            f"a {type(model).__name__} has no module {path!r} ({error}): pass the model as transformers loads it"
        ) from error


def image_encoder(model: Any) -> Callable[..., Any]:
    """The method that runs the vision tower and projector; InputError for a model that has none."""
    encode = getattr(model.base_model, "get_image_features", None)
    if encode is None:
        raise InputError(
            f"this {model.config.model_type} model does not give images to its text model as tokens (it has no "
            "get_image_features), so there is no site to steer: use a model that does, such as LLaVA or Qwen-VL"
        )
    return encode


def image_features(model: Any, inputs: Mapping[str, Any]) -> Any:
    """Run the vision tower and projector, never the text model, on what the image processor returned.

    As `generate` does, only those of the inputs are passed that the model asks for.
    """
    encode = image_encoder(model)
    accepted = inspect.signature(encode).parameters
    return encode(**{name: value for name, value in inputs.items() if name in accepted}, return_dict=True)
