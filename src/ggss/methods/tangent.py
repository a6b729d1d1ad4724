"""Hard projection in the tangent space at mu, norm kept: the spherical form of a null-space projection.

    t = log_mu(h^)      t_steered = t - alpha g V M V^T t      steered = |h| Normalize(exp_mu(t_steered))

V is orthonormal. M = I is the orthogonal projection of the SVD ablations and INLP; an oblique one, such as
LEACE's, has its small matrix in M. g is 1 unless the method gates (`ggss-no-slerp`). At alpha g = 1 and M = I
the result is slerp's target, so hard projection and slerp differ only at other strengths.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ggss.methods.declared import Array
from ggss.methods.operator import register
from ggss.methods.spherical import Floor, Gated, Magnitude, Removal


@register
@dataclass(frozen=True)
class Tangent(Gated):
    """mu [D], basis [D, k] and the map [k, k] in float32; without gate unless its statistics are given."""

    gate_median: Magnitude = 0.0
    gate_std: Magnitude = 0.0
    floor: Floor = 1.0
    map: Annotated[Tensor, Array("k", "k")] = field(kw_only=True)

    kind: ClassVar[str] = "tangent"

    @classmethod
    def orthogonal(cls, mu: Tensor, basis: Tensor, **gate: float) -> "Tangent":
        """The orthogonal projection that removes span(basis)."""
        basis = basis.float().contiguous()
        return cls(mu.float(), basis, **gate, map=torch.eye(basis.shape[1]))

    def removal(self, b: Tensor, alpha: Tensor) -> Removal:
        taken = b @ self.map.to(b).T
        if self.floor == 1:
            return Removal(alpha * taken, 1.0)
        g = self.gate_of(b)
        return Removal(alpha * g * taken, 1.0, g)
