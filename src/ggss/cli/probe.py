"""`ggss probe`: ask a model, and measure its bias and capability.

`ggss compare` uses the same functions to print two runs as tables or as data.
"""

import json
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss import errors
from ggss.cli.arguments import (
    AnyModel,
    Json,
    Loading,
    MaxSide,
    ParserRule,
    Seed,
    Strength,
    batch,
    check_alpha_has_steerer,
    checked_parser,
    embedded,
    loads_model,
    one_thread,
    say,
    strength_note,
)
from ggss.errors import InputError, no_such
from ggss.terminal import note, track

if TYPE_CHECKING:
    from rich.text import Text

    from ggss.analysis import Measured, Run
    from ggss.analysis.records import Questions
    from ggss.probes import Display
    from ggss.probes.endpoint import Endpoint
    from ggss.probes.suites import Suite
    from ggss.stats import Interval
    from ggss.steering.steerer import Steerer


DEPENDENCE = (
    "A person and a question count if the answer changes as only that attribute does in the picture; of two "
    "pictures, if one of them is named in both orders. Soft: the same by the options' probabilities (total "
    "variation)."
)


def run_data(measured: "Measured") -> list[dict[str, Any]]:
    """A run as plain data, a row for each metric; NaN becomes None, because JSON has no NaN."""
    return [
        plain(
            {
                "task": measured.task,
                "metric": name,
                "interval": asdict(measured.interval(name)),
                "corrected": (corrected := measured.corrected(name)) and asdict(corrected),
                "soft": measured.soft(name),
                "unparsed": measured.metric(name).unparsed,
                "asked": measured.metric(name).asked,
                "degenerate": measured.metric(name).degenerate,
                **({"chance": _chance(measured, name)} if name in measured.with_chance_level else {}),
            }
        )
        for name in measured.names
    ]


def _chance(measured: "Measured", name: str) -> dict[str, float]:
    """What a group metric is with the pictures of each person shuffled, in 95 of 100 cases at most; and its p."""
    null = measured.null(name)
    return {"quantile": null.quantile(0.95), "p": null.p}


def plain(value: Any) -> Any:
    """Data that JSON can hold: no resamples, and None where a number is not finite."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items() if name != "draws"}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_run(title: str, runs: Sequence["Measured"]) -> None:
    from rich.text import Text

    from ggss.probes.base import FLIP_RATE
    from ggss.terminal import Terminal

    console = Terminal()
    if any(run.attributes for run in runs):
        console.print(_dependence_table(runs, title))
        console.print(DEPENDENCE, style="dim")
        title = ""
    chance = ["chance (p)"] if any(run.with_chance_level for run in runs) else []
    columns = ("value [95 %]", "corrected [95 %]", *chance, "soft", "unparsed")
    table = result_table("task, metric", *columns, title=title or None)
    for run in runs:
        table.add_row(Text(run.task, "bold"))
        for name in run.names:
            if name.endswith(FLIP_RATE):
                continue
            display, metric, corrected, soft = (
                run.display(name),
                run.metric(name),
                run.corrected(name),
                run.soft(name),
            )
            table.add_row(
                marked(f"  {name}{display.unit}", metric.degenerate),
                _span(run.interval(name), display),
                "" if corrected is None else _span(corrected, display),
                *([_chance_words(run, name)] if chance else []),
                "" if soft is None else number(soft, display),
                f"{metric.unparsed} of {metric.asked}" if metric.unparsed else "0",
            )
    console.print(table)
    console.print(
        "Intervals: percentile bootstrap over people (biographies, pictures). Corrected: bias-corrected value and "
        "interval of the jackknife; of a gap, allowing for its being the largest of several. Soft: from the options' "
        "probabilities instead of the answers. Unparsed: answers that name no option.",
        style="dim",
    )
    if chance:
        console.print(
            "Chance: what the value reaches in 95 of 100 cases with the pictures of each person shuffled. A value "
            "below it is no evidence of a difference.",
            style="dim",
        )
    if any(run.metric(name).degenerate for run in runs for name in run.names):
        console.print(Text("*", "red"), "most answers could not be parsed: the number says nothing about bias.")


def _chance_words(run: "Measured", name: str) -> str:
    """A metric's chance level and its p, "" if it is shown without."""
    if name not in run.with_chance_level:
        return ""
    chance = _chance(run, name)
    return f"{number(chance['quantile'], run.display(name))} ({chance['p']:.2g})"


def _dependence_table(runs: Sequence["Measured"], title: str) -> Any:
    """For how many people the answer depends on each attribute."""
    from ggss.probes.base import FLIP_RATE, PAIR_FLIP_RATE

    table = result_table("answer depends on", "for", "share [95 %]", "pairs that differ", "soft", title=title)
    for run in runs:
        for attribute in run.attributes:
            rate, pairs = f"{attribute}{FLIP_RATE}", f"{attribute}{PAIR_FLIP_RATE}"
            flips, cases = run.flips(attribute)
            soft, display = run.soft(pairs), run.display(rate)
            table.add_row(
                marked(f"{run.task}: {attribute}", run.metric(rate).degenerate),
                f"{flips} of {cases}",
                _span(run.corrected(rate), display) + " %",
                f"{number(run.value(pairs), display)} %",
                "" if soft is None else f"{soft:.3f}",
            )
    return table


def show_parsers(parser: str, differently: Mapping[str, int], answers: int) -> None:
    """Print how many answers the two rules read differently, by task."""
    from ggss.probes.base import PARSERS
    from ggss.terminal import Terminal

    other = next(name for name in PARSERS if name != parser)
    tasks = ", ".join(f"{count} of {task}" for task, count in differently.items() if count)
    Terminal().print(
        f"Answers are read by the rule {parser}; {sum(differently.values())} of {answers} answers are read "
        f"differently by the other rule, --parser {other}{f': {tasks}' if tasks else ''}.",
        style="dim",
    )


def marked(text: str, degenerate: bool) -> "Text":
    """The text, with a star if most answers could not be parsed."""
    from rich.text import Text

    return Text.assemble(text, (" *", "red") if degenerate else "")


def result_table(first: str, *columns: str, title: str | None = None) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table

    head = Column(first, no_wrap=True)
    return Table(
        head, *columns, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )


def number(value: float, display: "Display") -> str:
    return display.number(value) if math.isfinite(value) else "-"


def _span(interval: "Interval", display: "Display") -> str:
    low, middle, high = (number(value, display) for value in (interval.low, interval.estimate, interval.high))
    return f"{middle} [{low}, {high}]"


@loads_model
def probe(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a hub id, or small-world/NAME.", show_default=False)
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help='Comma separated, or "all"; the suite\'s own choice by default.', show_default=False),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(help="A suite's name; reflect, about your own --images, unless the model has one of its own."),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(help="Pictures: a manifest with path, occupation, identity and attributes; or a pattern."),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ask an OpenAI-compatible server, such as http://HOST:8000/v1, and load no model. Its key is "
            "taken from GGSS_ENDPOINT_KEY.",
            show_default=False,
        ),
    ] = None,
    served_model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="The model's name at the --endpoint.", show_default=False),
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help='Fields of every request to the --endpoint, such as \'{"ggss": {"race": 0}}\'; null leaves one out.',
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            help="Requests to the --endpoint at a time; 8 by default.",
            show_default=False,
            **errors.CONCURRENCY.bounds,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds to wait for the --endpoint before a request is repeated; 120 by default.",
            show_default=False,
            **errors.SECONDS.bounds,
        ),
    ] = None,
    wording: Annotated[
        str | None,
        typer.Option(help="A file with other questions, as `ggss data wording` writes one.", show_default=False),
    ] = None,
    questions: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A file of questions of your own, each a task. Without --tasks they are what is asked.",
            show_default=False,
        ),
    ] = None,
    steer: Annotated[str | None, typer.Option(help="A steerer's folder or hub id.")] = None,
    alpha: Strength = None,
    any_model: AnyModel = False,
    limit: Annotated[
        int | None,
        typer.Option(help="About this many items of each task: whole people, evenly chosen.", **errors.ITEMS.bounds),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file for one JSON line per item.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file of something else, or of another run; ask anew.")
    ] = False,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            help="The longest answer; by default 1 in the small world, 8 for mcq and 2afc, 16 for nurse-doctor, else "
            "2048.",
            **errors.TOKENS.bounds,
        ),
    ] = None,
    batch_size: Annotated[
        str | None,
        typer.Option(
            metavar="INTEGER|auto",
            help="Questions asked together, or auto: as many as there is memory for, up to 64. "
            "64 in the small world by default, else 8.",
        ),
    ] = None,
    parser: ParserRule = "careful",
    max_side: MaxSide = None,
    seed: Seed = 0,
    *,
    loading: Loading,
    as_json: Json = False,
    compare: Annotated[tuple[str, str] | None, typer.Option(hidden=True)] = None,
    recommend: Annotated[str | None, typer.Option(hidden=True)] = None,
    unlike: Annotated[bool, typer.Option("--unlike", hidden=True)] = False,
) -> None:
    """Measure bias and capability, with 95 % intervals over the people shown.

    One call is one run. Run a model unsteered, then steered, and compare the two files:

      ggss probe small-world/qwen3-vl -o before.jsonl

      ggss probe small-world/qwen3-vl --steer race-steerer --alpha 1 -o after.jsonl

      ggss compare before.jsonl after.jsonl

    Where the change is what you want, `ggss recommend` writes the strength into the steerer.

    On your own model and pictures:

      ggss probe org/model --images faces/manifest.csv --tasks mcq,2afc,recognition-race

    A task is a probe of `ggss probes`, or a probe and an attribute of your pictures, such as mcq-age. The benchmarks
    mmstar and mme are read from the folder that GGSS_DATA names.

    In the tables, "corrected" is free of a metric's small-sample bias, "soft" is computed from the probabilities of
    the options instead of the answers, and "unparsed" is the share of answers that could not be read.

    Questions of your own are a file, and need no Python:

      ggss probe org/model --questions my-questions.yaml --images faces/manifest.csv -o before.jsonl

    A model that is served by vLLM, SGLang, llama.cpp, Ollama or `ggss serve` is asked where it runs:

      ggss probe --endpoint http://localhost:8000/v1 --model my-vlm --images faces/manifest.csv -o after.jsonl

    With -o each batch is on disk before the next is asked, in FILE.part until all are. Stop it at any time: the same
    command goes on where it stopped, and asks nothing again that is answered in the file. Answers of another model,
    steerer, strength or wording are never mixed in: the command is refused, or begins anew with --force.

    Example: ggss probe small-world/qwen3-vl --steer race-steerer -o after.jsonl
    """
    _refuse_old_spelling(compare, recommend, unlike)
    _check_what_is_asked(
        model,
        endpoint,
        of_endpoint={
            "--model": served_model,
            "--request": request,
            "--concurrency": concurrency,
            "--timeout": timeout,
        },
        of_loaded={"--steer": steer, "--alpha": alpha, "--any-model": any_model or None, **loading.given},
    )
    model = model or served_model or ""
    rule = checked_parser(parser)
    if out is not None:
        from ggss.analysis.records import check_place

        check_place(out, force)
    steerer = _steerer(steer, alpha, max_side)
    small = embedded(model)
    size = batch(batch_size) or (64 if small else 8)
    if endpoint is None and small:
        one_thread()
    suites = _suites(suite or default_suite(model), images, wording, questions, tasks, max_side)
    items = {task: task_suite.items(task, limit) for task, task_suite in suites.items()}

    from ggss.analysis.asking import ask, source
    from ggss.analysis.records import Questions
    from ggss.models.features import FeatureCache
    from ggss.probes.steered_model import SteeredModel

    if endpoint is not None:
        answering = served(endpoint, model, request, concurrency, timeout)
        size = batch(batch_size) or 4 * answering.concurrency
    else:
        # The pictures are encoded in the same batches whatever was asked before.
        pictures = (picture for task_items in items.values() for item in task_items for picture in item.images)
        answering = SteeredModel(FeatureCache(loading.load(model), together=pictures))
        if steerer is not None:
            answering = answering.steered(steerer, alpha, any_model)
    longest = {task: max_new_tokens or task_suite.max_new_tokens(task) for task, task_suite in suites.items()}
    asked = {
        task: Questions(items[task], source(answering, task_suite, task, longest[task]))
        for task, task_suite in suites.items()
    }

    if batch_size == errors.AUTO and isinstance(answering, SteeredModel):
        from ggss.models.prompts import PromptLengths
        from ggss.study.checking import prompt_tokens

        lengths = PromptLengths(answering.vlm.processor, answering.vlm.family.name)
        answering.vlm.limit_batch(max(max(prompt_tokens(items[task], longest[task], lengths)) for task in suites))

    def ask_task(task: str, **known: Any) -> "Run":
        return ask(answering, suites[task], task, longest[task], size, limit, **known)

    if out is None:
        runs = [ask_task(task) for task in suites]
    else:
        runs = ask_into(out, asked, ask_task, answering.suffix, force)
    runs = [run.read_by(rule) for run in runs]
    measured = measured_runs(runs, seed)
    differently = {run.task: run.read_differently for run in runs}
    if as_json:
        metrics = [row for run in measured for row in run_data(run)]
        data = {"model": model, "endpoint": runs[0].source.endpoint or None, "steerer": steer}
        data |= {"alpha": answering.alpha, "metrics": metrics, "parser": rule, "read_differently": differently}
        print(json.dumps(data, indent=2))
    else:
        title = model if endpoint is None else runs[0].source.label
        show_run(title if steerer is None else f"{model}, {steerer.method} at alpha {answering.alpha:g}", measured)
        show_parsers(rule, differently, sum(len(run.items) for run in runs))
        if steerer is not None and alpha is None:
            say(strength_note(steerer))


def _check_what_is_asked(
    model: str | None, endpoint: str | None, of_endpoint: Mapping[str, Any], of_loaded: Mapping[str, Any]
) -> None:
    """InputError unless it is a model that is loaded, or one of a server, with the options that belong to it."""
    if endpoint is None:
        typed = [option for option, value in of_endpoint.items() if value is not None]
        if typed:
            raise InputError(f"{typed[0]} is for a served model: give --endpoint URL, or leave out {typed[0]}")
        if model is None:
            raise InputError("a model is needed, such as small-world/qwen3-vl")
        return
    if model is not None:
        raise InputError(f"--endpoint asks a served model, and {model!r} would be loaded here: give --model {model}")
    if not of_endpoint["--model"]:
        raise InputError("an endpoint serves models by name: give --model NAME")
    if typed := [option for option, value in of_loaded.items() if value is not None]:
        raise InputError(
            f"{typed[0]} is for a model that is loaded here, and --endpoint asks a served one: leave out {typed[0]}; "
            "what steers a served model is set where it is served"
        )


def served(url: str, model: str, request: str | None, concurrency: int | None, timeout: float | None) -> "Endpoint":
    """The endpoint, once it has been reached."""
    from ggss.probes.endpoint import CONCURRENCY, KEY, TIMEOUT, Endpoint

    try:
        fields = json.loads(request or "{}")
    except (ValueError, RecursionError) as error:
        raise InputError(f"--request {request!r} is not JSON ({error}): give an object, such as '{{}}'") from error
    if not isinstance(fields, dict):
        raise InputError(f"--request {request!r} is no JSON object: give one, such as '{{\"seed\": 1}}'")
    key = os.environ.get(KEY, "").strip()
    endpoint = Endpoint(url, model, fields, key, concurrency or CONCURRENCY, timeout or TIMEOUT)
    endpoint.check()
    return endpoint


def _refuse_old_spelling(compare: tuple[str, str] | None, recommend: str | None, unlike: bool) -> None:
    """InputError for options that moved to other commands; it says what to type."""
    options = {"--compare": compare is not None, "--recommend": recommend is not None, "--unlike": unlike}
    typed = [option for option, present in options.items() if present]
    if not typed:
        return
    command = ["ggss", "compare" if recommend is None else "recommend", *(compare or ("BEFORE", "AFTER"))]
    command += [] if recommend is None else [recommend]
    command += ["--unlike"] if unlike else []
    raise InputError(
        f"`ggss probe` asks a model, and has no {' and no '.join(typed)} any more: type `{shlex.join(command)}`, "
        "where --parser, --seed and --json are as before"
    )


def ask_into(
    out: Path, questions: "dict[str, Questions]", ask: "Callable[..., Run]", suffix: str, force: bool
) -> "list[Run]":
    """Ask all tasks; every batch is written to the file before the next one is asked."""
    from ggss.analysis.records import open_run_file
    from ggss.probes.endpoint import Unanswered

    total = sum(len(task_questions.items) for task_questions in questions.values())
    with open_run_file(out, questions, suffix, force) as file:
        if file.count:
            more = "nothing is asked again" if file.count == total else "the others are asked now"
            note(f"{file.count} of {total} answers are there already: {more}")
        try:
            runs = [
                ask(task, answered=file.answered(task), keep=lambda answers, task=task: file.keep(task, answers))
                for task in questions
            ]
        except KeyboardInterrupt as stopped:
            stopped.add_note(f"{file.count} of {total} answers are kept, and the same command goes on from there")
            raise
        except Unanswered as error:
            kept = f"{file.count} of {total} answers are kept, and the same command goes on from there"
            raise InputError(f"{error} ({kept})") from error
        file.finish(runs)
    return runs


def _steerer(name: str | None, alpha: float | None, max_side: int | None) -> "Steerer | None":
    check_alpha_has_steerer(alpha, name)
    if name is None:
        return None
    from ggss.steering.attach import compare_sizes
    from ggss.steering.steerer import Steerer, checked_alpha

    steerer = Steerer.from_pretrained(name)
    compare_sizes(steerer, max_side)
    checked_alpha(steerer.strength(alpha), allow_amplify=False)
    return steerer


def measured_runs(runs: "list[Run]", seed: int) -> "list[Measured]":
    """The runs in numbers, with their intervals computed under a progress bar."""
    from ggss.analysis import Statistics

    measured = [run.measured(Statistics(seed=seed)) for run in runs]
    metrics = [(run, name) for run in measured for name in run.names]
    for run, name in track(metrics, "resampling"):
        run.interval(name)  # which the run caches
    return measured


def default_suite(model: str) -> str:
    """The suite of the package that a model comes with, if it has one; reflect for all other models."""
    from ggss.probes import suites

    collection = model.partition("/")[0]
    return collection if embedded(model) and collection in suites.SUITES else "reflect"


def _suites(
    name: str,
    images: str | None,
    wording: str | None,
    questions: str | None,
    tasks: str | None,
    max_side: int | None,
) -> "dict[str, Suite]":
    """By task, the suite that asks it. All items are made and checked here, before a model is loaded."""
    from ggss import probes
    from ggss.probes import suites
    from ggss.probes.questions import questions_suite
    from ggss.probes.wording import read_wording

    if name == "reflect" and images is None:
        raise InputError("suite 'reflect' asks about your own pictures: give --images, a manifest of them")
    material = {"images": images, "wording": wording}
    suite = suites.load(name, **{key: value for key, value in material.items() if value is not None})
    asking = dict.fromkeys(suite.tasks, suite)
    default = suite.default
    if questions is not None:
        of_user = questions_suite(questions, suite).shaped(read_wording(wording).shapes)
        asking, default = dict.fromkeys(of_user.tasks, of_user) | asking, of_user.default
    from_files = [probe for probe in probes.names() if probes.get(probe).from_file]
    known_tasks = (*asking, *(f"{name}-NAME" if probes.get(name).named_tasks else name for name in from_files))
    if tasks is None:
        names = list(default)
        if images is not None and questions is None:
            _say_what_is_asked(suite, images)
    elif tasks == "all":
        names = list(asking)
    else:
        names = list(dict.fromkeys(filter(None, (task.strip() for task in tasks.split(",")))))
    unknown = [task for task in names if task not in asking and not suites.is_benchmark(task)]
    if unknown:
        raise no_such(f"suite {name!r} cannot ask {', '.join(unknown)}", unknown[0], known_tasks)
    if not names:
        raise InputError(f"--tasks {tasks!r} names no task: choose from {', '.join(known_tasks)}")
    asking |= {task: suites.benchmark(task, wording=wording) for task in names if task not in asking}
    by_task = {task: asking[task].shrunk(max_side) for task in names}
    for task, task_suite in by_task.items():
        task_suite.items(task)
    return by_task


def _say_what_is_asked(suite: "Suite", images: str) -> None:
    """Which tasks are asked about somebody's pictures, and why others are not; InputError if none can be."""
    reasons = [f"left out: {name}: {reason}" for name, reason in suite.left_out.items()]
    if not suite.default:
        others = f"choose --tasks from {', '.join(suite.tasks)}" if suite.tasks else "there is no other"
        raise errors.problems(f"no task is asked about {images!r} by default: {others}", reasons or ["none fits"])
    by_name = [task for task in suite.tasks if task not in suite.default]
    note(f"asked: {', '.join(suite.default)}", *reasons)
    if by_name:
        note(f"asked only if --tasks names them: {', '.join(by_name)}")
