"""The ranges of the numbers that a user gives: a command's option and the function behind it have the same."""

from dataclasses import dataclass
from typing import Any

from ggss.errors import InputError


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
THREADS = Range(1, 1_024)
WORKERS = Range(1, 1_024)
ALPHA = Range(-1_000.0, 1_000.0)
KAPPA = Range(0.0, 1e6)
SHARE = Range(0.0, 1.0)
