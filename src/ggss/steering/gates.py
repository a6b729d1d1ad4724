"""How a calibrated gate lies on the tokens that it meets: those of the discovery pictures."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ggss.activations import SITE

if TYPE_CHECKING:
    from ggss.activations import Activations
    from ggss.steering.steerer import Steerer

OPEN, SHUT = 0.9, 0.4
DIGITS = 6


@dataclass(frozen=True)
class Gates:
    """`median` and `std` calibrate the gate; the rest is over tokens: their median magnitude, the mean gate, and the
    shares whose gate is above OPEN and below SHUT."""

    median: float
    std: float
    tokens: float
    mean: float
    open: float
    shut: float


def measure(steerer: "Steerer", activations: "Activations") -> Gates | None:
    """The gate at the published site; None for a method without a spherical one, or where no tokens were kept."""
    from ggss.methods.spherical import Gated
    from ggss.methods.subspace import protected_magnitude, representatives

    operator = steerer.operators.get(SITE)
    tokens = activations.sites[SITE].tokens if SITE in activations.sites else None
    if not isinstance(operator, Gated) or operator.floor == 1 or tokens is None:
        return None
    mu, basis = operator.mu.double(), operator.basis.double()
    found = [protected_magnitude(representatives(rows[rows.any(1)]), mu, basis) for rows in tokens]
    magnitudes = torch.cat(found)
    gates = operator.gate(magnitudes)
    numbers = (
        operator.gate_median,
        operator.gate_std,
        float(np.median(magnitudes)),
        float(gates.mean()),
        float((gates > OPEN).double().mean()),
        float((gates < SHUT).double().mean()),
    )
    return Gates(*(round(number, DIGITS) for number in numbers))
