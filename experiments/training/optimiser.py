"""Muon: momentum whose steps on matrices are made orthogonal, so that every direction learns at the same pace.

Reference: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024). With AdamW these models
stayed at chance on whatever needs two steps (find the cell, then read its shape); with Muon they learn it.
`torch.optim.Muon` works in bfloat16, which some virtual machines claim to support and then refuse; matrices this
small cost nothing in float32.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)  # moves all singular values towards one in five rounds


def orthogonal(matrix: Tensor, rounds: int = 5) -> Tensor:
    """U V^T of the matrix U S V^T, roughly: singular values come out between 0.7 and 1.2."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = _QUINTIC
    for _ in range(rounds):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """For the hidden matrices of a network; give embeddings, heads and vectors to AdamW."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for weights in group["params"]:
                if weights.grad is None:
                    continue
                state = self.state[weights]
                if not state:
                    state["momentum"] = torch.zeros_like(weights)
                state["momentum"].lerp_(weights.grad, 1 - group["momentum"])
                ahead = weights.grad.lerp(state["momentum"], group["momentum"])
                rows, columns = weights.shape
                weights.mul_(1 - group["lr"] * group["weight_decay"])
                weights.add_(orthogonal(ahead), alpha=-group["lr"] * max(1, rows / columns) ** 0.5)
