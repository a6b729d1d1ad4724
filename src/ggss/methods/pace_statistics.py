"""What PACE needs to know of the tokens, gathered in one pass; nothing of it grows with the number of images.

    sums [P, A, D]        of the tokens of part p shown with value v, and with permuted labels `PERMUTATIONS` times
    moments [2, D, D]     second moments around mu of the tokens at even and at odd positions

At D = 4096 the moments are 2 x 134 MB. The sums are 18 x P A D numbers of float32: 24 MB for 16 parts of 5 values,
378 MB for 256 positions. Neutral pictures take two more D x D matrices. Labels are permuted within contexts: each
group's variants change places, so that what is left of a contrast is what chance makes of the same pictures.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ggss.activations import Activations, Groups
from ggss.methods.aligned import POSITIONS, aligned_blocks
from ggss.methods.pace_parts import Parts
from ggss.progress import track

PERMUTATIONS = 16
SEED = 42


@dataclass(frozen=True)
class Contrasts:
    """c [P, A, D], what each value does to each part, times the root of the part's number of tokens.

    null [PERMUTATIONS, P, A, D]: the same with labels permuted within contexts.
    """

    own: Tensor
    null: Tensor


@dataclass(frozen=True)
class Moments:
    """Second moments [2, D, D] around mu, for two folds of tokens, and the number of tokens in each."""

    folds: Tensor
    counts: Tensor

    @property
    def mean(self) -> Tensor:
        return self.folds.sum(0) / self.counts.sum()

    def fold(self, number: int) -> Tensor:
        return self.folds[number] / self.counts[number]


def gather(activations: Activations, groups: Groups, parts: Parts, around: str = "mu") -> tuple[Contrasts, Moments]:
    """Contrasts and moments of the tokens of all groups. around: moments around "mu", or around each part's mean."""
    values, width = len(groups.values), len(parts.mu)
    generator = torch.Generator().manual_seed(SEED)
    # A part has two cells: its tokens at even and at odd positions.
    sums = torch.zeros(parts.count, 2, values, width, dtype=torch.float64)
    tokens = torch.zeros(parts.count, 2, dtype=torch.float64)
    null = torch.zeros(PERMUTATIONS, parts.count, values, width)
    folds = torch.zeros(2, width, width, dtype=torch.float64)
    orders: list[Tensor] = []
    last = -1
    for number, start, block in aligned_blocks(activations, groups, "contrasts of tokens"):
        if number != last:
            orders = [torch.randperm(values, generator=generator) for _ in range(PERMUTATIONS)]
            last = number
        part, centred = parts.of(start, block), block - parts.mu
        odd = torch.arange(start, start + len(block)) % 2
        sums.view(-1, values, width).index_add_(0, 2 * part + odd, centred)
        tokens.view(-1).index_add_(0, 2 * part + odd, torch.ones(len(block), dtype=torch.float64))
        narrow = centred.float()
        for drawn, order in zip(null, orders, strict=True):
            drawn.index_add_(0, part, narrow[:, order])
        for fold in (0, 1):
            rows = narrow[odd == fold].reshape(-1, width)
            folds[fold] += rows.T @ rows
    if around == "parts":
        means = sums.sum((1, 2)) / (values * tokens.sum(1)).clamp(min=1)[:, None]
        for fold in (0, 1):
            own, count = sums[:, fold].sum(1), (values * tokens[:, fold])[:, None]
            folds[fold] += means.T @ (count * means) - own.T @ means - means.T @ own
    per_part = tokens.sum(1)
    weights = torch.where(per_part > 0, per_part, 1).rsqrt()[:, None, None]
    own = _around_their_mean(sums.sum(1)) * weights
    chance = _around_their_mean(null) * weights.float()
    return Contrasts(own, chance), Moments(folds, values * tokens.sum(0))


def neutral_moments(neutral: Activations, mu: Tensor) -> Moments:
    """Second moments around mu of pictures without people; the folds are every second picture."""
    width = len(mu)
    folds, counts = torch.zeros(2, width, width, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for number, tokens in enumerate(track(neutral.tokens, "neutral pictures", len(neutral))):
        for start in range(0, len(tokens), POSITIONS):
            rows = (tokens[start : start + POSITIONS].double() - mu).float()
            folds[number % 2] += rows.T @ rows
        counts[number % 2] += len(tokens)
    return Moments(folds, counts)


def _around_their_mean(sums: Tensor) -> Tensor:
    """Sums [.., A, D] of equally many tokens, around their mean over the values."""
    return sums - sums.mean(-2, keepdim=True)
