"""The rows that images have inside a model: at blocks of the vision tower, and at layers of the text model.

A block's rows are taken from one image at a time, so that all of them are that image's. A layer's rows are taken from
prompts with one image each, so that those of a prompt are its image's.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ggss.models.capture import captured
from ggss.models.eager import eager
from ggss.models.image_rows import ImageRows
from ggss.models.projector import resolve
from ggss.models.sites import in_text, in_tower


@torch.inference_mode()
def layer_rows(
    vlm: Any, images: Sequence[Image.Image], sites: Mapping[str, str], prompt: str
) -> list[dict[str, Tensor]]:
    """Each image's rows [T, D] by site. prompt: what is asked about every image; blocks do not depend on it."""
    rows: list[dict[str, Tensor]] = [{} for _ in images]
    if tower := {site: path for site, path in sites.items() if in_tower(site)}:
        for own, image in zip(rows, images, strict=True):
            with captured(vlm.model, tower) as found:
                vlm.encode([image], batch_size=1)
            own |= {site: torch.cat(outputs) for site, outputs in found.items()}
    if text := {site: path for site, path in sites.items() if in_text(site)}:
        together = [range(len(images))] if vlm.family.batched else [[i] for i in range(len(images))]
        for numbers in together:
            with _captured_text(vlm.model, text) as found:
                vlm.logits([prompt] * len(numbers), [[images[i]] for i in numbers])
            for site, parts in found.items():
                for i, part in zip(numbers, parts, strict=True):
                    rows[i][site] = part
    return rows


@contextmanager
def _captured_text(model: Any, sites: Mapping[str, str]) -> Iterator[dict[str, list[Tensor]]]:
    """Site -> the image rows of each prompt of the one batch that is run in the block, in this thread."""
    found: dict[str, list[Tensor]] = {}
    thread, images = threading.get_ident(), ImageRows(model)

    def keep(site: str, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        selected = images.select(site, first) if threading.get_ident() == thread else None
        if selected is not None and selected[1] is not None:
            found[site] = list(selected[0].detach().clone().split(selected[1].sum(1).tolist()))

    with ExitStack() as hooks:
        hooks.enter_context(eager())
        hooks.enter_context(images.watching())
        for site, path in sites.items():
            hook = resolve(model, path).register_forward_hook(lambda _, __, output, site=site: keep(site, output))
            hooks.callback(hook.remove)
        yield found
