"""Projections in Euclidean space: the orthogonal one of the Euclidean baselines, and the oblique one of PACE.

Both take two passes over the tokens (`operator.project`, `operator.recombine`).

**`Euclidean`**: null-space projection around a mean, which the spherical methods are compared with (appendix A,
pooled SVD, Euclidean). V is orthonormal. Norms are not preserved.

    steered = h - alpha V V^T (h - mean)

**`Oblique`**: detects along W and moves along V.

    z = W^T (h - mu)          steered = moved = h - alpha g V z

W and V are [D, k] with W^T V = I, so V W^T is a projection, oblique unless W = V: at alpha g = 1 nothing is left
along W. g is 1 unless the method has a gate: then it is GGSS's gate (equation 3) of the magnitude |z|. A zero token
is not changed.

With `restored` the token gets its norm back. The factor depends on how much was removed, so it reveals the attribute.
With `arc` the norm is restored, too, but the token turns instead of moving along the straight line: by slerp, the
share alpha g of the way to the target of full removal.

    restored        steered = |h| moved / |moved|
    arc             target = h - V z, at the norm of h        steered = |h| slerp(h^, target^; alpha g)

**In closed form.** |moved|^2 = |h|^2 - 2 s <V^T h, z> + s^2 z^T V^T V z for s = alpha g, and the angle to the target
follows from the same numbers. So the products of a token with [W V] and its norm are all that the second pass needs;
the steps between the passes are in float64. A token that would shrink to less than a third of its length is computed
directly, because the closed form of its norm has too few digits left. A token that has no target (it is zero, or
nothing of it is left) is not changed.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ggss import sphere
from ggss.errors import InputError
from ggss.methods.operator import Affine, Array, Operator, project, recombine, register_kind, require_finite
from ggss.methods.spherical import SAFE_NORMS, Floor, Kappa, check_orthonormal, gate, precise

PROJECTION = 1e-3  # how far W^T V may be from the identity
SAFE_SHRINKING = 0.1  # |moved|^2 / |h|^2 below which the closed form has lost too many digits
SMALLEST = 1e-6  # of |moved| / |h|: below it a token has no direction left

Deviation = Annotated[float, Field(ge=0)]  # a magnitude in units of the tokens' variation: no upper bound


@register_kind
@dataclass(frozen=True)
class Euclidean(Operator):
    """Removes the component of h - mean in the span of the basis. mean [D], basis V [D, k] orthonormal, float32."""

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
        raise InputError(f"tokens of size {float(rows.abs().max()):.1e} overflow float32 and cannot be steered")
    return coordinates


@register_kind
@dataclass(frozen=True)
class Oblique(Operator):
    """Removes what W detects by moving along V. mu [D], detection W [D, k] and movement V [D, k] in float32.

    A floor of 1 means no gate. See the module for `arc` and `restored`.
    """

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
        precision, keeps_norms = precise(rows), self.arc or self.restored
        mu, detection, movement = (tensor.to(rows.device) for tensor in (self.mu, self.detection, self.movement))
        directions = torch.cat([detection.T, movement.T]) if keeps_norms else detection.T.contiguous()
        products, norms = project(rows, directions)
        products, norms = finite_coordinates(products, rows).to(precision), norms.to(precision)
        z = products[:, : detection.shape[1]] - mu.to(precision) @ detection.to(precision)
        g = None if self.floor == 1 else self.gate_of(z)
        share = alpha.to(precision) if g is None else alpha * g
        if keeps_norms:
            self._restore_norms(rows, products, norms, z, share, out)
        else:
            weights = torch.where(norms > 0, -share * z, 0).float()
            recombine(rows, torch.ones_like(alpha), weights, movement.T.contiguous(), out)
        return None if g is None else g.squeeze(1).float()

    def affine(self, alpha: float) -> Affine | None:
        gated = self.floor != 1
        if gated or self.arc or self.restored:
            return None
        return Affine.projection(alpha, self.mu, self.movement, self.detection)

    def _restore_norms(
        self, rows: Tensor, products: Tensor, norms: Tensor, z: Tensor, share: Tensor, out: Tensor
    ) -> None:
        """Write the steered rows with the norms of the unsteered ones. products [N, 2 k]: of rows with W and V."""
        precision, k, movement = z.dtype, z.shape[1], self.movement.to(rows.device)
        # In units of the token's length: <h, V z>, the removed component along the token, and |V z|^2.
        low, high = SAFE_NORMS
        unsafe = ~((norms > low) & (norms < high))
        units = torch.where(unsafe, 1, norms)
        along = (products[:, k:] * z).sum(1, keepdim=True) / units**2
        square = ((z @ (movement.to(precision).T @ movement.to(precision))) * z).sum(1, keepdim=True) / units**2
        removal = torch.ones_like(share) if self.arc else share
        length_squared = 1 - 2 * removal * along + removal**2 * square
        unsafe = (unsafe | (length_squared < SAFE_SHRINKING)).squeeze(1)
        length = length_squared.clamp(min=SAFE_SHRINKING).sqrt()
        scale, movement_scale = 1 / length, removal / length
        if self.arc:
            scale, movement_scale = _arc_weights((1 - along) / length, share, length)
        unsafe_rows = rows[unsafe] if unsafe.any() else None  # copied before `out`, which may be `rows`, is written
        recombine(rows, scale.float(), (-movement_scale * z).float(), movement.T.contiguous(), out)
        if unsafe_rows is not None:
            out[unsafe] = self._steer_directly(unsafe_rows.to(precision), share[unsafe]).to(out.dtype)

    def gate_of(self, z: Tensor) -> Tensor:
        """The gates [N, 1] of detected coordinates z [N, k]."""
        magnitude = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        return gate(magnitude, self.gate_median, self.gate_std, self.kappa, self.floor)

    def _steer_directly(self, rows: Tensor, share: Tensor) -> Tensor:
        """The steered rows by the module's equations without the closed form; rows [N, D] and shares [N, 1]."""
        mu, detection, movement = (tensor.to(rows) for tensor in (self.mu, self.detection, self.movement))
        removed = ((rows - mu) @ detection) @ movement.T
        norms = sphere.norm(rows)
        target = rows - (removed if self.arc else share * removed)
        length = sphere.norm(target)
        direction = rows / torch.where(norms > 0, norms, 1)
        target_direction = target / torch.where(length > 0, length, 1)
        steered = sphere.slerp(direction, target_direction, share.squeeze(1)) if self.arc else target_direction
        return torch.where((norms > 0) & (length > SMALLEST * norms), norms * steered, rows)


def _arc_weights(cosine: Tensor, share: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of h and of -V z in slerp(h^, target^; share). length: |target| / |h| before rescaling."""
    cosine = cosine.clamp(-1, 1)
    sine = (1 - cosine * cosine).sqrt()
    turn = share * torch.atan2(sine, cosine)
    ratio = torch.where(sine > 1e-6, turn.sin() / sine, share)
    return turn.cos() - ratio * cosine + ratio / length, ratio / length
