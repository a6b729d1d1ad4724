"""`ggss study`: check a plan, run it, show its progress, export its answers."""

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from ggss import ranges
from ggss.cli.arguments import Force, Json, say
from ggss.cli.study_memory import show_memory
from ggss.cli.study_new import new
from ggss.cli.study_tables import tables
from ggss.cli.study_watch import watch

study = typer.Typer(
    no_args_is_help=True, help="Sweep models, methods, strengths and tasks from one file, safe against crashes."
)

log = logging.getLogger(__name__)  # prints to stderr unless a program configures it

File = Annotated[Path, typer.Argument(metavar="FILE", help="A plan; `ggss study new` has some.", show_default=False)]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A study's folder.", show_default=False)]


study.command()(new)


@study.command()
def plan(
    file: File,
    measure: Annotated[bool, typer.Option(help="Load the models and measure how long a question takes.")] = True,
    as_json: Json = False,
) -> None:
    """Check a plan and print its grid, its number of questions and the time it will take.

    Example: ggss study plan my-study.yaml
    """
    from dataclasses import asdict

    from ggss.progress import track
    from ggss.study.checking import CheckedPlan
    from ggss.study.memory import footprints
    from ggss.study.plan import Plan
    from ggss.study.status import forecast

    found = CheckedPlan(Plan.read(file))
    checked = found.plan
    if checked.threads and measure:
        import torch

        torch.set_num_threads(checked.threads)
    forecasts = list(track(forecast(found, measure), "measuring", len(checked.models)))
    memory, unknown = footprints(found)
    if as_json:
        told = {"plan": checked.model_dump(mode="json"), "models": [vars(one) for one in forecasts]}
        told |= {"overlap": [vars(one) for one in found.overlaps], "unchecked": found.unchecked}
        told |= {"memory": [asdict(one) for one in memory]}
        print(json.dumps(told, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    from ggss.terminal import Terminal

    console = Terminal()
    alphas = ", ".join(f"{alpha:g}" for alpha in checked.alphas)
    console.print(Text(checked.name, "bold"), checked.description)
    console.print(f"{len(checked.methods)} methods at alpha {alphas}: {', '.join(m.label for m in checked.methods)}")
    for attribute, steering in checked.steering.items():
        tasks, places = ", ".join(steering.tasks), ", ".join(steering.discover_on)
        console.print(f"{attribute} steering, discovered on {places}: {tasks}")
    for measured in checked.measures:
        where = "its best alpha" if measured.at == "best" else "all alphas"
        whose = f" of {', '.join(measured.methods)}" if measured.methods else ""
        console.print(f"under each steering, at {where}{whose}: {', '.join(measured.tasks)}")
    table = Table("model", "methods", "pictures", "questions", "time of one worker")
    for one in forecasts:
        seconds = _duration(one.seconds)
        table.add_row(one.model, str(one.methods), f"{one.pictures:,}", f"{one.questions:,}", seconds)
    total = sum(one.seconds for one in forecasts if one.seconds is not None) if measure else None
    table.add_section()
    table.add_row("all", "", "", f"{sum(one.questions for one in forecasts):,}", _duration(total))
    console.print(table)
    show_memory(memory, unknown)
    for note in found.notes():
        console.print(note, style="yellow", markup=False, highlight=False)


@study.command()
def run(
    file: File,
    out: Annotated[Path, typer.Option("--out", "-o", help="The study's folder; a study that is there is continued.")],
    executor: Annotated[str, typer.Option(help="in-process, processes, ray, vllm or ray-vllm.")] = "in-process",
    workers: Annotated[
        int | None, typer.Option(help="How many at a time; one per device unless given.", **ranges.WORKERS.bounds)
    ] = None,
) -> None:
    """Run a plan. You can stop it at any time; the same command continues where it stopped.

    Example: ggss study run my-study.yaml -o my-study --executor processes --workers 2
    """
    from ggss.errors import keeps
    from ggss.study.plan import Plan
    from ggss.study.runner import run as go

    with keeps(f"all answers so far are in {str(out)!r}, and the same command goes on from there"):
        done = go(Plan.read(file), out, executor, workers, say=log.warning)
    for sentence in done.changed:
        say(sentence)
    say(f"{done.asked:,} questions asked, {done.reused:,} answered before; all in {out}")


@study.command()
def status(folder: Folder, as_json: Json = False) -> None:
    """Show the progress of a study, also while it is running.

    Example: ggss study status my-study
    """
    from ggss.study.status import status as look

    found_plan, units = look(folder)
    if as_json:
        rows = [vars(one) | one.unit._asdict() for one in units]
        told = [{name: value for name, value in row.items() if name != "unit"} for row in rows]
        total = {"answered": sum(one.answered for one in units), "of": sum(one.of for one in units)}
        print(json.dumps({"plan": found_plan.name, **total, "units": told}, indent=2))
        return
    from rich.table import Table

    from ggss.terminal import Terminal

    console = Terminal()
    table = Table("model", "method", "answered", "of", "best alpha", "discovery", title=found_plan.name)
    for one in units:
        warned = f"{len(one.warnings)} warning(s)" if one.warnings else ""
        alpha = "" if one.alpha is None else f"{one.alpha:g}"
        table.add_row(*one.unit, f"{one.answered:,}", f"{one.of:,}", alpha, warned)
    console.print(table)
    answered, of = sum(one.answered for one in units), sum(one.of for one in units)
    console.print(f"{answered:,} of {of:,} questions answered ({answered / of:.0%})")
    for one in units:
        if one.failure:
            console.print(f"{one.unit.method} on {one.unit.model} could not be run: {one.failure}")


study.command()(watch)


@study.command()
def export(
    folder: Folder,
    out: Annotated[Path, typer.Option("--out", "-o", help="A .jsonl or .parquet file.")],
    force: Force = False,
) -> None:
    """Write all answers to one file, a row each.

    Example: ggss study export my-study -o answers.jsonl
    """
    from ggss.output import check_file
    from ggss.study.export import export as write
    from ggss.study.export import holds_export

    check_file(out, "ggss study export", holds_export, force)
    say(f"{write(folder, out):,} answers written to {out}")


study.command()(tables)


@study.command()
def recommend(
    folder: Folder,
    steerer: Annotated[Path, typer.Argument(metavar="STEERER", help="A steerer's folder.", show_default=False)],
    method: Annotated[str, typer.Option(help="The method's label in the plan; the steerer's own by default.")] = "",
) -> None:
    """Write the strength that a study chose for a steerer's method and model into the steerer.

    The steerer must be what the study fitted: the same method, options, model and discovery pictures.

    Example: ggss study recommend my-study race-steerer
    """
    from ggss.steering import artefact
    from ggss.steering.steerer import Steerer
    from ggss.study.recommendation import recommended_alpha

    alpha = recommended_alpha(folder, Steerer.from_pretrained(steerer), method)
    artefact.recommend(steerer, alpha)
    say(f"alpha {alpha:g}, best-avg-alpha of {folder}, is now what {steerer} recommends")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    minutes = seconds / 60
    return f"about {minutes:.0f} min" if minutes >= 1 else f"about {seconds:.0f} s"
