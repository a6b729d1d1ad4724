"""`ggss study`: make and check a plan, run it, show its progress, export its answers, write its tables."""

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

study = typer.Typer(
    no_args_is_help=True, help="Sweep models, methods, strengths and tasks from one file, safe against crashes."
)

log = logging.getLogger(__name__)  # prints to stderr unless a program configures it

File = Annotated[Path, typer.Argument(metavar="FILE", help="A plan; `ggss study new` has some.", show_default=False)]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A study's folder.", show_default=False)]

PLANS = Path(__file__).parent / "plans"
MY_PICTURES = "my-pictures"  # the plan that is drafted, by `ggss.study.checking.draft`
STILL = 300.0  # seconds without a new answer after which `watch` asks whether the study is running
AROUND = 7  # lines of the screen for what is around the grid's rows: title, head and last line


@study.command()
def new(
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="PLAN", help="What to copy; without it all are listed.", show_default=False),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(help=f"Of --from {MY_PICTURES}: your pictures, a manifest or a pattern.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write; PLAN.yaml by default.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """List the plans that come with ggss, or copy one, to change and run it.

    `--from my-pictures --images faces.csv` writes a plan for your own pictures: the tasks that their attributes
    allow, and half of the people held out from discovery, to be asked about.

    Example: ggss study new --from small-world -o my-study.yaml
    """
    known = (*plans(), MY_PICTURES)
    if source is None:
        if out is not None or images is not None:
            raise InputError(f"which plan should become {str(out or 'a file')!r}? Choose --from {', '.join(known)}")
        _list(as_json)
        return
    if source not in known:
        raise no_such(f"there is no plan {source!r}", source, known)
    if (images is not None) != (source == MY_PICTURES):
        raise InputError(f"--images and --from {MY_PICTURES} belong together: give both, or neither")
    from ggss.files import check_file, never, write_whole

    target = out or Path(f"{source}.yaml")
    check_file(target, "ggss study new", never, force)
    if images is not None:
        from ggss.study.checking import DRAFTED_MODEL, draft

        write_whole(target, draft(images, target).encode())
        what = f"{target} is a plan for {images}. Put your model in the place of {DRAFTED_MODEL}, then look at it"
    else:
        write_whole(target, plans()[source].read_bytes())
        what = f"{target} is a copy of the plan {source}. Look at it"
    if as_json:
        print(json.dumps({"plan": source, "file": str(target)}))
    else:
        say(f"{what} with `ggss study plan {target}`")


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

    checked = CheckedPlan(Plan.read(file))
    contents = checked.plan
    if with_forecast:
        note(f"measuring how long questions take, for at most about {BUDGET:.0f} s; --no-forecast leaves it out")
    if contents.threads and with_forecast:
        import torch

        torch.set_num_threads(contents.threads)
    forecasts = list(track(forecast(checked, with_forecast), "measuring", len(contents.models)))
    memory, unknown = footprints(checked)
    if as_json:
        data = {"plan": contents.model_dump(mode="json"), "models": [vars(model) for model in forecasts]}
        data |= {"overlap": [vars(overlap) for overlap in checked.overlaps], "unchecked": checked.unchecked}
        data |= {"memory": [asdict(footprint) for footprint in memory]}
        print(json.dumps(data, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    from ggss.terminal import Terminal

    console = Terminal()
    alphas = ", ".join(f"{alpha:g}" for alpha in contents.alphas)
    console.print(Text(contents.name, "bold"), contents.description)
    console.print(
        f"{len(contents.methods)} methods at alpha {alphas}: {', '.join(m.label for m in contents.methods)}"
    )
    for attribute, steering in contents.steering.items():
        tasks, places = ", ".join(steering.tasks), ", ".join(steering.discover_on) or "all discovery pictures"
        console.print(f"{attribute} steering, discovered on {places}: {tasks}")
    for measure in contents.measures:
        alpha = "its best alpha" if measure.at == "best" else "all alphas"
        methods = f" of {', '.join(measure.methods)}" if measure.methods else ""
        console.print(f"under each steering, at {alpha}{methods}: {', '.join(measure.tasks)}")
    table = Table("model", "methods", "pictures", "questions", "time of one worker")
    for model in forecasts:
        seconds = _forecast_time(model.seconds, model.at_most)
        table.add_row(model.model, str(model.methods), f"{model.pictures:,}", f"{model.questions:,}", seconds)
    # A sum without some of the models would be taken for that of all.
    known = [model.seconds for model in forecasts if model.seconds is not None]
    total = sum(known) if len(known) == len(forecasts) else None
    table.add_section()
    at_most = any(model.at_most for model in forecasts)
    table.add_row("all", "", "", f"{sum(model.questions for model in forecasts):,}", _forecast_time(total, at_most))
    console.print(table)
    if at_most:
        console.print("up to: answers were measured for a few tokens, and the time is that of the longest ones")
    for model in forecasts:
        if model.why:
            console.print(f"{model.model}: its time was not measured: {model.why}", markup=False, highlight=False)
    show_memory(memory, unknown)
    for sentence in checked.notes():
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

    last_plan, units = look(folder)
    answered, of = sum(progress.answered for progress in units), sum(progress.of for progress in units)
    if as_json:
        rows = [vars(progress) | progress.unit._asdict() for progress in units]
        data = [{name: value for name, value in row.items() if name != "unit"} for row in rows]
        print(json.dumps({"plan": last_plan.name, "answered": answered, "of": of, "units": data}, indent=2))
        return
    from rich.table import Table

    from ggss.terminal import Terminal

    console = Terminal()
    table = Table("model", "method", "answered", "of", "best alpha", "discovery", title=last_plan.name)
    for progress in units:
        warnings = f"{len(progress.warnings)} warning(s)" if progress.warnings else ""
        alpha = "" if progress.alpha is None else f"{progress.alpha:g}"
        table.add_row(*progress.unit, f"{progress.answered:,}", f"{progress.of:,}", alpha, warnings)
    console.print(table)
    console.print(f"{answered:,} of {of:,} questions answered ({answered / of:.0%})")
    for progress in units:
        if progress.failure:
            console.print(f"{progress.unit.method} on {progress.unit.model} could not be run: {progress.failure}")


@study.command()
def watch(
    folder: Folder,
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


@study.command()
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
        data = {"index": str(written.index), "tables": written.tables, "left_out": written.left_out}
        print(json.dumps(data, indent=2))
        return
    from rich.text import Text

    from ggss.terminal import Terminal

    console = Terminal()
    for name, title in written.tables.items():
        console.print(Text.assemble((name, "bold"), "  ", title))
    for name, reason in written.left_out.items():
        console.print(f"{name}  left out: {reason}", style="dim")
    console.print(Text.assemble("Index: ", (str(written.index), "bold")))


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


def plans() -> dict[str, Path]:
    """The files of the plans that come with ggss, by name."""
    return {file.stem: file for file in sorted(PLANS.glob("*.yaml"))}


def _list(as_json: bool) -> None:
    from rich.table import Table

    from ggss.files import read_yaml
    from ggss.terminal import Terminal

    contents = {name: read_yaml(file, "the plan") for name, file in plans().items()}
    contents[MY_PICTURES] = {"description": "Drafted for your own pictures: give --images.", "models": ["yours"]}
    if as_json:
        data = [{"name": name, "description": content["description"]} for name, content in contents.items()]
        print(json.dumps(data, indent=2))
        return
    table = Table("plan", "what it does", "models", box=None)
    for name, content in contents.items():
        table.add_row(name, content["description"], ", ".join(map(_named, content["models"])))
    Terminal().print(table)


def _named(model: Any) -> str:
    return model["name"] if isinstance(model, dict) else model


def show_memory(footprints: "Sequence[Footprint]", unknown: Mapping[str, str]) -> None:
    """Print the memory that each model needs. unknown: by model, why that is not known."""
    from rich.table import Table

    from ggss.terminal import Terminal

    console = Terminal()
    table = Table("memory", "weights", "longest", "KV cache", "features", "free", "fits", box=None)
    for footprint in footprints:
        table.add_row(
            footprint.model,
            gigabytes(footprint.weights),
            f"{footprint.tokens:,}",
            gigabytes(footprint.cache),
            gigabytes(footprint.features),
            gigabytes(footprint.free),
            "-" if footprint.fits is None else f"{footprint.fits:,}",
        )
    console.print(table)
    if footprints:
        dtypes = " and ".join(dict.fromkeys(footprint.dtype for footprint in footprints))
        devices = " and ".join(dict.fromkeys(footprint.device for footprint in footprints))
        console.print(
            f"weights in {dtypes}; longest prompt and answer in tokens; KV cache of {footprints[0].batch} of them; "
            f"features of all pictures; free on {devices}; how many of the longest prompts fit in it"
        )
    for model, reason in unknown.items():
        console.print(f"{model}: its memory is not known: {reason}")
    for footprint in footprints:
        if footprint.fits == 0:
            free = gigabytes(footprint.free)
            console.print(f"{footprint.model}: it does not fit in the {free} that are free on {footprint.device}")
        elif footprint.fits is not None and footprint.fits < footprint.batch:
            console.print(
                f"{footprint.model}: about {footprint.fits} of the longest prompts fit at a time, and the plan's "
                f"batch is {footprint.batch}: a batch that does not fit will be halved"
            )
        for task in footprint.too_long:
            console.print(
                f"{footprint.model}: {task.prompts:,} of the {task.of:,} prompts of {task.task} are longer than its "
                f"context of {task.context:,} tokens (up to {task.tokens:,}): its answers to them mean little"
            )


def gigabytes(count: int | None) -> str:
    """A number of bytes in GB or MB."""
    if count is None:
        return "-"
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _forecast_time(seconds: float | None, at_most: bool = False) -> str:
    if seconds is None:
        return "not measured"
    minutes, precision = seconds / 60, "up to" if at_most else "about"
    return f"{precision} {minutes:.0f} min" if minutes >= 1 else f"{precision} {seconds:.0f} s"


@dataclass(frozen=True)
class StudyMoment:
    """The progress of a study at one moment.

    seconds: since the first look, when `first` questions were answered. still: seconds since the last new answer.
    """

    units: "Sequence[Progress]"
    first: int
    seconds: float
    still: float

    @property
    def answered(self) -> int:
        return sum(unit.answered for unit in self.units)

    @property
    def of(self) -> int:
        return sum(unit.of for unit in self.units)

    def sentence(self) -> str:
        """How many questions are answered, and how long the rest will take at the speed since the first look."""
        done = f"{self.answered:,} of {self.of:,} questions answered ({_share(self.answered, self.of)})"
        if self.answered == self.of:
            return f"{done}, finished"
        if self.still > STILL:
            return f"{done}; no new answer for {duration(self.still)}: is it running?"
        new = self.answered - self.first
        left = (self.of - self.answered) * self.seconds / new if new else None
        return done if left is None else f"{done}, about {duration(left)} left"


def grid(name: str, now: StudyMoment, console: Any) -> Any:
    """A table of methods by models with the share that is answered. Rows that do not fit the screen are counted."""
    from rich.table import Table
    from rich.text import Text

    from ggss.study.grid import Unit

    progress = {entry.unit: entry for entry in now.units}
    models = list(dict.fromkeys(unit.model for unit in progress))
    rows = []
    for method in dict.fromkeys(unit.method for unit in progress):
        row = [progress.get(Unit(model, method)) for model in models]
        rows.append((method, row, all(entry is None or entry.answered == entry.of for entry in row)))
    finished = [method for method, _, done in rows if done]
    room = max(console.height - AROUND, 3)
    visible_rows = rows if len(rows) <= room else [row for row in rows if not row[2]]
    table = Table("method", *models, title=name)
    for method, row, done in visible_rows[:room]:
        table.add_row(Text(method, "dim" if done else "bold"), *map(_cell, row))
    left_out = [f"{len(finished)} methods are finished"] if len(visible_rows) < len(rows) and finished else []
    left_out += [f"{len(visible_rows) - room} more are not shown"] if len(visible_rows) > room else []
    from ggss.terminal import Group

    return Group(console.fitting(table), *([", ".join(left_out)] if left_out else []), now.sentence())


def _cell(progress: "Progress | None") -> Any:
    from rich.text import Text

    if progress is None:
        return ""
    share = _share(progress.answered, progress.of)
    alpha = "" if progress.alpha is None else f", alpha {progress.alpha:g}"
    style = "green" if progress.answered == progress.of else "yellow" if progress.answered else "dim"
    return Text(f"{share}{alpha}", style)


def _looks(look: "Callable[[], Sequence[Progress]]", every: float) -> Iterator[StudyMoment]:
    """The progress now and every so many seconds, until everything is answered."""
    start = moved = time.monotonic()
    first = last = None
    while True:
        units = look()
        now, answered = time.monotonic(), sum(unit.answered for unit in units)
        first = answered if first is None else first
        moved = moved if answered == last else now
        last = answered
        moment = StudyMoment(units, first, now - start, now - moved)
        yield moment
        if moment.answered == moment.of:
            return
        time.sleep(every)


def _share(answered: int, of: int) -> str:
    """The share in percent, rounded down: 100 % only with the last answer."""
    return f"{int(100 * answered / of) if of else 100} %"


def duration(seconds: float) -> str:
    """A duration as seconds, minutes, or hours and minutes."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
