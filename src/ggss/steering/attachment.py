"""Hooks on a live model: they are installed, replace the output of modules, count, and are removed."""

import functools
import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from ggss.errors import InputError
from ggss.methods.operator import Steered

Steer = Callable[[str, Tensor, Tensor | None, Tensor | None], Steered]


class NeverFired(InputError):
    """A steerer was attached, and the block ended before the model called its site."""


class AttachedRun:
    """What happened while a steerer was attached. Several threads may read and update it."""

    KEPT_GATES = 2**20

    def __init__(self) -> None:
        self.calls = 0
        self.tokens = 0
        self._gates: deque[Tensor] = deque()
        self._kept = 0
        self._lock = threading.Lock()

    @property
    def gate(self) -> Tensor:
        """The gates of the tokens steered so far, in order; only the last million of a long run."""
        with self._lock:
            return torch.cat(list(self._gates)) if self._gates else torch.empty(0)

    def count(self, steered: Steered) -> None:
        gate = None if steered.gate is None else steered.gate.detach().cpu()
        with self._lock:
            self.calls += 1
            self.tokens += steered.rows.shape[0]
            if gate is None:
                return
            self._gates.append(gate)
            self._kept += len(gate)
            while self._kept > self.KEPT_GATES and len(self._gates) > 1:
                self._kept -= len(self._gates.popleft())


@contextmanager
def attached(
    model: nn.Module, modules: Mapping[str, nn.Module], steer: Steer, by_image: bool
) -> Iterator[AttachedRun]:
    """Replace each module's output by `steer(site, rows, images, out)` inside the block.

    by_image: give `steer` the image that each row belongs to. `out` is the rows themselves where they may be
    overwritten, which saves an allocation that costs as much as the update; else it is None.
    """
    run = AttachedRun()
    rows_of_images = _RowsOfImages(model) if by_image else None

    def hook_for(site: str) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            first = output[0] if isinstance(output, tuple) else output
            rows = first.reshape(-1, first.shape[-1])
            images = rows_of_images.current(rows) if rows_of_images else None
            with torch.no_grad():
                steered = steer(site, rows, images, rows if may_overwrite(module, output) else None)
            run.count(steered)
            replaced = steered.rows.reshape(first.shape)
            return (replaced, *output[1:]) if isinstance(output, tuple) else replaced

        return hook

    with ExitStack() as hooks:
        if rows_of_images:
            hooks.callback(rows_of_images.install())
        for site, module in modules.items():
            hooks.callback(module.register_forward_hook(hook_for(site)).remove)
        yield run
    if run.calls == 0:
        raise NeverFired(
            f"the steerer was attached at {', '.join(modules)} but the model never called it: nothing was steered "
            "(no image in the prompts, or features that were encoded before)"
        )


def may_overwrite(module: nn.Module, output: Any) -> bool:
    """Whether a forward hook on `module` may write into its output: nothing else can need what was there.

    - Nobody computes a gradient through it.
    - The module is a plain `nn.Linear`, whose output is a new tensor. Other modules, and a `forward` that was
      replaced, may return their input (`nn.Identity`), a parameter, or a tensor that they keep.
    - The hook is the only one that sees the output. Another one may have kept it.
    - The output is one block of memory, so that its rows [N, D] are a view of it.
    """
    return (
        type(module) is nn.Linear
        and "forward" not in vars(module)
        and len(module._forward_hooks) == 1
        and not torch_module._global_forward_hooks
        and type(output) is Tensor
        and output.is_floating_point()
        and output.is_contiguous()
        and not (torch.is_grad_enabled() or output.requires_grad)
        and output.is_inference() == torch.is_inference_mode_enabled()
    )


class _RowsOfImages:
    """Knows, for each thread, the number of rows of each image whose features are being computed."""

    def __init__(self, model: nn.Module) -> None:
        from ggss.models import family_of

        self.model = model
        self.family = family_of(model)
        self.local = threading.local()

    def install(self) -> Callable[[], None]:
        """Start to watch the model compute image features; returns the function that stops it."""
        base: Any = getattr(self.model, "base_model", self.model)
        with _WATCHING:
            watchers: list[_RowsOfImages] | None = getattr(base.get_image_features, "watchers", None)
            if watchers is None:
                watchers = []
                base.get_image_features = _watched(base.get_image_features, watchers)
            watchers.append(self)

        def end() -> None:
            with _WATCHING:
                watchers.remove(self)
                if not watchers:
                    del base.get_image_features  # the method of the class is used again

        return end

    def current(self, rows: Tensor) -> Tensor:
        """The image that each row belongs to, [N]."""
        counts = getattr(self.local, "counts", None)
        if counts is None:
            raise InputError(
                "this steering works image by image and must see the model compute its image features: "
                "call forward, generate or get_image_features with what the processor returns"
            )
        if sum(counts) != rows.shape[0]:
            raise InputError(f"this batch should have {sum(counts)} rows, the site gave {rows.shape[0]}")
        repeats = torch.tensor(counts, device=rows.device)
        return torch.repeat_interleave(torch.arange(len(counts), device=rows.device), repeats)


_WATCHING = threading.Lock()


def _watched(compute: Callable[..., Any], watchers: list[_RowsOfImages]) -> Callable[..., Any]:
    """`get_image_features`, which tells the watchers about its inputs before it runs.

    A hook on a module cannot do this: `generate` calls `get_image_features` before any forward, and the projector
    does not see the sizes of the images.
    """
    signature = inspect.signature(compute)

    @functools.wraps(compute)
    def watched(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind_partial(*args, **kwargs).arguments
        inputs = {**given.pop("kwargs", {}), **given}
        present = list(watchers)
        for watcher in present:
            watcher.local.counts = watcher.family.rows_per_image(watcher.model, inputs)
        try:
            return compute(*args, **kwargs)
        finally:
            for watcher in present:
                watcher.local.counts = None

    watched.watchers = watchers  # type: ignore[attr-defined]
    return watched
