"""`ggss ask`: one question to a model, unsteered and steered."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ggss import errors
from ggss.cli.arguments import (
    AnyModel,
    Json,
    Loading,
    Model,
    Strength,
    check_alpha_has_steerer,
    loads_model,
    strength_note,
)
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

    If the steerer comes with a prompt suffix, the steered question has it appended. The mean gate says how much of
    the strength a visual token gets on average: 1 is all of it.

    Example: ggss ask small-world/llava-vicuna face.png "which race is this person ?" --steer race-steerer
    """
    *files, question = images_and_question
    if not files or not question.strip():
        raise InputError(f"an image and a question are needed, seen only {files or question!r}")
    check_alpha_has_steerer(alpha, steer)
    pictures = [_picture(Path(name)) for name in files]
    steerer = None
    if steer is not None:
        from ggss.steering.steerer import Steerer, checked_alpha

        steerer = Steerer.from_pretrained(steer)
        checked_alpha(steerer.strength(alpha), allow_amplify)
    vlm = loading.load(model)
    result: dict[str, Any] = {"model": vlm.name, "question": question, "images": files}
    result["unsteered"] = vlm.answer([question], [pictures], max_new_tokens=max_new_tokens)[0]
    if steerer is not None:
        steered_question = question + steerer.prompt_suffix
        with steerer.attach(vlm, alpha, force=any_model, allow_amplify=allow_amplify) as run:
            result["steered"] = vlm.answer([steered_question], [pictures], max_new_tokens=max_new_tokens)[0]
        mean_gate = float(run.gate.mean()) if len(run.gate) else None
        result |= {"steered_question": steered_question, "alpha": steerer.strength(alpha)}
        result |= {"calls": run.calls, "tokens": run.tokens, "mean_gate": mean_gate}
        if alpha is None:
            result["note"] = strength_note(steerer)
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _show(result)


def _picture(path: Path) -> Any:
    from ggss.data.pictures import FilePicture

    return FilePicture(path).image()


def _show(result: dict[str, Any]) -> None:
    from rich.columns import Columns
    from rich.panel import Panel

    from ggss.terminal import Terminal

    console = Terminal()
    panels = [Panel(result["unsteered"] or "(nothing)", title="unsteered", width=44)]
    console.print(result["question"], style="bold")
    if "steered" in result:
        title = f"steered, alpha {result['alpha']:g}"
        panels.append(Panel(result["steered"] or "(nothing)", title=title, width=44))
        appended = result["steered_question"].removeprefix(result["question"]).strip()
        if appended:
            console.print(f"appended when steered: {appended}", style="dim")
    console.print(Columns(panels))
    if "steered" in result:
        gate = "" if result["mean_gate"] is None else f", mean gate {result['mean_gate']:.2f}"
        meaning = " (how much of the strength a token gets: 1 is all of it)" if gate else ""
        steered = f"{result['tokens']} visual tokens steered in {result['calls']} call(s)"
        console.print(f"{steered}{gate}{meaning}", style="dim")
    if "note" in result:
        console.print(result["note"], style="dim")
