"""The unit sphere: normalize, distance, log, exp, slerp and the Fréchet mean (section 3, appendix A.1).

Points are the last axis of a float32 or float64 tensor and should be of unit length; leading axes broadcast.
The paper's conventions are kept where they decide a result: a vector is divided by its norm + 1e-10, and a
geodesic distance or a tangent vector shorter than 1e-8 counts as zero. Its clamp of the cosine to
[-1 + 1e-7, 1 - 1e-7] is not: it exists to keep arccos finite, but every angle below 4.5e-4 is lost. Angles here
come from atan2 of half-chords, which is accurate from 0 to pi. Nothing returns NaN for finite input.
"""

import torch
from torch import Tensor

EPS = 1e-10
EPS_GEO = 1e-8


def norm(x: Tensor) -> Tensor:
    """Euclidean length over the last axis, kept as an axis; neither overflows nor underflows."""
    scale = x.abs().amax(-1, keepdim=True)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    length = torch.linalg.vector_norm(x / scale, dim=-1, keepdim=True) * scale
    return length.clamp(max=torch.finfo(x.dtype).max)  # the norm of a finite vector may be larger than that


def normalize(x: Tensor) -> Tensor:
    """x / (|x| + 1e-10), the paper's Normalize. The zero vector stays zero.

    Args:
        x: vectors [..., D], float32 or float64.

    Returns:
        Vectors of unit length, of the same shape.

    Examples:
        >>> ggss.sphere.normalize(torch.tensor([3.0, 4.0]))
        tensor([0.6000, 0.8000])
    """
    peak = x.abs().amax(-1, keepdim=True)
    # Only a vector whose square would overflow is scaled first: Normalize is not scale-free below 1e-10.
    scale = torch.where(peak > 1, peak, torch.ones_like(peak))
    x = x / scale
    return x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + EPS / scale)


def _angle(p: Tensor, q: Tensor) -> Tensor:
    """The angle between unit vectors, kept as an axis: 2 atan2(|p - q|, |p + q|)."""
    difference = torch.linalg.vector_norm(p - q, dim=-1, keepdim=True)
    total = torch.linalg.vector_norm(p + q, dim=-1, keepdim=True)
    return 2 * torch.atan2(difference, total)


def distance(p: Tensor, q: Tensor) -> Tensor:
    """The geodesic distance d(p, q) in [0, pi]: the angle between two unit vectors.

    Args:
        p: unit vectors [..., D].
        q: unit vectors that broadcast against p.

    Returns:
        Angles, without the last axis.

    Examples:
        >>> north, east = torch.eye(3)[0], torch.eye(3)[1]
        >>> round(float(ggss.sphere.distance(north, east)), 4)  # a right angle
        1.5708
    """
    return _angle(p, q).squeeze(-1)


def log(p: Tensor, q: Tensor) -> Tensor:
    """log_p(q): the tangent vector at p that points to q and has their distance as its length.

    Zero when the distance is below 1e-8. At the antipode the direction is not defined; zero is returned, as
    by the paper's formula, which divides a component of nearly zero by its norm + epsilon.

    Args:
        p: unit vectors [..., D].
        q: unit vectors that broadcast against p.

    Returns:
        Tangent vectors at p, of the shape of p and q together.

    Examples:
        >>> north, east = torch.eye(2)
        >>> ggss.sphere.log(north, east)
        tensor([0.0000, 1.5708])
    """
    # The component of q orthogonal to p, from the chord: q - <p,q> p loses all digits when q is close to p.
    chord = q - p
    across = chord - (p * chord).sum(-1, keepdim=True) * p
    length = torch.linalg.vector_norm(across, dim=-1, keepdim=True)
    angle = _angle(p, q)
    defined = (angle >= EPS_GEO) & (length >= EPS_GEO)
    return torch.where(defined, across * (angle / torch.where(defined, length, 1)), 0)


def exp(p: Tensor, t: Tensor) -> Tensor:
    """exp_p(t): the point reached from p along t. p itself when |t| is below 1e-8.

    The result has unit length only if t is tangent at p; callers whose t is not must normalize it.

    Args:
        p: unit vectors [..., D].
        t: tangent vectors at p, that broadcast against it.

    Returns:
        Points of the sphere.

    Examples:
        >>> p, q = ggss.sphere.normalize(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
        >>> torch.allclose(ggss.sphere.exp(p, ggss.sphere.log(p, q)), q)  # exp undoes log
        True
    """
    length = norm(t)
    moved = length >= EPS_GEO
    safe = torch.where(moved, length, 1)
    return torch.where(moved, torch.cos(length) * p + torch.sin(length) * (t / safe), p)


def slerp(p: Tensor, q: Tensor, beta: float | Tensor) -> Tensor:
    """The point at the share beta of the arc from p to q; beta > 1 is beyond q, beta < 0 on the other side of p.

    Equal points give p, and so do antipodal ones, which have no unique shortest arc.

    Args:
        p: unit vectors [..., D], where the arc begins.
        q: unit vectors, where it ends.
        beta: a number, or a tensor that broadcasts against p without its last axis.

    Returns:
        Points of the sphere.

    Examples:
        >>> north, east = torch.eye(2)
        >>> ggss.sphere.slerp(north, east, 0.5)  # half way
        tensor([0.7071, 0.7071])
    """
    beta = torch.as_tensor(beta, dtype=p.dtype, device=p.device)
    return exp(p, log(p, q) * beta.unsqueeze(-1))


def frechet_mean(points: Tensor, tolerance: float = 1e-7, iterations: int = 100) -> Tensor:
    """The Karcher mean over the last axis but one: [..., n, D] -> [..., D], for many groups at once.

    Starts from the normalized Euclidean mean and repeats eta <- Normalize(exp_eta(mean of log_eta(points)))
    until the mean tangent is shorter than the tolerance, group by group, or for `iterations` rounds.

    Args:
        points: unit vectors [..., n, D]; each group of n has a mean of its own.
        tolerance: a shorter mean tangent ends the iteration.
        iterations: the largest number of rounds.

    Returns:
        One point for each group, [..., D].

    Examples:
        >>> ggss.sphere.frechet_mean(torch.eye(3))  # as far from each of the three axes
        tensor([0.5774, 0.5774, 0.5774])
    """
    eta = normalize(points.mean(-2))
    # Points that cancel out have no Euclidean mean to start from: start from one of them.
    eta = torch.where(norm(eta) < 0.5, points[..., 0, :], eta)
    for _ in range(iterations):
        tangent = log(eta.unsqueeze(-2), points).mean(-2)
        moving = norm(tangent) >= tolerance
        if not moving.any():
            break
        eta = torch.where(moving, normalize(exp(eta, tangent)), eta)
    return eta
