"""The playground's page, made with Gradio. Nothing else imports Gradio.

What is shown comes from a `Playground`; the page has the controls around it. Nothing is sent anywhere: analytics are
off, the fonts are the system's, and the server listens on this machine only.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ggss.data.pictures import Picture, labels
from ggss.errors import InputError
from ggss.escaping import line, text, visible
from ggss.play import (
    LARGEST,
    MOST_PICTURES,
    STRONGEST,
    TOKENS,
    Playground,
    RowQuestion,
    own_question,
    own_row,
    typed_options,
)
from ggss.probes import Item

ADDRESS = "127.0.0.1"
LISTED = 240  # pictures to choose from
NONE = "(none)"
ROW, OWN = "row", "own"  # the two tabs
FIRST_WORDS = "What is the occupation of this person?"  # of an own question, where there is no example
QUIET = {"show_progress": "hidden", "api_name": False}  # of events: a row that fades at each step would flicker

Commands = Callable[[RowQuestion | None, Sequence[str], float, Item | None], str]
"""From a question, the steerers in use, their strength and an own question to the commands that measure it."""

# On a phone there is less space around everything, so that the row and the slider are seen together. Keys work
# wherever nothing is typed. The heat of the gate is in the page already, and the style of the row shows it where the
# box is checked: at once, and also before Gradio's own script listens.
HEAD = """<style>
.ggss-header { display: flex; flex-wrap: wrap; gap: 0 10px; align-items: baseline; }
.ggss-header b { font-size: 17px; }
.ggss-header .scope { font-size: 13px; opacity: 0.75; }
.ggss-faces { display: flex; gap: 6px; }
.ggss-faces img { width: 120px; border-radius: 8px; }
.ggss-commands pre { margin: 8px 0 0; font: 13px/1.6 ui-monospace, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; user-select: all; }
@media (max-width: 640px) {
  .main.app { padding: 8px 10px !important; }
  .main.app .html-container { padding: 0 !important; }
  .main.app .column { gap: 10px; }
  .main.app .tab-wrapper { margin-bottom: 0; }
  .ggss-header .scope { font-size: 12px; }
}
</style>
<script>
const buttons = {n: "#next", p: "#previous", g: "#gate input"};
document.addEventListener("keydown", event => {
  const typed = event.target.closest("textarea, input:not([type=range], [type=checkbox], [type=radio])");
  const button = buttons[event.key.toLowerCase()];
  if (button && !typed && !event.ctrlKey && !event.metaKey && !event.altKey) document.querySelector(button)?.click();
});
</script>"""
SYSTEM_FONTS = ("system-ui", "sans-serif")


def gradio() -> Any:
    """The library, with its analytics off; InputError says how to get it."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    try:
        import gradio  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError("the playground needs Gradio: pip install 'ggss[ui]'") from error
    return gradio


class Handlers:
    """What the page's controls do. The parameters are those of `build`."""

    def __init__(self, playground: Playground, commands: Commands, example: Item | None, own_tokens: int) -> None:
        self.gr = gradio()
        self.playground, self.commands, self.own_tokens = playground, commands, own_tokens
        self.questions = {question.title: question for question in playground.questions}
        rows = [row for question in playground.questions for row in question.rows]
        pictures = [*(example.images if example else ()), *(item.images[0] for row in rows for item in row)]
        self.listed = dict(list({_name(picture): picture for picture in pictures}.items())[:LISTED])

    def row(self, title: str, number: int) -> Sequence[Item]:
        """The row of a person, counted from 0 and beginning again at the end; empty without such a question."""
        question = self.questions.get(title)
        return question.rows[number % len(question.rows)] if question else ()

    def shown(
        self, items: Sequence[Item], question: RowQuestion | None, names: Sequence[str], alpha: float
    ) -> Iterator[str]:
        """The row as HTML, first without the steered answers if the unsteered ones are new; or what is wrong."""
        task, longest = (question.task, question.max_new_tokens) if question else ("", self.own_tokens)
        try:
            for row in self.playground.ask(items, names, alpha, task, longest):
                yield self.playground.html(row)
        except InputError as error:
            yield line(error)

    def show(
        self, tab: str, title: str, number: int, asked: list[Item], names: list[str], alpha: float
    ) -> Iterator[tuple[Any, Any, Any]]:
        """For the page's row, own answer and commands: those of the tab that is open, at these settings."""
        gr, question = self.gr, self.questions.get(title)
        measured = self.measuring(question, names, alpha, asked[0] if tab == OWN and asked else None)
        if tab == ROW and question:
            for html in self.shown(self.row(title, number), question, names, alpha):
                yield html, gr.skip(), measured
        elif tab == OWN and asked:
            for html in self.shown(asked, None, names, alpha):
                yield gr.skip(), gr.HTML(html, visible=True), measured
        else:
            yield gr.skip(), gr.skip(), measured

    def measuring(
        self, question: RowQuestion | None, names: Sequence[str], alpha: float, own: Item | None = None
    ) -> str:
        """The box with the commands that measure what is shown."""
        words = line("One person is an example and no measurement. These commands ask many, and give intervals:")
        return (
            f'<div class="ggss-commands">{words}<pre>{text(self.commands(question, names, alpha, own))}</pre></div>'
        )

    def ask_pictures(
        self, words: str, options: str, first: str, second: str, uploads: list[Picture]
    ) -> tuple[list[Item], Any]:
        """The item of an own question about the chosen pictures; what is wrong with it is shown."""
        return self._checked(lambda: [own_question(words, options, self._chosen(first, second, uploads))])

    def ask_row(self, words: str, options: str, title: str, number: int) -> tuple[list[Item], Any]:
        """The items of an own question about all versions of the person."""
        row = self.row(title, number)
        return self._checked(lambda: own_row(own_question(words, options, row[0].images), row))

    def choose(self, first: str, second: str) -> tuple[list[Picture], str]:
        """Chosen pictures replace uploads."""
        return [], self.playground.faces(self._chosen(first, second, []))

    def upload(self, paths: list[str] | None) -> tuple[list[Picture], str]:
        """The uploads and how they look; or what is wrong with one. The files are deleted."""
        pictures: list[Picture] = []
        try:
            for path in (paths or [])[:MOST_PICTURES]:
                file = Path(path)
                small = file.stat().st_size <= LARGEST
                pictures.append(self.playground.upload(file.read_bytes() if small else b"\0" * (LARGEST + 1)))
        except InputError as error:
            return [], line(error)
        finally:
            for path in paths or ():
                Path(path).unlink(missing_ok=True)  # an upload is never kept
        return pictures, self.playground.faces(pictures)

    def _chosen(self, first: str, second: str, uploads: list[Picture]) -> list[Picture]:
        return uploads or [self.listed[name] for name in (first, second) if name in self.listed]

    def _checked(self, items: Callable[[], list[Item]]) -> tuple[list[Item], Any]:
        try:
            return items(), self.gr.skip()
        except InputError as error:
            return [], self.gr.HTML(line(error), visible=True)


def build(
    playground: Playground,
    commands: Commands,
    example: Item | None = None,
    own_tokens: int = TOKENS,
    scope: str = "",
) -> Any:
    """The page, not yet served.

    commands: what the box "Measure this properly" says. example: the question that the tab for own questions begins
    with. own_tokens: the longest answer to an own question. scope: what may be concluded.
    """
    handlers = Handlers(playground, commands, example, own_tokens)
    gr = handlers.gr
    question = next(iter(playground.questions), None)
    steerers = playground.steerers_for(question.about if question else "")
    alpha = min(STRONGEST, playground.steerers[steerers[0]].strength()) if steerers else 0.0
    with gr.Blocks(title="ggss play", analytics_enabled=False) as page:
        gr.HTML(_header(playground.vlm.name, scope), elem_id="header")
        number, asked, uploads = gr.State(0), gr.State([]), gr.State([])
        tab = gr.State(ROW if question else OWN)
        with gr.Tabs(selected=tab.value, elem_id="tabs"):
            with gr.Tab("One person", visible=question is not None, id=ROW) as row_tab:
                title = gr.Dropdown(list(handlers.questions), label="Question", elem_id="question", container=False)
                opening = list(handlers.shown(question.rows[0], question, steerers, alpha))[-1:] if question else []
                row = gr.HTML("".join(opening), elem_id="row")
                with gr.Row(equal_height=True):
                    previous = gr.Button("‹ Previous person (P)", elem_id="previous", size="sm", min_width=120)
                    following = gr.Button("Next person (N) ›", elem_id="next", size="sm", min_width=120)
            with gr.Tab("Your own question", id=OWN) as own_tab:
                words, options, first, second = _own_fields(gr, handlers, example, uploads)
                with gr.Row():
                    ask_pictures = gr.Button("Ask about these pictures", variant="primary", elem_id="ask", size="md")
                    ask_row = gr.Button(
                        "Ask about all versions of the person", elem_id="ask-row", size="md", visible=bool(question)
                    )
                own = gr.HTML(visible=False, elem_id="own")
        with gr.Row(equal_height=True, visible=bool(steerers)):
            strength = gr.Slider(
                *(0, STRONGEST, alpha, 0.05),
                label="Strength of the steering",
                elem_id="alpha",
                scale=4,
                min_width=320,
            )
            names = gr.CheckboxGroup(
                list(playground.steerers), value=steerers, label="Steered for", elem_id="steerers", scale=2
            )
            gr.Checkbox(False, label="Show the gate (G)", elem_id="gate", scale=1, min_width=160)
        with gr.Accordion("Measure this properly", open=False, elem_id="measure"):
            measured = gr.HTML(handlers.measuring(question, steerers, alpha), elem_id="commands")

        quick = QUIET | {"queue": False}
        # Keys may come faster than they are counted: one after the other, or two would count from the same person.
        counts = QUIET | {"concurrency_id": "person", "concurrency_limit": 1, "trigger_mode": "multiple"}
        # There is one model: what runs it waits for its turn. While a slider moves, only its last place waits.
        runs = QUIET | {"concurrency_id": "model", "concurrency_limit": 1, "trigger_mode": "always_last"}
        show = (handlers.show, [tab, title, number, asked, names, strength], [row, own, measured])
        for control in (strength, names):
            control.input(*show, **runs)
        for button, step in ((previous, -1), (following, 1)):
            button.click(lambda n, step=step: n + step, number, number, **counts).then(*show, **runs)
        for opened, name in ((row_tab, ROW), (own_tab, OWN)):
            opened.select(lambda name=name: name, None, tab, **quick).then(*show, **runs)
        for button, handler, where in (
            (ask_pictures, handlers.ask_pictures, [first, second, uploads]),
            (ask_row, handlers.ask_row, [title, number]),
        ):
            button.click(handler, [words, options, *where], [asked, own], **quick).then(*show, **runs)
        title.input(
            lambda name: (0, playground.steerers_for(handlers.questions[name].about)), title, [number, names], **quick
        ).then(*show, **runs)
    return page


def _own_fields(gr: Any, handlers: Handlers, example: Item | None, uploads: Any) -> tuple[Any, Any, Any, Any]:
    """The fields of an own question: words, options, and two pictures to choose. uploads: the state that has them."""
    pictures = list(example.images) if example else []
    chosen = [*map(_name, pictures), NONE, NONE]
    with gr.Row():
        with gr.Column():
            words = gr.Textbox(example.prompt if example else FIRST_WORDS, label="Question", elem_id="words")
            options = gr.Textbox(
                typed_options(example) if example else "",
                label="Options",
                info="Comma separated, for probabilities. One may say what it stands for: a=low, b=high.",
                elem_id="options",
            )
        with gr.Column():
            with gr.Row(visible=bool(handlers.listed)):
                first = gr.Dropdown([NONE, *handlers.listed], value=chosen[0], label="Picture")
                second = gr.Dropdown([NONE, *handlers.listed], value=chosen[1], label="Second picture")
            preview = gr.HTML(handlers.playground.faces(pictures), elem_id="preview")
            button = gr.UploadButton(
                f"Upload one or two pictures{' instead' if handlers.listed else ''}",
                file_count="multiple",
                size="sm",
                elem_id="upload",
            )
    for dropdown in (first, second):
        dropdown.input(handlers.choose, [first, second], [uploads, preview], queue=False, **QUIET)
    button.upload(handlers.upload, button, [uploads, preview], queue=False, **QUIET)
    return words, options, first, second


def serve(page: Any, port: int | None = None, share: bool = False, block: bool = True) -> Any:
    """Serve a page that was built, on this machine; share: also by Gradio's public link. Returns its address."""
    themes = gradio().themes
    return page.launch(
        theme=themes.Default(font=SYSTEM_FONTS, font_mono=("ui-monospace", "monospace")),
        head=HEAD,
        server_name=ADDRESS,
        server_port=port,
        share=share,
        inbrowser=False,
        quiet=True,
        prevent_thread_lock=not block,
        max_file_size=LARGEST,
        enable_monitoring=False,
        footer_links=[],
    )


def _header(model: str, scope: str) -> str:
    about = f'<span class="scope">{text(scope)}</span>' if scope else ""
    return f'<div class="ggss-header"><b>ggss play</b><span>{text(model)}</span>{about}</div>'


def _name(picture: Picture) -> str:
    return visible(" ".join(labels(picture).values()))
