"""Steerers: fit, attach to a model, save, share; and examine a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SteeringRecord:
    """What one steerer did to one picture, or to all pictures of a request.

    calls: how many sites were steered. gated: tokens that have a gate; gate_sum: the sum of their gates.
    """

    alpha: float
    calls: int = 0
    tokens: int = 0
    gated: int = 0
    gate_sum: float = 0.0

    @property
    def gate_mean(self) -> float | None:
        """None for a method without a gate."""
        return self.gate_sum / self.gated if self.gated else None

    @classmethod
    def of_gates(cls, alpha: float, rows: int, gates: Sequence[Any]) -> "SteeringRecord":
        """Of one picture with so many rows, from the gates [rows] at each site that was steered, or None."""
        tensors = [gate.float() for gate in gates if gate is not None]
        gate_sum = sum(float(gate.sum()) for gate in tensors)
        return cls(alpha, len(gates), rows * len(gates), sum(map(len, tensors)), gate_sum)

    @classmethod
    def total(cls, alpha: float, pictures: "Sequence[SteeringRecord]") -> "SteeringRecord":
        """Of several pictures, each steered at the same sites."""
        sums = [sum(getattr(picture, name) for picture in pictures) for name in ("tokens", "gated", "gate_sum")]
        return cls(alpha, max((picture.calls for picture in pictures), default=0), *sums)

    def json(self) -> dict[str, float | None]:
        """As an answer of the server has it."""
        return {"alpha": self.alpha, "calls": self.calls, "tokens": self.tokens, "gate_mean": self.gate_mean}
