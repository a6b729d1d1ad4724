"""Hooks on a live model: they are installed, replace the output of modules, count, and are removed."""

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
from ggss.models.hooks import RECORDER, Attachment, ImageRows, eager, noted
from ggss.models.placement import ConvertedLinear
from ggss.models.sites import in_text

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
    model: nn.Module,
    paths: Mapping[str, str],
    steer: Steer,
    by_image: bool,
    only_this_thread: bool = False,
) -> Iterator[AttachedRun]:
    """Replace the output of the module at each site's path by `steer(site, rows, images, out)` inside the block; in
    the text model only the rows of image tokens.

    by_image: give `steer` the image that each row belongs to. `out` is the rows themselves where they may be
    overwritten, which saves an allocation that costs as much as the update; else it is None. only_this_thread: leave
    alone what the model does in other threads.

    InputError at the end of the block if a hooked module is no longer the one that the model calls.
    """
    from ggss.models import family_of, resolve

    run = AttachedRun()
    modules = {site: resolve(model, path) for site, path in paths.items()}
    here = Attachment(frozenset(modules), threading.get_ident() if only_this_thread else None)
    before_text = not all(map(in_text, modules))
    rows_of_images = ImageRows(model, family_of(model) if by_image and before_text else None)

    def hook_for(site: str) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            first = output[0] if isinstance(output, tuple) else output
            found = rows_of_images.select(site, first) if here.acts() else None
            if found is None:
                return output
            rows, mask = found
            images = rows_of_images.owners(site, first, len(rows)) if by_image else None
            with torch.no_grad():
                steered = steer(site, rows, images, rows if may_overwrite(module, output) else None)
            run.count(steered)
            replaced = steered.rows.reshape(first.shape) if mask is None else _put(first, mask, steered.rows)
            return (replaced, *output[1:]) if isinstance(output, tuple) else replaced

        hook._torchdynamo_disable = True  # type: ignore[attr-defined]  # run as it is, should it be compiled
        hook.attachment = here  # type: ignore[attr-defined]
        return hook

    with ExitStack() as hooks:
        hooks.enter_context(eager())
        if by_image or any(map(in_text, modules)):
            hooks.enter_context(rows_of_images.watching())
        installed = {site: hook_for(site) for site in modules}
        for site, module in modules.items():
            hooks.callback(module.register_forward_hook(installed[site]).remove)
            _before_records(module)
        hooks.enter_context(noted(model, here))
        called = {path: _called(model, path) for path in paths.values()}
        yield run
        for site, path in paths.items():
            if _called(model, path) != called[path] or installed[site] not in modules[site]._forward_hooks.values():
                raise InputError(
                    f"{path} was replaced or its hook removed while the steerer was attached, so what the model "
                    "computed after that was not steered: attach the steerer to the model as it will be used"
                )
    if run.calls == 0:
        raise NeverFired(
            f"the steerer was attached at {', '.join(modules)} but the model never called it: nothing was steered "
            "(no image in the prompts, or features that were encoded before)"
        )


def _called(model: nn.Module, path: str) -> list[tuple[nn.Module | None, object]]:
    """What runs when the model calls the module at a path: each module on the way, and its forward if replaced."""
    modules: list[Any] = [model]
    for name in path.split(".") if path else ():
        modules.append(getattr(modules[-1], name, None))
    return [(module, None if module is None else vars(module).get("forward")) for module in modules]


def _put(hidden: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    """A copy with other rows where the mask is set; the caller may keep the original."""
    changed = hidden.clone()
    changed[mask] = rows
    return changed


def _before_records(module: nn.Module) -> None:
    """Let hooks with which transformers records hidden states see what ours make of them: models that give the hidden
    state of a certain block to the projector take it from these records."""
    hooks: Any = module._forward_hooks
    for key in [key for key, hook in hooks.items() if getattr(hook, "__name__", "") == RECORDER]:
        hooks.move_to_end(key)


def may_overwrite(module: nn.Module, output: Any) -> bool:
    """Whether a forward hook on `module` may write into its output: nothing else can need what was there.

    - Nobody computes a gradient through it.
    - The module is a plain `nn.Linear`, whose output is a new tensor. Other modules, and a `forward` that was
      replaced, may return their input (`nn.Identity`), a parameter, or a tensor that they keep.
    - The hook is the only one that sees the output. Another one may have kept it.
    - The output is one block of memory, so that its rows [N, D] are a view of it.
    """
    return (
        type(module) in (nn.Linear, ConvertedLinear)
        and "forward" not in vars(module)
        and len(module._forward_hooks) == 1
        and not torch_module._global_forward_hooks
        and type(output) is Tensor
        and output.is_floating_point()
        and output.is_contiguous()
        and not (torch.is_grad_enabled() or output.requires_grad)
        and output.is_inference() == torch.is_inference_mode_enabled()
    )
