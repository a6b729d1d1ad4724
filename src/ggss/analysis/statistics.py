"""The number of resamples, the seed and the level: one setting for all that is computed from a run."""

import hashlib
from dataclasses import dataclass

from ggss import ranges
from ggss.stats.paired import MARGIN


@dataclass(frozen=True)
class Statistics:
    """Settings of all intervals and tests.

    Args:
        resamples: of a bootstrap.
        permutations: of a test.
        seed: of both.
        level: of an interval.
        margin: a change of accuracy within it counts as none.

    Raises:
        InputError: for a seed out of its range.

    Examples:
        >>> ggss.analysis.compare(before, after, ggss.analysis.Statistics(level=0.9)).change().level
        0.9
    """

    resamples: int = 10_000
    permutations: int = 10_000
    seed: int = 0
    level: float = 0.95
    margin: float = MARGIN

    def __post_init__(self) -> None:
        ranges.SEED.check("the seed of the resamples", self.seed)

    def seed_of(self, *words: str) -> int:
        """A separate seed for each use, the same wherever that number is computed."""
        named = "/".join([str(self.seed), *words])
        return int.from_bytes(hashlib.sha256(named.encode()).digest()[:4])
