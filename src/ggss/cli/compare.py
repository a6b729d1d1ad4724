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
from ggss.cli.probe import DEPENDENCE, number, plain, result_table, show_parsers
from ggss.errors import InputError

if TYPE_CHECKING:
    from rich.text import Text

    from ggss.analysis import Comparison, Run
    from ggss.analysis.comparison import FlipChange
    from ggss.analysis.selection import ComparedTasks
    from ggss.analysis.verdict import Verdict
    from ggss.stats import Interval
    from ggss.terminal import Terminal


VERDICT_COLOURS = {
    "better": "green",
    "equivalent": "green",
    "worse": "red",
    "unreadable": "red",
    "inconclusive": "yellow",
    "intended": "",
    "none": "",
}
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

    First, for how many people the answer depends on each attribute. Then bias: the change with its interval and a
    test over people, corrected for many tests. Capability: the answers that were gained and lost, and whether it is
    the same within 1.5 points. Each row ends with a verdict. Two runs that differ in more than their steering are
    refused, unless --unlike is given. No model is loaded.

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
            tasks = ComparedTasks.of(list(compare_all(first, second, Statistics(seed=seed), unlike).values()))
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
        from ggss.terminal import Terminal

        side_lines(Terminal(), self.tasks, self.differences, self.unchecked)
        show_comparison(self.tasks)
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
            "bias": [_bias_data(*row) for row in zip(tasks.bias, tasks.bias_holm, strict=True)],
            "capability": [
                _capability_data(*row) for row in zip(tasks.capability, tasks.capability_holm, strict=True)
            ],
            "flips": [
                asdict(flip) | {"p_holm": p, "verdict": asdict(verdict)} for flip, p, verdict in _judged_flips(tasks)
            ],
            "average": tasks.average and asdict(tasks.average),
            "combined": tasks.combined,
        }
    )


def _bias_data(comparison: "Comparison", p_holm: float | None) -> dict[str, Any]:
    from ggss.analysis import verdict

    change, corrected = comparison.change(), comparison.corrected_change
    return {
        "task": comparison.task,
        "steered": comparison.after.source.attribute,
        "metric": comparison.before.metric().name,
        "before": comparison.before.value(),
        "after": comparison.after.value(),
        "change": change and asdict(change),
        "corrected": corrected and asdict(corrected),
        "beside": {
            name: {
                "before": comparison.before.value(name),
                "after": comparison.after.value(name),
                "difference": asdict(comparison.difference(name)),
            }
            for name in comparison.before.compared
            if name in comparison.after.metrics
        },
        "detectable": comparison.detectable,
        "p": comparison.p,
        "p_holm": p_holm,
        "degenerate": comparison.degenerate,
        "verdict": asdict(verdict.of_bias(comparison, p_holm)),
    }


def _capability_data(comparison: "Comparison", p_holm: float | None) -> dict[str, Any]:
    from ggss.analysis import verdict

    accuracy = comparison.accuracy()
    return {
        "task": comparison.task,
        "steered": comparison.after.source.attribute,
        "before": accuracy.before.estimate,
        "after": accuracy.after.estimate,
        "gained": accuracy.gained,
        "lost": accuracy.lost,
        "same": asdict(accuracy.same),
        "detectable": comparison.detectable,
        "p": accuracy.p,
        "p_holm": p_holm,
        "degenerate": comparison.degenerate,
        "verdict": asdict(verdict.of_accuracy(comparison, accuracy, p_holm)),
    }


def _judged_flips(tasks: "ComparedTasks") -> "list[tuple[FlipChange, float | None, Verdict]]":
    """Whose answer depends on an attribute, with the adjusted p and the verdict."""
    from ggss.analysis import verdict

    return [(flip, p, verdict.of_flips(flip, p)) for flip, p in zip(tasks.flips, tasks.flips_holm, strict=True)]


def show_comparison(tasks: "ComparedTasks") -> None:
    """Print a comparison: whose answer depends on what, bias, right answers, each with its verdict."""
    from ggss.analysis import verdict
    from ggss.terminal import Terminal

    console = Terminal()
    if tasks.flips:
        _show_flips(console, tasks)
    if tasks.bias:
        table = result_table("bias", "before", "after", "change", "corrected [95 %]", "p(Holm)", "verdict")
        for comparison, p_holm in zip(tasks.bias, tasks.bias_holm, strict=True):
            display, change = comparison.before.display(), comparison.change()
            table.add_row(
                comparison.task + display.unit,
                number(comparison.before.value(), display),
                number(comparison.after.value(), display),
                "-" if change is None else f"{change.estimate:+.0f} %",
                _percent(comparison.corrected_change),
                p_value(p_holm),
                said(verdict.of_bias(comparison, p_holm)),
            )
        if tasks.combined is not None and tasks.average is not None:
            table.add_section()
            average = f"{tasks.average.estimate:+.0f} %"
            table.add_row("all together", "", "", average, "", p_value(tasks.combined), "")
        console.print(table)
        if any(comparison.before.compared for comparison in tasks.bias):
            console.print(_beside(tasks.bias))
    if tasks.capability:
        table = result_table("right answers", "before", "after", "points [90 %]", "p(Holm)", "verdict")
        several = len({comparison.after.source.attribute for comparison in tasks.capability}) > 1
        for comparison, p_holm in zip(tasks.capability, tasks.capability_holm, strict=True):
            accuracy = comparison.accuracy()
            same = accuracy.same
            table.add_row(
                f"{comparison.task}, {comparison.after.source.attribute} steering" if several else comparison.task,
                f"{accuracy.before.estimate:.1%}",
                f"{accuracy.after.estimate:.1%}",
                f"{100 * same.difference:+.1f} [{100 * same.low:+.1f}, {100 * same.high:+.1f}]",
                p_value(p_holm),
                said(verdict.of_accuracy(comparison, accuracy, p_holm)),
            )
        console.print(table)
    console.print(
        "Change: of the published value; corrected: between bias-corrected values, with Fieller's interval. p: "
        "sign-flip test over people, McNemar's for right answers, adjusted by Holm. Equivalent: within 1.5 points "
        "(TOST).",
        style="dim",
    )


def _beside(comparisons: "Sequence[Comparison]") -> Any:
    """The metrics that are shown beside the published ones."""
    table = result_table("beside it", "before", "after", "corrected difference [95 %]")
    for comparison in comparisons:
        for name in comparison.before.compared:
            if name in comparison.after.metrics:
                display, difference = comparison.before.display(name), comparison.difference(name)
                low, middle, high = (
                    f"{display.scale * value:+z.{display.digits}f}" if math.isfinite(value) else "-"
                    for value in (difference.low, difference.estimate, difference.high)
                )
                table.add_row(
                    f"{comparison.task}: {display.label}{display.unit}",
                    number(comparison.before.value(name), display),
                    number(comparison.after.value(name), display),
                    f"{middle} [{low}, {high}]",
                )
    return table


def _show_flips(console: "Terminal", tasks: "ComparedTasks") -> None:
    """Whose answer depends on the steered attribute, then on others, and a warning where that rose."""
    from rich.text import Text

    table = result_table("answer depends on", "before", "after", "points [95 %]", "p(Holm)", "verdict")
    judged = _judged_flips(tasks)
    for flip, p_holm, verdict in judged:
        change = flip.change
        table.add_row(
            f"{flip.task}: {flip.attribute}",
            f"{flip.flips[0]} of {flip.cases}",
            f"{flip.flips[1]} of {flip.cases}",
            f"{100 * change.estimate:+.0f} [{100 * change.low:+.0f}, {100 * change.high:+.0f}]",
            p_value(p_holm),
            said(verdict),
        )
    console.print(table)
    console.print(DEPENDENCE, style="dim")
    for flip, _, verdict in judged:
        if verdict.kind == "worse" and flip.attribute not in flip.steered:
            both = ",".join([*flip.steered, flip.attribute])
            console.print(
                Text("Spill-over:", "yellow"),
                f"answers of {flip.task} depend more on {flip.attribute}, which is not steered: "
                f"`ggss discover --attribute {both}` steers both.",
            )


def said(verdict: "Verdict") -> "Text":
    """A verdict, in the colour of its kind."""
    from rich.text import Text

    return Text(verdict.words, VERDICT_COLOURS[verdict.kind])


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
    unbounded = math.isinf(interval.low) and math.isinf(interval.high)
    return f"{middle} % [no bound]" if unbounded else f"{middle} % [{low}, {high}]"


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

    alpha: float | dict[str, float]
    if holds_export(steerer):
        alpha = _write_export_strengths(steerer, files)
        words = " and ".join(f"{strength:g} of {attribute}" for attribute, strength in alpha.items())
    else:
        alpha = _write_strength(steerer, files)
        words = f"{alpha:g}"
    if as_json:
        print(json.dumps(files.data() | {"recommended_alpha": alpha}, indent=2))
        return
    files.show()
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
