"""Families that see every image as one square of the same size: all images have the same number of rows."""

from typing import Any

from torch import Tensor

from ggss.models.families import Family, Inputs, in_one_tensor, is_a, register
from ggss.models.sites import MLP1, MLP2


def _rows(model: Any, inputs: Inputs) -> list[int]:
    vision = model.config.vision_config
    return [(vision.image_size // vision.patch_size) ** 2] * len(inputs["pixel_values"])


def _janus_sites(config: Any) -> dict[str, str]:
    last = config.vision_config.depth - 2  # fc1 and the hidden layers are `depth` Linears
    return {
        MLP1: f"model.aligner.hidden_layers.{last - 1}" if last else "model.aligner.fc1",
        MLP2: f"model.aligner.hidden_layers.{last}",
    }


def _janus_finish(model: Any, rows: Tensor) -> Tensor:
    aligner = model.base_model.aligner
    return aligner.hidden_layers[-1](aligner.activation_fn(rows))


def _deepseek_finish(model: Any, rows: Tensor) -> Tensor:
    aligner = model.base_model.aligner
    return aligner.linear2(aligner.activation(rows))


register(
    Family(
        "PaliGemma",
        recognises=lambda config: is_a(config, "paligemma"),
        site_paths=lambda _: {MLP2: "model.multi_modal_projector.linear"},
        rows_per_image=_rows,
        pack=in_one_tensor,
    )
)
register(
    Family(
        "Janus",
        recognises=lambda config: is_a(config, "janus"),
        site_paths=_janus_sites,
        rows_per_image=_rows,
        pack=in_one_tensor,
        finish=_janus_finish,
        shares_prefix=True,
    )
)
register(
    Family(
        "DeepSeek-VL",
        recognises=lambda config: is_a(config, "deepseek_vl"),
        site_paths=lambda _: {MLP1: "model.aligner.linear1", MLP2: "model.aligner.linear2"},
        rows_per_image=_rows,
        pack=in_one_tensor,
        finish=_deepseek_finish,
        shares_prefix=True,
    )
)
