"""`ggss play`: a local page to ask a model, unsteered and steered side by side."""

from typing import Annotated, Any

import typer

from ggss import errors
from ggss.cli.arguments import AnyModel, Loading, embedded, loads_model, one_thread, say
from ggss.errors import InputError
from ggss.smallworld import DEFAULT, NAME


@loads_model
def play(
    model: Annotated[str, typer.Argument(help="A folder, a hub id, or small-world/NAME.")] = DEFAULT,
    steer: Annotated[
        list[str] | None, typer.Option(help="A steerer's folder or hub id; may be repeated.", show_default=False)
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(help="Pictures to choose from: a manifest, a pattern, or a registered set's name."),
    ] = None,
    port: Annotated[int | None, typer.Option(help="By default a free one from 7860.", min=1, max=65_535)] = None,
    share: Annotated[
        bool, typer.Option("--share", help="Also make a public link, through Gradio's servers. Never by default.")
    ] = False,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="The longest answer; 1 in the small world.", **errors.TOKENS.bounds)
    ] = None,
    any_model: AnyModel = False,
    *,
    loading: Loading,
) -> None:
    """Open a playground on this machine: a picture or two, a question, two columns, and a slider for the strength.

    Needs Gradio: pip install 'ggss[ui]'. It listens on 127.0.0.1 only and keeps no upload; nothing leaves the machine
    without --share.
    In the small world a steerer for each attribute is fitted at the start unless --steer names others.

    Example: ggss play small-world/qwen3-vl --steer race-steerer
    """
    from ggss.play.page import gradio

    gradio()  # before a model is loaded
    small = embedded(model)
    if small:
        one_thread()
    from ggss.data.counterfactuals import Counterfactuals
    from ggss.play import Playground
    from ggss.play.page import serve
    from ggss.steering.steerer import Steerer

    source = images or (NAME if small else None)
    faces = None if source is None else Counterfactuals.load(source)
    named = {name: Steerer.from_pretrained(name) for name in steer or ()}
    vlm = loading.load(model)
    if not named and small and images is None and faces is not None:
        named = fitted(vlm, faces)
    if share:
        say("--share: everyone who knows the link can use the model, and pictures pass through Gradio's servers")
    playground = Playground(vlm, named, faces, any_model)
    say("the page will be at http://127.0.0.1, from port 7860; Ctrl-C ends it" if port is None else _address(port))
    try:
        example = known_question() if small else ("", ())
        serve(playground, port, share, max_new_tokens or (1 if small else 64), example=example)
    except OSError as error:
        raise InputError(f"the page cannot be served ({error}): give another --port") from error


def known_question() -> tuple[str, list[str]]:
    """A question that the models of the small world have learned, and its options."""
    from ggss.probes import suites

    item = suites.load(NAME).items("mcq")[0]
    return item.prompt, list(item.options)


def fitted(vlm: Any, faces: Any) -> dict[str, Any]:
    """A ggss steerer for each attribute of a set of pictures."""
    from ggss.activations.collect import collect
    from ggss.steering.fitting import fit

    acts = collect(vlm, faces)
    return {attribute: fit("ggss", acts, attribute=attribute) for attribute in faces.attributes}


def _address(port: int) -> str:
    return f"the page is at http://127.0.0.1:{port}; Ctrl-C ends it"
