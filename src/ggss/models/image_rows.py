"""Which rows of a module's output belong to which image, while a model runs.

In the vision tower and projector all rows are of images. How many each image has follows from the inputs of
`get_image_features`. A hook on a module cannot see these: `generate` calls that function before any forward, and the
projector does not know the sizes of the images.

In the text model the rows of image tokens are those at `input_ids == image_token_id`, in a pass that gets images.
With a cache of keys and values that is the first pass of `generate` only: later ones have no image rows. How many
each image has is what the model's own encoder returned for it; the two must agree, or nothing is steered.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ggss.errors import InputError
from ggss.models.families import Family
from ggss.models.sites import in_text, in_tower

_watching = threading.Lock()


@dataclass
class _TextPass:
    """One forward of the whole model. mask [batch, tokens]: the image tokens; None: it is not known which are."""

    mask: Tensor | None
    counts: list[int] | None
    """The image tokens of each image, in prompt order; None: not known (yet)."""


class ImageRows:
    """Knows, for each thread, the images and image tokens of what the model computes at the moment.

    family: needed only where `owners` is asked about sites before the text model.
    """

    def __init__(self, model: Any, family: Family | None = None) -> None:
        self.model, self.family = model, family
        self.base: Any = getattr(model, "base_model", model)
        self._local = threading.local()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the model inside the block. Blocks of several threads may overlap."""
        with ExitStack() as hooks:
            hooks.callback(self._watch_encoder())
            hooks.callback(self.base.register_forward_pre_hook(self._begin, with_kwargs=True).remove)
            hooks.callback(self.base.register_forward_hook(self._end, always_call=True).remove)
            yield

    def select(self, site: str, output: Tensor) -> tuple[Tensor, Tensor | None] | None:
        """The rows [N, D] of images in a site's output, and their mask in a text layer; None if there are none."""
        if not in_text(site):
            return output.reshape(-1, output.shape[-1]), None
        mask = self._mask(site, output)
        return None if mask is None else (output[mask], mask)

    def owners(self, site: str, output: Tensor, count: int) -> Tensor:
        """The image that each of the `count` rows belongs to, [N]."""
        counts = self._text_counts(site, count) if in_text(site) else self._vision_counts(site, output)
        repeats = torch.tensor(counts, device=output.device)
        return torch.repeat_interleave(torch.arange(len(counts), device=output.device), repeats)

    def _mask(self, site: str, output: Tensor) -> Tensor | None:
        now: _TextPass | None = getattr(self._local, "text", None)
        if now is None or now.mask is None:
            raise InputError(
                f"{site} is inside the text model, and it is not known which of its rows are of images: call forward "
                "or generate of the whole model with input_ids and what the processor returns, not with inputs_embeds"
            )
        if not now.mask.any():
            return None
        if now.mask.shape != output.shape[:2]:
            raise InputError(f"{site} gave rows of shape {list(output.shape)} for inputs of {list(now.mask.shape)}")
        self._text_counts(site, int(now.mask.sum()))
        return now.mask.to(output.device)

    def _text_counts(self, site: str, count: int) -> list[int]:
        counts = self._local.text.counts
        if counts is None or sum(counts) != count:
            seen = "an unknown number of" if counts is None else sum(counts)
            raise InputError(
                f"the prompts have {count} image tokens, and the model made {seen} of its images: "
                f"it is not known which rows of {site} belong to which image"
            )
        return counts

    def _vision_counts(self, site: str, output: Tensor) -> list[int]:
        inputs: Mapping[str, Any] | None = getattr(self._local, "inputs", None)
        if inputs is None or self.family is None:
            raise InputError(
                "this steering works image by image and must see the model compute its image features: "
                "call forward, generate or get_image_features with what the processor returns"
            )
        counts, rows = self.family.rows_per_image(self.model, inputs), output.shape[:-1].numel()
        if in_tower(site):
            return _tower_counts(site, counts, output, inputs)
        if sum(counts) != rows:
            raise InputError(f"this batch should have {sum(counts)} rows, the site gave {rows}")
        return counts

    def _begin(self, module: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        given = _bound(inspect.signature(type(module).forward), (module, *args), kwargs)
        ids, encoded = given.get("input_ids"), (given.get("mm_encoder_outputs") or {}).get("image")
        token = getattr(self.model.config, "image_token_id", getattr(self.model.config, "image_token_index", None))
        shown = encoded is not None or any(own is not None for name, own in given.items() if name in _IMAGES)
        if ids is None or (shown and token is None):
            self._local.text = _TextPass(None, None)
            return
        mask = ids == token if shown else torch.zeros_like(ids, dtype=torch.bool)
        self._local.text = _TextPass(mask, None if encoded is None else _lengths(encoded))

    def _end(self, module: Any, args: Any, output: Any) -> None:
        self._local.text = None

    def _encoding(self, inputs: Mapping[str, Any]) -> None:
        self._local.inputs = {name: own for name, own in inputs.items() if own is not None}

    def _encoded(self, output: Any) -> None:
        self._local.inputs = None
        now = getattr(self._local, "text", None)
        if now is not None and output is not None:
            now.counts = _lengths(output)

    def _watch_encoder(self) -> Callable[[], None]:
        """Watch `get_image_features`; returns the function that stops it."""
        base = self.base
        if not hasattr(base, "get_image_features"):
            return lambda: None
        with _watching:
            watchers: list[ImageRows] | None = getattr(base.get_image_features, "watchers", None)
            if watchers is None:
                watchers = []
                base.get_image_features = _watched(base.get_image_features, watchers)
            watchers.append(self)

        def end() -> None:
            with _watching:
                watchers.remove(self)
                if not watchers:
                    del base.get_image_features  # the method of the class is used again

        return end


_IMAGES = ("pixel_values", "pixel_values_images", "image_patches", "image_hidden_states", "image_embeds")


def _watched(compute: Callable[..., Any], watchers: list[ImageRows]) -> Callable[..., Any]:
    """`get_image_features`, which tells the watchers about its inputs before it runs, and its output after."""
    signature = inspect.signature(compute)

    @functools.wraps(compute)
    def watched(*args: Any, **kwargs: Any) -> Any:
        given, present, output = _bound(signature, args, kwargs), list(watchers), None
        for watcher in present:
            watcher._encoding(given)
        try:
            output = compute(*args, **kwargs)
            return output
        finally:
            for watcher in present:
                watcher._encoded(output)

    watched.watchers = watchers  # type: ignore[attr-defined]
    return watched


def _bound(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(signature.bind_partial(*args, **kwargs).arguments)
    return {**given.pop("kwargs", {}), **given}


def _lengths(encoded: Any) -> list[int] | None:
    """The image tokens of each image in what `get_image_features` returned."""
    tokens = getattr(encoded, "pooler_output", None)
    if isinstance(tokens, Tensor) and tokens.ndim != 3:
        return None  # of all images together
    return None if tokens is None else [own.shape[:-1].numel() for own in tokens]


def _tower_counts(site: str, projected: list[int], output: Tensor, inputs: Mapping[str, Any]) -> list[int]:
    """The rows of each image in a block's output, from those that it has after the projector.

    Either all images come one after the other, each with the same number of rows for one of the projector's. Or the
    block gives [tiles, rows of a tile, D], with a class token or without, for tiles [tiles, 3, height, width] of one
    size without padding. Anything else is refused.
    """
    rows, total = output.shape[:-1].numel(), sum(projected)
    tiles = output.shape[0] if output.ndim == 3 else 1
    if len(projected) == 1:
        return [rows]
    if tiles == 1 and rows % total == 0:
        return [own * (rows // total) for own in projected]
    pixels = inputs.get("pixel_values")
    whole = isinstance(pixels, Tensor) and pixels.ndim >= 4 and not any("mask" in name for name in inputs)
    if tiles > 1 and whole and total % tiles == 0 and all(own % (total // tiles) == 0 for own in projected):
        return [own // (total // tiles) * (rows // tiles) for own in projected]
    raise InputError(
        f"it is not known which of the {rows} rows of {site} belong to which of {len(projected)} images, which have "
        f"{projected} rows after the projector: use one image at a time"
    )
