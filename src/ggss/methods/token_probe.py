"""What can still be read from all tokens of an image, and how far steering moved them.

A probe on mean tokens misleads: parts of a picture carry an attribute along different directions, and where these
cancel in the mean the language model still reads them. Here a linear probe sees the tokens side by side:

    x_i = tokens of image i at S positions, spread evenly over the image, one after the other     [S D]
    w   = ridge regression of the one-hot labels on x; the largest of the outputs is the answer

It is fitted on three quarters of the contexts and asked about the others, four times over; so it is about people whom
it has never seen. The penalty is a hundredth of the mean energy of a training row. It works on inner products of
images, so the width of a model costs one product and no inversion.

    displacement = mean over tokens of |h' - h| / |h|

Where images differ in size, positions are only roughly the same part of a picture, and the probe reads less.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

POSITIONS = 16
FOLDS = 4
PENALTY = 0.01
SEED = 42


@dataclass(frozen=True)
class TokensRead:
    """Shares of images whose attribute is named right, before and after steering; chance is that of guessing."""

    before: float
    after: float
    chance: float
    displacement: float


def positions(count: int, wanted: int = POSITIONS) -> Tensor:
    """`wanted` positions spread evenly over `count` tokens; each is the middle of its part of the row."""
    return ((torch.arange(wanted) + 0.5) * count / wanted).long()


def folds(contexts: Sequence[Hashable], count: int = FOLDS, seed: int = SEED) -> Tensor:
    """[N]: the fold of each image; all images of a context are in one."""
    numbers = {context: k for k, context in enumerate(dict.fromkeys(contexts))}
    drawn = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(seed))
    return drawn[torch.tensor([numbers[context] for context in contexts])] % count


def read_share(rows: Tensor, labels: Tensor, fold: Tensor, shown: Tensor | None = None) -> float:
    """The share of rows [N, F] whose label [N] a ridge probe fitted on the other folds names right.

    shown: what the probe is asked about instead of the rows themselves, such as the same rows steered: a reader that
    learned before steering and is not told of it.
    """
    rows = rows.double()
    asked = rows if shown is None else shown.double()
    own, cross = rows @ rows.T, asked @ rows.T
    wanted = torch.nn.functional.one_hot(labels).double()
    right = torch.zeros(len(labels), dtype=torch.bool)
    for held in fold.unique():
        train, test = fold != held, fold == held
        right[test] = _answers(own[train][:, train], cross[test][:, train], wanted[train]) == labels[test]
    return float(right.double().mean())


def _answers(own: Tensor, cross: Tensor, wanted: Tensor) -> Tensor:
    """Ridge regression by inner products: of training rows [n, n], and of the rows asked about with them [m, n]."""
    mean = own.mean(0)
    centred = own - mean - mean[:, None] + mean.mean()
    asked = cross - mean - cross.mean(1, keepdim=True) + mean.mean()
    penalty = PENALTY * centred.diagonal().mean() + 1e-12
    shares = wanted.mean(0)
    weights = torch.linalg.solve(centred + penalty * torch.eye(len(own), dtype=own.dtype), wanted - shares)
    return (asked @ weights + shares).argmax(1)


def read_tokens(
    tokens: Sequence[Tensor],
    labels: Sequence[Hashable],
    contexts: Sequence[Hashable],
    steer: Callable[[Tensor], Tensor],
    whole: bool = False,
) -> TokensRead | None:
    """The probe on each image's tokens [T, D], as they are and as `steer` leaves them.

    whole: `steer` must be given all tokens of an image, not only those that are probed. None if there are fewer
    contexts than folds, or images of no common width of tokens.
    """
    if len(set(contexts)) < FOLDS:
        return None
    values = {value: k for k, value in enumerate(sorted(set(labels), key=str))}
    before: list[Tensor] = []
    after: list[Tensor] = []
    moved: list[Tensor] = []
    for own in tokens:
        chosen = positions(len(own))
        rows = own[chosen].float()
        steered = (steer(own)[chosen] if whole else steer(own[chosen])).float()
        lengths = torch.linalg.vector_norm(rows, dim=1).clamp(min=1e-12)
        before.append(rows.flatten())
        after.append(steered.flatten())
        moved.append(torch.linalg.vector_norm(steered - rows, dim=1) / lengths)
    wanted = torch.tensor([values[label] for label in labels])
    fold = folds(contexts)
    return TokensRead(
        before=read_share(torch.stack(before), wanted, fold),
        after=read_share(torch.stack(after), wanted, fold),
        chance=float(wanted.bincount().max() / len(wanted)),
        displacement=float(torch.cat(moved).mean()),
    )
