"""The family of a LLaVA with a DINOv2 tower, as a plug-in of ggss (`--plugin`, or the variable GGSS_PLUGINS).

Every command works without it, because an unknown family is found by running the model. With it, a picture is
encoded once for all questions, and questions about one picture share the pass over its tokens.
"""

from typing import Any

from ggss.models import Family, register
from ggss.models.families import SITES, Inputs, finish, is_a, verbatim


def rows_per_image(model: Any, inputs: Inputs) -> list[int]:
    """A row for each patch: LLaVA drops the class token."""
    pixels = inputs["pixel_values"]
    patch = model.config.vision_config.patch_size
    return [(pixels.shape[-2] // patch) * (pixels.shape[-1] // patch)] * len(pixels)


register(
    Family(
        "LLaVA with DINOv2",
        recognises=lambda config: is_a(config, "llava", "dinov2"),
        site_paths=lambda _: dict(SITES),
        rows_per_image=rows_per_image,
        pack=verbatim,
        finish=finish,
        shares_prefix=True,
    )
)
