"""What steers a model at the moment. Features that were encoded before it was attached are not steered by it.

Compiled models run uncompiled while ggss watches or steers them.

`torch.compile` does not look for hooks again: code that was compiled before a hook was installed never calls it, and
code that was compiled with a hook still calls it after the hook was removed. Code for shapes it has not seen yet is
compiled anew, so that some batches would be steered and others not. Inside `eager()` compiled code is not used and
none is made: every hook fires, for every shape. The compiled code is used again afterwards.

Capturing the outputs of a model's modules while it runs.

Which rows of a module's output belong to which image, while a model runs.

In the vision tower and projector all rows are of images. How many each image has follows from the inputs of
`get_image_features`. A hook on a module cannot see these: `generate` calls that function before any forward, and the
projector does not know the sizes of the images.

In the text model the rows of image tokens are those at `input_ids == image_token_id`, in a pass that gets images.
With a cache of keys and values that is the first pass of `generate` only: later ones have no image rows. How many
each image has is what the model's own encoder returned for it; the two must agree, or nothing is steered.

The rows that images have inside a model: at blocks of the vision tower, and at layers of the text model.

A block's rows are taken from one image at a time, so that all of them are that image's. A layer's rows are taken from
prompts with one image each, so that those of a prompt are its image's.
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

RECORDER = "output_capturing_hook"  # with which transformers records hidden states; it stays when it was once needed


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
    """The attachment is among the model's inside the block."""
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
        present = list(_attached.get(model, ()))
    return frozenset(own for own in present if own.acts() and not all(map(in_text, own.sites)))


_eager_lock = threading.Lock()
_inside = 0
_stance = ExitStack()

DYNAMO = "torch._dynamo"  # it takes seconds to import; as long as nobody has, nothing was compiled


@contextmanager
def eager() -> Iterator[None]:
    """No compiled code runs inside the block, in any thread. Blocks of several threads may overlap."""
    global _inside
    imported = DYNAMO in sys.modules
    with _eager_lock:
        if imported and _inside == 0:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))
        _inside += imported
    try:
        yield
    finally:
        with _eager_lock:
            _inside -= imported
            if imported and _inside == 0:
                _stance.close()
        if not imported and DYNAMO in sys.modules:
            torch.compiler.reset()  # what was compiled inside the block has its hooks


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody watches or changes a module's output."""
    return any(getattr(hook, "__name__", "") != RECORDER for hook in module._forward_hooks.values())


@contextmanager
def captured(model: nn.Module, sites: Mapping[str, str]) -> Iterator[dict[str, list[Tensor]]]:
    """Site -> the outputs of the module at its path, in this thread only: a tensor of flat rows for each call."""
    found: dict[str, list[Tensor]] = {site: [] for site in sites}
    thread = threading.get_ident()

    def keep(site: str, output: Any) -> None:
        if threading.get_ident() == thread:
            rows = output[0] if isinstance(output, tuple) else output
            found[site].append(rows.detach().flatten(0, -2).clone())

    modules = {site: resolve(model, path) for site, path in sites.items()}
    hooks = [
        module.register_forward_hook(lambda _, __, output, site=site: keep(site, output))
        for site, module in modules.items()
    ]
    try:
        with eager():
            yield found
    finally:
        for hook in hooks:
            hook.remove()


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
