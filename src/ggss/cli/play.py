"""Single answers, unsteered and steered: `ggss ask` prints one, `ggss play` is a page of a person in all versions."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss import errors
from ggss.cli.arguments import (
    AnyModel,
    Json,
    Loading,
    Model,
    Strength,
    check_alpha_has_steerer,
    embedded,
    loads_model,
    one_thread,
    say,
    strength_note,
)
from ggss.cli.probe import default_suite
from ggss.errors import InputError
from ggss.smallworld import DEFAULT, NAME

if TYPE_CHECKING:
    from ggss.models import Vlm
    from ggss.play import RowQuestion
    from ggss.probes import Item
    from ggss.probes.suites import Suite
    from ggss.steering.steerer import Steerer

SCOPE = "painted people, planted bias: no evidence about any model trained on photographs"
OWN, QUESTIONS = "own", "questions.yaml"  # an own question, and the file that `ggss probe` reads it from
SITES = "all"  # where the steerers of the small world steer, as in the demo


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
        _show_answers(result)


def _picture(path: Path) -> Any:
    from ggss.data.pictures import FilePicture

    return FilePicture(path).image()


def _show_answers(result: dict[str, Any]) -> None:
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


@loads_model
def play(
    model: Annotated[str, typer.Argument(help="A folder, a hub id, or small-world/NAME.")] = DEFAULT,
    steer: Annotated[
        list[str] | None, typer.Option(help="A steerer's folder or hub id; may be repeated.", show_default=False)
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(help="People to show: a manifest, a pattern, or a registered set's name.", show_default=False),
    ] = None,
    port: Annotated[int | None, typer.Option(help="By default a free one from 7860.", min=1, max=65_535)] = None,
    share: Annotated[
        bool, typer.Option("--share", help="Also make a public link, through Gradio's servers. Never by default.")
    ] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            help="The longest answer; by default as long as the task's, 64 for own questions.",
            show_default=False,
            **errors.TOKENS.bounds,
        ),
    ] = None,
    any_model: AnyModel = False,
    *,
    loading: Loading,
) -> None:
    """Open a playground on this machine: one person in all versions, the answers before and after, and a slider.

    The page opens on a row of pictures in which only one attribute changes, with the model's answers under each. The
    questions and people are those of `ggss probe`; own questions and pictures are behind a tab. A box has the
    commands that measure what is shown.
    Needs Gradio: pip install 'ggss[ui]'. It listens on 127.0.0.1 only and keeps no upload; nothing leaves the machine
    without --share.
    In the small world a steerer for each attribute is fitted at the start unless --steer names others.

    Example: ggss play small-world/qwen3-vl --steer race-steerer
    """
    from ggss.play.page import gradio

    gradio()  # before a model is loaded
    if embedded(model):
        one_thread()
    from ggss.play import TOKENS, Playground, pair_question, row_questions
    from ggss.play.page import build, serve
    from ggss.steering.steerer import Steerer
    from ggss.terminal import Terminal

    suite = _suite(model, images)
    questions = row_questions(suite, max_new_tokens) if suite else []
    steerers = {name: Steerer.from_pretrained(name) for name in steer or ()}
    vlm = loading.load(model)
    painted = model.partition("/")[0] == NAME
    fitted = painted and not steerers
    if fitted:
        steerers = fitted_steerers(vlm)
    options = {"--images": images, "--max-new-tokens": max_new_tokens, **loading.given}
    playground = Playground(vlm, steerers, questions, any_model)
    with Terminal(stderr=True).status("asking about the first person"):
        page = build(
            playground,
            MeasuringCommands(model, suite, options, fitted, any_model),
            pair_question(suite) if suite else None,
            max_new_tokens or (suite and suite.new_tokens) or TOKENS,
            SCOPE if painted and images is None else "",
        )
    if share:
        say("--share: everyone who knows the link can use the model, and pictures pass through Gradio's servers")
    say("the page will be at http://127.0.0.1, from port 7860; Ctrl-C ends it" if port is None else _address(port))
    try:
        serve(page, port, share)
    except OSError as error:
        raise InputError(f"the page cannot be served ({error}): give another --port") from error


def _suite(model: str, images: str | None) -> "Suite | None":
    """The suite that `ggss probe` asks this model about these pictures; None for a model that needs some."""
    from ggss.probes import suites

    name = default_suite(model)
    if images is None:
        return suites.load(name) if embedded(model) and name != "reflect" else None
    return suites.load(name, images=images)


def fitted_steerers(vlm: "Vlm") -> "dict[str, Steerer]":
    """A ggss steerer for each attribute of the town, as `MeasuringCommands` has `ggss discover` fit it."""
    from ggss.activations.collect import collect
    from ggss.data.counterfactuals import Counterfactuals
    from ggss.smallworld.demo import HELD_OUT
    from ggss.steering.fitting import fit

    return {
        attribute: fit(
            "ggss",
            collect(vlm, Counterfactuals.load(NAME, exclude={"occupation": occupations}), SITES),
            attribute=attribute,
        )
        for attribute, occupations in HELD_OUT.items()
    }


@dataclass(frozen=True)
class MeasuringCommands:
    """The commands that measure what a playground shows. options: of `ggss probe`; None where nothing was given.

    fitted: the steerers were fitted at the start, and a command must do so first.
    """

    model: str
    suite: "Suite | None"
    options: Mapping[str, Any] = field(default_factory=dict)
    fitted: bool = False
    any_model: bool = False

    def __call__(
        self, question: "RowQuestion | None", steerers: Sequence[str], alpha: float, own: "Item | None" = None
    ) -> str:
        """One command a line; own: an own question, which is measured instead, from a file that is written first.

        What cannot be measured is said in a comment: without pictures of people there is nobody to ask about.
        """
        if self.suite is None or question is None:
            return (
                "# ggss play MODEL --images MANIFEST shows people, and here the commands that ask about all of them"
            )
        loading = [option for option in self.options if option not in ("--images", "--max-new-tokens")]
        lines = [
            ["discover", self.model, *self._discovery(attribute), *self._given(loading)]
            for attribute in (steerers if self.fitted else ())
        ]
        file, task, asked = "", question.task, []
        if own is not None:
            file, metric = _question_file(own, question.about)
            if not metric:
                return file
            task, asked = f"{metric}-{OWN}", ["--questions", QUESTIONS]
        tasks = ",".join(self._tasks(task, question.about))
        probe = ["probe", self.model, "--tasks", tasks, *asked, *self._given(self.options)]
        lines.append([*probe, "-o", "before.jsonl"])
        for name in steerers:  # `ggss probe` takes one steerer
            after = "after.jsonl" if len(steerers) == 1 else f"after-{len(lines)}.jsonl"
            force = ["--any-model"] if self.any_model else []
            lines.append([*probe, "--steer", self._folder(name), "--alpha", f"{alpha:g}", *force, "-o", after])
            lines.append(["compare", "before.jsonl", after])
        return file + "\n".join(shlex.join(["ggss", *words]) for words in lines)

    def _tasks(self, task: str, about: str) -> list[str]:
        """The task, and what steering may cost: recognition of the attribute, and capability."""
        from ggss.probes import get

        assert self.suite is not None
        costs = [other for other in self.suite.default if get(other).kind != "bias"]
        others = [other for other in costs if not other.startswith("recognition-") or other.endswith(f"-{about}")]
        return list(dict.fromkeys([task, *others]))

    def _discovery(self, attribute: str) -> list[str]:
        from ggss.smallworld.demo import HELD_OUT

        held_out = f"occupation={','.join(HELD_OUT[attribute])}"
        options = ["--images", NAME, "--attribute", attribute, "--exclude", held_out, "--sites", SITES]
        return [*options, "-o", self._folder(attribute)]

    def _folder(self, name: str) -> str:
        return f"{name}-steerer" if self.fitted else name

    def _given(self, names: Sequence[str] | Mapping[str, Any]) -> list[str]:
        values = [(option, self.options[option]) for option in names if self.options[option] is not None]
        return [word for option, value in values for word in ([option] if value is True else [option, str(value)])]


def _question_file(item: "Item", about: str) -> tuple[str, str]:
    """The shell's words that write an own question into a file, and its metric; or why it is no task, and ""."""
    import yaml

    from ggss.probes.questions import DIVERGENCE, WIN_RATE, QuestionEntry

    if not item.options:
        return "# only answers with options are measured: give the question some", ""
    metric = DIVERGENCE if len(item.images) == 1 else WIN_RATE
    entry = {"text": item.prompt, "options": dict(item.options), "metric": metric, "attribute": about}
    if mistakes := QuestionEntry.model_validate(entry).mistakes():
        return "\n".join(f"# to measure this question, change its {mistake}" for mistake in mistakes), ""
    text = yaml.safe_dump({OWN: entry}, sort_keys=False, allow_unicode=True, width=100)
    return f"cat > {QUESTIONS} <<'END'\n{text}END\n", metric


def _address(port: int) -> str:
    return f"the page is at http://127.0.0.1:{port}; Ctrl-C ends it"
