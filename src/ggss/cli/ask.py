"""`ggss ask`: one question, before and after."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ggss import errors
from ggss.cli.arguments import AnyModel, Json, Loading, Model, Strength, loads_model, no_strength, strength_said
from ggss.errors import InputError


@loads_model
def ask(
    model: Model,
    images_and_question: Annotated[
        list[str],
        typer.Argument(metavar="IMAGE... QUESTION", help="Image files, then the question.", show_default=False),
    ],
    steer: Annotated[str | None, typer.Option(help="A steerer's folder or hub id.")] = None,
    alpha: Strength = None,
    allow_amplify: Annotated[
        bool, typer.Option("--allow-amplify", help="Permit a negative alpha, which amplifies the bias.")
    ] = False,
    any_model: AnyModel = False,
    max_new_tokens: Annotated[int, typer.Option(help="The longest answer, in tokens.", **errors.TOKENS.bounds)] = 64,
    *,
    loading: Loading,
    as_json: Json = False,
) -> None:
    """Ask a model about one or more images; with --steer, steered and unsteered side by side.

    If the steerer comes with a prompt suffix, the steered question has it appended.

    Example: ggss ask small-world/llava-vicuna face.png "which race is this person ?" --steer race-steerer
    """
    *files, question = images_and_question
    if not files or not question.strip():
        raise InputError(f"an image and a question are needed, seen only {files or question!r}")
    no_strength(alpha, steer)
    pictures = [_picture(Path(name)) for name in files]
    steerer = None
    if steer is not None:
        from ggss.steering.steerer import Steerer, checked_alpha

        steerer = Steerer.from_pretrained(steer)
        checked_alpha(steerer.strength(alpha), allow_amplify)
    vlm = loading.load(model)
    said: dict[str, Any] = {"model": vlm.name, "question": question, "images": files}
    said["unsteered"] = vlm.answer([question], [pictures], max_new_tokens=max_new_tokens)[0]
    if steerer is not None:
        asked = question + steerer.prompt_suffix
        with steerer.attach(vlm, alpha, force=any_model, allow_amplify=allow_amplify) as run:
            said["steered"] = vlm.answer([asked], [pictures], max_new_tokens=max_new_tokens)[0]
        mean_gate = float(run.gate.mean()) if len(run.gate) else None
        said |= {"steered_question": asked, "alpha": steerer.strength(alpha)}
        said |= {"calls": run.calls, "tokens": run.tokens, "mean_gate": mean_gate}
        if alpha is None:
            said["note"] = strength_said(steerer)
    if as_json:
        print(json.dumps(said, indent=2))
    else:
        _show(said)


def _picture(path: Path) -> Any:
    from ggss.data.pictures import FilePicture

    return FilePicture(path).image()


def _show(said: dict[str, Any]) -> None:
    from rich.columns import Columns
    from rich.panel import Panel

    from ggss.terminal import Terminal

    console = Terminal()
    panels = [Panel(said["unsteered"] or "(nothing)", title="unsteered", width=44)]
    console.print(said["question"], style="bold")
    if "steered" in said:
        title = f"steered, alpha {said['alpha']:g}"
        panels.append(Panel(said["steered"] or "(nothing)", title=title, width=44))
        appended = said["steered_question"].removeprefix(said["question"]).strip()
        if appended:
            console.print(f"appended when steered: {appended}", style="dim")
    console.print(Columns(panels))
    if "steered" in said:
        gate = "" if said["mean_gate"] is None else f", mean gate {said['mean_gate']:.2f}"
        console.print(f"{said['tokens']} visual tokens steered in {said['calls']} call(s){gate}", style="dim")
    if "note" in said:
        console.print(said["note"], style="dim")
