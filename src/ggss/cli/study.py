"""`ggss study`: check a plan, run it, show its progress, export its answers."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ggss.cli.arguments import Json
from ggss.cli.study_tables import tables

study = typer.Typer(
    no_args_is_help=True, help="Sweep models, methods, strengths and tasks from one file, safe against crashes."
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A plan, such as studies/smoke.yaml.", show_default=False)]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A study's folder.", show_default=False)]


@study.command()
def plan(
    file: File,
    measure: Annotated[bool, typer.Option(help="Load the models and measure how long a question takes.")] = True,
    as_json: Json = False,
) -> None:
    """Check a plan and print its grid, its number of questions and the time it will take.

    Example: ggss study plan studies/small-world.yaml
    """
    from ggss.progress import track
    from ggss.study.plan import Plan
    from ggss.study.status import forecast

    checked = Plan.load(file)
    if checked.threads and measure:
        import torch

        torch.set_num_threads(checked.threads)
    found = list(track(forecast(checked, measure), "measuring", len(checked.models)))
    if as_json:
        print(json.dumps({"plan": checked.model_dump(mode="json"), "models": [vars(one) for one in found]}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    alphas = ", ".join(f"{alpha:g}" for alpha in checked.alphas)
    console.print(f"[bold]{checked.name}[/bold] {checked.description}")
    console.print(f"{len(checked.methods)} methods at alpha {alphas}: {', '.join(m.label for m in checked.methods)}")
    for attribute, steering in checked.steering.items():
        tasks, places = ", ".join(steering.tasks), ", ".join(steering.discover_on)
        console.print(f"{attribute} steering, discovered on {places}: {tasks}")
    for measured in checked.measures:
        where = "its best alpha" if measured.at == "best" else "all alphas"
        whose = f" of {', '.join(measured.methods)}" if measured.methods else ""
        console.print(f"under each steering, at {where}{whose}: {', '.join(measured.tasks)}")
    table = Table("model", "methods", "pictures", "questions", "time of one worker")
    for one in found:
        seconds = _duration(one.seconds)
        table.add_row(one.model, str(one.methods), f"{one.pictures:,}", f"{one.questions:,}", seconds)
    total = sum(one.seconds for one in found if one.seconds is not None) if measure else None
    table.add_section()
    table.add_row("all", "", "", f"{sum(one.questions for one in found):,}", _duration(total))
    console.print(table)


@study.command()
def run(
    file: File,
    out: Annotated[Path, typer.Option("--out", "-o", help="The study's folder; a study that is there is continued.")],
    executor: Annotated[str, typer.Option(help="in-process, processes or ray.")] = "in-process",
    workers: Annotated[int | None, typer.Option(help="How many at a time; one per device unless given.")] = None,
) -> None:
    """Run a plan. You can stop it at any time; the same command continues where it stopped.

    Example: ggss study run studies/small-world.yaml -o my-study --executor processes --workers 2
    """
    from ggss.study.plan import Plan
    from ggss.study.runner import run as go

    done = go(Plan.load(file), out, executor, workers)
    print(f"{done.asked:,} questions asked, {done.reused:,} answered before; all in {out}")


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
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("model", "method", "answered", "of", "best alpha", "discovery", title=found_plan.name)
    for one in units:
        warned = f"{len(one.warnings)} warning(s)" if one.warnings else ""
        alpha = "" if one.alpha is None else f"{one.alpha:g}"
        table.add_row(*one.unit, f"{one.answered:,}", f"{one.of:,}", alpha, warned)
    console.print(table)
    answered, of = sum(one.answered for one in units), sum(one.of for one in units)
    console.print(f"{answered:,} of {of:,} questions answered ({answered / of:.0%})")


@study.command()
def export(
    folder: Folder,
    out: Annotated[Path, typer.Option("--out", "-o", help="A .jsonl or .parquet file.")],
) -> None:
    """Write all answers to one file, a row each.

    Example: ggss study export my-study -o answers.jsonl
    """
    from ggss.study.export import export as write

    print(f"{write(folder, out):,} answers written to {out}")


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
    print(f"alpha {alpha:g}, best-avg-alpha of {folder}, is now what {steerer} recommends")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    minutes = seconds / 60
    return f"about {minutes:.0f} min" if minutes >= 1 else f"about {seconds:.0f} s"
