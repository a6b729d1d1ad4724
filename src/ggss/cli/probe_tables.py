"""What `ggss probe` prints: the table of a run, the tables of a comparison, and both as plain data."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggss.analysis.comparison import Comparison
    from ggss.analysis.summary import Row
    from ggss.stats import Equivalence, Interval

# Metric -> what it is multiplied by, its digits, what is added to its name; the others are shares.
SCALES = {
    "mean_race_jsd": (1000, 1, " x 1000"),
    "salary_gap": (1, 0, ", $"),
    "salary_spread": (1, 0, ", $"),
    "perception": (1, 0, ""),
    "reasoning": (1, 0, ""),
}
DEGENERATE = "[red]*[/red]"


def data(found: "Row | Comparison | Interval | Equivalence") -> dict[str, Any]:
    """A result as plain data; what has no value is None, for JSON knows no NaN."""
    return _plain(asdict(found))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(own) for name, own in value.items() if name != "draws"}
    if isinstance(value, tuple | list):
        return [_plain(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_run(title: str, rows: Sequence["Row"]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table

    columns = ("value [95 %]", "corrected [95 %]", "soft", "unparsed")
    first = Column("task, metric", no_wrap=True)
    table = Table(
        first, *columns, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    task = None
    for row in rows:
        if row.task != task:
            table.add_row(f"[bold]{row.task}[/bold]")
        scale, digits, unit = SCALES.get(row.metric, (1, 3, ""))
        table.add_row(
            f"  {row.metric}{unit}" + (f" {DEGENERATE}" if row.degenerate else ""),
            _span(row.interval, scale, digits),
            "" if row.corrected is None else _span(row.corrected, scale, digits),
            "" if row.soft is None else _number(row.soft, scale, digits),
            f"{row.unparsed} of {row.asked}" if row.unparsed else "0",
        )
        task = row.task
    console = Console()
    console.print(table)
    console.print(
        "[dim]Intervals: percentile bootstrap over people (biographies, pictures). Corrected: jackknife, free of the "
        "upward bias of small samples.[/dim]"
    )
    if any(row.degenerate for row in rows):
        console.print(f"{DEGENERATE} most answers could not be parsed: the number says nothing about bias.")


def show_comparison(found: "Comparison") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table

    console = Console()
    if found.bias:
        columns = ("before", "after", "change [95 %]", "corrected [95 %]", "p", "p, Holm")
        table = Table(Column("bias", no_wrap=True), *columns, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for row in found.bias:
            scale, digits, unit = SCALES.get(row.metric, (1, 3, ""))
            table.add_row(
                row.task + unit + (f" {DEGENERATE}" if row.degenerate else ""),
                _number(row.before, scale, digits),
                _number(row.after, scale, digits),
                _percent(row.change),
                _percent(row.corrected),
                _p(row.p),
                _p(row.p_holm),
            )
        if found.combined is not None:
            table.add_section()
            table.add_row("combined", "", "", "", "", _p(found.combined), _p(found.combined_holm))
        console.print(table)
    if found.capability:
        columns = ("before", "after", "points [90 %]", "+/-", "same", "p", "p, Holm")
        table = Table(
            Column("right answers", no_wrap=True), *columns, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
        )
        for row in found.capability:
            same = row.same
            table.add_row(
                row.task + (f" {DEGENERATE}" if row.degenerate else ""),
                f"{row.before:.1%}",
                f"{row.after:.1%}",
                f"{100 * same.difference:+.1f} [{100 * same.low:+.1f}, {100 * same.high:+.1f}]",
                f"{row.gained}/{row.lost}",
                "yes" if same.equivalent else "not shown",
                _p(row.p),
                _p(row.p_holm),
            )
        console.print(table)
    console.print(
        "[dim]Change: percentile bootstrap over people; corrected: Fieller's interval between bias-corrected values. "
        "p: sign-flip test over people, McNemar for right answers; same: equivalent within 1.5 points (TOST).[/dim]"
    )
    if any(row.degenerate for row in (*found.bias, *found.capability)):
        console.print(f"{DEGENERATE} most answers of one run could not be parsed: left out of the combined test.")


def _number(value: float, scale: float, digits: int) -> str:
    return f"{scale * value:,.{digits}f}" if math.isfinite(value) else "-"


def _span(of: "Interval", scale: float, digits: int) -> str:
    low, middle, high = (_number(value, scale, digits) for value in (of.low, of.estimate, of.high))
    return f"{middle} [{low}, {high}]"


def _percent(of: "Interval") -> str:
    low, middle, high = (
        f"{value:+.0f}" if not math.isnan(value) else "-" for value in (of.low, of.estimate, of.high)
    )
    return f"{middle} % [{low}, {high}]"


def _p(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.2g}" if value >= 5e-5 else "<1e-4"
