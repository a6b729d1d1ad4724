"""How far the gate of a steerer opens on the tokens of the discovery pictures.

The paper calibrates the gate on one pooled row per picture and then uses it on single tokens, whose magnitudes are
different. These numbers show what the gate does there.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ggss.activations import SITE

if TYPE_CHECKING:
    from ggss.activations import Activations
    from ggss.steering.steerer import Steerer

OPEN, SHUT = 0.9, 0.4  # a gate above OPEN counts as open, one below SHUT as shut
DIGITS = 6  # the numbers are stored with a study's results


@dataclass(frozen=True)
class Gates:
    """median, std: the magnitudes that the gate is calibrated with.

    Over all tokens: tokens, their median magnitude |V^T t|; mean, the mean gate; open and shut, the shares of tokens
    whose gate is above OPEN and below SHUT.
    """

    median: float
    std: float
    tokens: float
    mean: float
    open: float
    shut: float


def measure(steerer: "Steerer", activations: "Activations") -> Gates | None:
    """The gate at the paper's site; None if the method has no gate on the sphere, or if no tokens were kept."""
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
