"""The type of all intervals."""

from dataclasses import dataclass, field

import numpy as np

from ggss.errors import InputError
from ggss.stats.metric import Array


@dataclass(frozen=True)
class Interval:
    """An estimate between `low` and `high`, from a sample of `units` items or clusters.

    Args:
        estimate: the value in the sample.
        low: the interval's lower end.
        high: its upper end.
        level: 0.95 for a 95 % interval.
        method: percentile, bca, jackknife or fieller.
        units: what was resampled: items or clusters.
        undefined: the share of resamples in which the metric had no value (a group without a readable answer, a
            baseline of zero).
        draws: the resamples' values, for combining intervals; the jackknife has none.

    Examples:
        >>> ggss.stats.Interval(0.2, 0.1, 0.3, level=0.95, method="jackknife", units=8)
        Interval(estimate=0.2, low=0.1, high=0.3, level=0.95, method='jackknife', units=8, undefined=0.0)
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
