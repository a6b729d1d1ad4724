"""The token update of every spherical method: log map, removal, slerp, norm restored (section 3.2).

A token h = |h| h^ is mapped to a tangent vector t at mu. A method decides two things: the coordinates r that are
removed from t, inside the span of an orthonormal basis V (the paper's V_bias), and the share beta of the way from h^
to the target that the token is moved.

    t = log_mu(h^)      target = Normalize(exp_mu(t - V r))      steered = |h| slerp(h^, target; beta)

**`Geodesic`**, the paper's update (equations 2 to 5): r = V^T t and beta = alpha g.

    p = V V^T t              t_clean = t - p                          target = Normalize(exp_mu(t_clean))
    z = (|V^T t| - median) / (std + eps)                              g = floor + (1 - floor) sigmoid(kappa z)
    steered = |h| slerp(h^, target; alpha g)

**`Tangent`**, hard projection in the tangent space (appendix A): r = alpha g M V^T t and beta = 1.

    t_steered = t - alpha g V M V^T t                                 steered = |h| Normalize(exp_mu(t_steered))

M = I is the orthogonal projection of the SVD ablations and INLP; an oblique one, such as LEACE's, has its small
matrix in M. g is 1 unless the method has a gate (`ggss-no-slerp`). At alpha g = 1 and M = I the result is slerp's
target, so hard projection and slerp differ only at other strengths.

**In closed form.** All vectors above lie in the span of h^, mu and V. With c0 = <mu, h^>, c = V^T h^ and m = V^T mu,
and theta = arccos c0, f = theta / sin theta:

    V^T t = f (c - c0 m) = b            |t - V r| = n = sqrt(theta^2 - 2 <r, b> + |r|^2)
    exp_mu(t - V r) = s f h^ + (cos n - s f c0) mu - s V r,      s = sin n / n,      of length E

E is not 1, because V need not be tangent at mu. The target divides by it, and its angle omega to h^ follows from the
same scalars. With R = sin(beta omega) / sin omega,

    steered = (cos(beta omega) - R cos omega + R s f / E) h + |h| R [(cos n - s f c0) / E  mu - (s / E) V r]

The chord (1 - beta) h^ + beta target, normalised, is on the same arc: the token turns by atan2(beta sin omega, 1 -
beta + beta cos omega) instead of beta omega.

So a token costs one product with [mu V] before and one after (`operator.project`, `operator.recombine`); the scalars
between them are computed in float64. They are smooth functions of theta^2, <r, b> and |r|^2 except close to an
antipode. The few tokens there are computed by the printed equations (`move_literally`).

Choices that the paper leaves open: a token is divided by its norm without epsilon, so that tokens of any size keep
their norm. A zero token is not changed, nor is one that is opposite to mu within the resolution of float32.

`ByImage` is the base of operators that steer all rows of an image by its mean row.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

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
    """What a method does to N tokens.

    removed [N, k]: the coordinates r. beta [N, 1]: the share of the way to the target. gate [N, 1], if the method has
    one. chord: the way is the chord instead of the arc.
    """

    removed: Tensor
    beta: Tensor | float
    gate: Tensor | None = None
    chord: bool = False


class Polar(NamedTuple):
    """Tokens in polar coordinates around mu, named as in the module's closed form.

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
    """Polar coordinates of tokens from their products [N, 1 + k] with [mu V], norms [N, 1], and m = V^T mu [1, k]."""
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
    """Steer rows [N, D] into `out` by what `removal(b [N, k], alpha [N, 1])` returns; return its gate [N], if any.

    rows and out have the same floating dtype; `out` may be `rows` itself.
    """
    mu, basis = mu.to(rows.device), basis.to(rows.device)
    frame = torch.cat([mu[None], basis.T])
    dtype = precise(rows)
    m = (basis.to(dtype).T @ mu.to(dtype))[None]
    coordinates = polar(*project(rows, frame), m)
    norms, c0, c, theta, f, b = coordinates

    r, beta, gate, chord = removal(b, alpha)
    n = (theta * theta - 2 * (r * b).sum(1, keepdim=True) + (r * r).sum(1, keepdim=True)).clamp(min=0).sqrt()
    s = torch.sinc(n / torch.pi)
    token_weight = s * f
    mu_weight = n.cos() - token_weight * c0
    length = (1 - 2 * n.cos() * s * (r * m).sum(1, keepdim=True)).clamp(min=0).sqrt()

    cos_omega = ((token_weight + mu_weight * c0 - s * (r * c).sum(1, keepdim=True)) / length).clamp(-1, 1)
    sin_omega = (1 - cos_omega * cos_omega).sqrt()
    omega = torch.atan2(sin_omega, cos_omega)
    angle = torch.atan2(beta * sin_omega, 1 - beta + beta * cos_omega) if chord else beta * omega
    ratio = torch.where(sin_omega > 1e-6, angle.sin() / sin_omega, beta)
    scale = angle.cos() - ratio * cos_omega + ratio * token_weight / length
    weights = norms * ratio / length * torch.cat([mu_weight, -s * r], 1)

    unsafe = coordinates.unsafe | ((cos_omega < SAFE_COSINE) | (length < SAFE_LENGTH)).squeeze(1)
    unsafe_rows = rows[unsafe] if unsafe.any() else None  # copied before `out`, which may be `rows`, is written
    if unsafe_rows is not None:
        require_finite(unsafe_rows, len(rows))
    recombine(rows, scale.float(), weights.float(), frame, out)
    if unsafe_rows is not None:
        out[unsafe], unsafe_gate = move_literally(unsafe_rows, alpha[unsafe], mu, basis, removal)
        if gate is not None and unsafe_gate is not None:
            gate[unsafe] = unsafe_gate.to(gate)
    return None if gate is None else gate.squeeze(1).float()


def move_literally(
    rows: Tensor, alpha: Tensor, mu: Tensor, basis: Tensor, removal: Callable[[Tensor, Tensor], Removal]
) -> tuple[Tensor, Tensor | None]:
    """Steered rows [N, D] and gate [N, 1] by the printed equations, in float64. alpha [N, 1]."""
    dtype = precise(rows)
    mu, basis, h = mu.to(dtype), basis.to(dtype), rows.to(dtype)
    mu = mu / mu.norm()
    norms = sphere.norm(h)
    direction = h / torch.where(norms > 0, norms, 1)
    t = sphere.log(mu, direction)
    r, beta, gate, chord = removal(t @ basis, alpha)
    target = sphere.normalize(sphere.exp(mu, t - r @ basis.T))
    beta_column = torch.as_tensor(beta, dtype=dtype, device=rows.device).expand(len(rows), 1)
    if chord:
        steered_direction = sphere.normalize((1 - beta_column) * direction + beta_column * target)
    else:
        steered_direction = sphere.slerp(direction, target, beta_column.squeeze(1))
    defined = (norms > 0) & (sphere.norm(direction + mu) > RESOLUTION)
    return torch.where(defined, norms * steered_direction, h).to(rows.dtype), gate


def magnitudes(rows: Tensor, products: Tensor, mu: Tensor, basis: Tensor) -> Tensor:
    """|V^T log_mu(h^)| of rows [N, D], as [N, 1], from their products [N, 1 + k] with [mu V]; 0 for a zero row."""
    dtype = precise(rows)
    mu, basis = mu.to(rows.device, dtype), basis.to(rows.device, dtype)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float32)
    coordinates = polar(products, norms, (basis.T @ mu)[None])
    b = torch.linalg.vector_norm(coordinates.b, dim=1, keepdim=True)
    unsafe = coordinates.unsafe
    if unsafe.any():
        require_finite(rows[unsafe], len(rows))
        h = rows[unsafe].to(dtype)
        norms = sphere.norm(h)
        t = sphere.log(mu / mu.norm(), h / torch.where(norms > 0, norms, 1))
        b[unsafe] = torch.linalg.vector_norm(t @ basis, dim=1, keepdim=True)
    return b


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
    columns = basis.cpu().double()  # Apple's GPU has no float64
    off = float((columns.T @ columns - torch.eye(basis.shape[1])).abs().max())
    if not off < ORTHONORMAL:
        raise InputError(f"the basis is not orthonormal (off by {off:.1e})")


def precise(rows: Tensor) -> torch.dtype:
    """The dtype of scalars between the two passes: float64 where the device has it (Apple's GPU does not)."""
    return torch.float32 if rows.device.type == "mps" else torch.float64


@register_kind
@dataclass(frozen=True)
class Geodesic(Gated):
    """The update of GGSS. mu [D] and basis V [D, k] in float32; the gate's statistics, sharpness and floor."""

    kind: ClassVar[str] = "geodesic"

    def removal(self, b: Tensor, alpha: Tensor) -> Removal:
        g = self.gate_of(b)
        return Removal(b, alpha * g, None if self.floor == 1 else g)


@register_kind
@dataclass(frozen=True)
class Tangent(Gated):
    """Hard projection in tangent space. mu [D], basis V [D, k] and map M [k, k] in float32; a floor of 1: no gate."""

    gate_median: Magnitude = 0.0
    gate_std: Magnitude = 0.0
    floor: Floor = 1.0
    map: Annotated[Tensor, Array("k", "k")] = field(kw_only=True)

    kind: ClassVar[str] = "tangent"

    @classmethod
    def orthogonal(cls, mu: Tensor, basis: Tensor, **gate: float) -> "Tangent":
        """The orthogonal projection that removes span(basis), with M = I."""
        basis = basis.float().contiguous()
        return cls(mu.float(), basis, **gate, map=torch.eye(basis.shape[1]))

    def removal(self, b: Tensor, alpha: Tensor) -> Removal:
        removed = b @ self.map.to(b).T
        if self.floor == 1:
            return Removal(alpha * removed, 1.0)
        g = self.gate_of(b)
        return Removal(alpha * g * removed, 1.0, g)


PooledOver = Literal["image", "prompt"]
POOLED_OVER: Any = Field(
    "image", description="the mean row is of each image, or of all images of a prompt as in the authors' code"
)


@dataclass(frozen=True)
class ByImage(Operator):
    """Base of operators that steer all rows of an image by its mean row.

    Without `images` all rows count as one image. The mean is over all rows that the site gives for the image.
    together: all rows of a call count as one image. A call is then for one prompt, and its images share a mean.
    """

    together: bool = field(default=False, kw_only=True)

    needs_images: ClassVar[bool] = True

    def steer_image(self, rows: Tensor, pooled: Tensor, alpha: Tensor, out: Tensor) -> None:
        """Write the steered rows [n, D] of one image into `out`, which may be `rows`; pooled [D] is in float64."""
        raise NotImplementedError

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        for index in rows_by_image(None if self.together else images, len(rows)):
            image_rows = rows[index]
            pooled = mean_row(image_rows, precise(rows))
            if not torch.isfinite(pooled).all():
                require_finite(image_rows, len(rows))
            if isinstance(index, slice):
                self.steer_image(image_rows, pooled, alpha[index], out[index])
            else:
                self.steer_image(image_rows, pooled, alpha[index], image_rows)
                out[index] = image_rows


def mean_row(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The mean [D] of rows [N, D]. Sums of 64 rows in float32 are added up in `dtype`, without a copy of all rows."""
    return torch.stack([block.sum(0) for block in rows.split(64)]).to(dtype).sum(0) / len(rows)


def rows_by_image(images: Tensor | None, count: int) -> Iterator[slice | Tensor]:
    """The index of each image's rows: a slice where they are contiguous, else their positions.

    images [count]: the image number of each row; None means that all rows are of one image.
    """
    if images is None:
        if count:
            yield slice(0, count)
        return
    numbers, lengths = torch.unique_consecutive(images, return_counts=True)
    if len(numbers.unique()) < len(numbers):
        yield from ((images == number).nonzero().flatten() for number in images.unique())
        return
    start = 0
    for length in lengths.tolist():
        yield slice(start, start + length)
        start += length
