"""What is wrapped around a transformers model or put into it: torch.compile, PEFT's adapters, accelerate's hooks, and
steerers that `ggss export` has folded into its weights."""

import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from ggss.errors import InputError

COMPILED = "_orig_mod"  # the attribute under which torch.compile's wrapper has the module
EXPORTED = "ggss_export"  # in a model's config: the steerers in its weights
_BASE = ".base_layer"  # under which an adapter has the layer that it replaces


def unwrapped(model: Any) -> Any:
    """The transformers model inside the wrappers of torch.compile and PEFT.

    Adapters such as LoRA's are layers of that model and act in it. Hooks on its modules fire whichever wrapper is
    called. InputError if it is no transformers model.
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
            f"a {type(model).__name__} is no model of transformers: pass the model as transformers loads it"
        )
    return model


def check_usable(model: Any) -> None:
    """InputError for a model that cannot answer without what wraps it: PEFT's learned prompts, or weights that
    accelerate brings too late."""
    while COMPILED in getattr(model, "_modules", {}):
        model = model._modules[COMPILED]
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise InputError(
            "this PEFT model puts learned prompts before the text, which only its wrapper does: "
            "ggss answers with the model inside, so use an adapter that changes layers, such as LoRA"
        )

    inside = unwrapped(model)
    base = getattr(inside, "base_model", inside)
    if hasattr(base, "_hf_hook") and (
        late := [name for name, own in base.named_parameters(recurse=False) if own.is_meta]
    ):
        raise InputError(
            f"the weight {late[0]} of this {type(inside).__name__} is offloaded, and transformers reads it before "
            "the module that has it is called: load the model with a device_map that keeps it in memory"
        )


def tuned_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers that PEFT has replaced, by their path."""
    peft = sys.modules.get("peft.tuners.tuners_utils")
    if peft is not None:
        yield from ((name, own) for name, own in model.named_modules() if isinstance(own, peft.BaseTunerLayer))


def plain_weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's weights by the names they have without wrappers. Adapters that are off are left out.

    Values that accelerate keeps elsewhere (in memory or on disk, while the module has none) are fetched.
    """
    weights = {name.replace(f"{COMPILED}.", ""): own for name, own in model.state_dict(keep_vars=True).items()}
    if opaque := [name for name, own in weights.items() if not isinstance(own, Tensor)]:
        raise InputError(
            f"the weights of this {type(model).__name__} cannot be read: {opaque[0]} is no tensor (torch's "
            "quantize_dynamic packs weights so). Use the model before that, or load it with bitsandbytes"
        )
    for path, layer in tuned_layers(model):
        if active_adapters(layer):
            continue
        start = f"{path.replace(f'{COMPILED}.', '')}."
        for name in [name for name in weights if name.startswith(start)]:
            own = weights.pop(name)
            if name.startswith(f"{start[:-1]}{_BASE}."):
                weights[name.replace(_BASE, "", 1)] = own
    if absent := [name for name, own in weights.items() if own.is_meta]:
        elsewhere = dict(_offloaded(model))
        weights |= {name: elsewhere[name] for name in absent if name in elsewhere}
    return weights


def active_adapters(layer: Any) -> list[str]:
    """The adapters that change a layer's output now, each with its strength; those that are merged do too."""
    on = list(layer.merged_adapters) or ([] if layer.disable_adapters else list(layer.active_adapters))
    scaling = getattr(layer, "scaling", {})
    present = {name for own in layer.adapter_layer_names for name in getattr(layer, own, {})}
    return [f"{name} {scaling.get(name, 1)}" for name in on if name in present]


def _offloaded(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights that accelerate's hooks put into modules when these are called."""
    for path, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        for own in getattr(hook, "hooks", (hook,)):
            kept = getattr(own, "weights_map", None)
            if kept is not None:
                for name, _ in module.named_parameters(recurse=bool(getattr(own, "place_submodules", False))):
                    yield f"{path}.{name}" if path else name, kept[name]


def execution_device(model: Any) -> Any:
    """Where the model's inputs go: its device, or where accelerate computes if its weights are elsewhere."""
    if model.device.type != "meta":
        return model.device
    places = (getattr(getattr(module, "_hf_hook", None), "execution_device", None) for module in model.modules())
    return next((place for place in places if place is not None), "cpu")


def exported_steering(model: Any) -> list[dict[str, Any]]:
    """The steerers in a model's weights, as `ggss export` wrote them into its config; empty for any other model."""
    noted = getattr(model.config, EXPORTED, None)
    return [one for one in noted if isinstance(one, dict)] if isinstance(noted, list) else []


def exported_words(model: Any) -> str:
    """The same in words, such as `race by pace at alpha 1.0`."""
    return "; ".join(
        f"{one.get('attribute')} by {one.get('method')} at alpha {one.get('alpha')}"
        for one in exported_steering(model)
    )
