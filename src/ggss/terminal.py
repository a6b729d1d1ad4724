"""The terminal: text and tables with rich, and the progress of long work.

No other module makes a rich console, so text is never read as markup and no table is cut. Style is given separately
from the text: `Text(question, "bold")`, `Text.assemble((name, "bold"), ": ", answer)`. Progress is a bar on a
terminal, and a line every `EVERY` seconds in a log; a `ProgressLog` prints one where a single step takes longer.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
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

T = TypeVar("T")

QUIET = "GGSS_QUIET"  # the variable that `ggss --quiet` sets; worker processes inherit it
UNLIMITED = 10_000  # columns of a file or a pipe
PROSE = 32  # characters: longer cells may be wrapped
EVERY = 30.0  # seconds between two lines of a log


def quiet() -> bool:
    """Whether progress and notes are silent. Results, on stdout, and errors are always printed."""
    return bool(os.environ.get(QUIET))


class Terminal(Console):
    """Prints text as it is. Control characters, also those of styled text, are made visible.

    A table that does not fit the screen is printed as a list. Files and pipes are as wide as it needs, unless COLUMNS
    says how wide they are. stderr is for progress and notes: with `--quiet` nothing is printed there.
    """

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=stderr and quiet(), markup=False, emoji=False, highlight=False)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = UNLIMITED

    def print(self, *renderables: Any, **options: Any) -> None:
        super().print(*(self.fitting(part) if isinstance(part, Table) else part for part in renderables), **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)

    def status(self, status: RenderableType, **options: Any) -> Status:
        """A spinner with a text while a block runs; rich itself would read the text as markup."""
        return _LoggedStatus(status, self, **options)

    def fitting(self, table: Table) -> RenderableType:
        """The table, its column headers wrapped if needed; a list, if names and numbers would have to be wrapped."""
        if self._measured(table).maximum <= self.width:
            return table
        for column in table.columns:
            cells = max((self._measured(cell).maximum for cell in column.cells), default=0)
            column.max_width, column.overflow = max(cells, self._measured(column.header).minimum), "fold"
        widths = [column.max_width or 0 for column in table.columns]
        frame = self._measured(table).maximum - sum(widths)
        return table if sum(min(width, PROSE) for width in widths) + frame <= self.width else _as_list(table)

    def _measured(self, renderable: RenderableType) -> Measurement:
        """The width with all lines wrapped between words (minimum), and with none (maximum)."""
        return Measurement.get(self, self.options.update(width=UNLIMITED), renderable)


@dataclass
class _Step:
    """A step of the work that is going on: what, and of what can be counted how many are done."""

    what: str
    total: int | None = None
    count: int = 0
    start: float = field(default_factory=lambda: monotonic())

    def __str__(self) -> str:
        seconds = monotonic() - self.start
        if self.count:
            return f"{self.what}: {_counted(self.count, self.total, seconds)}"
        return f"{self.what}: {_duration(seconds)} so far"


_steps: list[_Step] = []  # the innermost last
_lines = 0  # how many were printed on stderr


@contextmanager
def _step(what: str, total: int | None = None) -> Iterator[_Step]:
    step = _Step(what, total)
    _steps.append(step)
    try:
        yield step
    finally:
        _steps.remove(step)


class _LoggedStatus(Status):
    """A spinner whose text is the step that a log's heartbeat names."""

    def __init__(self, status: RenderableType, console: Console, **options: Any) -> None:
        super().__init__(Text(status) if isinstance(status, str) else status, console=console, **options)
        self._step = _Step(str(status))

    def start(self) -> None:
        _steps.append(self._step)
        super().start()

    def stop(self) -> None:
        super().stop()
        if self._step in _steps:
            _steps.remove(self._step)


class ProgressLog:
    """While a block runs, prints a line on stderr if nothing else was printed there for `EVERY` seconds.

    It says which step is going on; what: the work as a whole. On a terminal, where there is a bar, and with `--quiet`
    nothing is printed. wait: waits so many seconds, and says whether the block has ended.
    """

    def __init__(self, what: str, wait: Callable[[float], bool] | None = None) -> None:
        self._end = threading.Event()
        self._wait = wait or self._end.wait
        self._whole, self._known = _Step(what), _lines
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> "ProgressLog":
        if not quiet() and not Terminal(stderr=True).is_terminal:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._wait(EVERY / 2):
            self.beat()

    def beat(self) -> None:
        """Print a line if none was printed since the last call. Between two lines are at most two calls."""
        silent, self._known = _lines == self._known, _lines
        if silent:
            note(str(_steps[-1] if _steps else self._whole))


def _as_list(table: Table) -> Group:
    """For each row its first cell, then for each other cell that is not empty a line with the column's name."""
    blocks: list[RenderableType] = [table.title] if table.title else []
    for first, *values in zip(*(column.cells for column in table.columns), strict=True):
        lines = Table.grid("name", "value", padding=(0, 2))
        lines.columns[0].no_wrap = True
        lines.columns[1].overflow = "fold"
        for column, cell in zip(table.columns[1:], values, strict=True):
            if str(cell):
                lines.add_row(column.header, cell)
        blocks += [first, Padding(lines, (0, 0, 0, 2), expand=False)]
    return Group(*blocks)


def track(items: Iterable[T], what: str, total: int | None = None, show: bool | None = None) -> Iterator[T]:
    """Yield the items and show on stderr how many are done: by a bar on a terminal, by lines elsewhere.

    total: how many there are, if `items` has no length. show: False is silent; so is `--quiet`.
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
    """Print lines on stderr that are not errors; none with `--quiet`."""
    global _lines
    for line in () if quiet() else lines:
        print(visible(line), file=sys.stderr, flush=True)
        _lines += 1


def _logged(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    """Yield the items; print a line every EVERY seconds, and at the end if there was any. Short work prints none."""
    with _step(what, total) as step:
        last_note = step.start
        for count, item in enumerate(items, start=1):
            yield item
            step.count, now = count, monotonic()
            if now - last_note >= EVERY:
                last_note = now
                note(f"{what}: {_counted(step.count, total, now - step.start)}")
        if last_note > step.start:
            note(f"{what}: {step.count:,} done in {_duration(monotonic() - step.start)}")


def _counted(count: int, total: int | None, seconds: float) -> str:
    if not total:
        return f"{count:,}"
    remaining = _duration(seconds / count * max(total - count, 0))
    return f"{count:,} of {total:,} ({count / total:.0%}), about {remaining} left"


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes >= 1 else f"{seconds:.0f} s"
