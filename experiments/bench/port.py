"""The peer: a straight eager port of the paper's equations to torch, a line per equation."""

import torch
from torch import Tensor

EPS, EPS_GEO, CLAMP = 1e-10, 1e-8, 1e-7


def normalize(x: Tensor) -> Tensor:
    return x / (x.norm(dim=-1, keepdim=True) + EPS)


def angle(p: Tensor, q: Tensor) -> Tensor:
    return torch.arccos((p * q).sum(-1, keepdim=True).clamp(-1 + CLAMP, 1 - CLAMP))


def log(p: Tensor, q: Tensor) -> Tensor:
    theta = angle(p, q)
    across = q - (p * q).sum(-1, keepdim=True) * p
    t = theta * across / (across.norm(dim=-1, keepdim=True) + EPS)
    return torch.where(theta < EPS_GEO, torch.zeros_like(t), t)


def exp(p: Tensor, t: Tensor) -> Tensor:
    length = t.norm(dim=-1, keepdim=True)
    q = torch.cos(length) * p + torch.sin(length) * t / (length + EPS)
    return torch.where(length < EPS_GEO, p.expand_as(q), q)


def slerp(p: Tensor, q: Tensor, beta: Tensor) -> Tensor:
    theta = angle(p, q)
    along = torch.sin((1 - beta) * theta) / torch.sin(theta) * p + torch.sin(beta * theta) / torch.sin(theta) * q
    return torch.where(theta < EPS_GEO, p, along)


def steer(rows: Tensor, mu: Tensor, basis: Tensor, median: float, std: float, alpha: float) -> Tensor:
    h = rows.float()
    r = h.norm(dim=-1, keepdim=True)
    direction = normalize(h)
    t = log(mu, direction)
    protected = (t @ basis) @ basis.T
    target = normalize(exp(mu, t - protected))
    z = (protected.norm(dim=-1, keepdim=True) - median) / (std + EPS)
    gate = 0.3 + 0.7 * torch.sigmoid(5.0 * z)
    return (r * slerp(direction, target, alpha * gate)).to(rows.dtype)
