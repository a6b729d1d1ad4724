"""The playground's page, made with Gradio. Nothing else imports Gradio.

What is shown comes from a `Playground`. Nothing is sent anywhere: analytics are off, the fonts are the system's, and
the server listens on this machine only.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from ggss.data.pictures import Picture, labels
from ggss.errors import InputError
from ggss.escaping import visible
from ggss.play import LARGEST, MOST_PICTURES, STRONGEST, Playground, SideBySide

ADDRESS = "127.0.0.1"
SMALLEST = 240  # pixels: smaller pictures are shown larger
LISTED = 60  # pictures of the set to choose from
NONE = "(none)"


def gradio() -> Any:
    """The library, with its analytics off; InputError says how to get it."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    try:
        import gradio  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError("the playground needs Gradio: pip install 'ggss[ui]'") from error
    return gradio


def build(playground: Playground, max_new_tokens: int, example: tuple[str, Sequence[str]] = ("", ())) -> Any:
    """The page, not yet served. example: the question and its options that it begins with."""
    gr = gradio()
    listed: dict[str, Picture] = {}
    for picture in list(playground.pictures or ())[:LISTED]:
        listed[" ".join(labels(picture).values())] = picture
    attributes = list(playground.pictures.attributes) if playground.pictures else []

    def chosen(first: str, second: str, upload: str | None) -> list[Picture]:
        pictures: list[Picture] = [listed[name] for name in (first, second) if name in listed]
        if upload:
            file = Path(upload)
            try:
                data = file.read_bytes() if file.stat().st_size <= LARGEST else b"\0" * (LARGEST + 1)
            finally:
                file.unlink(missing_ok=True)  # an upload is never kept
            pictures = [playground.upload(data), *pictures[1:]]
        return pictures[:MOST_PICTURES]

    def answer(
        state: list[Picture], first: str, second: str, question: str, options: str, names: list[str], alpha: float
    ) -> Iterator[tuple[Any, ...]]:
        try:
            pictures = state or chosen(first, second, None)
            answers = playground.ask(question, pictures, names, alpha, options.split(","), max_new_tokens)
            for side_by_side in answers:
                yield *_columns(gr, side_by_side), ""
        except InputError as error:
            yield "", "", None, None, visible(str(error))

    def uploaded(file: str | None) -> tuple[Any, ...]:
        if not file:
            return [], None, ""
        try:
            pictures = chosen(NONE, NONE, file)
        except InputError as error:
            return [], None, visible(str(error))
        return pictures, enlarged(pictures[0].image()), ""

    def shown_picture(name: str) -> Any:
        return enlarged(listed[name].image()) if name in listed else None

    def heat(state: list[Picture], first: str, names: list[str]) -> tuple[Any, str]:
        try:
            pictures = state or chosen(first, NONE, None)
            if not pictures or not names:
                raise InputError("heat needs a picture and a steerer: choose both")
            return enlarged(playground.heat(pictures[0], names[0])), ""
        except InputError as error:
            return None, visible(str(error))

    def variants(first: str, attribute: str, question: str, names: list[str], alpha: float) -> tuple[Any, str]:
        try:
            if first not in listed:
                raise InputError("choose a picture of the set: an upload has no versions")
            row = playground.variants(listed[first], attribute, question, names, alpha, max_new_tokens)
        except InputError as error:
            return [], visible(str(error))
        return [
            (enlarged(variant.image), f"{variant.label}: {variant.unsteered} → {variant.steered}") for variant in row
        ], ""

    with gr.Blocks(title="ggss play", analytics_enabled=False) as page:
        gr.Markdown(f"# ggss play\n{playground.vlm.name}, unsteered and steered. Uploads are not kept.")
        state = gr.State([])
        with gr.Row():
            with gr.Column():
                first = gr.Dropdown([NONE, *listed], value=next(iter(listed), NONE), label="Picture")
                second = gr.Dropdown([NONE, *listed], value=NONE, label="Second picture")
                upload = gr.UploadButton("Upload a picture instead", file_count="single")
                preview = gr.Image(
                    value=shown_picture(next(iter(listed), NONE)),
                    label="Picture",
                    interactive=False,
                    height=220,
                    buttons=["fullscreen"],
                )
            with gr.Column():
                question = gr.Textbox(example[0], label="Question", elem_id="question")
                options = gr.Textbox(
                    ", ".join(example[1]), label="Options, comma separated (for probabilities)", elem_id="options"
                )
                steerers = list(playground.steerers)
                names = gr.CheckboxGroup(steerers, value=steerers[:1], label="Steerers")
                alpha = gr.Slider(0, STRONGEST, value=1.0, step=0.05, label="Strength (alpha)", elem_id="alpha")
                button = gr.Button("Ask", variant="primary", elem_id="ask")
        message = gr.Textbox("", label="Message", elem_id="message", interactive=False)
        with gr.Row():
            before = gr.Textbox(label="Unsteered", elem_id="unsteered", interactive=False)
            after = gr.Textbox(label="Steered", elem_id="steered", interactive=False)
        with gr.Row():
            bars_before = gr.Label(label="Unsteered: probabilities", elem_id="bars-before")
            bars_after = gr.Label(label="Steered: probabilities", elem_id="bars-after")
        with gr.Row():
            hot = gr.Button("Show the gate", elem_id="heat")
            every = gr.Button("All variants", elem_id="variants")
            attribute = gr.Dropdown(attributes, value=next(iter(attributes), None), label="What changes")
        with gr.Row():
            warmth = gr.Image(
                label="Gate as heat", elem_id="warmth", interactive=False, height=260, buttons=["fullscreen"]
            )
            row = gr.Gallery(
                label="The same person in all versions: unsteered → steered",
                elem_id="versions",
                columns=5,
                height=260,
                buttons=["fullscreen"],
            )
        inputs, outputs = [state, first, second, question, options, names, alpha], [before, after]
        outputs += [bars_before, bars_after, message]
        button.click(answer, inputs, outputs, api_name=False)
        alpha.release(answer, inputs, outputs, api_name=False)
        first.change(lambda name: ([], shown_picture(name)), first, [state, preview], api_name=False)
        upload.upload(uploaded, upload, [state, preview, message], api_name=False)
        hot.click(heat, [state, first, names], [warmth, message], api_name=False)
        every.click(variants, [first, attribute, question, names, alpha], [row, message], api_name=False)
    return page


def serve(
    playground: Playground,
    port: int | None,
    share: bool,
    max_new_tokens: int,
    block: bool = True,
    example: tuple[str, Sequence[str]] = ("", ()),
) -> Any:
    """Serve the page on this machine; share: also by Gradio's public link. Returns its address."""
    page = build(playground, max_new_tokens, example)
    return page.launch(
        server_name=ADDRESS,
        server_port=port,
        share=share,
        inbrowser=False,
        quiet=True,
        prevent_thread_lock=not block,
        max_file_size=LARGEST,
        enable_monitoring=False,
    )


def enlarged(image: Image.Image) -> Image.Image:
    """The picture; a small one is enlarged so that it can be seen."""
    times = -(-SMALLEST // min(image.size))
    return (
        image if times <= 1 else image.resize((image.width * times, image.height * times), Image.Resampling.BICUBIC)
    )


def _columns(gr: Any, answers: SideBySide) -> tuple[Any, ...]:
    steered = answers.steered
    return (
        visible(answers.unsteered.answer),
        "..." if steered is None else visible(steered.answer),
        dict(answers.unsteered.bars) or None,
        (dict(steered.bars) or None) if steered else None,
    )
