"""Two steerers in one: `race + gender`. One subspace, the union of theirs, with one gate each.

    V_i          the subspace of steerer i          Q = [V_1 V_2] ([V_1 V_2]^T [V_1 V_2])^(-1/2) = [Q_1 Q_2]
    g_i          its own gate, from |V_i^T t|       g = max g_i
    target       Normalize(exp_mu(t - sum_i g_i / g  Q_i Q_i^T t))          steered = |h| slerp(h^, target; alpha g)

If two steerers are attached one after the other and their subspaces are not orthogonal, the second adds back a part
of what the first removed. Q spans the union, so this does not happen. Of all orthonormal bases of the union, Q is the
closest to [V_1 V_2] and treats both alike: `race + gender` and `gender + race` do the same. Where both gates are
equal, the update is GGSS's with the basis Q; where only one is open, mostly the block of that one is removed.

mu is the point halfway between the steerers' own, which are equal when both were fitted to the same images.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ggss import sphere
from ggss.errors import InputError
from ggss.methods.declared import Array
from ggss.methods.geodesic import Geodesic
from ggss.methods.operator import Operator, register
from ggss.methods.spherical import Removal, Spherical, gate

LARGEST_COSINE = 0.99


@register
@dataclass(frozen=True)
class Joint(Spherical):
    """mu [D] and basis Q [D, K]; own [K, K] with V = Q own; sizes [m], the dimensions of each V_i; and gates
    [m, 4]: median, std, kappa and floor of each."""

    own: Annotated[Tensor, Array("k", "k")]
    sizes: Annotated[Tensor, Array("m", dtype=torch.int64, ge=1)]
    gates: Annotated[Tensor, Array("m", 4, dtype=torch.float64)]

    kind: ClassVar[str] = "joint"

    def removal(self, b: Tensor, alpha: Tensor) -> Removal:
        sizes = self.sizes.tolist()
        magnitudes = [part.norm(dim=1, keepdim=True) for part in (b @ self.own.to(b)).split(sizes, 1)]
        each = [gate(size, *numbers) for size, numbers in zip(magnitudes, self.gates.tolist(), strict=True)]
        strongest = torch.stack(each).amax(0).clamp(min=sphere.EPS)  # all gates may be closed, with floors of 0
        shares = [(own / strongest).expand(-1, size) for own, size in zip(each, sizes, strict=True)]
        return Removal(torch.cat(shares, 1) * b, alpha * strongest, strongest)

    def validate(self) -> None:
        super().validate()
        if sum(self.sizes.tolist()) != self.basis.shape[1]:
            raise InputError(
                f"blocks of {self.sizes.tolist()} directions do not fit a basis of {self.basis.shape[1]}"
            )
        for basis, numbers in zip(self.blocks(), self.gates.tolist(), strict=True):
            Geodesic(self.mu, basis.float(), *numbers)  # each block is a steerer of its own, and checked as one

    def blocks(self) -> list[Tensor]:
        """The subspaces V_i in float64."""
        return list((self.basis.double() @ self.own.double()).split(self.sizes.tolist(), 1))


def join(first: Operator, second: Operator) -> Joint:
    """One operator from those of two steerers at the same site, each GGSS's or itself a joint one."""
    parts = [_parts(first), _parts(second)]
    if first.width != second.width:
        raise InputError(f"steerers of different width cannot be combined: {first.width} and {second.width}")
    mus, bases = [part[0] for part in parts], [basis for part in parts for basis in part[1]]
    stacked = torch.cat(bases, 1)
    left, size, right = torch.linalg.svd(stacked, full_matrices=False)
    if stacked.shape[1] >= len(stacked) or float(size[-1]) ** 2 < 1 - LARGEST_COSINE:
        raise InputError(
            "these steerers share a direction, so they cannot be combined: "
            f"the smallest singular value of their joined bases is {float(size[-1]):.3f}"
        )
    basis = left @ right  # symmetric orthonormalisation: the closest orthonormal matrix to the stacked bases
    return Joint(
        mu=sphere.frechet_mean(torch.stack(mus)).float(),
        basis=basis.float().contiguous(),
        own=(basis.T @ stacked).float().contiguous(),
        sizes=torch.tensor([basis.shape[1] for basis in bases]),
        gates=torch.cat([part[2] for part in parts]),
    )


def _parts(operator: Operator) -> tuple[Tensor, list[Tensor], Tensor]:
    """mu, the subspaces V_i and the gates of an operator, in float64."""
    if isinstance(operator, Geodesic):
        numbers = [operator.gate_median, operator.gate_std, operator.kappa, operator.floor]
        return operator.mu.double(), [operator.basis.double()], torch.tensor([numbers], dtype=torch.float64)
    if isinstance(operator, Joint):
        return operator.mu.double(), operator.blocks(), operator.gates
    raise InputError(f"only gated geodesic steerers can be combined, this one is {operator.kind!r}")
