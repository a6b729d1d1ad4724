"""`ggss study watch`: the grid of a study while it runs, in the terminal; in a pipe a line whenever it has moved."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss.cli.arguments import say

if TYPE_CHECKING:
    from ggss.study.status import Progress

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
