"""Finding the site of a model of an unknown family, by hooks on the model while it encodes an image.

The output of every Linear is recorded while the image features are computed. The site is the last one called whose
output rows are found, bit for bit, among the image tokens that the text model gets: nothing after it changes them.
(The last Linear in the order of modules would be wrong: in Qwen3-VL that is a deepstack merger.)
"""

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from ggss.errors import InputError
from ggss.models.eager import eager
from ggss.models.families import Family, Inputs, known_family
from ggss.models.sites import MLP2


def family_of(model: Any, inputs: Inputs | None = None) -> Family:
    """The family of a transformers model: a registered one, or one made from what the model does with `inputs`.

    `inputs` are an image processor's outputs for one image. Without them a model of an unknown family gets an image
    of noise in the size of its vision config, which works for models that take only `pixel_values`.
    """
    return known_family(model.config) or _discover(model, inputs or _noise(model))


def find_site(model: Any, inputs: Inputs) -> str:
    """The module path of the site, found by running the model; InputError lists the candidates if there is none."""
    return _watch(model, inputs)[0]


def _discover(model: Any, inputs: Inputs) -> Family:
    path, rows, pooled = _watch(model, inputs)
    kind = model.config.model_type
    # Each picture gives one block of rows, and there is no input that could give the next picture another size.
    only_pixels = set(inputs) == {"pixel_values"} and inputs["pixel_values"].ndim == 4
    alike = only_pixels and torch.equal(torch.cat(pooled), rows)

    def rows_per_image(_: Any, inputs: Inputs) -> list[int]:
        if not alike:
            raise InputError(
                f"it is not known which rows of {path!r} belong to which image of this {kind} model: "
                "use one image at a time, or register a ggss.models.Family with rows_per_image"
            )
        return [len(rows)] * len(inputs["pixel_values"])

    return Family(
        kind,
        recognises=lambda config: config.model_type == kind,
        site_paths=lambda _: {MLP2: path},
        rows_per_image=rows_per_image,
        batched=alike,
    )


def _noise(model: Any) -> dict[str, Tensor]:
    side = getattr(getattr(model.config, "vision_config", None), "image_size", None)
    if not isinstance(side, int):
        raise InputError(
            f"the site of this {model.config.model_type} model is not known, and neither is its image size: "
            "load it with load_vlm, or register a ggss.models.Family for it"
        )
    noise = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    return {"pixel_values": noise.to(model.device, model.dtype)}


@eager()
@torch.inference_mode()
def _watch(model: Any, inputs: Inputs) -> tuple[str, Tensor, list[Tensor]]:
    """The site's path and rows, and the image tokens."""
    encode = getattr(model.base_model, "get_image_features", None)
    if encode is None:
        raise InputError(f"this {model.config.model_type} model has no get_image_features: ggss cannot steer it")
    called: deque[tuple[str, Tensor]] = deque(maxlen=32)  # the projector is last; outputs of the tower are dropped

    def note(name: str, output: Any) -> None:
        called.append((name, output.detach()))

    hooks = [
        module.register_forward_hook(lambda _, __, output, name=name: note(name, output))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        pooled = encode(**inputs, return_dict=True).pooler_output
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise InputError(
            f"this {model.config.model_type} model could not encode the image it was shown ({error})"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    pooled = [tokens.flatten(0, -2) for tokens in ([pooled] if isinstance(pooled, Tensor) else pooled)]
    tokens = {row for image in pooled for row in _row_bytes(image)}
    for name, output in reversed(called):
        rows = output.flatten(0, -2)
        if rows.shape[-1] == pooled[0].shape[-1] and not tokens.isdisjoint(_row_bytes(rows)):
            return name, rows, pooled
    candidates = [f"{name} {list(output.shape)}" for name, output in list(called)[-8:]]
    raise InputError(
        f"no Linear of this {model.config.model_type} model hands its rows unchanged to the text model: register a "
        f"ggss.models.Family that names the site; the last ones called were {', '.join(candidates) or 'none'}"
    )


def _row_bytes(rows: Tensor) -> list[bytes]:
    return [row.tobytes() for row in rows.contiguous().cpu().view(torch.uint8).numpy()]
