"""`ggss export`: a model with steering in its weights, for any engine."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss.cli.arguments import Json, Loading, Model, loads_model, named_strengths, pairs, say
from ggss.errors import InputError, no_such

if TYPE_CHECKING:
    from ggss.activations import Activations
    from ggss.steering.export import Export


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
