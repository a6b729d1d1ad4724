"""Qwen-VL and GLM-V: towers for any size of image, which merge neighbouring patches; a grid tells an image's rows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ggss.models.families import Family, Inputs, is_a, register, verbatim
from ggss.models.sites import MLP1, MLP2


def _rows(model: Any, inputs: Inputs) -> list[int]:
    return (inputs["image_grid_thw"].prod(-1) // model.config.vision_config.spatial_merge_size**2).tolist()


def _qwen2_finish(model: Any, rows: Tensor) -> Tensor:
    mlp = model.base_model.visual.merger.mlp
    return mlp[2](mlp[1](rows))


def _qwen3_finish(model: Any, rows: Tensor) -> Tensor:
    merger = model.base_model.visual.merger
    return merger.linear_fc2(merger.act_fn(rows))


def _qwen3_sites(config: Any) -> dict[str, str]:
    deepstack = range(len(getattr(config.vision_config, "deepstack_visual_indexes", None) or ()))
    return {
        MLP1: "model.visual.merger.linear_fc1",
        MLP2: "model.visual.merger.linear_fc2",
        **{f"deepstack-{i}": f"model.visual.deepstack_merger_list.{i}.linear_fc2" for i in deepstack},
    }


def _out_of_windows(model: Any, rows: Sequence[Tensor], inputs: Inputs) -> Sequence[Tensor]:
    """Qwen2.5-VL's tower and merger see an image window by window; the text model sees it line by line."""
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

    qwen: Any = modeling_qwen2_5_vl
    visual = model.base_model.visual
    tokens = []
    for image, grid in zip(rows, inputs["image_grid_thw"], strict=True):
        if hasattr(qwen, "get_vision_window_index"):
            sizes = (visual.spatial_merge_size, visual.window_size, visual.patch_size)
            named = dict(zip(("spatial_merge_size", "window_size", "patch_size"), sizes, strict=True))
            order, _ = qwen.get_vision_window_index(grid[None], **named)
        else:  # as versions before have it
            order, _ = visual.get_window_index(grid[None])
        tokens.append(image[torch.argsort(torch.as_tensor(order, device=image.device))])
    return tokens


for _name, _type, _pack in (
    ("Qwen2-VL", "qwen2_vl", verbatim),
    ("Qwen2.5-VL", "qwen2_5_vl", _out_of_windows),
):
    register(
        Family(
            _name,
            recognises=lambda config, kind=_type: is_a(config, kind),
            site_paths=lambda _: {MLP1: "model.visual.merger.mlp.0", MLP2: "model.visual.merger.mlp.2"},
            rows_per_image=_rows,
            pack=_pack,
            finish=_qwen2_finish,
            shares_prefix=True,
        )
    )

for _name, _type in (
    ("Qwen3-VL", "qwen3_vl"),
    ("Qwen3-VL-MoE", "qwen3_vl_moe"),
    ("Qwen3.5", "qwen3_5"),
    ("Qwen3.5-MoE", "qwen3_5_moe"),
):
    register(
        Family(
            _name,
            recognises=lambda config, kind=_type: is_a(config, kind),
            site_paths=_qwen3_sites,
            rows_per_image=_rows,
            pack=verbatim,
            finish=_qwen3_finish,
            shares_prefix=_type.startswith("qwen3_vl"),  # linear attention, as in Qwen3.5, keeps one state of all
        )
    )

for _name, _type in (("GLM-4V", "glm4v"), ("GLM-4V-MoE", "glm4v_moe"), ("GLM-4.6V", "glm46v")):
    register(
        Family(
            _name,
            recognises=lambda config, kind=_type: is_a(config, kind),
            # Two Linears stand before the last, a gate and what it opens for: there is no `projection-mlp1`.
            site_paths=lambda _: {MLP2: "model.visual.merger.down_proj"},
            rows_per_image=_rows,
            pack=verbatim,
            shares_prefix=True,
        )
    )
