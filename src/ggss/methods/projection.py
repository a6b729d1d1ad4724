"""Null-space projection around a mean in flat space: what the spherical methods are compared with.

    h_steered = h - alpha V V^T (h - mean)

Norms are not kept. V is orthonormal. Two passes over the tokens (`operator.project`, `operator.recombine`).

The token update of PACE: detect along W, move along V. Two passes over the tokens.

    z = W^T (h - mu)          steered = moved = h - alpha g V z

W and V are [D, k] with W^T V = I, so V W^T is a projection, oblique unless W = V: at alpha g = 1 nothing is left
along W. g is 1 unless the method gates: then it is GGSS's gate (equation 3) of the magnitude |z|. A zero token is not
changed.

With `restored` the token gets its norm back. The factor depends on how much was removed, and so it tells of it.
With `arc`, which restores, too, the token turns the share alpha g of the way to the target that full removal gives,
by slerp, instead of moving along the straight line:

    restored        steered = |h| moved / |moved|
    arc             target = h - V z, at the norm of h        steered = |h| slerp(h^, target^; alpha g)

**In closed form.** |moved|^2 = |h|^2 - 2 s <V^T h, z> + s^2 z^T V^T V z for s = alpha g, and the angle to the target
follows from the same numbers. So the products of a token with [W V] and its norm are all that is needed before the
second pass; what is between is computed in float64. A token that would shrink to less than a third is
computed directly, as the closed form of its norm has too few digits left. A token without a target (zero, or removed
whole) is not changed.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ggss import sphere
from ggss.errors import InputError
from ggss.methods.affine import Affine
from ggss.methods.operator import Array, Operator, project, recombine, register_kind, require_finite
from ggss.methods.spherical import SAFE_NORMS, Floor, Kappa, check_orthonormal, gate, precise


@register_kind
@dataclass(frozen=True)
class Euclidean(Operator):
    """mean [D] and orthonormal basis [D, k] in float32."""

    mean: Annotated[Tensor, Array("D")]
    basis: Annotated[Tensor, Array("D", "k")]

    kind: ClassVar[str] = "euclidean"
    any_dtype: ClassVar[bool] = True

    @property
    def width(self) -> int:
        return self.mean.shape[0]

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        mean, directions = self.mean.to(rows.device), self.basis.to(rows.device).T.contiguous()
        coordinates = finite_coordinates(project(rows, directions)[0] - directions @ mean, rows)
        recombine(rows, torch.ones_like(alpha), -alpha * coordinates, directions, out)

    def affine(self, alpha: float) -> Affine:
        return Affine.projection(alpha, self.mean, self.basis, self.basis)

    def validate(self) -> None:
        check_orthonormal(self.basis)


def finite_coordinates(coordinates: Tensor, rows: Tensor) -> Tensor:
    """The coordinates [N, k] of rows [N, D]; InputError if a row, or its product with the basis, is not finite."""
    if not torch.isfinite(coordinates).all():
        require_finite(rows, len(rows))
        raise InputError(f"tokens of size {float(rows.abs().max()):.1e} overflow float32; nothing was steered")
    return coordinates


PROJECTION = 1e-3  # how far W^T V may be from the identity
SAFE_SHRINKING = 0.1  # |moved|^2 / |h|^2 below which the closed form has lost too many digits
SMALLEST = 1e-6  # of |moved| / |h|: below it a token has no direction left

Deviation = Annotated[float, Field(ge=0)]  # of tokens in units of their own variation: no upper bound


@register_kind
@dataclass(frozen=True)
class Oblique(Operator):
    """mu [D], detection W [D, k] and movement V [D, k] in float32; no gate and no norm restored unless asked for."""

    mu: Annotated[Tensor, Array("D")]
    detection: Annotated[Tensor, Array("D", "k")]
    movement: Annotated[Tensor, Array("D", "k")]
    gate_median: Deviation = 0.0
    gate_std: Deviation = 0.0
    kappa: Kappa = 5.0
    floor: Floor = 1.0
    arc: bool = False
    restored: bool = False

    kind: ClassVar[str] = "oblique"
    any_dtype: ClassVar[bool] = True

    @property
    def width(self) -> int:
        return self.mu.shape[0]

    def validate(self) -> None:
        k = self.detection.shape[1]
        if k >= self.width:
            raise InputError(f"there are {k} directions in {self.width} dimensions: nothing would be left")
        product = self.detection.cpu().double().T @ self.movement.cpu().double()
        off = float((product - torch.eye(k)).abs().max())
        if not off < PROJECTION:
            raise InputError(f"detection and movement do not make a projection (W^T V is off by {off:.1e})")

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> Tensor | None:
        wide, both = precise(rows), self.arc or self.restored
        mu, detection, movement = (one.to(rows.device) for one in (self.mu, self.detection, self.movement))
        products, norms = project(rows, torch.cat([detection.T, movement.T]) if both else detection.T.contiguous())
        products, norms = finite_coordinates(products, rows).to(wide), norms.to(wide)
        z = products[:, : detection.shape[1]] - mu.to(wide) @ detection.to(wide)
        g = None if self.floor == 1 else self.gate_of(z)
        share = alpha.to(wide) if g is None else alpha * g
        if both:
            self._at_their_norms(rows, products, norms, z, share, out)
        else:
            weights = torch.where(norms > 0, -share * z, 0).float()
            recombine(rows, torch.ones_like(alpha), weights, movement.T.contiguous(), out)
        return None if g is None else g.squeeze(1).float()

    def affine(self, alpha: float) -> Affine | None:
        gated = self.floor != 1
        if gated or self.arc or self.restored:
            return None
        return Affine.projection(alpha, self.mu, self.movement, self.detection)

    def _at_their_norms(
        self, rows: Tensor, products: Tensor, norms: Tensor, z: Tensor, share: Tensor, out: Tensor
    ) -> None:
        """Write the steered rows at the norms that they had. products [N, 2 k]: of rows with W and V."""
        wide, k, movement = z.dtype, z.shape[1], self.movement.to(rows.device)
        # In units of the token's length: what full removal takes along the token, and the square of what it takes.
        low, high = SAFE_NORMS
        unsafe = ~((norms > low) & (norms < high))
        units = torch.where(unsafe, 1, norms)
        along = (products[:, k:] * z).sum(1, keepdim=True) / units**2
        square = ((z @ (movement.to(wide).T @ movement.to(wide))) * z).sum(1, keepdim=True) / units**2
        reach = torch.ones_like(share) if self.arc else share
        left = 1 - 2 * reach * along + reach**2 * square
        unsafe = (unsafe | (left < SAFE_SHRINKING)).squeeze(1)
        length = left.clamp(min=SAFE_SHRINKING).sqrt()
        kept, moved = 1 / length, reach / length
        if self.arc:
            kept, moved = _along_the_arc((1 - along) / length, share, length)
        few = rows[unsafe] if unsafe.any() else None  # copied before `out`, which may be `rows`, is written
        recombine(rows, kept.float(), (-moved * z).float(), movement.T.contiguous(), out)
        if few is not None:
            out[unsafe] = self._directly(few.to(wide), share[unsafe]).to(out.dtype)

    def gate_of(self, z: Tensor) -> Tensor:
        """The gates [N, 1] of detected coordinates z [N, k]."""
        magnitude = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        return gate(magnitude, self.gate_median, self.gate_std, self.kappa, self.floor)

    def _directly(self, rows: Tensor, share: Tensor) -> Tensor:
        """The equations as they are printed: rows [N, D] and shares [N, 1] in float64 -> steered rows."""
        mu, detection, movement = (one.to(rows) for one in (self.mu, self.detection, self.movement))
        removed = ((rows - mu) @ detection) @ movement.T
        norms = sphere.norm(rows)
        target = rows - (removed if self.arc else share * removed)
        length = sphere.norm(target)
        direction, towards = rows / torch.where(norms > 0, norms, 1), target / torch.where(length > 0, length, 1)
        steered = sphere.slerp(direction, towards, share.squeeze(1)) if self.arc else towards
        return torch.where((norms > 0) & (length > SMALLEST * norms), norms * steered, rows)


def _along_the_arc(cosine: Tensor, share: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of h and of -V z in slerp(h^, target^; share); length: of the targets of unit tokens."""
    cosine = cosine.clamp(-1, 1)
    sine = (1 - cosine * cosine).sqrt()
    turn = share * torch.atan2(sine, cosine)
    ratio = torch.where(sine > 1e-6, turn.sin() / sine, share)
    return turn.cos() - ratio * cosine + ratio / length, ratio / length
