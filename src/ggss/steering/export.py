"""An exported model: steering in its weights, so that any engine serves it, without hooks and without cost.

A site is the output h = W x + b of a Linear. Where the operators that steer it are affine, the steered rows are

    h' = s h + L R^T h + c        so        W' = s W + L R^T W        b' = s b + L R^T b + c

and a Linear with W' and b' gives them by itself (`Affine.fold`, in float64). Three forms hold these numbers.

- checkpoint: a copy of the model's folder in which only these tensors are other numbers. Their names, dtypes, shards
  and places in the files stay, so that every engine finds them. Nothing else of a file is read.
- lora: a PEFT adapter of low rank on the same Linear, with a bias.
- mmproj: the projector's file of llama.cpp and Ollama, with the same tensors replaced (`ggss.steering.gguf`).

The result is loaded as anyone would load it, without a hook, and compared with the live steerers before it gets its
name. The unit of this comparison is the dtype's own rounding: what the visual tokens and the logits move by if each
of the folded weights changes by up to one unit in its last place.

`config.json` of a checkpoint names the steerers under `ggss_export`. So whoever loads the model can know, and the
same steerer is not attached to it again. `ggss_export.json` says everything.
"""

import gc
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ggss.activations.collect import DISCOVERY_PROMPT
from ggss.errors import InputError, no_such
from ggss.files import read_json, write_whole
from ggss.methods.operator import Affine, explained, nearest_map
from ggss.models import locate
from ggss.models.identity import APPROXIMATED, EXPORTED, ModelIdentity, check_unchanged, exported_steering
from ggss.models.placement import ConvertedLinear
from ggss.models.sites import resolve
from ggss.steering.attach import unverified
from ggss.steering.doctor import two_pictures
from ggss.steering.exported_files import (
    FLOATS,
    FORMAT,
    WRITTEN_BY,
    SiteLinear,
    WrittenWeights,
    licence_of,
    read_mmproj,
    read_record,
    write_checkpoint,
    write_lora,
    write_mmproj,
    write_record,
)
from ggss.steering.steerer import Steerer, checked_alpha
from ggss.version import library_versions

if TYPE_CHECKING:
    from ggss.activations import Activations
    from ggss.models import Vlm

FORMS = ("checkpoint", "lora", "mmproj")
AFFINE_METHODS = (
    *("pace", "pace-no-whitening", "pace-pooled", "pace-within-parts", "pace-orthogonal"),
    *("inlp-euclidean", "svd-pooled-euclidean", "svd-token-euclidean"),
)
"""Methods of ggss that give affine operators; what decides is the operator (`Operator.affine`)."""

LIMIT = 4.0  # units of the dtype's rounding by which the result may differ from the live steerers


class ProofFailed(InputError):
    """The exported model does not compute what the live steerers do; nothing was written."""


@dataclass(frozen=True)
class Export:
    """An exported model on disk. record: what its `ggss_export.json` says."""

    folder: Path
    record: dict[str, Any]


@dataclass(frozen=True)
class FoldedSteerer:
    """One of the steerers that are exported, and its strength.

    nearest: a steerer with affine operators that takes its place, at alpha 1. approximation: how near it is, by site.
    """

    name: str
    steerer: Steerer
    alpha: float
    nearest: Steerer | None = None
    approximation: dict[str, dict[str, float]] | None = None

    @property
    def live(self) -> tuple[Steerer, float]:
        """The steerer and strength that do, attached, what is exported."""
        return (self.steerer, self.alpha) if self.nearest is None else (self.nearest, 1.0)

    def described(self) -> dict[str, Any]:
        steerer = self.steerer
        return {
            "name": self.name,
            "method": steerer.method,
            "attribute": steerer.attribute,
            "values": list(steerer.values),
            "alpha": self.alpha,
            "steerer": steerer.content_hash,
            "sites": list(steerer.operators),
            "options": steerer.options,
            "verified": not unverified(steerer),
            "approximation": self.approximation,
        }


def export(
    model: "str | Path | Vlm",
    steerers: Mapping[str, Steerer],
    alpha: float | Mapping[str, float] | None = None,
    out: str | os.PathLike[str] = "exported",
    *,
    form: str = "checkpoint",
    mmproj: str | os.PathLike[str] | None = None,
    approximate: "Activations | None" = None,
    without_people: "Activations | None" = None,
    load: "Callable[[str], Vlm] | None" = None,
) -> Export:
    """Write a model that is steered by its weights alone: an ordinary checkpoint, an adapter, or an mmproj file.

    The result is loaded again and compared with the live steerers before it is called done.

    Args:
        model: a folder, a hub id, `small-world/NAME`, or a Vlm that was loaded from one of these.
        steerers: by name, in the order in which they act. Their operators must be affine (`pace` is).
        alpha: the strength, for all or by name; None: what each steerer recommends, or 1. A steerer that is
            approximated needs one: what it recommends was measured with its hook.
        out: the folder to write; it must not exist.
        form: "checkpoint", "lora" (a PEFT adapter) or "mmproj" (a projector's file of llama.cpp).
        mmproj: the mmproj file of the unsteered model, for that form.
        approximate: activations of the model, with tokens (`keep_tokens=True`). An operator that is not affine is
            replaced by the affine map that is nearest to it on them.
        without_people: the same of pictures without people, on which the approximation is measured, too; two
            patterns unless given.
        load: how the model is loaded; `ggss.load_vlm` unless given.

    Returns:
        The folder, and what its `ggss_export.json` says.

    Raises:
        InputError: if the steering cannot be in the weights (the operator is not affine, the site is no plain Linear,
            weights are quantised or shared, ...), the steerer is of another model, or `out` exists.
        ProofFailed: if the result does not compute what the live steerers do.

    Examples:
        >>> pace = ggss.fit("pace", ggss.collect(vlm, faces, keep_tokens=True), attribute="race")
        >>> made = ggss.export("small-world/llava-vicuna", {"race": pace}, 1.0, "debiased")
        >>> ggss.load_vlm("debiased").name
        'debiased'
    """
    from ggss.models import Vlm, load_vlm

    parts, folder = chosen(steerers, alpha, approximate is not None), new_folder(out)
    if form not in FORMS:
        raise no_such(f"there is no form {form!r} of an exported model", form, FORMS)
    if (form == "mmproj") != (mmproj is not None):
        raise InputError(
            "the form mmproj, and no other, needs the mmproj file of the unsteered model (--mmproj FILE)"
        )
    load = load or (_loads_alike(model) if isinstance(model, Vlm) else load_vlm)
    vlm = model if isinstance(model, Vlm) else load(str(model))
    source = source_folder(vlm.name, getattr(vlm.model.config, "_commit_hash", None))
    base = vlm.describe() | {"earlier": exported_steering(vlm.model), "licence": licence_of(source)}
    if approximate is not None:
        parts = [_approximated(part, vlm, approximate, without_people) for part in parts]
    linears = folded_linears(vlm, parts)
    live = LiveOutcomes.of(vlm, parts, linears)
    del vlm, model
    gc.collect()  # two models at a time may not fit in memory
    with _unfinished(folder) as unfinished:
        if form == "checkpoint":
            written = write_checkpoint(source, unfinished, linears)
        elif form == "lora":
            written = write_lora(unfinished, base["model"], linears)
        else:
            written = write_mmproj(unfinished, Path(mmproj or ""), linears)
        result = _loaded(form, unfinished, base["model"], written, load)
        proof = proved(result, linears, live, written.dtype)
        record = _record(form, base, parts, written, proof, linears, result)
        if form == "checkpoint":
            _note_in_config(unfinished / "config.json", parts)
        write_record(unfinished, record)
    return Export(folder, record)


def chosen(
    steerers: Mapping[str, Steerer], alpha: float | Mapping[str, float] | None, approximate: bool = False
) -> list[FoldedSteerer]:
    """The steerers with their strengths; InputError for a strength or a steerer that weights cannot hold.

    approximate: operators that are not affine will be replaced.
    """
    if not steerers:
        raise InputError("no steerer was given: an export needs at least one, such as race=race-steerer")
    strengths = alpha if isinstance(alpha, Mapping) else dict.fromkeys(steerers, alpha)
    for name in strengths:
        if name not in steerers:
            raise no_such(f"a strength is given for {name!r}, which is no steerer of this export", name, steerers)
    parts = []
    for name, steerer in steerers.items():
        strength = checked_alpha(steerer.strength(strengths.get(name)), allow_amplify=False)
        if isinstance(strength, Tensor) or strength == 0:
            raise InputError(f"{name}: an export has one strength above 0 for all images, seen {strength}")
        if steerer.prompt_suffix:
            raise InputError(
                f"{name}: a {steerer.method} steerer appends text to every prompt, and weights cannot do that: "
                "append it where you write prompts, or export another method, such as pace"
            )
        if approximate and strengths.get(name) is None and not _is_affine(steerer, strength):
            raise InputError(
                f"{name}: an approximation answers differently from its method, so no strength is recommended for it "
                f"before `ggss probe` has measured it: give one to try (--alpha {name}={strength:g})"
            )
        parts.append(FoldedSteerer(name, steerer, strength))
    return parts


def _is_affine(steerer: Steerer, alpha: float) -> bool:
    return all(operator.affine(alpha) is not None for operator in steerer.operators.values())


def new_folder(out: str | os.PathLike[str]) -> Path:
    """InputError if something is there: a model is never written into another one."""
    folder = Path(out)
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{str(folder)!r} is there already: an export is written to a new folder, give another name")
    return folder


def _loads_alike(vlm: "Vlm") -> "Callable[[str], Vlm]":
    from ggss.models import load_vlm

    return lambda name: load_vlm(name, dtype=vlm.model.dtype, device_map=str(vlm.device))


def source_folder(name: str, revision: str | None = None) -> Path:
    """The folder of a model's files; of a hub id, the snapshot that was downloaded when it was loaded."""
    place = locate(name, ask_hub=False)
    if Path(place).is_dir():
        return Path(place)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(place, revision=revision, local_files_only=True))
    except Exception as error:  # of the hub's client, of many types
        raise InputError(
            f"the files of {name!r} are not in the local cache ({error}): load the model first"
        ) from error


def folded_linears(vlm: "Vlm", parts: Sequence[FoldedSteerer]) -> list[SiteLinear]:
    """The Linear of each site, with the composed map of all steerers; InputError for what cannot be folded."""
    check_unchanged(vlm.model)
    if getattr(vlm.model.config, "quantization_config", None) is not None:
        raise InputError(
            f"{vlm.name} is quantised, and its weights cannot hold the exact sum: export the model before "
            "quantisation, then quantise the result"
        )
    maps: dict[tuple[str, str], Affine] = {}
    for part in parts:
        steerer, alpha = part.live
        for site, path in steerer.check(vlm).items():
            affine = steerer.operators[site].affine(alpha)
            if affine is None:
                raise _not_affine(part, site)
            maps[site, path] = maps[site, path].then(affine) if (site, path) in maps else affine
    if all(affine.is_identity for affine in maps.values()):
        raise InputError("the steerers change nothing (discovery found no direction): there is nothing to export")
    return [_site_linear(vlm, site, path, affine) for (site, path), affine in maps.items() if not affine.is_identity]


def _not_affine(part: FoldedSteerer, site: str) -> InputError:
    kind = part.steerer.operators[site].kind
    return InputError(
        f"{part.name}: what {part.steerer.method} does at {site} depends on the token (its operator {kind!r} is not "
        f"affine), and a weight cannot do that. The nearest method that can be exported is pace; others are "
        f"{', '.join(AFFINE_METHODS[1:])}. Or fold in the best affine map: --approximate IMAGES"
    )


def _site_linear(vlm: "Vlm", site: str, path: str, affine: Affine) -> SiteLinear:
    module: Any = resolve(vlm.model, path)
    if type(module) not in (nn.Linear, ConvertedLinear):
        raise InputError(
            f"the site {site} of this {vlm.family.name} model is a {type(module).__name__}, no plain Linear, so "
            "steering cannot be folded into its weights: use `ggss serve` or attach"
        )
    weight, bias = (None if tensor is None else tensor.detach().cpu() for tensor in (module.weight, module.bias))
    assert isinstance(weight, Tensor)
    if weight.dtype not in FLOATS:
        raise InputError(
            f"the weights at {path} are {weight.dtype}, quantised: export the model before quantisation, then "
            "quantise the result"
        )
    for name, tensor in (("weight", module.weight), ("bias", module.bias)):
        tied = [
            other
            for other, parameter in vlm.model.named_parameters(remove_duplicate=False)
            if parameter is tensor and other != f"{path}.{name}"
        ]
        if tensor is not None and tied:
            raise InputError(
                f"{path}.{name} is tied to {tied[0]}: to change it would change that too. Save the model with "
                "untied weights first"
            )
    if bias is None and affine.offset.any():
        raise InputError(
            f"the Linear at {path} of this {vlm.family.name} model has no bias, and this steering has an offset of "
            f"size {float(affine.offset.norm()):.2g}, which only a bias can hold: use `ggss serve` or attach, or a "
            "method without an offset (directional-ablation around the origin)"
        )
    return SiteLinear(site, path, affine, weight, bias)


class Outcome(NamedTuple):
    """What a model computes of the pictures: by site its rows [N, D], and one question's logits [pictures, words]."""

    rows: dict[str, Tensor]
    logits: Tensor

    @classmethod
    def of(cls, vlm: "Vlm", sites: Sequence[str]) -> "Outcome":
        pictures = two_pictures(vlm)
        features = vlm.encode(pictures, sites, batch_size=1)
        logits = [vlm.logits([DISCOVERY_PROMPT], [[picture]]) for picture in pictures]
        rows = {site: torch.cat([picture.rows[site] for picture in features]).float().cpu() for site in sites}
        return cls(rows, torch.cat(logits).cpu())

    def distance(self, other: "Outcome") -> dict[str, float]:
        """Root mean squares of the differences, by site and of the logits."""
        distances = {
            site: float((rows - other.rows[site]).square().mean().sqrt()) for site, rows in self.rows.items()
        }
        return distances | {"logits": float((self.logits - other.logits).square().mean().sqrt())}


class LiveOutcomes(NamedTuple):
    """Of the model with hooks: unsteered, and with all steerers attached in their order."""

    unsteered: Outcome
    steered: Outcome

    @classmethod
    def of(cls, vlm: "Vlm", parts: Sequence[FoldedSteerer], linears: Sequence[SiteLinear]) -> "LiveOutcomes":
        sites = [linear.site for linear in linears]
        unsteered = Outcome.of(vlm, sites)
        with ExitStack() as stack:
            for part in parts:
                steerer, alpha = part.live
                stack.enter_context(steerer.attach(vlm, alpha))
            return cls(unsteered, Outcome.of(vlm, sites))


def proved(
    result: "Vlm", linears: Sequence[SiteLinear], live: LiveOutcomes, dtype: torch.dtype
) -> dict[str, dict[str, float]]:
    """How far the exported model is from the live steerers, in units of the dtype's rounding; ProofFailed if too far.

    dtype: of the stored numbers. result: loaded without hooks; its weights are changed here.
    """
    sites = [linear.site for linear in linears]
    outcome = Outcome.of(result, sites)
    errors, effects = outcome.distance(live.steered), live.unsteered.distance(live.steered)
    coarser = max((dtype, result.model.dtype), key=lambda kind: torch.finfo(kind).eps)
    _change_last_digits([resolve(result.model, linear.path) for linear in linears], torch.finfo(coarser).eps)
    units = outcome.distance(Outcome.of(result, sites))
    proof = {
        name: {"error": error, "unit": units[name], "units": _ratio(error, units[name]), "effect": effects[name]}
        for name, error in errors.items()
    }
    for name, compared in proof.items():
        if not compared["units"] <= LIMIT:
            raise ProofFailed(
                f"the exported model is not the steered one: {name} differs by {compared['error']:.3g}, "
                f"{compared['units']:.1f} times what rounding to {coarser} makes (at most {LIMIT:g}; the steering "
                f"itself moves it by {compared['effect']:.3g}). Nothing was written: please report this with the "
                "model's name"
            )
    return proof


def _ratio(error: float, unit: float) -> float:
    return 0.0 if error == 0 else error / unit if unit else float("inf")


def _change_last_digits(modules: Sequence[Any], eps: float) -> None:
    """Change each number of the Linears by up to one unit in the last place, at random."""
    generator = torch.Generator().manual_seed(0)
    for module in modules:
        linear = getattr(module, "base_layer", module)  # a LoRA's
        for tensor in (linear.weight, linear.bias):
            if tensor is not None:
                noise = 1 + eps * (2 * torch.rand(tensor.shape, generator=generator) - 1)
                tensor.data.copy_((tensor.data.cpu().double() * noise).to(tensor.dtype))


def _loaded(form: str, folder: Path, name: str, written: WrittenWeights, load: "Callable[[str], Vlm]") -> "Vlm":
    """The exported model, as an engine would have it: without a hook."""
    if form == "checkpoint":
        return load(str(folder))
    vlm = load(name)
    if form == "lora":
        return _with_adapter(vlm, folder)
    for path, values in read_mmproj(folder, written.tensors).items():
        vlm.model.get_parameter(path).data.copy_(values)
    return vlm


def _note_in_config(config: Path, parts: Sequence[FoldedSteerer]) -> None:
    """Name the steerers in a model's `config.json`, after those that it has from an export before."""
    content = read_json(config, "the model's config")
    kept = ("name", "method", "attribute", "alpha", "steerer")
    added = [
        {name: part.described()[name] for name in kept} | ({} if part.nearest is None else {APPROXIMATED: True})
        for part in parts
    ]
    write_whole(
        config, (json.dumps(content | {EXPORTED: [*content.get(EXPORTED, []), *added]}, indent=2) + "\n").encode()
    )


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """A folder beside the one that is wanted, which gets its name when all is well and is deleted otherwise."""
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(folder)
    except OSError as error:
        raise InputError(f"cannot write {str(folder)!r} ({error.strerror}): choose another place") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _with_adapter(vlm: "Vlm", folder: Path) -> "Vlm":
    try:
        from peft import PeftModel
    except ImportError as error:
        raise InputError("a LoRA is tried out with PEFT before it is called done: pip install peft") from error
    from ggss.models import Vlm

    return Vlm(PeftModel.from_pretrained(vlm.model, str(folder)).eval(), vlm.processor, vlm.name)


def _record(
    form: str,
    base: dict[str, Any],
    parts: Sequence[FoldedSteerer],
    written: WrittenWeights,
    proof: dict[str, dict[str, float]],
    linears: Sequence[SiteLinear],
    result: "Vlm",
) -> dict[str, Any]:
    kept = ("model", "revision", "family", "fingerprint", "licence", "earlier")
    return {
        "format": FORMAT,
        "written_by": WRITTEN_BY,
        "form": form,
        "base": {name: base[name] for name in kept},
        "steerers": [part.described() for part in parts],
        "sites": {linear.site: linear.path for linear in linears},
        "tensors": written.tensors,
        "left_out": written.left_out,
        "notes": written.notes,
        "proof": {
            "stored_in": str(written.dtype).removeprefix("torch."),
            "computed_in": str(result.model.dtype).removeprefix("torch."),
            "limit": LIMIT,
            "compared": proof,
        },
        "measured": None,  # `recommend` fills in both
        "recommended": None,
        "versions": library_versions(),
    }


def recommend(
    folder: str | os.PathLike[str], identity: Mapping[str, str], measured: Mapping[str, Any]
) -> dict[str, float]:
    """Write into an exported checkpoint's record and card what was measured of it, and that its strengths are
    recommended.

    Args:
        folder: of `export`, in the form checkpoint.
        identity: the identity of the model that was measured, by part.
        measured: what the record is to say: a comparison of `ggss compare`, as data.

    Returns:
        The strengths by the names of the steerers.

    Raises:
        InputError: if it is no exported checkpoint, or if another model was measured.
    """
    from ggss.models import load_vlm

    record = read_record(folder)
    if record["form"] != "checkpoint":
        raise InputError(
            f"{str(folder)!r} is an exported {record['form']}, which ggss does not load, so no run is known to be of "
            "it: export the same steering as a checkpoint, and measure that"
        )
    if "endpoint" in identity:
        raise InputError(
            f"the run was asked at {identity['endpoint']}, and a server does not show its weights: measure the "
            f"model with `ggss probe {folder}`"
        )
    exported = load_vlm(str(folder), identity.get("dtype")).identity
    if different := exported.model_differences(ModelIdentity(identity)):
        raise InputError(
            f"the run was not answered by the model in {str(folder)!r}: they differ in {', '.join(different)}. "
            f"Measure this one with `ggss probe {folder}`"
        )
    strengths = {steerer["name"]: steerer["alpha"] for steerer in record["steerers"]}
    write_record(Path(folder), record | {"measured": dict(measured), "recommended": strengths})
    return strengths


HELD_OUT = 5  # one of so many contexts


def _approximated(
    part: FoldedSteerer, vlm: "Vlm", activations: "Activations", without_people: "Activations | None"
) -> FoldedSteerer:
    """With affine operators in place of those that are not; fitted on four fifths of the contexts, measured on the
    others and on pictures without people."""
    if _is_affine(part.steerer, part.alpha):
        return part
    contexts = list(dict.fromkeys(activations.contexts))
    if len(contexts) < 2:
        raise InputError(f"an approximation is measured on held-out people, and there are {len(contexts)} contexts")
    apart = set(contexts[::HELD_OUT])
    images = range(len(activations))
    held_out = [i for i in images if activations.contexts[i] in apart]
    fitted = [i for i in images if activations.contexts[i] not in apart]
    drawn = vlm.encode(two_pictures(vlm), list(part.steerer.operators), batch_size=1)
    operators, quality = {}, {}
    for site, operator in part.steerer.operators.items():
        tokens = activations.at(site)
        nearest = nearest_map(operator, tokens.of(fitted).tokens, part.alpha)
        patterns = (
            without_people.at(site).tokens if without_people else [picture.rows[site].cpu() for picture in drawn]
        )
        operators[site] = nearest
        quality[site] = {
            "people": explained(operator, nearest, tokens.of(held_out).tokens, part.alpha),
            "held_out": len(held_out),
            "without_people": explained(operator, nearest, patterns, part.alpha),
        }
    return replace(part, nearest=replace(part.steerer, operators=operators), approximation=quality)
