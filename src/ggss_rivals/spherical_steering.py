"""`spherical-steering`: a token turns along the geodesic to a prototype, if a classifier says so (arXiv 2602.08169).

    p_T, p_H = softmax(kappa <mu_T, h^>, kappa <mu_H, h^>)       mu_T, mu_H: prototypes of unit length, kappa = 20
    t = clip((p_H - p_T - beta) / (1 - beta), 0, 1)              beta = 0.1: nothing is done below it
    steered = |h| slerp(h^, mu_T; alpha t)

The two probabilities are those of von Mises-Fisher distributions of one concentration kappa.

**What the paper claims.** Truthfulness of language models: T are truthful and H hallucinated answers, mu their mean
directions at one layer. Rotation to mu_T keeps norms, gives more truthful answers than adding a vector, and keeps
the quality of open answers. This formula and kappa and beta are those of the authors' code; alpha is its largest
strength, 0.15 by default there.

**Done otherwise here.** An attribute has no good value. H is the value whose prototype is nearest to the token, T the
mean direction of all pictures, from which no value can be read. `steerer.gate` is t.

**Mind** that a token turns to one point of the whole space, not inside a subspace: what else it shows gets smaller as
the attribute does. GGSS turns to a target of the token's own, which differs in the protected directions alone.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.operator import Array, Operator, project, recombine, register_kind
from ggss.methods.projection import finite_coordinates
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.spherical import ORTHONORMAL, precise
from ggss.methods.subspace import classes, refuse_equal, representatives

ROUNDING = 1e-3  # of an angle between unit vectors in float32
RESOLUTION = 1e-6  # angles below it, and closer than it to the antipode, have no direction in float32


class SphericalSteeringOptions(Options):
    kappa: float = Field(20.0, gt=0, le=1e4, description="concentration of the prototypes' distributions")
    beta: float = Field(0.1, ge=-0.99, le=0.99, description="p_H - p_T up to which nothing is done")


@register_kind
@dataclass(frozen=True)
class PrototypeSlerp(Operator):
    """Prototypes [A, D] of the values and the target [D], of unit length; the angle [A] of each to it; float32."""

    prototypes: Annotated[Tensor, Array("A", "D")]
    target: Annotated[Tensor, Array("D")]
    angles: Annotated[Tensor, Array("A", ge=0, le=math.pi)]
    kappa: Annotated[float, Field(gt=0, le=1e4)]
    beta: Annotated[float, Field(gt=-1, lt=1)]

    kind: ClassVar[str] = "prototype-slerp"
    any_dtype: ClassVar[bool] = True

    @property
    def width(self) -> int:
        return self.target.shape[0]

    def validate(self) -> None:
        prototypes, target = self.prototypes.cpu().double(), self.target.cpu().double()
        off = float((torch.cat([prototypes, target[None]]).norm(dim=1) - 1).abs().max())
        if not off < ORTHONORMAL:
            raise InputError(f"prototypes and target must have length 1 (off by {off:.1e})")
        wrong = float((sphere.distance(prototypes, target[None]) - self.angles.cpu().double()).abs().max())
        if not wrong < ROUNDING:
            raise InputError(f"the angles are not those between prototypes and target (off by {wrong:.1e})")

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> Tensor:
        directions = torch.cat([self.prototypes, self.target[None]]).to(rows.device)
        products, norms = project(rows, directions)
        products, norms = finite_coordinates(products, rows).to(precise(rows)), norms.to(precise(rows))
        cosines = (products / torch.where(norms > 0, norms, 1)).clamp(-1, 1)
        target, nearest = cosines[:, -1:], cosines[:, :-1].max(1, keepdim=True).values
        surplus = torch.tanh(self.kappa * (nearest - target) / 2)  # p_H - p_T of a softmax over the two
        gate = ((surplus - self.beta) / (1 - self.beta)).clamp(0, 1)
        angle = torch.arccos(target)
        sine = angle.sin()
        defined = (norms > 0) & (sine > RESOLUTION)
        turn = torch.where(defined, alpha.to(gate.dtype) * gate * angle, 0)
        ratio = torch.where(defined, turn.sin() / torch.where(defined, sine, 1), 0)
        scale = turn.cos() - ratio * target
        recombine(rows, scale.float(), (ratio * norms).float(), directions[-1:], out)
        return gate.squeeze(1).float()


def fit(activations: Activations, attribute: Attribute, options: SphericalSteeringOptions) -> Fitted:
    known, points = classes(activations, attribute), representatives(activations.pooled)
    refuse_equal(activations.pooled.double())
    prototypes, target = sphere.normalize(known.means(points)), sphere.normalize(points.mean(0))
    angles = sphere.distance(prototypes, target[None])
    if not angles.max() > RESOLUTION:
        raise InputError(f"the values of {attribute!r} have the same mean direction: there is nothing to turn from")
    operator = PrototypeSlerp(
        prototypes.float().contiguous(), target.float(), angles.float(), options.kappa, options.beta
    )
    return Fitted(operator, diagnostics={"angle": float(angles.max())})


register(
    Method(
        name="spherical-steering",
        summary="a turn along the geodesic to the mean direction, where a token is nearer to a value's",
        reference="Spherical Steering: Geometry-Aware Activation Rotation for Language Models, arXiv 2602.08169",
        fit=fit,
        options=SphericalSteeringOptions,
    )
)
