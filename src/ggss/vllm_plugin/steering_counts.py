"""What was done to each picture, for as long as a cache of vLLM may serve it."""

from collections import OrderedDict
from dataclasses import dataclass

MOST = 2**20
"""Pictures that are remembered. vLLM's caches hold fewer: each picture takes a block of its KV cache at least."""


@dataclass(frozen=True)
class SteeringCount:
    """What one steerer did to one picture. gate_mean: None for a method without a gate."""

    alpha: float
    calls: int
    tokens: int
    gate_mean: float | None


class SteeringCounts:
    """By a picture's key, then by the steerer's content. The least recently asked for go first."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: OrderedDict[int, dict[str, SteeringCount]] = OrderedDict()

    def add(self, key: int, counts: dict[str, SteeringCount]) -> None:
        self._kept[key] = counts
        self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def get(self, key: int) -> dict[str, SteeringCount] | None:
        """None if nothing is known of the picture."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)
