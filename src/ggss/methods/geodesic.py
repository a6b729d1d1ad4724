"""The paper's token update: gate, then slerp towards the projected target, norm kept (section 3.2).

    t = log_mu(h^)           p = V V^T t            t_clean = t - p          target = Normalize(exp_mu(t_clean))
    z = (|V^T t| - median) / (std + eps)            g = floor + (1 - floor) sigmoid(kappa z)
    steered = |h| slerp(h^, target; alpha g)

The closed form it is computed in, and the choices the paper leaves open, are in `spherical`.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ggss.methods.operator import register
from ggss.methods.spherical import Gated, Removal


@register
@dataclass(frozen=True)
class Geodesic(Gated):
    """mu [D] and basis [D, k] in float32, the gate's statistics, its sharpness kappa and its floor."""

    kind: ClassVar[str] = "geodesic"

    def removal(self, b: Tensor, alpha: Tensor) -> Removal:
        g = self.gate_of(b)
        return Removal(b, alpha * g, None if self.floor == 1 else g)
