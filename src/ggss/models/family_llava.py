"""LLaVA and its relatives: a projector of two Linears after a tower."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ggss.models.families import Family, Inputs, in_one_tensor, is_a, register, verbatim
from ggss.models.sites import MLP1, MLP2

SITES = {
    MLP1: "model.multi_modal_projector.linear_1",
    MLP2: "model.multi_modal_projector.linear_2",
}


def finish(model: Any, rows: Tensor) -> Tensor:
    """The rest of the projector, from its first Linear on."""
    projector = model.base_model.multi_modal_projector
    return projector.linear_2(projector.act(rows))


def tower_rows(model: Any) -> int:
    """The rows of one square of `image_size` pixels. CLIP has a class token beside its patches; "default" drops the
    first row, which is that token."""
    vision = model.config.vision_config
    dropped = model.config.vision_feature_select_strategy == "default"
    return (vision.image_size // vision.patch_size) ** 2 + (vision.model_type == "clip_vision_model") - dropped


def _tiles(model: Any, inputs: Inputs) -> list[int]:
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    config, side = model.config, model.config.vision_config.image_size
    # LLaVA-OneVision does not cut the images of a prompt that has several.
    prompts = inputs.get("batch_num_images")
    sizes = inputs["image_sizes"]
    cut = [True] * len(sizes) if prompts is None else [int(n) == 1 for n in prompts for _ in range(int(n))]
    return [
        image_size_to_num_patches(size, config.image_grid_pinpoints, side) if own else 1
        for size, own in zip(sizes, cut, strict=True)
    ]


def _rows_of_tiles(model: Any, inputs: Inputs) -> list[int]:
    return [tiles * tower_rows(model) for tiles in _tiles(model, inputs)]


def _next_pack(model: Any, rows: Sequence[Tensor], inputs: Inputs) -> Sequence[Tensor]:
    # This drops the rows that are padding and adds a newline token after each line of the tiles.
    strategy = model.config.vision_feature_select_strategy
    return _packed(model, rows, inputs, vision_feature_select_strategy=strategy)


def _onevision_pack(model: Any, rows: Sequence[Tensor], inputs: Inputs) -> Sequence[Tensor]:
    return _packed(model, rows, inputs, vision_aspect_ratio=model.config.vision_aspect_ratio)


def _packed(model: Any, rows: Sequence[Tensor], inputs: Inputs, **settings: Any) -> Sequence[Tensor]:
    tiles = _tiles(model, inputs)
    tokens, _ = model.base_model.pack_image_features(
        [image.unflatten(0, (count, -1)) for image, count in zip(rows, tiles, strict=True)],
        inputs["image_sizes"],
        image_newline=model.base_model.image_newline,
        **settings,
    )
    return tokens


def _vip_rows(model: Any, inputs: Inputs) -> list[int]:
    vision = model.config.vision_config
    return [(vision.image_size // vision.patch_size) ** 2] * len(inputs["pixel_values"])


def _pixtral_rows(model: Any, inputs: Inputs) -> list[int]:
    merged = getattr(model.config, "spatial_merge_size", 1)  # Mistral 3 merges patches
    return (inputs["image_sizes"] // (model.config.vision_config.patch_size * merged)).prod(-1).tolist()


register(
    Family(
        "LLaVA-1.5",
        recognises=lambda config: is_a(config, "llava", "clip_vision_model", "siglip_vision_model"),
        site_paths=lambda _: dict(SITES),
        rows_per_image=lambda model, inputs: [tower_rows(model)] * len(inputs["pixel_values"]),
        pack=verbatim,
        finish=finish,
        shares_prefix=True,
    )
)
register(
    Family(
        "VipLLaVA",
        recognises=lambda config: is_a(config, "vipllava", "clip_vision_model"),
        site_paths=lambda _: dict(SITES),
        rows_per_image=_vip_rows,
        pack=in_one_tensor,
        finish=finish,
        shares_prefix=True,
    )
)
register(
    Family(
        "LLaVA-NeXT",
        recognises=lambda config: is_a(config, "llava_next"),
        site_paths=lambda _: dict(SITES),
        rows_per_image=_rows_of_tiles,
        pack=_next_pack,
        finish=finish,
        shares_prefix=True,
    )
)
register(
    Family(
        "LLaVA-OneVision",
        recognises=lambda config: is_a(config, "llava_onevision"),
        site_paths=lambda _: dict(SITES),
        rows_per_image=_rows_of_tiles,
        pack=_onevision_pack,
        finish=finish,
        shares_prefix=True,
    )
)
register(
    Family(
        "Pixtral",
        recognises=lambda config: is_a(config, "llava", "pixtral"),
        site_paths=lambda _: dict(SITES),
        rows_per_image=_pixtral_rows,
        pack=verbatim,
        finish=finish,
        shares_prefix=True,
    )
)
register(
    Family(
        "Mistral 3",
        recognises=lambda config: is_a(config, "mistral3", "pixtral"),
        site_paths=lambda _: dict(SITES),
        rows_per_image=_pixtral_rows,
        pack=verbatim,
        finish=finish,
        shares_prefix=True,
    )
)
