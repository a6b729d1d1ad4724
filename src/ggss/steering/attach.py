"""Attaching a steerer to a live model: does it fit, and the hooks that replace the output of modules and count.

A steerer fits if its `source` is that of the model. It may be used in another dtype, with other attention and other
library versions. Another version of transformers may have other settings; then only settings that both versions have
are compared. A steerer that does not record its model, such as one from a `.pt` file, is unverified: every use says
so unless it is forced.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from ggss.errors import InputError, problems
from ggss.methods.operator import Steered
from ggss.models.hooks import RECORDER, Attachment, ImageRows, eager, noted
from ggss.models.identity import exported_steering
from ggss.models.placement import ConvertedLinear
from ggss.models.sites import in_text
from ggss.version import library_versions

if TYPE_CHECKING:
    from ggss.models import Vlm
    from ggss.steering.steerer import Steerer


log = logging.getLogger(__name__)

LEARNED_FROM = "questions"  # the key of a source that says how many questions a live model answered for the fit
ONLY_TOGETHER = (
    "steers the pictures of a prompt by their common mean (pooled_over=prompt), and a server steers each picture on "
    "its own: fit it with pooled_over=image"
)
FORCED = " (allowed by --any-model, or force=True)"
_BY_VERSION = "tokenizer"  # a hash of what the tokenizers library writes, which differs between its versions


def fitting_paths(
    steerer: "Steerer", vlm: "Vlm | nn.Module", force: bool = False, weights: str | None = None
) -> dict[str, str]:
    """The module path of each site of the steerer in a model; InputError as in `Steerer.check`."""
    from ggss.models import Vlm, family_of, resolve
    from ggss.models.families import known_family
    from ggss.models.identity import unwrapped
    from ggss.models.sites import is_layer, layer_path, layer_width

    model: Any = vlm.model if isinstance(vlm, Vlm) else unwrapped(vlm)
    _refuse_twice(steerer, model)
    source_paths = steerer.source.get("paths")
    recorded: dict[str, str] = source_paths if isinstance(source_paths, dict) else {}
    family = family_of(model, paths=recorded)
    known = family.site_paths(model.config)
    paths = known | {site: layer_path(model, site) for site in steerer.operators if is_layer(site)}
    mismatches = [
        f"site {site!r}: the model has {', '.join(known)}" for site in steerer.operators if site not in paths
    ]
    for site, operator in steerer.operators.items():
        module = resolve(model, paths[site]) if site in paths else None
        width = layer_width(model.config, site) if is_layer(site) else getattr(module, "out_features", None)
        if width and width != operator.width:
            mismatches.append(f"width at {site}: the steerer has {operator.width}, the model {width}")
    if known_family(model.config) is None:  # of a family in the table, another version may name modules otherwise
        mismatches += [
            f"site {site!r}: the steerer was made at {recorded[site]}, the model has it at {paths[site]}"
            for site in steerer.operators
            if site in paths and recorded.get(site, paths[site]) != paths[site]
        ]
    if not force and not mismatches:
        processor = vlm.processor if isinstance(vlm, Vlm) else None
        mismatches += differences(steerer, model, processor, family.name, weights)
        if not mismatches and unverified(steerer):
            log.warning(
                "the %s steerer does not record which model it was made for, so only its width was compared: it may "
                "have been made for another model. Convert its checkpoint again with --model, or confirm that it "
                "fits this one (--any-model, or force=True)",
                steerer.method,
            )
    if mismatches:
        raise problems(
            f"the {steerer.method} steerer for {steerer.source.get('model', 'an unnamed model')} "
            "does not fit this model",
            mismatches,
        )
    return {site: paths[site] for site in steerer.operators}


def _refuse_twice(steerer: "Steerer", model: Any) -> None:
    """InputError, whatever is forced, if the steerer is already in the model's weights."""
    if any(exported.get("steerer") == steerer.content_hash for exported in exported_steering(model)):
        raise InputError(
            f"this {steerer.method} steerer is in the model's weights already (`ggss export` wrote it there), so it "
            "would steer twice: use the model as it is, or attach the steerer to the model it was made for"
        )


def unverified(steerer: "Steerer") -> bool:
    """Whether a steerer does not record which weights it was made with. One that changes no activation needs none."""
    changes_rows = any(operator.kind != "identity" for operator in steerer.operators.values())
    return changes_rows and steerer.source.get("fingerprint") is None


def compare_sizes(steerer: "Steerer", max_side: int | None) -> None:
    """Log a warning if pictures have another cap on their size than those that the steerer was fitted on.

    One that does not record its cap is not compared.
    """
    fitted = steerer.source.get("max_side", max_side)
    if fitted != max_side:
        log.warning(
            "the %s steerer was fitted on pictures %s, and these are %s: their tokens differ. Give --max-side the "
            "value of its discovery, or discover it again",
            steerer.method,
            _capped(fitted),
            _capped(max_side),
        )


def _capped(max_side: object) -> str:
    return "of any size" if max_side is None else f"of at most {max_side} pixels on the longer side"


def differences(
    steerer: "Steerer", model: nn.Module, processor: Any, family: str, weights: str | None = None
) -> list[str]:
    """What differs between a steerer's model and this one, a sentence each; all of it is allowed by `force`.

    Compared are the family, the weights that decide what the steerer acts on, and their settings.
    processor: None if it is not known; then it is not compared. weights: the fingerprint of the vision weights of a
    model that another engine holds. The text weights are then unknown, so a steerer that needs them does not fit.
    """
    from ggss.models.identity import fingerprint, text_fingerprint, text_settings, visual_settings

    source = steerer.source
    pairs = {
        "family": (source.get("family"), family),
        "vision weights": (source.get("fingerprint"), weights or fingerprint(model)),
    }
    settings_of = {"settings": visual_settings}
    # The text model decides what there is to steer inside it, and what a method has learned from answers.
    if any(map(in_text, steerer.operators)) or LEARNED_FROM in source:
        text_weights = text_fingerprint(model) if weights is None else "weights that this engine does not tell"
        pairs["text weights"] = source.get("text_fingerprint"), text_weights
        settings_of["text_settings"] = text_settings
    if source.get("family") == family:
        same_version = steerer.versions.get("transformers") == library_versions()["transformers"]
        for name, settings in settings_of.items():
            if isinstance(recorded := source.get(name), dict):
                pairs |= _settings(recorded, settings(model, processor), same_version, processor is not None)
    return [
        f"{what}: the steerer was made with {recorded!s:.40}, the model has {actual!s:.40}{FORCED}"
        for what, (recorded, actual) in pairs.items()
        if recorded is not None and recorded != actual
    ]


def _settings(
    recorded: Mapping[str, Any], actual: Mapping[str, Any], same_version: bool, with_processor: bool
) -> dict[str, tuple[Any, Any]]:
    """The settings to compare, by name, as (recorded, actual). with_processor: those of the processor, too."""
    names = {name for name in (*recorded, *actual) if with_processor or name.startswith(("config.", "text_config."))}
    if not same_version:
        names = (names & recorded.keys() & actual.keys()) - {_BY_VERSION}
    return {name: (recorded.get(name, "none"), actual.get(name, "none")) for name in sorted(names)}


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
