"""`ggss export` and `ggss convert`: a model with steering in its weights, for any engine; a steerer in other formats.

A steerer is converted between its folder and the paper's `.pt` checkpoint, and from the authors' checkpoints.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ggss import errors
from ggss.cli.arguments import Json, Loading, Model, TrustRemoteCode, loads_model, named_strengths, pairs, say
from ggss.errors import InputError, no_such, problems
from ggss.files import check_file, check_folder, never

if TYPE_CHECKING:
    from ggss.activations import Activations
    from ggss.models import Vlm
    from ggss.steering.export import Export
    from ggss.steering.steerer import Steerer

FIRST_ATTRIBUTE = "race"  # of the authors' checkpoints in a folder without a suffix


@loads_model
def export(
    model: Model,
    steer: Annotated[
        list[str],
        typer.Option(metavar="NAME=FOLDER", help="A steerer, and a name for it; several act in their order."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write; it must not exist.")],
    alpha: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=ALPHA",
            help="A steerer's strength; by default the one that it recommends, or 1. An approximation needs one.",
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option("--as", metavar="checkpoint|lora|mmproj", help="What is written: see above."),
    ] = "checkpoint",
    mmproj: Annotated[
        Path | None,
        typer.Option(help="The unsteered model's mmproj file in GGUF, for --as mmproj.", show_default=False),
    ] = None,
    approximate: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGES",
            help="The discovery images. A method that is not affine is replaced by the nearest affine map on them.",
            show_default=False,
        ),
    ] = None,
    neutral: Annotated[
        Path | None,
        typer.Option(
            help="A folder of pictures without people, on which the approximation is measured, too.",
            show_default=False,
        ),
    ] = None,
    *,
    loading: Loading,
    as_json: Json = False,
) -> None:
    """Write a model that is steered by its weights: no hook, no cost, any engine that serves the base model.

    The steering is always on and its strength is fixed. It works for methods that are affine, such as pace, where the
    site is a Linear. The result is loaded without hooks and compared with the live steerers before it is called done.

    --as checkpoint copies the model's folder and replaces the projector's tensors: for transformers, vLLM, SGLang,
    TGI and converters. --as lora writes a PEFT adapter. --as mmproj writes the projector's file of llama.cpp and
    Ollama.

    Example: ggss export small-world/llava-vicuna --steer race=race-steerer --alpha race=1.0 -o debiased
    """
    folders = pairs(steer, "--steer")
    strengths = named_strengths(alpha or [], folders)
    if neutral is not None and approximate is None:
        raise InputError("--neutral is for measuring an approximation: give --approximate IMAGES, or leave it out")

    from ggss.steering.export import FORMS, chosen, new_folder
    from ggss.steering.export import export as write
    from ggss.steering.steerer import Steerer

    new_folder(out)
    if form not in FORMS:
        raise no_such(f"--as {form!r} is no form of an exported model", form, FORMS)
    steerers = {name: Steerer.from_pretrained(folder) for name, folder in folders.items()}
    chosen(steerers, strengths, approximate is not None)
    people = without_people = None
    if approximate is not None:
        sites = list(dict.fromkeys(site for steerer in steerers.values() for site in steerer.operators))
        people, without_people = _activations(model, approximate, neutral, sites, loading)
    made = write(
        model,
        steerers,
        strengths,
        out,
        form=form,
        mmproj=mmproj,
        approximate=people,
        without_people=without_people,
        load=loading.load,
    )
    if as_json:
        print(json.dumps({"folder": str(made.folder), **made.record}, indent=2))
    else:
        _show(made)


def _activations(
    model: str, images: str, neutral: Path | None, sites: list[str], loading: Loading
) -> "tuple[Activations, Activations | None]":
    """Of the discovery images, and of pictures without people; with tokens."""
    from ggss.activations.collect import collect
    from ggss.data.counterfactuals import Counterfactuals, folder_of_pictures

    faces = Counterfactuals.load(images)
    scenes = None if neutral is None else folder_of_pictures(neutral)
    vlm = loading.load(model)
    people = collect(vlm, faces, sites, keep_tokens=True)
    return people, None if scenes is None else collect(vlm, scenes, sites, keep_tokens=True)


def _show(made: "Export") -> None:
    record: dict[str, Any] = made.record
    proof = record["proof"]
    for part in record["steerers"]:
        for site, near in (part["approximation"] or {}).items():
            say(
                f"{part['name']} at {site} is an approximation: R^2 {near['people']:.4f} on held-out people, "
                f"{near['without_people']:.4f} on pictures without people. A high R^2 is no promise: no strength is "
                "recommended before `ggss probe` has measured the result (`ggss recommend`)."
            )
    for name, facts in proof["compared"].items():
        say(
            f"{name}: error {facts['error']:.2g}, {facts['units']:.2f} units of {proof['stored_in']}'s rounding "
            f"(at most {proof['limit']:g}); the steering moves it by {facts['effect']:.2g}"
        )
    changed = ", ".join(record["tensors"])
    say(f"{record['form']} written to {made.folder}; {len(record['tensors'])} tensors are new: {changed}")
    if record["left_out"]:
        say(f"not copied, because these weights are not steered: {', '.join(record['left_out'])}")
    for note in record["notes"]:
        say(note)
    if record["form"] == "checkpoint":
        say(f"bias and capability were not measured: ggss probe {made.folder}")


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT", help="A .pt file, a folder of them, or a steerer's folder.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder, or the .pt file, to write.")],
    attribute: Annotated[
        str | None,
        typer.Option(
            help="What the .pt file removes, such as race, if the file does not say it.", show_default=False
        ),
    ] = None,
    values: Annotated[
        str | None, typer.Option(help="The values of the attribute, comma separated.", show_default=False)
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(help="Where the .pt file steers, projection-mlp2 if it does not say; or the site to write."),
    ] = None,
    kappa: Annotated[
        float | None,
        typer.Option(help="The gate's sharpness, if not the one in the file, or the paper's.", **errors.KAPPA.bounds),
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option(
            help="The gate's floor, if not the paper's 0.3. The authors' own files have an unused 0.",
            **errors.SHARE.bounds,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that the .pt file was made for, which it does not say: its fingerprint is recorded.",
            show_default=False,
        ),
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Convert the paper's .pt checkpoint to a steerer's folder, or a folder to a .pt checkpoint.

    A file becomes a folder, a folder becomes a file. A .pt file is read without running code. It holds the subspace,
    mu and the gate's statistics of one site; kappa, floor, the model and a recommended strength are not in it.
    With --model the steerer is refused by other models; without it every use says that it is unverified.
    Nothing that is there is replaced without --force.

    The checkpoints of the authors' own discovery script are read too, one or a folder of them. Their folder says the
    attribute, they say the site. Those of MeanDiff and BendVLM hold pickled objects and are listed as not converted.

      ggss convert race-steerer -o race.pt

      ggss convert results/qwen3-vl-4b/projection-mlp2_gender -o steerers

    Example: ggss convert race.pt -o race-steerer --attribute race --values asian,black,white --model org/model
    """
    if not source.exists():
        raise InputError(f"{str(source)!r} does not exist: give a .pt file or a steerer's folder")
    if source.is_dir() and (out.suffix == ".pt" or not _of_checkpoints(source)):
        for_files = {
            "--attribute": attribute,
            "--values": values,
            "--kappa": kappa,
            "--floor": floor,
            "--model": model,
        }
        unused = [name for name, value in for_files.items() if value is not None]
        if unused:
            raise InputError(f"{', '.join(unused)} is for reading a .pt file, and {str(source)!r} is a folder")
        _to_file(source, out, site, force)
        return
    settings = _FileSettings(
        attribute, _value_names(values), site, _checked_gate(kappa, floor), _loaded(model, trust_remote_code)
    )
    if source.is_dir():
        _to_folders(source, out, settings, force)
    else:
        _to_folder(source, out, settings, force)


class _FileSettings(NamedTuple):
    """What the command's options say about a .pt file."""

    attribute: str | None
    values: tuple[str, ...]
    site: str | None
    gate: dict[str, float]
    vlm: "Vlm | None" = None


def _value_names(values: str | None) -> tuple[str, ...]:
    named = tuple(filter(None, (value.strip() for value in (values or "").split(","))))
    if values is not None and not named:
        raise InputError(f"--values {values!r} names no value: give them as a,b,c")
    return named


def _checked_gate(kappa: float | None, floor: float | None) -> dict[str, float]:
    chosen = {name: number for name, number in (("kappa", kappa), ("floor", floor)) if number is not None}
    if chosen:
        from ggss.methods import registry

        registry.checked_options(registry.get("ggss"), chosen)
    return chosen


def _loaded(model: str | None, trust_remote_code: bool) -> "Vlm | None":
    return None if model is None else Loading(trust_remote_code=trust_remote_code).load(model)


def _of_checkpoints(folder: Path) -> bool:
    """Whether a folder has .pt files and no steerer."""
    from ggss.steering.artefact import holds_steerer

    return any(folder.glob("*.pt")) and not holds_steerer(folder)


def _to_folder(source: Path, out: Path, settings: _FileSettings, force: bool) -> None:
    check_folder(out, "ggss convert", never, force)
    steerer = _read(source, settings)
    steerer.save_pretrained(out)
    say(f"{_described(steerer)} written to {out}")
    if note := _floor_note(steerer, settings):
        say(note)
    _say_model(settings)


def _to_folders(source: Path, out: Path, settings: _FileSettings, force: bool) -> None:
    """Convert every readable checkpoint of a folder into a folder of its name, and list the others."""
    from ggss.steering.checkpoints import has_gate

    converted: dict[str, Steerer] = {}
    refused: list[str] = []
    for path in sorted(source.glob("*.pt")):
        try:
            converted[path.stem] = _read(path, settings if has_gate(path) else settings._replace(gate={}))
        except InputError as error:
            refused.append(str(error))
    if not converted:
        raise problems(f"no file in {str(source)!r} could be converted", refused)
    for name in converted:
        check_folder(out / name, "ggss convert", never, force)
    for name, steerer in converted.items():
        steerer.save_pretrained(out / name)
        say(f"{_described(steerer)} written to {out / name}")
    for note in dict.fromkeys(filter(None, (_floor_note(steerer, settings) for steerer in converted.values()))):
        say(note)
    _say_model(settings)
    if refused:
        say(f"Not converted, {len(refused)} of {len(converted) + len(refused)}:")
        for reason in refused:
            say(f"  {reason}")


def _read(source: Path, settings: _FileSettings) -> "Steerer":
    steerer = _read_plain(source, settings)
    if settings.vlm is None:
        return steerer
    from ggss.models.sites import in_text

    of_text = any(map(in_text, steerer.operators))
    recorded = replace(steerer, source=steerer.source | settings.vlm.describe(text=of_text))
    recorded.check(settings.vlm)
    return recorded


def _say_model(settings: _FileSettings) -> None:
    if settings.vlm is not None:
        say(f"recorded as made for {settings.vlm.name}, as --model says: no file can prove that")
    else:
        say("unverified: the file does not say its model, and every use will say so; --model MODEL records it")


def _read_plain(source: Path, settings: _FileSettings) -> "Steerer":
    from ggss.activations import SITE
    from ggss.steering.checkpoints import UNNAMED, is_released, read_pt, read_released

    if is_released(source):
        return read_released(
            source, settings.attribute, FIRST_ATTRIBUTE, settings.values, settings.site, **settings.gate
        )
    steerer = read_pt(source, settings.attribute, settings.values, settings.site or SITE, **settings.gate)
    if steerer.attribute == UNNAMED:
        raise InputError(f"{str(source)!r} does not say which attribute it removes: give --attribute, such as race")
    return steerer


def _floor_note(steerer: "Steerer", settings: _FileSettings) -> str:
    """A sentence about a floor of 0, which the authors' files have; "" for another floor."""
    if steerer.source.get("stored_floor") != 0:
        return ""
    used = next(iter(steerer.operators.values())).scalars()["floor"]
    chosen = "as --floor says" if "floor" in settings.gate else "the paper's; --floor chooses another"
    return f"gate_floor is 0 in the file, which the authors' scripts replace when they steer: here {used:g}, {chosen}"


def _to_file(source: Path, out: Path, site: str | None, force: bool) -> None:
    check_file(out, "ggss convert", never, force)
    from ggss.activations import SITE
    from ggss.steering.checkpoints import write_pt
    from ggss.steering.steerer import Steerer

    steerer = Steerer.from_pretrained(source)
    only = next(iter(steerer.operators)) if len(steerer.operators) == 1 else SITE
    chosen = site or only
    write_pt(steerer, out, chosen)
    say(f"{_described(steerer)} at {chosen} written to {out}")
    lost = _lost(steerer, chosen)
    if lost:
        say(f"Not saved, because a .pt file has no place for it: {', '.join(lost)}")


def _described(steerer: "Steerer") -> str:
    attribute = steerer.attribute if isinstance(steerer.attribute, str) else " x ".join(steerer.attribute)
    return f"{steerer.method} steerer for {attribute}"


def _lost(steerer: "Steerer", site: str) -> list[str]:
    """What the steerer has and a .pt file cannot hold. The paper's kappa and floor are not listed."""
    from ggss.methods.spherical import Geodesic

    scalars, usual = steerer.operators[site].scalars(), {"kappa": Geodesic.kappa, "floor": Geodesic.floor}
    lost = [f"{name} {scalars[name]:g}" for name in usual if scalars[name] != usual[name]]
    if len(steerer.operators) > 1:
        lost.append(f"the other sites ({', '.join(other for other in steerer.operators if other != site)})")
    if steerer.source.get("model"):
        lost.append(f"the model {steerer.source['model']}")
    if steerer.recommended_alpha is not None:
        lost.append(f"the recommended alpha {steerer.recommended_alpha:g}")
    return lost
