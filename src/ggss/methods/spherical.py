"""The token update of every spherical method, in closed form: two passes over the tokens.

A token h = |h| h^ is mapped to a tangent vector t at mu. A method decides two things: the coordinates r that are
removed from t, inside the span of an orthonormal basis V, and the share beta of the way from h^ to the target that
the token is moved:

    t = log_mu(h^)      target = Normalize(exp_mu(t - V r))      steered = |h| slerp(h^, target; beta)

With r = V^T t and beta = alpha g this is GGSS (`Geodesic`); with r = alpha V^T t and beta = 1 it is hard
projection in the tangent space (`Tangent`).

**In closed form.** All vectors above lie in the span of h^, mu and V. With c0 = <mu, h^>, c = V^T h^ and
m = V^T mu, and theta = arccos c0, f = theta / sin theta:

    V^T t = f (c - c0 m) = b            |t - V r| = n = sqrt(theta^2 - 2 <r, b> + |r|^2)
    exp_mu(t - V r) = s f h^ + (cos n - s f c0) mu - s V r,      s = sin n / n,      of length E

E is not 1, because V need not be tangent at mu. The target divides by it, and its angle omega to h^ follows
from the same scalars. With R = sin(beta omega) / sin omega,

    steered = (cos(beta omega) - R cos omega + R s f / E) h + |h| R [(cos n - s f c0) / E  mu - (s / E) V r]

The chord (1 - beta) h^ + beta target, normalised, is on the same arc: in place of beta omega the token turns by
atan2(beta sin omega, 1 - beta + beta cos omega).

So a token costs one product with [mu V] before and one after; the scalars between them are computed in
float64. They are smooth functions of theta^2, <r, b> and |r|^2 except close to an antipode. The few tokens there are
computed by the equations as they are printed (`move_literally`).

Choices that the paper leaves open: a token is divided by its norm without epsilon, so that tokens of any size keep
their norm. A zero token is not changed, nor is one that is opposite to mu within the resolution of float32.

The paper's token update: gate, then slerp towards the projected target, norm kept (section 3.2).

    t = log_mu(h^)           p = V V^T t            t_clean = t - p          target = Normalize(exp_mu(t_clean))
    z = (|V^T t| - median) / (std + eps)            g = floor + (1 - floor) sigmoid(kappa z)
    steered = |h| slerp(h^, target; alpha g)

The closed form it is computed in, and the choices the paper leaves open, are in `spherical`.

Hard projection in the tangent space at mu, norm kept: the spherical form of a null-space projection.

    t = log_mu(h^)      t_steered = t - alpha g V M V^T t      steered = |h| Normalize(exp_mu(t_steered))

V is orthonormal. M = I is the orthogonal projection of the SVD ablations and INLP; an oblique one, such as
LEACE's, has its small matrix in M. g is 1 unless the method gates (`ggss-no-slerp`). At alpha g = 1 and M = I
the result is slerp's target, so hard projection and slerp differ only at other strengths.

Rows of a batch, image by image, for operators that treat an image as a whole.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ggss import errors, sphere
from ggss.errors import InputError
from ggss.methods.operator import Array, Operator, project, recombine, register_kind, require_finite

SAFE_COSINE = -0.5  # log multiplies the rounding error of c0 by 1 / sin^2: above 120 degrees float32 is not enough
SAFE_LENGTH = 0.3  # the same for the length E of exp_mu(t - V r)
RESOLUTION = 1e-6  # a float32 token closer than this to the antipode of mu has no direction from mu
ORTHONORMAL = 1e-4  # how far from orthonormal a basis may be
SAFE_NORMS = (1e-15, 1e15)  # for other tokens the squares in a float32 norm lose digits or overflow


Kappa = Annotated[float, Field(gt=errors.KAPPA.least, le=errors.KAPPA.most)]
Floor = Annotated[float, Field(ge=errors.SHARE.least, le=errors.SHARE.most)]
Magnitude = Annotated[float, Field(ge=0, le=math.pi)]  # of a tangent vector, or of some of its coordinates


class Removal(NamedTuple):
    """What a method does to N tokens: the coordinates [N, k] that it removes, the share [N, 1] of the way to the
    target, the gate [N, 1] if the method has one, and whether the way is the chord, not the arc."""

    removed: Tensor
    beta: Tensor | float
    gate: Tensor | None = None
    chord: bool = False


class Polar(NamedTuple):
    """Tokens in polar coordinates around mu, with the names of the head of this file.

    norms, c0, theta and f are [N, 1]; c and b = V^T t are [N, k].
    """

    norms: Tensor
    c0: Tensor
    c: Tensor
    theta: Tensor
    f: Tensor
    b: Tensor

    @property
    def unsafe(self) -> Tensor:
        """[N]: tokens that are too close to the antipode of mu, or too small or too large for float32 products."""
        low, high = SAFE_NORMS
        return ((self.c0 < SAFE_COSINE) | ~((self.norms > low) & (self.norms < high))).squeeze(1)


def polar(products: Tensor, norms: Tensor, m: Tensor) -> Polar:
    """From the tokens' products [N, 1 + k] with [mu V], their norms [N, 1], and m = V^T mu [1, k]."""
    coordinates = products.to(m.dtype) / norms.to(m.dtype)
    c0, c = coordinates[:, :1].clamp(-1, 1), coordinates[:, 1:]
    sin_theta = (1 - c0 * c0).sqrt()
    theta = torch.atan2(sin_theta, c0)
    f = torch.where(sin_theta > 1e-6, theta / sin_theta, 1)
    return Polar(norms, c0, c, theta, f, f * (c - c0 * m))


def move(
    rows: Tensor,
    alpha: Tensor,
    mu: Tensor,
    basis: Tensor,
    removal: Callable[[Tensor, Tensor], Removal],
    out: Tensor,
) -> Tensor | None:
    """Steer rows [N, D] into `out` by what `removal(b [N, k], alpha [N, 1])` returns; gives its gate [N], if any.

    rows and out have the same floating dtype; `out` may be `rows` itself.
    """
    mu, basis = mu.to(rows.device), basis.to(rows.device)
    frame = torch.cat([mu[None], basis.T])
    wide = precise(rows)
    m = (basis.to(wide).T @ mu.to(wide))[None]
    seen = polar(*project(rows, frame), m)
    norms, c0, c, theta, f, b = seen

    r, beta, gate, chord = removal(b, alpha)
    n = (theta * theta - 2 * (r * b).sum(1, keepdim=True) + (r * r).sum(1, keepdim=True)).clamp(min=0).sqrt()
    s = torch.sinc(n / torch.pi)
    along = s * f
    towards_mu = n.cos() - along * c0
    length = (1 - 2 * n.cos() * s * (r * m).sum(1, keepdim=True)).clamp(min=0).sqrt()

    cos_omega = ((along + towards_mu * c0 - s * (r * c).sum(1, keepdim=True)) / length).clamp(-1, 1)
    sin_omega = (1 - cos_omega * cos_omega).sqrt()
    omega = torch.atan2(sin_omega, cos_omega)
    turn = torch.atan2(beta * sin_omega, 1 - beta + beta * cos_omega) if chord else beta * omega
    ratio = torch.where(sin_omega > 1e-6, turn.sin() / sin_omega, beta)
    scale = turn.cos() - ratio * cos_omega + ratio * along / length
    weights = norms * ratio / length * torch.cat([towards_mu, -s * r], 1)

    unsafe = seen.unsafe | ((cos_omega < SAFE_COSINE) | (length < SAFE_LENGTH)).squeeze(1)
    few = rows[unsafe] if unsafe.any() else None  # copied before `out`, which may be `rows`, is written
    if few is not None:
        require_finite(few, len(rows))
    recombine(rows, scale.float(), weights.float(), frame, out)
    if few is not None:
        out[unsafe], own = move_literally(few, alpha[unsafe], mu, basis, removal)
        if gate is not None and own is not None:
            gate[unsafe] = own.to(gate)
    return None if gate is None else gate.squeeze(1).float()


def move_literally(
    rows: Tensor, alpha: Tensor, mu: Tensor, basis: Tensor, removal: Callable[[Tensor, Tensor], Removal]
) -> tuple[Tensor, Tensor | None]:
    """The equations as they are printed, in float64: rows [N, D], alpha [N, 1] -> steered rows, gate [N, 1]."""
    wide = precise(rows)
    mu, basis, h = mu.to(wide), basis.to(wide), rows.to(wide)
    mu = mu / mu.norm()
    norms = sphere.norm(h)
    direction = h / torch.where(norms > 0, norms, 1)
    t = sphere.log(mu, direction)
    r, beta, gate, chord = removal(t @ basis, alpha)
    target = sphere.normalize(sphere.exp(mu, t - r @ basis.T))
    share = torch.as_tensor(beta, dtype=wide, device=rows.device).expand(len(rows), 1)
    if chord:
        moved = sphere.normalize((1 - share) * direction + share * target)
    else:
        moved = sphere.slerp(direction, target, share.squeeze(1))
    steered = norms * moved
    defined = (norms > 0) & (sphere.norm(direction + mu) > RESOLUTION)
    return torch.where(defined, steered, h).to(rows.dtype), gate


def magnitudes(rows: Tensor, products: Tensor, mu: Tensor, basis: Tensor) -> Tensor:
    """|V^T log_mu(h^)| of rows [N, D], as [N, 1], from their products [N, 1 + k] with [mu V]; 0 for a zero row."""
    wide = precise(rows)
    mu, basis = mu.to(rows.device, wide), basis.to(rows.device, wide)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float32)
    seen = polar(products, norms, (basis.T @ mu)[None])
    found = torch.linalg.vector_norm(seen.b, dim=1, keepdim=True)
    unsafe = seen.unsafe
    if unsafe.any():
        require_finite(rows[unsafe], len(rows))
        h = rows[unsafe].to(wide)
        norms = sphere.norm(h)
        t = sphere.log(mu / mu.norm(), h / torch.where(norms > 0, norms, 1))
        found[unsafe] = torch.linalg.vector_norm(t @ basis, dim=1, keepdim=True)
    return found


@dataclass(frozen=True)
class Spherical(Operator):
    """Base of operators with a reference point mu [D] and an orthonormal basis [D, k], in float32."""

    mu: Annotated[Tensor, Array("D")]
    basis: Annotated[Tensor, Array("D", "k")]

    any_dtype: ClassVar[bool] = True

    def removal(self, b: Tensor, alpha: Tensor) -> Removal:
        """What is removed from tokens with protected coordinates b [N, k] at strength alpha [N, 1]."""
        raise NotImplementedError

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> Tensor | None:
        return move(rows, alpha, self.mu, self.basis, self.removal, out)

    @property
    def width(self) -> int:
        return self.mu.shape[0]

    def validate(self) -> None:
        check_frame(self.mu, self.basis)


@dataclass(frozen=True)
class Gated(Spherical):
    """A spherical operator with the gate of equation 3: its median and std, its sharpness kappa and its floor.

    With a floor of 1 there is no gate.
    """

    gate_median: Magnitude
    gate_std: Magnitude
    kappa: Kappa = 5.0
    floor: Floor = 0.3

    def gate(self, magnitude: Tensor) -> Tensor:
        """g of equation 3, from |V^T t|."""
        return gate(magnitude, self.gate_median, self.gate_std, self.kappa, self.floor)

    def gate_of(self, b: Tensor) -> Tensor:
        """The gates [N, 1] of protected coordinates b [N, k]."""
        return self.gate(torch.linalg.vector_norm(b, dim=1, keepdim=True))


def gate(magnitude: Tensor, median: float, std: float, kappa: float, floor: float) -> Tensor:
    """g = floor + (1 - floor) sigmoid(kappa (magnitude - median) / (std + eps)), equation 3."""
    z = (magnitude - median) / (std + sphere.EPS)
    return floor + (1 - floor) * torch.sigmoid(kappa * z)


def check_frame(mu: Tensor, basis: Tensor) -> None:
    """InputError unless mu [D] has unit length and basis [D, k] is orthonormal, with k < D."""
    length = float(mu.cpu().double().norm())
    if abs(length - 1) > ORTHONORMAL:
        raise InputError(f"mu has length {length:.4f}, not 1")
    check_orthonormal(basis)
    if basis.shape[1] >= len(mu):
        raise InputError(f"the basis has {basis.shape[1]} directions in {len(mu)} dimensions: nothing would be left")


def check_orthonormal(basis: Tensor) -> None:
    """InputError unless the columns of a basis [D, k] are orthonormal."""
    wide = basis.cpu().double()  # Apple's GPU has no float64
    off = float((wide.T @ wide - torch.eye(basis.shape[1])).abs().max())
    if not off < ORTHONORMAL:
        raise InputError(f"the basis is not orthonormal (off by {off:.1e})")


def precise(rows: Tensor) -> torch.dtype:
    """The dtype for scalars: float64 where the device has it (Apple's GPU does not)."""
    return torch.float32 if rows.device.type == "mps" else torch.float64


@register_kind
@dataclass(frozen=True)
class Geodesic(Gated):
    """mu [D] and basis [D, k] in float32, the gate's statistics, its sharpness kappa and its floor."""

    kind: ClassVar[str] = "geodesic"

    def removal(self, b: Tensor, alpha: Tensor) -> Removal:
        g = self.gate_of(b)
        return Removal(b, alpha * g, None if self.floor == 1 else g)


@register_kind
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


@dataclass(frozen=True)
class ByImage(Operator):
    """Base of operators that decide by an image's mean row what happens to all of its rows.

    Without `images` all rows count as one image. Pooling is over all rows of the image that the site gives.
    """

    needs_images: ClassVar[bool] = True

    def steer_image(self, rows: Tensor, pooled: Tensor, alpha: Tensor, out: Tensor) -> None:
        """Write the steered rows [n, D] of one image into `out`, which may be `rows`; pooled [D] is in float64."""
        raise NotImplementedError

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        for own in parts(images, len(rows)):
            mine = rows[own]
            pooled = mean_row(mine, precise(rows))
            if not torch.isfinite(pooled).all():
                require_finite(mine, len(rows))
            if isinstance(own, slice):
                self.steer_image(mine, pooled, alpha[own], out[own])
            else:
                self.steer_image(mine, pooled, alpha[own], mine)
                out[own] = mine


def mean_row(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The mean [D] of rows [N, D]: float32 sums of 64 rows each, added up in `dtype`; no copy of all rows in it."""
    return torch.stack([some.sum(0) for some in rows.split(64)]).to(dtype).sum(0) / len(rows)


def parts(images: Tensor | None, count: int) -> Iterator[slice | Tensor]:
    """The rows of each image: a slice where they are contiguous, else their positions.

    images [count] is the image number of each row; None means that all rows are of one image.
    """
    if images is None:
        if count:
            yield slice(0, count)
        return
    names, lengths = torch.unique_consecutive(images, return_counts=True)
    if len(names.unique()) < len(names):
        yield from ((images == name).nonzero().flatten() for name in images.unique())
        return
    start = 0
    for length in lengths.tolist():
        yield slice(start, start + length)
        start += length
