"""Wrappers around a transformers model and changes inside it: torch.compile, PEFT's adapters, accelerate's hooks,
and steerers that `ggss export` has folded into its weights."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from ggss.errors import InputError

COMPILED = "_orig_mod"  # the attribute of torch.compile's wrapper that is the module
EXPORTED = "ggss_export"  # in a model's config: the steerers in its weights
APPROXIMATED = "approximation"  # set for a steerer whose weights hold the nearest affine map
_BASE = ".base_layer"  # the attribute of an adapter that is the layer it replaces


def unwrapped(model: Any) -> Any:
    """The transformers model inside the wrappers of torch.compile and PEFT.

    Adapters such as LoRA's are layers of that model and act in it. Hooks on its modules fire whichever wrapper is
    called. InputError if there is no transformers model inside.
    """
    while True:
        parts = getattr(model, "_modules", {})
        if COMPILED in parts:
            model = parts[COMPILED]
        elif hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
            model = model.get_base_model()
        else:
            break
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise InputError(
            f"a {type(model).__name__} is not a transformers model: pass the model as transformers loads it"
        )
    return model


def check_usable(model: Any) -> None:
    """InputError for a model that cannot answer without its wrapper: with PEFT's learned prompts, or with weights
    that accelerate loads too late."""
    while COMPILED in getattr(model, "_modules", {}):
        model = model._modules[COMPILED]
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise InputError(
            "this PEFT model puts learned prompts before the text, which only its wrapper does: "
            "ggss answers with the model inside, so use an adapter that changes layers, such as LoRA"
        )

    full = unwrapped(model)
    base = getattr(full, "base_model", full)
    if hasattr(base, "_hf_hook") and (
        offloaded := [name for name, weight in base.named_parameters(recurse=False) if weight.is_meta]
    ):
        raise InputError(
            f"the weight {offloaded[0]} of this {type(full).__name__} is offloaded, and transformers reads it before "
            "the module that has it is called: load the model with a device_map that keeps it in memory"
        )


def tuned_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers that PEFT has replaced, by their path."""
    peft = sys.modules.get("peft.tuners.tuners_utils")
    if peft is not None:
        yield from ((path, layer) for path, layer in model.named_modules() if isinstance(layer, peft.BaseTunerLayer))


def plain_weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's weights by the names they have without wrappers. Inactive adapters are left out.

    Weights that accelerate has offloaded to memory or disk are loaded.
    """
    state = model.state_dict(keep_vars=True)
    weights = {name.replace(f"{COMPILED}.", ""): weight for name, weight in state.items()}
    if opaque := [name for name, weight in weights.items() if not isinstance(weight, Tensor)]:
        raise InputError(
            f"the weights of this {type(model).__name__} cannot be read: {opaque[0]} is not a tensor (torch's "
            "quantize_dynamic packs weights in this way). Use the model before that, or load it with bitsandbytes"
        )
    for path, layer in tuned_layers(model):
        if active_adapters(layer):
            continue
        start = f"{path.replace(f'{COMPILED}.', '')}."
        for name in [name for name in weights if name.startswith(start)]:
            weight = weights.pop(name)
            if name.startswith(f"{start[:-1]}{_BASE}."):
                weights[name.replace(_BASE, "", 1)] = weight
    if absent := [name for name, weight in weights.items() if weight.is_meta]:
        offloaded = dict(_offloaded(model))
        weights |= {name: offloaded[name] for name in absent if name in offloaded}
    return weights


def active_adapters(layer: Any) -> list[str]:
    """The adapters that change a layer's output now, each with its scaling; merged ones included."""
    names = list(layer.merged_adapters) or ([] if layer.disable_adapters else list(layer.active_adapters))
    scaling = getattr(layer, "scaling", {})
    present = {name for attribute in layer.adapter_layer_names for name in getattr(layer, attribute, {})}
    return [f"{name} {scaling.get(name, 1)}" for name in names if name in present]


def _offloaded(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights that accelerate's hooks load into a module when it is called."""
    for path, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        for part in getattr(hook, "hooks", (hook,)):
            weights = getattr(part, "weights_map", None)
            if weights is not None:
                for name, _ in module.named_parameters(recurse=bool(getattr(part, "place_submodules", False))):
                    yield f"{path}.{name}" if path else name, weights[name]


def execution_device(model: Any) -> Any:
    """The device of the model's inputs: its own, or where accelerate computes if the weights are offloaded."""
    if model.device.type != "meta":
        return model.device
    devices = (getattr(getattr(module, "_hf_hook", None), "execution_device", None) for module in model.modules())
    return next((device for device in devices if device is not None), "cpu")


def exported_steering(model: Any) -> list[dict[str, Any]]:
    """The steerers in a model's weights, as `ggss export` wrote them into its config; empty for any other model."""
    return noted_steering(vars(model.config))


def noted_steering(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The same from a `config.json`."""
    noted = config.get(EXPORTED)
    return [steerer for steerer in noted if isinstance(steerer, dict)] if isinstance(noted, list) else []


def exported_words(config: Mapping[str, Any]) -> str:
    """The steerers in a model's weights, in words such as `race by pace at alpha 1.0`. config: its `config.json`."""
    return "; ".join(
        f"{steerer.get('attribute')} by {steerer.get('method')} at alpha {steerer.get('alpha')}"
        f"{', an approximation' if steerer.get(APPROXIMATED) else ''}"
        for steerer in noted_steering(config)
    )
