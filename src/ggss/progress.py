"""Progress of work that takes longer than two seconds: a bar on a terminal, a line now and then in a log."""

import sys
from collections.abc import Iterable, Iterator, Sized
from time import monotonic
from typing import TypeVar

from ggss.escaping import visible

T = TypeVar("T")

EVERY = 30.0  # seconds between two lines of a log


def track(items: Iterable[T], what: str, total: int | None = None, show: bool | None = None) -> Iterator[T]:
    """Yield the items while they are counted on stderr: by a bar on a terminal, by lines elsewhere.

    total: how many there are, if `items` has no length. show: False is silent, as is a user who wants quiet.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ggss.terminal import Terminal, quiet

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
    from ggss.terminal import quiet

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
