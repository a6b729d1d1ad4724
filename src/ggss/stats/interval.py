"""The type of all intervals."""

from dataclasses import dataclass, field

import numpy as np

from ggss.errors import InputError
from ggss.stats.metric import Array


@dataclass(frozen=True)
class Interval:
    """An estimate between `low` and `high`, from a sample of `units` items or clusters.

    `undefined` is the share of resamples in which the metric had no value (a group without a readable answer, a
    baseline of zero). `draws` are the resamples' values, for combining intervals; the jackknife has none.
    """

    estimate: float
    low: float
    high: float
    level: float
    method: str
    units: int
    undefined: float = 0.0
    draws: Array = field(default_factory=lambda: np.empty(0), repr=False, compare=False)


def check_share(value: float, what: str) -> None:
    """Refuse a level, size or power that does not lie between 0 and 1."""
    if not 0 < value < 1:
        raise InputError(f"{what} lies between 0 and 1, such as 0.95 or 0.05; got {value}")
