"""Three checks of a subspace before it is removed from a model.

- **Effective rank** of the representatives: (sum of eigenvalues)^2 / sum of squares of the covariance of the
  contexts' centres. If the tokens of a model vary in few dimensions, removing one of them does more harm.
- **Variance share**: the part of that covariance inside the subspace. The centres contain no shifts, so this is
  content other than the attribute that is removed with it.
- **Transfer**: a subspace found on half of the contexts is put to the mean shift of each value in the other half; the
  share of its energy inside, averaged over random halvings. What is outside would stay in people not seen.

The cosines of the principal angles between the two halves' subspaces are reported too, but without a warning:
the last directions of a large subspace have little energy and differ between any two halves, while the subspace as a
whole transfers well. What is left in *tokens* is measured by the token probe below.

What they are good for was measured over models and methods (docs/dial.md). Variance share tells the capability lost.
A probe of all tokens tells what is left in other people, surely where tokens are planted and probably in models; a
probe of mean tokens does not. Transfer tells too few, wrongly labelled or unlike pictures, not a confound. Effective
rank is of the model, the same for all methods: it says how much room there is, not which method to take.

What can still be read from all tokens of an image, and how far steering moved them.

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
from typing import Any

import torch
from torch import Tensor

from ggss import sphere
from ggss.activations import Groups
from ggss.errors import InputError

SHARE_LIMIT = 0.20
TRANSFER_LIMIT = 0.80
HALVINGS = 5
SEED = 42


def effective_rank(deviations: Tensor) -> float:
    """The participation ratio of the covariance of rows [N, D] of deviations from their mean."""
    energy = torch.linalg.svdvals(deviations) ** 2
    total = energy.sum()
    return float(total**2 / (energy**2).sum()) if total > 0 else 0.0


def variance_share(deviations: Tensor, basis: Tensor) -> float:
    """The part of the variance of rows [N, D] inside an orthonormal basis [D, k]."""
    total = (deviations**2).sum()
    return float(((deviations @ basis) ** 2).sum() / total) if total > 0 else 0.0


def principal_cosines(a: Tensor, b: Tensor) -> Tensor:
    """The cosines of the principal angles between two orthonormal bases [D, k], largest first."""
    return torch.linalg.svdvals(a.T @ b).clamp(max=1)


@dataclass(frozen=True)
class Halves:
    """Means over halvings: the principal cosines of the two subspaces, and the transfer from half to half."""

    cosines: list[float]
    transfer: float | None


def split_half(table: Tensor, identity: Tensor, find: Callable[[Tensor], Tensor]) -> Halves:
    """Bases found on two halves of a table [U, A, D] of shifts, compared with one another and with the other half.

    identity [U] is the number of each context's source; all contexts of a source stay in one half. Nothing is known
    if there are fewer than four sources, or if the shifts of a half are too few for `find`.
    """
    sources = identity.unique()
    unknown = Halves([], None)
    if len(sources) < 4:
        return unknown
    generator = torch.Generator().manual_seed(SEED)
    cosines, transfers = [], []
    for _ in range(HALVINGS):
        drawn = sources[torch.randperm(len(sources), generator=generator)]
        first = torch.isin(identity, drawn[: len(sources) // 2])
        halves = (table[first], table[~first])
        try:
            bases = [find(half) for half in halves]
        except InputError:
            return unknown
        cosines.append(principal_cosines(*bases))
        transfers += [variance_share(half.mean(0), basis) for half, basis in zip(halves, bases[::-1], strict=True)]
    return Halves(torch.stack(cosines).mean(0).tolist(), sum(transfers) / len(transfers))


def diagnose(
    points: Tensor,
    contexts: Sequence[Hashable],
    mu: Tensor,
    groups: Groups,
    table: Tensor,
    basis: Tensor,
    find: Callable[[Tensor], Tensor],
) -> dict[str, Any]:
    """All three checks for representatives [N, D] with their shifts [U, A, D], and a warning for each that fails.

    contexts [N]: the identity that each picture shows. An identity may have several rows in the table of groups:
    where race is varied, one for its men and one for its women.
    """
    centres = sphere.log(mu, sphere.frechet_mean(groups.of(points)))
    deviations = centres - centres.mean(0)
    k = basis.shape[1]
    numbers: dict[Hashable, int] = {}
    identity = torch.tensor([numbers.setdefault(contexts[i], len(numbers)) for i in groups.index[:, 0].tolist()])
    halves = split_half(table, identity, find)
    found: dict[str, Any] = {
        "effective_rank": effective_rank(deviations),
        "variance_share": variance_share(deviations, basis),
        "chance_share": k / points.shape[1],
        "split_half_cosines": halves.cosines,
        "transfer": halves.transfer,
    }
    found["warnings"] = warnings(found, k)
    return found


def warnings(found: dict[str, Any], k: int) -> list[str]:
    said = []
    if found["variance_share"] > SHARE_LIMIT:
        said.append(
            f"Removal is likely to cost capability: {found['variance_share']:.0%} of the variance that is not the "
            f"attribute's lies inside the {k}-dimensional subspace (chance: {found['chance_share']:.1%}; effective "
            f"rank of the representatives: {found['effective_rank']:.1f})."
        )
    if found["transfer"] is None:
        said.append(
            f"Transfer is unknown: there are fewer than four identities, or half of them do not span {k} directions."
        )
    elif found["transfer"] < TRANSFER_LIMIT:
        said.append(
            f"The subspace does not transfer: found on half of the contexts, it holds {found['transfer']:.0%} of "
            "what the attribute changes on average in the other half; use more contexts, a larger k, or a "
            "label-aware method."
        )
    return said


POSITIONS = 16
FOLDS = 4
PENALTY = 0.01
PROBE_SEED = 42


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


def folds(contexts: Sequence[Hashable], count: int = FOLDS, seed: int = PROBE_SEED) -> Tensor:
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
