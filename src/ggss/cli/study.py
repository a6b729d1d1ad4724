"""`ggss study`: check a plan, run it, show its progress, export its answers.

The memory that a plan needs, as `ggss study plan` shows it.

`ggss study watch`: the grid of a study while it runs, in the terminal; in a pipe a line whenever it has moved.

`ggss study tables`: every table of a study from its stored answers.

`ggss study new`: a plan to begin with, from those that come with ggss.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss import errors
from ggss.cli.arguments import Force, Json, say
from ggss.errors import InputError, no_such

if TYPE_CHECKING:
    from ggss.study.checking import Footprint
    from ggss.study.status import Progress


def show_memory(found: "Sequence[Footprint]", unknown: Mapping[str, str]) -> None:
    from rich.table import Table

    from ggss.terminal import Terminal

    console = Terminal()
    table = Table("memory", "weights", "longest", "KV cache", "features", "free", "fits", box=None)
    for one in found:
        table.add_row(
            one.model,
            gigabytes(one.weights),
            f"{one.tokens:,}",
            gigabytes(one.cache),
            gigabytes(one.features),
            gigabytes(one.free),
            "-" if one.fits is None else f"{one.fits:,}",
        )
    console.print(table)
    if found:
        console.print(
            f"weights in {' and '.join(dict.fromkeys(one.dtype for one in found))}; longest prompt and answer in "
            f"tokens; KV cache of {found[0].batch} of them; features of all pictures; free on "
            f"{' and '.join(dict.fromkeys(one.device for one in found))}; how many of the longest prompts fit in it"
        )
    for model, reason in unknown.items():
        console.print(f"{model}: its memory is not known: {reason}")
    for one in found:
        if one.fits is not None and one.fits < one.batch:
            console.print(
                f"{one.model}: about {one.fits} of the longest prompts fit at a time, and the plan's batch is "
                f"{one.batch}: a batch that does not fit will be halved"
                if one.fits
                else f"{one.model}: it does not fit in the {gigabytes(one.free)} that are free on {one.device}"
            )
        for task in one.too_long:
            console.print(
                f"{one.model}: {task.prompts:,} of the {task.of:,} prompts of {task.task} are longer than its "
                f"context of {task.context:,} tokens (up to {task.tokens:,}): its answers to them mean little"
            )


def gigabytes(count: int | None) -> str:
    """A number of bytes for people."""
    if count is None:
        return "-"
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


STILL = 300.0  # seconds without a new answer after which the watcher wonders
AROUND = 7  # lines of the screen that the grid leaves to its title, its names and its last line


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A study's folder.", show_default=False)],
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2, max=3600.0)] = 2.0,
) -> None:
    """Show the grid of a running study, methods by models, until it is finished. Ctrl-C ends the watching only.

    The study's store is only read. In a pipe or a log, a line is printed whenever there are new answers.

    Example: ggss study watch my-study
    """
    from ggss.study.status import WatchedStudy
    from ggss.terminal import Terminal

    study = WatchedStudy(folder)
    looks = _looks(study.look, every)
    try:
        console = Terminal()
        if console.is_terminal:
            from rich.live import Live

            with Live(console=console, auto_refresh=False) as live:
                for now in looks:
                    live.update(grid(study.plan.name, now, console), refresh=True)
        else:
            last = -1
            for now in looks:
                if now.answered != last:
                    last = now.answered
                    say(f"{study.plan.name}: {now.sentence()}")
    except KeyboardInterrupt:  # the study goes on; so there is nothing to report
        pass


@dataclass(frozen=True)
class StudyMoment:
    """The study at one moment. seconds: since the first look, when `first` questions were answered."""

    units: "Sequence[Progress]"
    first: int
    seconds: float
    still: float
    """Seconds since the last new answer was seen."""

    @property
    def answered(self) -> int:
        return sum(one.answered for one in self.units)

    @property
    def of(self) -> int:
        return sum(one.of for one in self.units)

    def sentence(self) -> str:
        """How far it is, and how long the rest will take at the speed of the watching so far."""
        done = f"{self.answered:,} of {self.of:,} questions answered ({_share(self.answered, self.of)})"
        if self.answered == self.of:
            return f"{done}, finished"
        if self.still > STILL:
            return f"{done}; no new answer for {duration(self.still)}: is it running?"
        new = self.answered - self.first
        left = (self.of - self.answered) * self.seconds / new if new else None
        return done if left is None else f"{done}, about {duration(left)} left"


def grid(name: str, now: StudyMoment, console: Any) -> Any:
    """Methods by models, each with the share that is answered. What does not fit the screen is counted."""
    from rich.table import Table
    from rich.text import Text

    from ggss.study.grid import Unit

    models = list(dict.fromkeys(one.unit.model for one in now.units))
    shares = {one.unit: one for one in now.units}
    rows = []
    for method in dict.fromkeys(one.unit.method for one in now.units):
        own = [shares.get(Unit(model, method)) for model in models]
        rows.append((method, own, all(one is None or one.answered == one.of for one in own)))
    finished = [method for method, _, done in rows if done]
    room = max(console.height - AROUND, 3)
    shown = rows if len(rows) <= room else [row for row in rows if not row[2]]
    table = Table("method", *models, title=name)
    for method, own, done in shown[:room]:
        table.add_row(Text(method, "dim" if done else "bold"), *map(_cell, own))
    left_out = [f"{len(finished)} methods are finished"] if len(shown) < len(rows) and finished else []
    left_out += [f"{len(shown) - room} more are not shown"] if len(shown) > room else []
    from ggss.terminal import Group

    return Group(console.fitting(table), *([", ".join(left_out)] if left_out else []), now.sentence())


def _cell(one: "Progress | None") -> Any:
    from rich.text import Text

    if one is None:
        return ""
    share = _share(one.answered, one.of)
    alpha = "" if one.alpha is None else f", alpha {one.alpha:g}"
    style = "green" if one.answered == one.of else "yellow" if one.answered else "dim"
    return Text(f"{share}{alpha}", style)


def _looks(look: "Callable[[], Sequence[Progress]]", every: float) -> Iterator[StudyMoment]:
    """A look now and then, until everything is answered."""
    start = moved = time.monotonic()
    first = last = None
    while True:
        units = look()
        now, answered = time.monotonic(), sum(one.answered for one in units)
        first = answered if first is None else first
        moved = moved if answered == last else now
        last = answered
        seen = StudyMoment(units, first, now - start, now - moved)
        yield seen
        if seen.answered == seen.of:
            return
        time.sleep(every)


def _share(answered: int, of: int) -> str:
    """In percent; never 100 % before the last answer."""
    return f"{int(100 * answered / of) if of else 100} %"


def duration(seconds: float) -> str:
    """For people: seconds, minutes, or hours and minutes."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def tables(
    directory: Annotated[Path, typer.Argument(help="The study's folder.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write; `tables` in the study's folder by default.")
    ] = None,
    latex: Annotated[bool, typer.Option(help="Write them in LaTeX, too.")] = True,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write every table in Markdown, CSV and LaTeX, with intervals and tests, and an index.

    An entry that was not run yet says "not run"; a table without any runs is left out, and the index says why. The
    same answers give the same files. A package or a plan's plug-in may add tables.

    Example: ggss study tables my-study -o results
    """
    from ggss.files import check_folder, marked
    from ggss.report.tables import COMMAND, INDEX, write
    from ggss.study.results import Results

    folder = out or directory / "tables"
    check_folder(folder, COMMAND, marked(COMMAND, f"{INDEX}.md"), force)
    written = write(Results.load(directory), folder, latex=latex)
    if as_json:
        found = {"index": str(written.index), "tables": written.tables, "left_out": written.left_out}
        print(json.dumps(found, indent=2))
        return
    from rich.text import Text

    from ggss.terminal import Terminal

    console = Terminal()
    for name, title in written.tables.items():
        console.print(Text.assemble((name, "bold"), "  ", title))
    for name, reason in written.left_out.items():
        console.print(f"{name}  left out: {reason}", style="dim")
    console.print(Text.assemble("Index: ", (str(written.index), "bold")))


PLANS = Path(__file__).parent / "plans"


def new(
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="PLAN", help="What to copy; without it all are listed.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write; PLAN.yaml by default.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """List the plans that come with ggss, or copy one, to change and run it.

    Example: ggss study new --from small-world -o my-study.yaml
    """
    if source is None:
        if out is not None:
            raise InputError(f"which plan should become {str(out)!r}? Choose --from {', '.join(plans())}")
        _list(as_json)
        return
    if source not in plans():
        raise no_such(f"there is no plan {source!r}", source, plans())
    from ggss.files import check_file, never, write_whole

    target = out or Path(f"{source}.yaml")
    check_file(target, "ggss study new", never, force)
    write_whole(target, plans()[source].read_bytes())
    if as_json:
        print(json.dumps({"plan": source, "file": str(target)}))
    else:
        say(f"{target} is a copy of the plan {source}. Look at it with `ggss study plan {target}`")


def plans() -> dict[str, Path]:
    """The files of the plans that come with ggss, by name."""
    return {file.stem: file for file in sorted(PLANS.glob("*.yaml"))}


def _list(as_json: bool) -> None:
    from rich.table import Table

    from ggss.terminal import Terminal
    from ggss.yaml_files import read_yaml

    contents = {name: read_yaml(file, "the plan") for name, file in plans().items()}
    if as_json:
        print(
            json.dumps(
                [{"name": name, "description": one["description"]} for name, one in contents.items()], indent=2
            )
        )
        return
    table = Table("plan", "what it does", "models", box=None)
    for name, content in contents.items():
        table.add_row(name, content["description"], ", ".join(map(_named, content["models"])))
    Terminal().print(table)


def _named(model: Any) -> str:
    return model["name"] if isinstance(model, dict) else model


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
    with_forecast: Annotated[
        bool,
        typer.Option(
            "--forecast/--no-forecast",
            help="Load the models and measure, for 30 s in all, how long questions take.",
        ),
    ] = True,
    as_json: Json = False,
) -> None:
    """Check a plan and print its grid, its number of questions and the time it will take.

    Example: ggss study plan my-study.yaml
    """
    from dataclasses import asdict

    from ggss.study.checking import CheckedPlan, footprints
    from ggss.study.plan import Plan
    from ggss.study.status import BUDGET, forecast
    from ggss.terminal import note, track

    found = CheckedPlan(Plan.read(file))
    checked = found.plan
    if with_forecast:
        note(f"measuring how long questions take, for at most about {BUDGET:.0f} s; --no-forecast leaves it out")
    if checked.threads and with_forecast:
        import torch

        torch.set_num_threads(checked.threads)
    forecasts = list(track(forecast(found, with_forecast), "measuring", len(checked.models)))
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
        seconds = _duration(one.seconds, one.at_most)
        table.add_row(one.model, str(one.methods), f"{one.pictures:,}", f"{one.questions:,}", seconds)
    # A sum without some of the models would be taken for that of all.
    known = [one.seconds for one in forecasts if one.seconds is not None]
    total = sum(known) if len(known) == len(forecasts) else None
    table.add_section()
    longest = any(one.at_most for one in forecasts)
    table.add_row("all", "", "", f"{sum(one.questions for one in forecasts):,}", _duration(total, longest))
    console.print(table)
    if longest:
        console.print("up to: answers were measured for a few tokens, and the time is that of the longest ones")
    for one in forecasts:
        if one.why:
            console.print(f"{one.model}: its time was not measured: {one.why}", markup=False, highlight=False)
    show_memory(memory, unknown)
    for sentence in found.notes():
        console.print(sentence, style="yellow", markup=False, highlight=False)


@study.command()
def run(
    file: File,
    out: Annotated[Path, typer.Option("--out", "-o", help="The study's folder; a study that is there is continued.")],
    executor: Annotated[str, typer.Option(help="in-process, processes, ray, vllm or ray-vllm.")] = "in-process",
    workers: Annotated[
        int | None, typer.Option(help="How many at a time; one per device unless given.", **errors.WORKERS.bounds)
    ] = None,
    keep_answers: Annotated[
        bool,
        typer.Option(
            "--keep-answers",
            help="Where code has changed since the last run: go on with its answers instead of asking again.",
        ),
    ] = False,
) -> None:
    """Run a plan. You can stop it at any time; the same command continues where it stopped.

    Example: ggss study run my-study.yaml -o my-study --executor processes --workers 2
    """
    from ggss.errors import keeps
    from ggss.study.plan import Plan
    from ggss.study.runner import run as go

    with keeps(f"all answers so far are in {str(out)!r}, and the same command goes on from there"):
        done = go(Plan.read(file), out, executor, workers, say=log.warning, keep_answers=keep_answers)
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
    from ggss.files import check_file
    from ggss.study.results import export as write
    from ggss.study.results import holds_export

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
    from ggss.study.results import recommended_alpha

    alpha = recommended_alpha(folder, Steerer.from_pretrained(steerer), method)
    artefact.recommend(steerer, alpha)
    say(f"alpha {alpha:g}, best-avg-alpha of {folder}, is now what {steerer} recommends")


def _duration(seconds: float | None, at_most: bool = False) -> str:
    if seconds is None:
        return "not measured"
    minutes, how = seconds / 60, "up to" if at_most else "about"
    return f"{how} {minutes:.0f} min" if minutes >= 1 else f"{how} {seconds:.0f} s"
