"""`angular-steering`: rotation inside a fixed plane, to the angle at which a feature is absent (Vu and Nguyen 2025).

    plane: b1 = the feature's direction, b2 = a second axis, orthonormal        p = (<b1, h>, <b2, h>)
    steered = h - Proj h + |Proj h| (cos theta b1 + sin theta b2)               theta: the target angle

A rotation keeps the norm of every token, and everything outside the plane. At theta = 90 degrees nothing is left
along b1 and its share of the norm is on b2: the angle that ablates the feature. b1 is the difference of the mean
activations of two sets of prompts; b2 is the first principal component of the differences at all layers, made
orthogonal to b1.

**What the paper claims.** Refusal of language models (3 to 14 billion weights) is controlled smoothly by theta, and
addition and ablation are special cases. An adaptive form rotates only what is aligned with the feature, <b1, h> > 0,
and is more coherent in small models.

**Done otherwise here.** The angle is 90 degrees, and alpha is the share of the way from the token's own angle to it.
K values have K - 1 features b1, the span of the differences between their mean rows; the plane becomes the span of
these and b2, and all of a token's part in it turns towards b2. There are contexts instead of layers: b2 is the first
principal component of what the differences of single contexts have outside the span of the features. Pictures of all
values are to be steered, so the adaptive form, which would leave half of them alone, is left out. A token that is
opposite to b2 in the plane has no shortest way, and is not changed.

`wring` uses the same rotation with another axis.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.meandiff import refuse_none
from ggss.methods.operator import Array, Operator, project, recombine, register_kind
from ggss.methods.projection import finite_coordinates
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.spherical import check_orthonormal, precise
from ggss.methods.subspace import classes, oriented, refuse_equal

RANK = 1e-6  # a difference this small, relative to the largest, is rounding of float32 activations
OPPOSITE = 1e-6  # of a token's part in the plane: closer than this to the axis' opposite it has no shortest way


@register_kind
@dataclass(frozen=True)
class Rotation(Operator):
    """Turns what a token has in span(features, axis) towards the axis.

    features [D, k] and axis [D] are orthonormal together, in float32.
    """

    features: Annotated[Tensor, Array("D", "k")]
    axis: Annotated[Tensor, Array("D")]

    kind: ClassVar[str] = "rotation"
    any_dtype: ClassVar[bool] = True

    @property
    def width(self) -> int:
        return self.axis.shape[0]

    def validate(self) -> None:
        if self.features.shape[1] + 1 > self.width:
            raise InputError(f"{self.features.shape[1]} features and an axis do not fit in {self.width} dimensions")
        check_orthonormal(torch.cat([self.features, self.axis[:, None]], 1))

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        directions = torch.cat([self.features.T, self.axis[None]]).to(rows.device)
        inside = finite_coordinates(project(rows, directions)[0], rows).to(precise(rows))
        recombine(rows, torch.ones_like(alpha), (turned(inside, alpha) - inside).float(), directions, out)


def turned(inside: Tensor, alpha: Tensor) -> Tensor:
    """Coordinates [N, k + 1], the axis last, turned by the share alpha [N, 1] of their angle to the axis."""
    across, along = inside[:, :-1], inside[:, -1:]
    width = torch.linalg.vector_norm(across, dim=1, keepdim=True)
    length = torch.linalg.vector_norm(inside, dim=1, keepdim=True)
    angle = torch.atan2(width, along)
    rest = (1 - alpha.to(inside.dtype)) * angle
    scale = torch.where(width > 0, length * rest.sin() / torch.where(width > 0, width, 1), 0)
    opposite = (along < 0) & (width <= OPPOSITE * length)
    return torch.where(opposite, inside, torch.cat([scale * across, length * rest.cos()], 1))


def fit(activations: Activations, attribute: Attribute, options: Options) -> Fitted:
    known, pooled = classes(activations, attribute), activations.pooled.double()
    refuse_equal(pooled)
    differences = known.means(pooled) - pooled.mean(0)
    refuse_none(differences, float(pooled.norm(dim=1).mean()))
    _, singular, directions = torch.linalg.svd(differences, full_matrices=False)
    features = directions[: min(int((singular > RANK * singular[0]).sum()), len(known.values) - 1)].T
    table = activations.groups(attribute).of(pooled)
    single = (table - table.mean(1, keepdim=True)).reshape(-1, pooled.shape[1])
    outside = single - single @ features @ features.T
    _, lengths, axes = torch.linalg.svd(outside, full_matrices=False)
    if not lengths[0] > RANK * singular[0]:
        raise InputError("the contexts differ in the same directions only: there is no second axis for a plane")
    axis = axes[0] - features @ (features.T @ axes[0])
    axis = axis / axis.norm()
    axis = axis * (1 if float((pooled @ axis).mean()) >= 0 else -1)  # towards what most tokens have
    return Fitted(Rotation(oriented(features).float().contiguous(), axis.float().contiguous()))


register(
    Method(
        name="angular-steering",
        summary="rotation of each token inside a fixed subspace, until nothing is left along the attribute",
        reference="Vu and Nguyen 2025, Angular Steering: Behavior Control via Rotation in Activation Space, "
        "arXiv 2510.26243",
        fit=fit,
    )
)
