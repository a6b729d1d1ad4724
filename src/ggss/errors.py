"""The one exception for input that the user can correct, the nearest name to a wrong one, and what Ctrl-C leaves.

The ranges of the numbers that a user gives: a command's option and the function behind it have the same.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class InputError(ValueError):
    """What was wrong, what was seen, what to do: one sentence. The command line prints it and exits with 2."""


def problems(what: str, found: list[str], shown: int = 20) -> InputError:
    """One error for many problems: the first `shown`, then a count of the rest."""
    lines = [f"{what}: {len(found)} problem{'s' if len(found) != 1 else ''}"]
    lines += [f"  - {line}" for line in found[:shown]]
    if len(found) > shown:
        lines.append(f"  ... and {len(found) - shown} more")
    return InputError("\n".join(lines))


def no_such(what: str, name: str, known: Iterable[str]) -> InputError:
    """The error of a name that does not exist: `what`, the nearest name if one is near, and all names there are."""
    names = list(known)
    near = nearest(name, names)
    return InputError(f"{what}: {f'{near} ' if near else ''}there are {', '.join(names) or 'none'}")


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'ggss'?` for `gggs`; empty if no name is near. Upper and lower case are the same here.

    What names have in common up to the last slash, as `small-world/`, does not make them near.
    """
    from difflib import get_close_matches

    shared = name.lower()[: name.rfind("/") + 1]
    spelled = {one.lower().removeprefix(shared): one for one in known}
    found = get_close_matches(name.lower().removeprefix(shared), spelled, n=1)
    return f"did you mean {spelled[found[0]]!r}?" if found else ""


@contextmanager
def keeps(what: str) -> Iterator[None]:
    """If Ctrl-C stops the block: say what is kept and how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.add_note(what)
        raise


def out_of_memory(error: BaseException) -> bool:
    """Python's, numpy's or torch's, which has a type for a GPU's memory and only a message for the machine's."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))
    )


@dataclass(frozen=True)
class Range:
    """Both ends are allowed."""

    least: float
    most: float

    def check(self, what: str, value: float, advice: str = "") -> None:
        """InputError unless the value is in the range; NaN never is."""
        if not self.least <= value <= self.most:
            also = f"; {advice}" if advice else ""
            raise InputError(f"{what} must be from {self.least:,.10g} to {self.most:,.10g}, seen {value}{also}")

    @property
    def bounds(self) -> dict[str, Any]:
        """Of a typer option."""
        return {"min": self.least, "max": self.most}


SEED = Range(0, 2**32 - 1)  # what numpy, torch and scikit-learn all take
ITEMS = Range(1, 1_000_000_000)
BATCH = Range(1, 65_536)
AUTO, AUTO_BATCH = "auto", 64  # a batch as large as there is memory for, up to so many questions
TOKENS = Range(1, 1_000_000)
SIDE = Range(1, 65_536)  # pixels of a picture's longer side
THREADS = Range(1, 1_024)
WORKERS = Range(1, 1_024)
ALPHA = Range(-1_000.0, 1_000.0)
MAX_ALPHA = 1.5  # that a request may ask a server for: the end of the paper's sweep
KAPPA = Range(0.0, 1e6)
SHARE = Range(0.0, 1.0)
