"""PACE's parts: which tokens of different people show the same thing.

    positions     token t of every image, if all images have one number of tokens
    clusters      content: spherical k-means on each group's mean token at a position, as seen from mu

The mean is over the variants of a group, so all of them agree on the part of a position. Clusters are found on at
most `SAMPLE` of these means, drawn with a fixed seed.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ggss.activations import Activations, Groups
from ggss.errors import InputError
from ggss.methods.aligned import aligned_blocks

Wanted = Literal["auto", "positions"] | int

CLUSTERS = 16
SAMPLE = 20_000
ROUNDS = 25
SEED = 42
MOST_BYTES = 2**30  # the part sums of positions may take, those of permuted labels included


@dataclass(frozen=True)
class Parts:
    """`count` parts; with centres [count, D] those of content, without them the positions. why: a sentence."""

    count: int
    why: str
    mu: Tensor
    centres: Tensor | None = None

    def of(self, start: int, block: Tensor) -> Tensor:
        """The part [positions] of each position of a block [positions, values, D] that begins at `start`."""
        if self.centres is None:
            return torch.arange(start, start + len(block))
        return (_directions(block.mean(1) - self.mu) @ self.centres.T).argmax(1)


def find_parts(activations: Activations, groups: Groups, wanted: Wanted, mu: Tensor, copies: int) -> Parts:
    """The parts of the tokens. copies: how many sums of all parts and values, in float32, will be kept."""
    counts = {len(activations.tokens[image]) for image in range(len(activations))} if wanted != 1 else set()
    if wanted == 1:
        return Parts(1, "all tokens are one part, as asked", mu, torch.zeros(1, len(mu), dtype=torch.float64))
    size = max(counts) * len(groups.values) * len(mu) * 4 * copies
    if wanted == "positions" and len(counts) > 1:
        raise InputError(
            f"parts='positions' needs images of one number of tokens, these have {min(counts)} to {max(counts)}; "
            "use parts='auto' or a number of content clusters"
        )
    if wanted == "positions" or (wanted == "auto" and len(counts) == 1 and size <= MOST_BYTES):
        asked = ", as asked" if wanted == "positions" else ": all images have that many tokens"
        return Parts(max(counts), f"the {max(counts)} positions of a picture{asked}", mu)
    clusters = CLUSTERS if wanted == "auto" else wanted
    if wanted != "auto":
        why = "as asked"
    elif len(counts) > 1:
        why = f"images have {min(counts)} to {max(counts)} tokens"
    else:
        why = f"the sums of {max(counts)} positions would take {size / 2**30:.1f} GiB"
    return Parts(clusters, f"{clusters} clusters of content: {why}", mu, _clusters(activations, groups, clusters, mu))


def _clusters(activations: Activations, groups: Groups, count: int, mu: Tensor) -> Tensor:
    """Centres [count, D] of unit length, by spherical k-means from randomly drawn rows."""
    generator = torch.Generator().manual_seed(SEED)
    each = max(SAMPLE // len(groups.contexts), 1)
    drawn = []
    for _, _, block in aligned_blocks(activations, groups, "parts of tokens"):
        means = block.mean(1) - mu
        drawn.append(means[torch.randperm(len(means), generator=generator)[:each]])
    rows = _directions(torch.cat(drawn))
    distinct = rows.unique(dim=0)
    if len(distinct) < count:
        raise InputError(f"{count} parts were asked for, but there are {len(distinct)} different tokens")
    centres = distinct[torch.randperm(len(distinct), generator=generator)[:count]]
    for _ in range(ROUNDS):
        nearest = (rows @ centres.T).argmax(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, rows)
        moved = torch.where(sums.norm(dim=1, keepdim=True) > 0, _directions(sums), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def _directions(rows: Tensor) -> Tensor:
    lengths = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(lengths > 0, lengths, 1)
