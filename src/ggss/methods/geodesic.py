"""The paper's token update: gate, then slerp towards the projected target, norm kept (section 3.2).

    t = log_mu(h^)           p = V V^T t            t_clean = t - p          target = Normalize(exp_mu(t_clean))
    z = (|V^T t| - median) / (std + eps)            g = floor + (1 - floor) sigmoid(kappa z)
    steered = |h| slerp(h^, target; alpha g)

**In closed form.** All vectors above lie in the span of h^, mu and V. With c0 = <mu, h^>, c = V^T h^ and
m = V^T mu, and theta = arccos c0, f = theta / sin theta:

    V^T t = f (c - c0 m) = b                        |t_clean| = n = sqrt(theta^2 - |b|^2)
    exp_mu(t_clean) = s f h^ + (cos n - s f c0) mu - s V b,      s = sin n / n,      of length E

E is not 1, because V need not be tangent at mu. The target divides by it, and its angle omega to h^ follows
from the same scalars. With R = sin(beta omega) / sin omega,

    steered = (cos(beta omega) - R cos omega + R s f / E) h + |h| R [(cos n - s f c0) / E  mu - (s / E) V b]

so a token costs one product with [mu V] before and one after; the scalars are computed in float64. Each is a
smooth function of theta^2 and |b|^2 except close to an antipode, where the few rows concerned take the
equations as they stand (`steer_literally`).

Choices the paper leaves open: a token is divided by its norm without epsilon, so that the norm is kept for
tokens of any size; a zero token, and one opposite mu to float32's resolution, is left as it is.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ggss import sphere
from ggss.errors import InputError
from ggss.operator import Operator, register, require_finite

SAFE_COSINE = -0.5  # log amplifies the rounding of c0 by 1 / sin^2: beyond 120 degrees float32 is not enough
SAFE_LENGTH = 0.3  # the same for the length E of exp_mu(t_clean)
RESOLUTION = 1e-6  # a float32 token closer than this to the antipode of mu has no direction from it
SAFE_NORMS = (1e-15, 1e15)  # outside, the squares in a float32 norm lose digits or overflow


@register
@dataclass(frozen=True)
class Geodesic(Operator):
    """mu [D] and basis [D, k] in float32, the gate's statistics, its sharpness kappa and its floor."""

    mu: Tensor
    basis: Tensor
    gate_median: float
    gate_std: float
    kappa: float = 5.0
    floor: float = 0.3

    kind: ClassVar[str] = "geodesic"

    @property
    def width(self) -> int:
        return self.mu.shape[0]

    def validate(self) -> None:
        mu, basis = self.mu.double(), self.basis.double()
        if mu.ndim != 1 or basis.ndim != 2 or basis.shape[0] != len(mu) or not 1 <= basis.shape[1] < len(mu):
            raise InputError(f"mu is {tuple(mu.shape)} and basis {tuple(basis.shape)}, not [D] and [D, k]")
        if not all(map(math.isfinite, (self.gate_median, self.gate_std, self.kappa, self.floor))):
            raise InputError("the gate's median, std, kappa and floor must be finite")
        off = float((basis.T @ basis - torch.eye(basis.shape[1])).abs().max())
        if abs(float(mu.norm()) - 1) > 1e-4 or not off < 1e-4:
            raise InputError(f"mu has length {float(mu.norm()):.4f} and the basis is {off:.1e} from orthonormal")

    def gate(self, magnitude: Tensor) -> Tensor:
        """g of equation 3, from |V^T t|."""
        z = (magnitude - self.gate_median) / (self.gate_std + sphere.EPS)
        return self.floor + (1 - self.floor) * torch.sigmoid(self.kappa * z)

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> Tensor:
        mu, basis = self.mu.to(rows.device), self.basis.to(rows.device)
        frame = torch.cat([mu[:, None], basis], 1)
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        wide = precise(rows)
        coordinates = (rows @ frame).to(wide) / norms.to(wide)
        c0, c = coordinates[:, :1], coordinates[:, 1:]
        m = (basis.to(wide).T @ mu.to(wide))[None]

        c0 = c0.clamp(-1, 1)
        sin_theta = (1 - c0 * c0).sqrt()
        theta = torch.atan2(sin_theta, c0)
        f = torch.where(sin_theta > 1e-6, theta / sin_theta, 1)
        b = f * (c - c0 * m)
        b2 = (b * b).sum(1, keepdim=True)
        n = (theta * theta - b2).clamp(min=0).sqrt()
        s = torch.sinc(n / torch.pi)
        along = s * f
        towards_mu = n.cos() - along * c0
        length = (1 - 2 * n.cos() * s * (b * m).sum(1, keepdim=True)).clamp(min=0).sqrt()

        gate = self.gate(b2.sqrt())
        beta = alpha * gate
        cos_omega = ((along + towards_mu * c0 - s * (b * c).sum(1, keepdim=True)) / length).clamp(-1, 1)
        sin_omega = (1 - cos_omega * cos_omega).sqrt()
        omega = torch.atan2(sin_omega, cos_omega)
        ratio = torch.where(sin_omega > 1e-6, (beta * omega).sin() / sin_omega, beta)
        scale = (beta * omega).cos() - ratio * cos_omega + ratio * along / length
        weights = norms * ratio / length * torch.cat([towards_mu, -s * b], 1)

        low, high = SAFE_NORMS
        odd = (c0 < SAFE_COSINE) | (cos_omega < SAFE_COSINE) | (length < SAFE_LENGTH)
        odd = (odd | ~((norms > low) & (norms < high))).squeeze(1)
        rescue = rows[odd] if odd.any() else None  # before `out`, which may be `rows`, is written
        torch.mul(rows, scale.float(), out=out).addmm_(weights.float(), frame.T)
        if rescue is not None:
            require_finite(rescue, len(rows))
            out[odd], gate[odd] = self.steer_literally(rescue, alpha[odd])
        return gate.squeeze(1).float()

    def steer_literally(self, rows: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """The equations as they stand, in float64: rows [N, D], alpha [N, 1] -> steered rows, gate [N, 1]."""
        wide = precise(rows)
        mu, basis = self.mu.to(rows.device, wide), self.basis.to(rows.device, wide)
        mu, h = mu / mu.norm(), rows.to(wide)
        norms = sphere.norm(h)
        direction = h / torch.where(norms > 0, norms, 1)
        t = sphere.log(mu, direction)
        protected = t @ basis
        target = sphere.normalize(sphere.exp(mu, t - protected @ basis.T))
        gate = self.gate(torch.linalg.vector_norm(protected, dim=1, keepdim=True))
        steered = norms * sphere.slerp(direction, target, (alpha * gate).squeeze(1))
        defined = (norms > 0) & (sphere.norm(direction + mu) > RESOLUTION)
        return torch.where(defined, steered, h).to(rows.dtype), gate


def precise(rows: Tensor) -> torch.dtype:
    """The dtype for scalars: float64 where the device has it (Apple's GPU does not)."""
    return torch.float32 if rows.device.type == "mps" else torch.float64
