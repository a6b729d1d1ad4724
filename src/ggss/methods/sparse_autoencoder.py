"""A small sparse autoencoder of tokens: BatchTopK (Bussmann et al. 2024), trained in seconds on discovery tokens.

    x = (h - centre) / scale          a = relu(E x + b)          z = a if among the top * B largest of a batch
    x^ = D^T z                        minimise mean |x - x^|^2 with Adam; rows of D are kept at length 1

The number of active features is `top` on average over a batch of B tokens. After training a feature is active where
it is above one threshold, the mean of the smallest activation that the last batches kept. So a feature of a token
can be computed alone: what a method needs of the autoencoder are the rows of its own features. Features that die
are not revived. The draw of tokens, the first weights and the batches come from one seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ggss.progress import track

TOKENS_OF_IMAGE = 64  # at most
NUMBERS = 2**26  # of all tokens in memory: 256 MB
LAST = 100  # batches whose thresholds are averaged


@dataclass(frozen=True)
class SparseAutoencoder:
    """encoder and decoder [F, D], bias [F], centre [D], scale and threshold; float32."""

    encoder: Tensor
    bias: Tensor
    decoder: Tensor
    centre: Tensor
    scale: float
    threshold: float

    def features(self, rows: Tensor) -> Tensor:
        """The activations [N, F] of rows [N, D]."""
        a = ((rows.float() - self.centre) / self.scale) @ self.encoder.T + self.bias
        return torch.where(a > self.threshold, a, 0)

    def decoded(self, features: Tensor) -> Tensor:
        """Rows [N, D] from features [N, F]."""
        return self.centre + self.scale * (features @ self.decoder)


def drawn(tokens: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Tokens of all images, some of each, [M, D] float32."""
    room = max(NUMBERS // (len(tokens) * tokens[0].shape[1]), 1)
    some = [own[torch.randperm(len(own), generator=generator)[: min(room, TOKENS_OF_IMAGE)]] for own in tokens]
    return torch.cat([own.float() for own in some])


def train(
    rows: Tensor, count: int, top: int, steps: int, batch: int, generator: torch.Generator
) -> SparseAutoencoder:
    """An autoencoder of rows [M, D] with `count` features, `top` of them active on average. The rows must differ."""
    centre = rows.double().mean(0).float()
    scale = float((rows - centre).double().square().sum(1).mean().sqrt())
    x = (rows - centre) / scale
    # Directions of tokens are better first features than random ones: few of them never fire.
    first = x[torch.randint(len(x), (count,), generator=generator)]
    first = first + 0.1 / x.shape[1] ** 0.5 * torch.randn(first.shape, generator=generator)
    decoder = (first / first.norm(dim=1, keepdim=True)).requires_grad_()
    encoder = decoder.detach().clone().requires_grad_()
    bias = torch.zeros(count, requires_grad=True)
    adam = torch.optim.Adam([encoder, bias, decoder], lr=2e-3)
    smallest: list[float] = []
    for _ in track(range(steps), "sparse autoencoder", steps):
        seen = x[torch.randint(len(x), (batch,), generator=generator)]
        with torch.enable_grad():
            a = torch.relu(seen @ encoder.T + bias)
            least = a.detach().flatten().topk(top * batch).values[-1]
            z = torch.where(a >= least, a, 0)
            loss = (seen - z @ decoder).square().sum(1).mean()
            adam.zero_grad()
            loss.backward()
        adam.step()
        with torch.no_grad():
            decoder /= decoder.norm(dim=1, keepdim=True)
        smallest.append(float(least))
    threshold = sum(smallest[-LAST:]) / len(smallest[-LAST:])
    return SparseAutoencoder(encoder.detach(), bias.detach(), decoder.detach(), centre, scale, threshold)
