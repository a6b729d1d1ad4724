"""What `ggss probe` prints: the table of a run, the tables of a comparison, and both as plain data."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

    from ggss.analysis import Comparison, Measured
    from ggss.analysis.compared_tasks import ComparedTasks
    from ggss.probes import Display
    from ggss.stats import Interval


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
            }
        )
        for name in measured.names
    ]


def comparison_data(found: "ComparedTasks") -> dict[str, Any]:
    """A comparison as plain data."""
    return plain(
        {
            "before": asdict(found.before),
            "after": asdict(found.after),
            "bias": [_bias_data(one, found.p_holm.get(one.task)) for one in found.bias],
            "capability": [_capability_data(one, found.p_holm.get(one.task)) for one in found.capability],
            "average": found.average and asdict(found.average),
            "combined": found.combined,
            "combined_holm": found.combined_holm,
        }
    )


def _bias_data(one: "Comparison", p_holm: float | None) -> dict[str, Any]:
    change, corrected = one.change(), one.corrected_change
    return {
        "task": one.task,
        "metric": one.before.metric().name,
        "before": one.before.value(),
        "after": one.after.value(),
        "change": change and asdict(change),
        "corrected": corrected and asdict(corrected),
        "detectable": one.detectable,
        "p": one.p,
        "p_holm": p_holm,
        "degenerate": one.degenerate,
    }


def _capability_data(one: "Comparison", p_holm: float | None) -> dict[str, Any]:
    kept = one.kept()
    return {
        "task": one.task,
        "before": kept.before.estimate,
        "after": kept.after.estimate,
        "gained": kept.gained,
        "lost": kept.lost,
        "same": asdict(kept.same),
        "detectable": one.detectable,
        "p": kept.p,
        "p_holm": p_holm,
        "degenerate": one.degenerate,
    }


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(own) for name, own in value.items() if name != "draws"}
    if isinstance(value, tuple | list):
        return [plain(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_run(title: str, runs: Sequence["Measured"]) -> None:
    from rich.text import Text

    from ggss.terminal import Terminal

    table = _table("task, metric", "value [95 %]", "corrected [95 %]", "soft", "unparsed", title=title)
    for run in runs:
        table.add_row(Text(run.task, "bold"))
        for name in run.names:
            shown, metric, corrected, soft = run.display(name), run.metric(name), run.corrected(name), run.soft(name)
            table.add_row(
                _marked(f"  {name}{shown.unit}", metric.degenerate),
                _span(run.interval(name), shown),
                "" if corrected is None else _span(corrected, shown),
                "" if soft is None else _number(soft, shown),
                f"{metric.unparsed} of {metric.asked}" if metric.unparsed else "0",
            )
    console = Terminal()
    console.print(table)
    console.print(
        "Intervals: percentile bootstrap over people (biographies, pictures). Corrected: jackknife, free of the "
        "upward bias of small samples.",
        style="dim",
    )
    if any(run.metric(name).degenerate for run in runs for name in run.names):
        console.print(Text("*", "red"), "most answers could not be parsed: the number says nothing about bias.")


def show_comparison(found: "ComparedTasks", differ: Sequence[str] = ()) -> None:
    """differ: what the two runs differ in besides their steering, where that was allowed."""
    from rich.text import Text

    from ggss.terminal import Terminal

    console = Terminal()
    console.print(Text("before", "bold"), found.before.said)
    console.print(Text("after ", "bold"), found.after.said)
    if found.before.steered:
        console.print("The first run is steered, too: the changes are between two steerings.")
    for text in differ:
        console.print(Text("They differ:", "yellow"), text)
    if found.bias:
        table = _table("bias", "before", "after", "change [95 %]", "corrected [95 %]", "p", "p, Holm")
        for one in found.bias:
            shown = one.before.display()
            table.add_row(
                _marked(one.task + shown.unit, one.degenerate),
                _number(one.before.value(), shown),
                _number(one.after.value(), shown),
                _percent(one.change()),
                _percent(one.corrected_change),
                _p(one.p),
                _p(found.p_holm.get(one.task)),
            )
        if found.combined is not None:
            table.add_section()
            average = _percent(found.average)
            table.add_row("all together", "", "", average, "", _p(found.combined), _p(found.combined_holm))
        console.print(table)
    if found.capability:
        table = _table("right answers", "before", "after", "points [90 %]", "+/-", "same", "p", "p, Holm")
        for one in found.capability:
            kept = one.kept()
            same = kept.same
            table.add_row(
                _marked(one.task, one.degenerate),
                f"{kept.before.estimate:.1%}",
                f"{kept.after.estimate:.1%}",
                f"{100 * same.difference:+.1f} [{100 * same.low:+.1f}, {100 * same.high:+.1f}]",
                f"{kept.gained}/{kept.lost}",
                "yes" if same.equivalent else "not shown",
                _p(kept.p),
                _p(found.p_holm.get(one.task)),
            )
        console.print(table)
    console.print(
        "Change: percentile bootstrap over people; corrected: Fieller's interval between bias-corrected values. "
        "p: sign-flip test over people, McNemar for right answers; same: equivalent within 1.5 points (TOST).",
        style="dim",
    )
    if any(one.degenerate for one in (*found.bias, *found.capability)):
        console.print(Text("*", "red"), "most answers of one run could not be parsed: left out of the combined test.")


def _marked(text: str, degenerate: bool) -> "Text":
    """With a star if most answers could not be parsed."""
    from rich.text import Text

    return Text.assemble(text, (" *", "red") if degenerate else "")


def _table(first: str, *columns: str, title: str | None = None) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table

    head = Column(first, no_wrap=True)
    return Table(
        head, *columns, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )


def _number(value: float, shown: "Display") -> str:
    return shown.number(value) if math.isfinite(value) else "-"


def _span(of: "Interval", shown: "Display") -> str:
    low, middle, high = (_number(value, shown) for value in (of.low, of.estimate, of.high))
    return f"{middle} [{low}, {high}]"


def _percent(of: "Interval | None") -> str:
    if of is None:
        return "-"
    low, middle, high = (
        f"{value:+.0f}" if not math.isnan(value) else "-" for value in (of.low, of.estimate, of.high)
    )
    return f"{middle} % [{low}, {high}]"


def _p(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.2g}" if value >= 5e-5 else "<1e-4"
