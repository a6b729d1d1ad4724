"""The exception for input that the user can correct, and what its messages need.

Here are also the ranges of numbers that users give: a command's option and the function behind it use the same range.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class InputError(ValueError):
    """What was wrong, what was seen, what to do: one sentence. The command line prints it and exits with 2."""


def problems(what: str, messages: list[str], limit: int = 20) -> InputError:
    """One error for many problems: the first `limit` messages, then a count of the rest."""
    lines = [f"{what}: {len(messages)} problem{'s' if len(messages) != 1 else ''}"]
    lines += [f"  - {line}" for line in messages[:limit]]
    if len(messages) > limit:
        lines.append(f"  ... and {len(messages) - limit} more")
    return InputError("\n".join(lines))


def no_such(what: str, name: str, choices: Iterable[str]) -> InputError:
    """The error for a name that does not exist: `what`, a similar name if there is one, and all choices."""
    names = list(choices)
    near = nearest(name, names)
    return InputError(f"{what}: {f'{near} ' if near else ''}there are {', '.join(names) or 'none'}")


def nearest(name: str, choices: Iterable[str]) -> str:
    """`did you mean 'ggss'?` for `gggs`; "" if no choice is similar. Case does not matter.

    A common beginning up to the last slash, such as `small-world/`, does not make names similar.
    """
    from difflib import get_close_matches

    shared = name.lower()[: name.rfind("/") + 1]
    spelled = {choice.lower().removeprefix(shared): choice for choice in choices}
    matches = get_close_matches(name.lower().removeprefix(shared), spelled, n=1)
    return f"did you mean {spelled[matches[0]]!r}?" if matches else ""


@contextmanager
def keeps(what: str) -> Iterator[None]:
    """If Ctrl-C stops the block, add a note to the exception. what: what is kept and how to continue."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.add_note(what)
        raise


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, in Python, numpy or torch; for CPU memory torch has no exception type but a message."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))
    )


@dataclass(frozen=True)
class Range:
    """A range of numbers, both ends included."""

    least: float
    most: float

    def check(self, what: str, value: float, advice: str = "") -> None:
        """InputError unless the value is in the range; NaN never is."""
        if not self.least <= value <= self.most:
            ending = f"; {advice}" if advice else ""
            raise InputError(f"{what} must be from {self.least:,.10g} to {self.most:,.10g}, seen {value}{ending}")

    @property
    def bounds(self) -> dict[str, Any]:
        """The arguments `min` and `max` of a typer option."""
        return {"min": self.least, "max": self.most}


SEED = Range(0, 2**32 - 1)  # what numpy, torch and scikit-learn all take
ITEMS = Range(1, 1_000_000_000)
BATCH = Range(1, 65_536)
AUTO, AUTO_BATCH = "auto", 64  # a batch as large as memory allows, up to this many questions
TOKENS = Range(1, 1_000_000)
SIDE = Range(1, 65_536)  # pixels of a picture's longer side
THREADS = Range(1, 1_024)
WORKERS = Range(1, 1_024)
CONCURRENCY = Range(1, 1_024)
SECONDS = Range(0.1, 86_400.0)
ALPHA = Range(-1_000.0, 1_000.0)
MAX_ALPHA = 1.5  # of a request to a server: the end of the paper's sweep
KAPPA = Range(0.0, 1e6)
SHARE = Range(0.0, 1.0)
