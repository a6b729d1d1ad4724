"""The terminal: the one place that makes a rich console, so that text is never read as markup, and no table is cut.

Style is given apart from the text: `Text(question, "bold")`, `Text.assemble((name, "bold"), ": ", found)`.

Progress of work that takes longer than two seconds: a bar on a terminal, a line now and then in a log.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Sized
from time import monotonic
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.status import Status
from rich.table import Table
from rich.text import Text

from ggss.escaping import visible

QUIET = "GGSS_QUIET"  # the variable that `ggss --quiet` sets; worker processes see it too
UNLIMITED = 10_000  # columns of a file or a pipe
PROSE = 32  # characters: what is longer may be broken between words


def quiet() -> bool:
    """Whether progress and notes are silent. Results, which go to stdout, and errors are not."""
    return bool(os.environ.get(QUIET))


class Terminal(Console):
    """Prints text as it is; control characters, also those of styled text, are shown and not sent.

    A table that does not fit the screen is printed as a list. Files and pipes are as wide as it needs, unless COLUMNS
    says how wide they are. stderr is for progress and notes: nothing is printed there if the user wants quiet.
    """

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=stderr and quiet(), markup=False, emoji=False, highlight=False)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = UNLIMITED

    def print(self, *shown: Any, **options: Any) -> None:
        super().print(*(self.fitting(one) if isinstance(one, Table) else one for one in shown), **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)

    def status(self, status: RenderableType, **options: Any) -> Status:
        """A spinner before a text while a block runs; rich itself would read the text as markup."""
        return super().status(Text(status) if isinstance(status, str) else status, **options)

    def fitting(self, table: Table) -> RenderableType:
        """The table, the names of its columns broken if need be; or a list, if names and numbers had to be broken."""
        if self._measured(table).maximum <= self.width:
            return table
        for column in table.columns:
            cells = max((self._measured(cell).maximum for cell in column.cells), default=0)
            column.max_width, column.overflow = max(cells, self._measured(column.header).minimum), "fold"
        widths = [column.max_width or 0 for column in table.columns]
        frame = self._measured(table).maximum - sum(widths)
        return table if sum(min(width, PROSE) for width in widths) + frame <= self.width else _as_list(table)

    def _measured(self, shown: RenderableType) -> Measurement:
        """The width with all lines broken between words, and with none."""
        return Measurement.get(self, self.options.update(width=UNLIMITED), shown)


def _as_list(table: Table) -> Group:
    """For each row its first cell, then a line for each other one that is not empty, after the column's name."""
    blocks: list[RenderableType] = [table.title] if table.title else []
    for first, *others in zip(*(column.cells for column in table.columns), strict=True):
        lines = Table.grid("name", "value", padding=(0, 2))
        lines.columns[0].no_wrap = True
        lines.columns[1].overflow = "fold"
        for column, cell in zip(table.columns[1:], others, strict=True):
            if str(cell):
                lines.add_row(column.header, cell)
        blocks += [first, Padding(lines, (0, 0, 0, 2), expand=False)]
    return Group(*blocks)


T = TypeVar("T")

EVERY = 30.0  # seconds between two lines of a log


def track(items: Iterable[T], what: str, total: int | None = None, show: bool | None = None) -> Iterator[T]:
    """Yield the items while they are counted on stderr: by a bar on a terminal, by lines elsewhere.

    total: how many there are, if `items` has no length. show: False is silent, as is a user who wants quiet.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    total = len(items) if total is None and isinstance(items, Sized) else total
    console = Terminal(stderr=True)
    if show is False or quiet():
        yield from items
    elif console.is_terminal:
        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            yield from progress.track(items, total=total, description=what)
    else:
        yield from _logged(items, what, total)


def note(*lines: str) -> None:
    """Lines on stderr that are no errors; none if the user wants quiet."""

    for line in () if quiet() else lines:
        print(visible(line), file=sys.stderr, flush=True)


def _logged(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    """The items, with a line every EVERY seconds, and a last one if there was any: short work says nothing."""
    start = said = monotonic()
    count = 0
    for count, item in enumerate(items, start=1):
        yield item
        now = monotonic()
        if now - said >= EVERY:
            said = now
            note(f"{what}: {_counted(count, total, now - start)}")
    if said > start:
        note(f"{what}: {count:,} done in {_duration(monotonic() - start)}")


def _counted(count: int, total: int | None, seconds: float) -> str:
    if not total:
        return f"{count:,}"
    left = _duration(seconds / count * max(total - count, 0))
    return f"{count:,} of {total:,} ({count / total:.0%}), about {left} left"


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes >= 1 else f"{seconds:.0f} s"
