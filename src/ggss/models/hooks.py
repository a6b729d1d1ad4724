"""Hooks on a running model: which steerers are attached, what its modules return, and whose rows these are.

- `Attachment` records that a steerer acts on a model.
- `eager` switches compiled code off while hooks are needed. `torch.compile` does not look for hooks again: code that
  was compiled before a hook was installed never calls it, and code that was compiled with a hook still calls it after
  the hook was removed. New shapes are compiled anew, so some batches would be steered and others not.
- `captured` collects the outputs of modules.
- `ImageRows` knows which rows of an output belong to which image.
- `layer_rows` takes the rows of images inside a model: at blocks of the vision tower and layers of the text model.

In the vision tower and projector all rows belong to images. How many each image has follows from the inputs of
`get_image_features`. A hook on a module cannot see these: `generate` calls that function before any forward, and the
projector does not know the sizes of the images.

In the text model the rows of image tokens are those at `input_ids == image_token_id`, in a pass that gets images.
With a KV cache that is the first pass of `generate` only: later ones have no image rows. How many each image has is
what the model's own encoder returned for it; the two must agree, or nothing is steered.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from PIL import Image
from torch import Tensor, nn

from ggss.errors import InputError
from ggss.models.families import Family
from ggss.models.sites import in_text, in_tower, resolve

RECORDER = "output_capturing_hook"  # transformers records hidden states with it, and leaves it on the module
DYNAMO = "torch._dynamo"  # it takes seconds to import; as long as nobody has, nothing was compiled
_IMAGES = ("pixel_values", "pixel_values_images", "image_patches", "image_hidden_states", "image_embeds")


@dataclass(frozen=True, eq=False)
class Attachment:
    """A steerer at the sites of a model. thread: the only one in which it acts; None: it acts in all."""

    sites: frozenset[str]
    thread: int | None = None

    def acts(self) -> bool:
        """Whether it acts in this thread."""
        return self.thread in (None, threading.get_ident())


_attached: WeakKeyDictionary[nn.Module, list[Attachment]] = WeakKeyDictionary()
_lock = threading.Lock()


@contextmanager
def noted(model: nn.Module, attachment: Attachment) -> Iterator[None]:
    """Record the attachment as one of the model's, inside the block."""
    with _lock:
        _attached.setdefault(model, []).append(attachment)
    try:
        yield
    finally:
        with _lock:
            _attached[model].remove(attachment)


def acting_before_text(model: nn.Module) -> frozenset[Attachment]:
    """The attachments that act in this thread on what the vision tower and projector compute."""
    with _lock:
        attachments = list(_attached.get(model, ()))
    return frozenset(
        attachment for attachment in attachments if attachment.acts() and not all(map(in_text, attachment.sites))
    )


_eager_lock = threading.Lock()
_eager_blocks = 0  # that are running, in all threads
_stance = ExitStack()


@contextmanager
def eager() -> Iterator[None]:
    """Inside the block no code is compiled, and no compiled code runs, in any thread. Blocks may overlap."""
    global _eager_blocks
    imported = DYNAMO in sys.modules
    with _eager_lock:
        if imported and _eager_blocks == 0:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))
        _eager_blocks += imported
    try:
        yield
    finally:
        with _eager_lock:
            _eager_blocks -= imported
            if imported and _eager_blocks == 0:
                _stance.close()
        if not imported and DYNAMO in sys.modules:
            torch.compiler.reset()  # code that was compiled inside the block calls its hooks


def is_hooked(module: nn.Module) -> bool:
    """Whether a module has hooks other than transformers' recorder."""
    return any(getattr(hook, "__name__", "") != RECORDER for hook in module._forward_hooks.values())


@contextmanager
def captured(model: nn.Module, sites: Mapping[str, str]) -> Iterator[dict[str, list[Tensor]]]:
    """Site -> the outputs of the module at its path, in this thread only: a tensor of flat rows for each call."""
    outputs: dict[str, list[Tensor]] = {site: [] for site in sites}
    thread = threading.get_ident()

    def keep(site: str, output: Any) -> None:
        if threading.get_ident() == thread:
            rows = output[0] if isinstance(output, tuple) else output
            outputs[site].append(rows.detach().flatten(0, -2).clone())

    modules = {site: resolve(model, path) for site, path in sites.items()}
    hooks = [
        module.register_forward_hook(lambda _, __, output, site=site: keep(site, output))
        for site, module in modules.items()
    ]
    try:
        with eager():
            yield outputs
    finally:
        for hook in hooks:
            hook.remove()


_watching = threading.Lock()


@dataclass
class _TextPass:
    """A forward of the whole model. mask [batch, tokens]: the image tokens; None if they are not known."""

    mask: Tensor | None
    counts: list[int] | None
    """The image tokens of each image, in prompt order; None if they are not known (yet)."""


class ImageRows:
    """Knows, for each thread, the images and image tokens of what the model computes at the moment.

    family: needed only for the `owners` of sites before the text model.
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
        text_pass: _TextPass | None = getattr(self._local, "text", None)
        if text_pass is None or text_pass.mask is None:
            raise InputError(
                f"{site} is inside the text model, and it is not known which of its rows belong to images: call "
                "forward or generate of the whole model with input_ids and what the processor returns, not with "
                "inputs_embeds"
            )
        if not text_pass.mask.any():
            return None
        if text_pass.mask.shape != output.shape[:2]:
            raise InputError(
                f"{site} gave rows of shape {list(output.shape)} for inputs of {list(text_pass.mask.shape)}"
            )
        self._text_counts(site, int(text_pass.mask.sum()))
        return text_pass.mask.to(output.device)

    def _text_counts(self, site: str, count: int) -> list[int]:
        counts = self._local.text.counts
        if counts is None or sum(counts) != count:
            encoded_count = "an unknown number" if counts is None else sum(counts)
            raise InputError(
                f"the prompts have {count} image tokens, and the model's encoder returned {encoded_count} for its "
                f"images: it is not known which rows of {site} belong to which image"
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
        arguments = _bound(inspect.signature(type(module).forward), (module, *args), kwargs)
        ids, encoded = arguments.get("input_ids"), (arguments.get("mm_encoder_outputs") or {}).get("image")
        token = getattr(self.model.config, "image_token_id", getattr(self.model.config, "image_token_index", None))
        has_images = encoded is not None or any(
            value is not None for name, value in arguments.items() if name in _IMAGES
        )
        if ids is None or (has_images and token is None):
            self._local.text = _TextPass(None, None)
            return
        mask = ids == token if has_images else torch.zeros_like(ids, dtype=torch.bool)
        self._local.text = _TextPass(mask, None if encoded is None else _lengths(encoded))

    def _end(self, module: Any, args: Any, output: Any) -> None:
        self._local.text = None

    def _encoding(self, inputs: Mapping[str, Any]) -> None:
        self._local.inputs = {name: value for name, value in inputs.items() if value is not None}

    def _encoded(self, output: Any) -> None:
        self._local.inputs = None
        text_pass = getattr(self._local, "text", None)
        if text_pass is not None and output is not None:
            text_pass.counts = _lengths(output)

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


def _watched(compute: Callable[..., Any], watchers: list[ImageRows]) -> Callable[..., Any]:
    """`get_image_features`, which tells the watchers about its inputs before it runs, and its output after."""
    signature = inspect.signature(compute)

    @functools.wraps(compute)
    def watched(*args: Any, **kwargs: Any) -> Any:
        arguments, present, output = _bound(signature, args, kwargs), list(watchers), None
        for watcher in present:
            watcher._encoding(arguments)
        try:
            output = compute(*args, **kwargs)
            return output
        finally:
            for watcher in present:
                watcher._encoded(output)

    watched.watchers = watchers  # type: ignore[attr-defined]
    return watched


def _bound(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    arguments = dict(signature.bind_partial(*args, **kwargs).arguments)
    return {**arguments.pop("kwargs", {}), **arguments}


def _lengths(encoded: Any) -> list[int] | None:
    """The image tokens of each image in what `get_image_features` returned."""
    tokens = getattr(encoded, "pooler_output", None)
    if isinstance(tokens, Tensor) and tokens.ndim != 3:
        return None  # one tensor for all images
    return None if tokens is None else [image.shape[:-1].numel() for image in tokens]


def _tower_counts(site: str, projected: list[int], output: Tensor, inputs: Mapping[str, Any]) -> list[int]:
    """The rows of each image in a block's output, from those that it has after the projector.

    Two layouts are known. In the first, images follow each other, and the block has n rows for each row of the
    projector. In the second, the block returns [tiles, rows of a tile, D], with or without a class token, for tiles
    [tiles, 3, height, width] of one size without padding. Anything else is refused.
    """
    rows, total = output.shape[:-1].numel(), sum(projected)
    tiles = output.shape[0] if output.ndim == 3 else 1
    if len(projected) == 1:
        return [rows]
    if tiles == 1 and rows % total == 0:
        return [count * (rows // total) for count in projected]
    pixels = inputs.get("pixel_values")
    unpadded = isinstance(pixels, Tensor) and pixels.ndim >= 4 and not any("mask" in name for name in inputs)
    if tiles > 1 and unpadded and total % tiles == 0 and all(count % (total // tiles) == 0 for count in projected):
        return [count // (total // tiles) * (rows // tiles) for count in projected]
    raise InputError(
        f"it is not known which of the {rows} rows of {site} belong to which of {len(projected)} images, which have "
        f"{projected} rows after the projector: use one image at a time"
    )


@torch.inference_mode()
def layer_rows(
    vlm: Any, images: Sequence[Image.Image], sites: Mapping[str, str], prompt: str
) -> list[dict[str, Tensor]]:
    """Each image's rows [T, D] by site. prompt: what is asked about every image; blocks do not depend on it.

    Blocks get one image at a time, so that all rows are that image's. Layers get prompts with one image each.
    """
    rows: list[dict[str, Tensor]] = [{} for _ in images]
    if tower := {site: path for site, path in sites.items() if in_tower(site)}:
        for image_rows, image in zip(rows, images, strict=True):
            with captured(vlm.model, tower) as outputs:
                vlm.encode([image], batch_size=1)
            image_rows |= {site: torch.cat(calls) for site, calls in outputs.items()}
    if text := {site: path for site, path in sites.items() if in_text(site)}:
        together = [range(len(images))] if vlm.family.batched else [[i] for i in range(len(images))]
        for numbers in together:
            with _captured_text(vlm.model, text) as outputs:
                vlm.logits([prompt] * len(numbers), [[images[i]] for i in numbers])
            for site, parts in outputs.items():
                for i, part in zip(numbers, parts, strict=True):
                    rows[i][site] = part
    return rows


@contextmanager
def _captured_text(model: Any, sites: Mapping[str, str]) -> Iterator[dict[str, list[Tensor]]]:
    """Site -> the image rows of each prompt, for the only batch that this thread runs in the block."""
    rows: dict[str, list[Tensor]] = {}
    thread, images = threading.get_ident(), ImageRows(model)

    def keep(site: str, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        selected = images.select(site, first) if threading.get_ident() == thread else None
        if selected is not None and selected[1] is not None:
            rows[site] = list(selected[0].detach().clone().split(selected[1].sum(1).tolist()))

    with ExitStack() as hooks:
        hooks.enter_context(eager())
        hooks.enter_context(images.watching())
        for site, path in sites.items():
            hook = resolve(model, path).register_forward_hook(lambda _, __, output, site=site: keep(site, output))
            hooks.callback(hook.remove)
        yield rows
