"""The names of sites, and the modules at them.

`projection-mlp1` and `projection-mlp2` are the outputs of the vision-to-language projector's two Linears. Inside the
vision tower and the text model is a site for each block and layer, counted from 0: `vision-block3`, `lm-layer2`. Such
a site is the output of the block or layer, before anything else is added to it. Its module is found by what
transformers says of every model: its image encoder, its decoder, and the numbers of layers in their configs.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ggss.errors import InputError

if TYPE_CHECKING:  # the names of sites are needed where torch is not
    from torch import nn

MLP1, MLP2 = "projection-mlp1", "projection-mlp2"
VISION_BLOCK, LM_LAYER = "vision-block", "lm-layer"
_DEPTHS = ("depth", "num_hidden_layers", "num_layers")  # the names of the number of layers in configs


def number_of(site: str, kind: str) -> int | None:
    """3 for `vision-block3` if that is the kind; None for another site."""
    number = site.removeprefix(kind)
    if number == site or not (number.isascii() and number.isdecimal()):
        return None
    return int(number) if str(int(number)) == number else None


def in_text(site: str) -> bool:
    """Whether a site is inside the text model. Only the rows of image tokens are steered there."""
    return number_of(site, LM_LAYER) is not None


def in_tower(site: str) -> bool:
    """Whether a site is inside the vision tower. Encoded features do not have its rows."""
    return number_of(site, VISION_BLOCK) is not None


def resolve(model: "nn.Module", path: str) -> "nn.Module":
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
    """Run the vision tower and projector, not the text model, on what the image processor returned.

    As in `generate`, only those inputs are passed on that the model accepts.
    """
    encode = image_encoder(model)
    accepted = inspect.signature(encode).parameters
    return encode(**{name: value for name, value in inputs.items() if name in accepted}, return_dict=True)


def layer_counts(config: Any) -> dict[str, int]:
    """How many sites of each kind a model of this config has, by kind; kinds without sites are left out.

    Blocks whose output the projector never gets do not count, because steering them changes no answer: LLaVA's
    `vision_feature_layer` is often the last but one.
    """
    counts = {LM_LAYER: _depth(config.get_text_config()), VISION_BLOCK: _used_blocks(config)}
    return {kind: count for kind, count in counts.items() if count}


def check_layer(config: Any, site: str) -> None:
    """InputError if a model of this config has no such site."""
    counts = layer_counts(config)
    for kind in (LM_LAYER, VISION_BLOCK):
        number = number_of(site, kind)
        if number is not None and number >= counts.get(kind, 0):
            existing = f"{kind}0 to {kind}{counts[kind] - 1}" if kind in counts else f"no {kind} sites"
            raise InputError(f"a {config.model_type} model of this config has no site {site!r}: it has {existing}")


def is_layer(site: str) -> bool:
    """Whether a site is inside the vision tower or the text model."""
    return any(number_of(site, kind) is not None for kind in (LM_LAYER, VISION_BLOCK))


def layer_path(model: Any, site: str) -> str:
    """The path of a layer's or block's module; InputError if the model has no such site."""
    check_layer(model.config, site)
    kind = next(kind for kind in (LM_LAYER, VISION_BLOCK) if number_of(site, kind) is not None)
    text = model.get_decoder()
    owner = text if kind == LM_LAYER else model.get_encoder(modality="image")
    depth = _depth(model.config.get_text_config() if kind == LM_LAYER else _vision(model.config))
    separate = owner is not model and (kind == LM_LAYER or owner is not text)
    lists = [path for path, module in model.named_modules() if _is_stack(module, depth)] if separate else []
    start = next((path for path, module in model.named_modules() if module is owner), "")
    stacks = [path for path in lists if path.startswith(f"{start}.")]
    if not stacks:
        raise InputError(
            f"no list of {depth} modules was found in the {'text model' if kind == LM_LAYER else 'vision tower'} of "
            f"this {model.config.model_type} model, so it has no site {site!r}: steer its projector"
        )
    return f"{stacks[0]}.{number_of(site, kind)}"


def layer_width(config: Any, site: str) -> int | None:
    """The width of a site's rows; None if the config does not say it."""
    part = config.get_text_config() if number_of(site, LM_LAYER) is not None else _vision(config)
    width = getattr(part, "hidden_size", None)
    return width if isinstance(width, int) else None


def _is_stack(module: "nn.Module", depth: int) -> bool:
    from torch import nn

    return isinstance(module, nn.ModuleList) and len(module) == depth


def _vision(config: Any) -> Any:
    return getattr(config, "vision_config", None)


def _depth(config: Any) -> int:
    return next((depth for name in _DEPTHS if isinstance(depth := getattr(config, name, None), int)), 0)


def _used_blocks(config: Any) -> int:
    depth, layers = _depth(_vision(config)), getattr(config, "vision_feature_layer", None)
    if not depth or layers is None:
        return depth
    # Entry 0 of the hidden states is the input of block 0.
    numbers = [layers] if isinstance(layers, int) else layers
    return min(depth, max((number if number >= 0 else depth + 1 + number for number in numbers), default=depth))
