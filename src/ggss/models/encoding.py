"""Images through the vision tower and the projector, all in one batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ggss.errors import InputError
from ggss.models.attachments import acting_before_text
from ggss.models.capture import captured
from ggss.models.families import Family
from ggss.models.features import Features
from ggss.models.projector import image_features
from ggss.models.told_rows import told_pixels


def encoded(
    model: Any, processor: Any, family: Family, images: Sequence[Image.Image], sites: Mapping[str, str]
) -> list[Features]:
    """Each image's rows at the sites (name -> module path), as hooks on them have changed them."""
    inputs, placeholders = told_pixels(model, processor, images)
    with captured(model, sites) as found:
        image_features(model, inputs)
    rows = {site: torch.cat(outputs) for site, outputs in found.items()}
    one = next(iter(rows.values()))
    counts = [len(one)] if len(images) == 1 else family.rows_per_image(model, inputs)
    if len(counts) != len(images) or any(sum(counts) != len(own) for own in rows.values()):
        seen = ", ".join(f"{len(own)} at {site}" for site, own in rows.items())
        raise InputError(
            f"{family.name}: {len(images)} images should have {counts} rows, the model gave {seen}: "
            "use batch_size=1, or correct the family's rows_per_image"
        )
    split = {site: all_rows.split(counts) for site, all_rows in rows.items()}
    # What has a row for each image; what has one for each tile is not needed once the tower has run.
    sizes = {
        name: value
        for name, value in inputs.items()
        if not name.startswith("pixel") and isinstance(value, Tensor) and len(value) == len(images)
    }
    under = acting_before_text(model)
    return [
        Features(
            rows={site: parts[i].clone() for site, parts in split.items()},
            inputs={name: value[i].clone() for name, value in sizes.items()},
            placeholder=placeholder,
            under=under,
        )
        for i, placeholder in enumerate(placeholders)
    ]
