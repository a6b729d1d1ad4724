"""Progress for work that takes longer than two seconds: a rich bar on a terminal's stderr, nothing elsewhere."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], what: str, total: int | None = None, show: bool | None = None) -> Iterator[T]:
    """Yield the items while a bar on stderr counts them; `show=None` means: only when stderr is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if show is None:
        show = console.is_terminal
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not show, transient=True) as progress:
        yield from progress.track(items, total=total, description=what)
