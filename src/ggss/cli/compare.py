"""`ggss compare`: what changed between two runs of `ggss probe`, as tables or as data.

`ggss recommend` prints the same, and writes the strength of the second run into its steerer or exported model.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss.cli.arguments import Json, ParserRule, Seed, checked_parser, checked_run_file, say
from ggss.cli.probe import marked, number, plain, result_table, show_parsers
from ggss.errors import InputError

if TYPE_CHECKING:
    from ggss.analysis import Comparison, Run
    from ggss.analysis.selection import ComparedTasks
    from ggss.stats import Interval
    from ggss.terminal import Terminal


Before = Annotated[
    Path,
    typer.Argument(
        metavar="BEFORE",
        help="The unsteered run: a file of `ggss probe -o`.",
        show_default=False,
        callback=checked_run_file,
    ),
]
After = Annotated[
    Path,
    typer.Argument(
        metavar="AFTER",
        help="The steered run: a file of `ggss probe -o`.",
        show_default=False,
        callback=checked_run_file,
    ),
]
Unlike = Annotated[
    bool, typer.Option("--unlike", help="Compare also runs of different models, questions or versions.")
]


def compare(
    before: Before,
    after: After,
    unlike: Unlike = False,
    parser: ParserRule = "careful",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare two runs of `ggss probe`: what steering changed in bias and capability.

    Bias: the change with its interval and a test over people, corrected for many tests. Capability: the answers that
    were gained and lost, and whether it is the same within 1.5 points. Two runs that differ in more than their
    steering are refused, unless --unlike is given. No model is loaded.

    Example: ggss compare before.jsonl after.jsonl
    """
    files = ComparedFiles.read(before, after, unlike, parser, seed)
    if as_json:
        print(json.dumps(files.data(), indent=2))
    else:
        files.show()


@dataclass(frozen=True)
class ComparedFiles:
    """The runs of two files, and their comparison."""

    before: "dict[str, Run]"
    after: "dict[str, Run]"
    tasks: "ComparedTasks"
    parser: str

    @classmethod
    def read(cls, before: Path, after: Path, unlike: bool, parser: str, seed: int) -> "ComparedFiles":
        """Both files, parsed by one rule. InputError for files that are no runs, or that cannot be compared."""
        from ggss.analysis import Statistics, compare_all
        from ggss.analysis.selection import ComparedTasks
        from ggss.terminal import Terminal

        first, second = paired_runs(before, after, parser)
        with Terminal(stderr=True).status("resampling"):
            tasks = ComparedTasks.of(compare_all(first, second, Statistics(seed=seed), unlike))
        return cls(first, second, tasks, parser)

    @property
    def differences(self) -> list[str]:
        """What the runs differ in besides their steering."""
        from ggss.analysis.comparison import differences

        return differences(self.before, self.after)

    @property
    def unchecked(self) -> list[str]:
        """What could not be checked, because a run was asked through an endpoint."""
        from ggss.analysis.comparison import unchecked

        return unchecked(self.before, self.after)

    @property
    def read_differently(self) -> dict[str, int]:
        """By task, how many answers the other parser reads differently."""
        return {task: run.read_differently + self.after[task].read_differently for task, run in self.before.items()}

    def data(self) -> dict[str, Any]:
        reading = {"parser": self.parser, "read_differently": self.read_differently}
        return comparison_data(self.tasks) | {"unlike": self.differences, "unchecked": self.unchecked} | reading

    def show(self) -> None:
        show_comparison(self.tasks, self.differences, self.unchecked)
        answers = sum(len(run.items) for run in (*self.before.values(), *self.after.values()))
        show_parsers(self.parser, self.read_differently, answers)


def paired_runs(before: Path, after: Path, parser: str) -> "tuple[dict[str, Run], dict[str, Run]]":
    """The runs of both files by task, read by one rule. InputError for a file that is none, or of several runs."""
    from ggss.analysis import records
    from ggss.analysis.comparison import check_one_run

    rule = checked_parser(parser)
    first, second = (
        {task: run.read_by(rule) for task, run in records.load(file).items()} for file in (before, after)
    )
    check_one_run(first, str(before))
    check_one_run(second, str(after))
    return first, second


def comparison_data(tasks: "ComparedTasks") -> dict[str, Any]:
    """A comparison as plain data."""
    return plain(
        {
            "before": asdict(tasks.before),
            "after": asdict(tasks.after),
            "bias": [_bias_data(comparison, tasks.p_holm.get(comparison.task)) for comparison in tasks.bias],
            "capability": [
                _capability_data(comparison, tasks.p_holm.get(comparison.task)) for comparison in tasks.capability
            ],
            "average": tasks.average and asdict(tasks.average),
            "combined": tasks.combined,
            "combined_holm": tasks.combined_holm,
        }
    )


def _bias_data(comparison: "Comparison", p_holm: float | None) -> dict[str, Any]:
    change, corrected = comparison.change(), comparison.corrected_change
    return {
        "task": comparison.task,
        "metric": comparison.before.metric().name,
        "before": comparison.before.value(),
        "after": comparison.after.value(),
        "change": change and asdict(change),
        "corrected": corrected and asdict(corrected),
        "detectable": comparison.detectable,
        "p": comparison.p,
        "p_holm": p_holm,
        "degenerate": comparison.degenerate,
    }


def _capability_data(comparison: "Comparison", p_holm: float | None) -> dict[str, Any]:
    accuracy = comparison.kept()
    return {
        "task": comparison.task,
        "before": accuracy.before.estimate,
        "after": accuracy.after.estimate,
        "gained": accuracy.gained,
        "lost": accuracy.lost,
        "same": asdict(accuracy.same),
        "detectable": comparison.detectable,
        "p": accuracy.p,
        "p_holm": p_holm,
        "degenerate": comparison.degenerate,
    }


def show_comparison(tasks: "ComparedTasks", differences: Sequence[str] = (), unchecked: Sequence[str] = ()) -> None:
    """Print a comparison. differences, unchecked: what the runs differ in, or may, besides their steering."""
    from rich.text import Text

    from ggss.terminal import Terminal

    console = Terminal()
    side_lines(console, tasks, differences, unchecked)
    if tasks.bias:
        table = result_table("bias", "before", "after", "change [95 %]", "corrected [95 %]", "p", "p, Holm")
        for comparison in tasks.bias:
            display = comparison.before.display()
            table.add_row(
                marked(comparison.task + display.unit, comparison.degenerate),
                number(comparison.before.value(), display),
                number(comparison.after.value(), display),
                _percent(comparison.change()),
                _percent(comparison.corrected_change),
                p_value(comparison.p),
                p_value(tasks.p_holm.get(comparison.task)),
            )
        if tasks.combined is not None:
            table.add_section()
            average = _percent(tasks.average)
            table.add_row("all together", "", "", average, "", p_value(tasks.combined), p_value(tasks.combined_holm))
        console.print(table)
    if tasks.capability:
        table = result_table("right answers", "before", "after", "points [90 %]", "+/-", "same", "p", "p, Holm")
        for comparison in tasks.capability:
            accuracy = comparison.kept()
            same = accuracy.same
            table.add_row(
                marked(comparison.task, comparison.degenerate),
                f"{accuracy.before.estimate:.1%}",
                f"{accuracy.after.estimate:.1%}",
                f"{100 * same.difference:+.1f} [{100 * same.low:+.1f}, {100 * same.high:+.1f}]",
                f"{accuracy.gained}/{accuracy.lost}",
                "yes" if same.equivalent else "not shown",
                p_value(accuracy.p),
                p_value(tasks.p_holm.get(comparison.task)),
            )
        console.print(table)
    console.print(
        "Change: percentile bootstrap over people; corrected: Fieller's interval between bias-corrected values. "
        "p: sign-flip test over people, McNemar for right answers; same: equivalent within 1.5 points (TOST).",
        style="dim",
    )
    if any(comparison.degenerate for comparison in (*tasks.bias, *tasks.capability)):
        console.print(Text("*", "red"), "most answers of one run could not be parsed: left out of the combined test.")


def side_lines(
    console: "Terminal", tasks: "ComparedTasks", differences: Sequence[str], unchecked: Sequence[str]
) -> None:
    """What is compared with what."""
    from rich.text import Text

    console.print(Text("before", "bold"), tasks.before.said)
    console.print(Text("after ", "bold"), tasks.after.said)
    if tasks.before.steered:
        console.print("The first run is steered, too: the changes are between two steerings.")
    for text in differences:
        console.print(Text("They differ:", "yellow"), text)
    for text in unchecked:
        console.print(Text("Not checked:", "yellow"), text)


def _percent(interval: "Interval | None") -> str:
    if interval is None:
        return "-"
    low, middle, high = (
        f"{value:+.0f}" if not math.isnan(value) else "-"
        for value in (interval.low, interval.estimate, interval.high)
    )
    return f"{middle} % [{low}, {high}]"


def p_value(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.2g}" if value >= 5e-5 else "<1e-4"


def recommend(
    before: Before,
    after: After,
    steerer: Annotated[
        Path,
        typer.Argument(
            metavar="STEERER", help="The folder of AFTER's steerer, or exported model.", show_default=False
        ),
    ],
    unlike: Unlike = False,
    parser: ParserRule = "careful",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Compare two runs as `ggss compare` does, and write the strength of the second into its steerer.

    The strength is used from then on wherever no --alpha is given. Only the steerer that AFTER was steered by takes
    it; its config and its card change, and what it does at a given strength does not. `ggss study recommend` writes
    the strength that a study chose.

    An exported model has its strength in its weights, and recommends it only after this command: AFTER must be a run
    of that very model, and its card then says what was measured. Give --unlike, as its base is another model.

    Example: ggss recommend before.jsonl after.jsonl race-steerer
    """
    files = ComparedFiles.read(before, after, unlike, parser, seed)

    from ggss.steering.exported_files import holds_export

    write = _write_export_strengths if holds_export(steerer) else _write_strength
    alpha = write(steerer, files)
    if as_json:
        print(json.dumps(files.data() | {"recommended_alpha": alpha}, indent=2))
        return
    files.show()
    words = " and ".join(f"{a:g} of {n}" for n, a in alpha.items()) if isinstance(alpha, dict) else f"{alpha:g}"
    say(f"alpha {words} is now what {steerer} recommends")


def _write_export_strengths(folder: Path, files: ComparedFiles) -> dict[str, float]:
    """Recommend an exported model's strengths; returns them. InputError if the second run is of another model."""
    from ggss.steering.export import recommend as recommend_export

    source = next(iter(files.after.values())).source
    if source.steered:
        raise InputError(
            f"the second file was answered under a steerer ({source.label}): measure the exported model as it is"
        )
    return recommend_export(folder, source.identity, comparison_data(files.tasks))


def _write_strength(folder: Path, files: ComparedFiles) -> float:
    """Write the strength of a steered run into its steerer; returns it. InputError for another steerer."""
    from ggss.steering import artefact
    from ggss.steering.steerer import Steerer

    steerings = {(run.source.steerer, run.source.alpha) for run in files.after.values()}
    if len(steerings) != 1 or not next(iter(steerings))[0]:
        raise InputError("the second file was not answered under one steerer, so it has no strength to recommend")
    content, alpha = next(iter(steerings))
    if Steerer.from_pretrained(folder).content_hash != content:
        raise InputError(f"{str(folder)!r} is not the steerer of the second file: its content differs")
    artefact.recommend(folder, alpha)
    return alpha
