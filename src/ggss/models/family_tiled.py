"""Families whose processors may cut an image into tiles or crops: only the processor knows an image's rows.

Each has a row for each image token, so the rows of an image are counted in the prompt (`told_rows`). A batch that
ggss did not prepare is refused where images must be told apart.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ggss.models.families import Family, Inputs, in_one_tensor, is_a, register, verbatim
from ggss.models.family_llava import SITES, finish
from ggss.models.sites import MLP2
from ggss.models.told_rows import by_tokens


def _gated_finish(model: Any, rows: Tensor) -> Tensor:
    projector = model.base_model.multi_modal_projector
    opened, gate = rows.chunk(2, dim=-1)
    return projector.linear_2(projector.act(gate) * opened)


def _in_tiles(model: Any, rows: Sequence[Tensor], _inputs: Inputs) -> Tensor:
    """[tiles of all images, rows of a tile, D]: some versions of transformers look at this shape."""
    config, vision = model.config, model.config.vision_config
    return torch.cat(list(rows)).unflatten(
        0, (-1, (vision.image_size // vision.patch_size // config.scale_factor) ** 2)
    )


register(
    Family(
        "InternVL",
        recognises=lambda config: is_a(config, "internvl"),
        site_paths=lambda _: dict(SITES),
        rows_per_image=by_tokens,
        pack=in_one_tensor,
        finish=finish,
        shares_prefix=True,
    )
)
for _name, _type in (("Aya Vision", "aya_vision"), ("Cohere2 Vision", "cohere2_vision")):
    register(
        Family(
            _name,
            recognises=lambda config, kind=_type: is_a(config, kind),
            site_paths=lambda _: dict(SITES),
            rows_per_image=by_tokens,
            pack=in_one_tensor,
            finish=_gated_finish,
        )
    )
for _name, _type in (("Idefics3", "idefics3"), ("SmolVLM", "smolvlm")):
    register(
        Family(
            _name,
            recognises=lambda config, kind=_type: is_a(config, kind),
            site_paths=lambda _: {MLP2: "model.connector.modality_projection.proj"},
            rows_per_image=by_tokens,
            pack=_in_tiles,
            shares_prefix=True,
        )
    )
register(
    Family(
        "Gemma 3",
        recognises=lambda config: is_a(config, "gemma3"),
        # The projector ends in a product with a bare parameter, so the site is the projector itself.
        site_paths=lambda _: {MLP2: "model.multi_modal_projector"},
        rows_per_image=by_tokens,
        pack=in_one_tensor,
    )
)
register(
    Family(
        "LFM2-VL",
        recognises=lambda config: is_a(config, "lfm2_vl"),
        site_paths=lambda _: dict(SITES),  # called once for each tile
        rows_per_image=by_tokens,
        pack=verbatim,
        finish=finish,
    )
)
