"""Checks of a subspace before it is removed from a model, and a probe of what steering leaves in tokens.

**The subspace** has three checks.

- *Effective rank* of the representatives: (sum of eigenvalues)^2 / sum of squares of the covariance of the
  contexts' centres. If the tokens of a model vary in few dimensions, removing one of them does more harm.
- *Variance share*: the part of that covariance inside the subspace. The centres contain no shifts, so this is
  content other than the attribute that is removed with it.
- *Transfer*: a subspace is found on half of the contexts and compared with the mean shift of each value in the other
  half: the share of its energy inside, averaged over random halvings. The rest would stay in people not seen.

The cosines of the principal angles between the two halves' subspaces are reported too, but without a warning: the
last directions of a large subspace have little energy and differ between any two halves, while the subspace as a
whole transfers well.

**The tokens** are measured by a linear probe and by how far steering moved them. A probe on mean tokens misleads:
parts of a picture carry an attribute along different directions, and where these cancel in the mean the language
model still reads them. This probe reads the tokens side by side:

    x_i = tokens of image i at S positions, spread evenly over the image, one after the other     [S D]
    w   = ridge regression of the one-hot labels on x; the largest of the outputs is the answer

    displacement = mean over tokens of |h' - h| / |h|

It is cross-validated: fitted on three quarters of the contexts and tested on the others, four times, so that it is
tested on people it was not fitted on. The penalty is a hundredth of the mean energy of a training row. It works on
inner products of images, so the width of a model costs one product and no inversion. Where images differ in size,
positions are only roughly the same part of a picture, and the probe reads less.

**The matching** of unpaired pictures is measured on the labels alone: how well the columns that pictures are matched
by predict the attribute, and how well the other columns still do, within strata.

    share = 1 - (sum of |z - its cell's mean|^2 / (N - cells)) / (sum of |z - its stratum's mean|^2 / (N - strata))

z is the label, one-hot or a number; a cell is what agrees in the stratum and in the column. The share is that of the
label's variance which the column explains, adjusted for the number of its values, so that it is about 0 by chance
(Kelley's epsilon squared). Its chance level is the largest of 100 shares with labels permuted within strata. A column
of many numbers is taken in ten groups of equal size.

**What they predict** was measured over models and methods (docs/dial.md). Variance share predicts the capability
lost. The probe of all tokens predicts what is left in other people, surely where tokens are planted and probably in
models; a probe of mean tokens does not. Transfer detects too few, wrongly labelled or unlike pictures, not a
confound. Effective rank is a property of the model, the same for all methods: it says how much room there is, not
which method to take.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations, Groups
from ggss.data.counterfactuals import MOST_NUMBERS
from ggss.data.pictures import as_number
from ggss.errors import InputError
from ggss.methods.registry import Attribute
from ggss.methods.subspace import Targets, permuted_within, stratum_means

SHARE_LIMIT = 0.20  # of the variance share: above it there is a warning
TRANSFER_LIMIT = 0.80  # below it there is a warning
AGREEMENT_LIMIT = 0.78  # of the labels: below it there is a warning
HALVINGS = 5
POSITIONS = 16  # tokens of an image that are probed
FOLDS = 4
PENALTY = 0.01  # of the probe, in units of the mean energy of a training row
SEED = 42
CONFOUNDED = 0.02  # of a label's variance that other columns explain: above it, and above chance, there is a warning
COMPARED_LIMIT = 0.5  # of the pictures: if fewer are in strata with several values, there is a warning
PERMUTATIONS = 100  # of labels, for the chance level of what columns explain
FREEDOM = 10  # pictures more than cells: with fewer nothing is said of a column


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
    """Compare the bases that `find` gives on two halves of a table [U, A, D] of shifts.

    identity [U]: the number of the identity that each context shows; all contexts of an identity stay in one half.
    The result is empty if there are fewer than four identities, or if the shifts of a half are too few for `find`.
    """
    identities = identity.unique()
    unknown = Halves([], None)
    if len(identities) < 4:
        return unknown
    generator = torch.Generator().manual_seed(SEED)
    cosines, transfers = [], []
    for _ in range(HALVINGS):
        order = identities[torch.randperm(len(identities), generator=generator)]
        first = torch.isin(identity, order[: len(identities) // 2])
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
    number_of: dict[Hashable, int] = {}
    identity = torch.tensor([number_of.setdefault(contexts[i], len(number_of)) for i in groups.index[:, 0].tolist()])
    halves = split_half(table, identity, find)
    results: dict[str, Any] = {
        "effective_rank": effective_rank(deviations),
        "variance_share": variance_share(deviations, basis),
        "chance_share": k / points.shape[1],
        "split_half_cosines": halves.cosines,
        "transfer": halves.transfer,
    }
    results["warnings"] = _warnings(results, k)
    return results


def _warnings(results: dict[str, Any], k: int) -> list[str]:
    texts = []
    if results["variance_share"] > SHARE_LIMIT:
        texts.append(
            f"Removal is likely to cost capability: {results['variance_share']:.0%} of the variance that is not the "
            f"attribute's lies inside the {k}-dimensional subspace (chance: {results['chance_share']:.1%}; effective "
            f"rank of the representatives: {results['effective_rank']:.1f})."
        )
    if results["transfer"] is None:
        texts.append(
            f"Transfer is unknown: there are fewer than four identities, or half of them do not span {k} directions."
        )
    elif results["transfer"] < TRANSFER_LIMIT:
        texts.append(
            f"The subspace does not transfer: found on half of the contexts, it holds {results['transfer']:.0%} of "
            "what the attribute changes on average in the other half; use more contexts, a larger k, or a "
            "label-aware method."
        )
    return texts


def halvings(bundles: int, count: int) -> list[tuple[Tensor, Tensor]]:
    """Random halves of so many bundles of people, `count` times; none if there are fewer than four."""
    generator = torch.Generator().manual_seed(SEED)
    orders = [torch.randperm(bundles, generator=generator) for _ in range(count if bundles >= 4 else 0)]
    return [(order[: bundles // 2], order[bundles // 2 :]) for order in orders]


def label_agreement(coordinates: Tensor, patterns: Tensor) -> float:
    """The share of versions of people [U, A, F] that are most like the pattern of their label, [A, F].

    Both are compared relative to their means over the labels. With labels that mean nothing it is 1 / A.
    """
    relative = coordinates - coordinates.mean(1, keepdim=True)
    likeness = relative @ (patterns - patterns.mean(0)).T
    return float((likeness.argmax(2) == torch.arange(len(patterns))).double().mean())


@dataclass(frozen=True)
class TokenProbe:
    """The probe's accuracy before and after steering; chance: that of always guessing the commonest value."""

    before: float
    after: float
    chance: float
    displacement: float


def positions(count: int, number: int = POSITIONS) -> Tensor:
    """`number` positions spread evenly over `count` tokens, each in the middle of an equal part."""
    return ((torch.arange(number) + 0.5) * count / number).long()


def folds(contexts: Sequence[Hashable], count: int = FOLDS, seed: int = SEED) -> Tensor:
    """The fold [N] of each image; all images of a context are in the same one."""
    numbers = {context: k for k, context in enumerate(dict.fromkeys(contexts))}
    order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(seed))
    return order[torch.tensor([numbers[context] for context in contexts])] % count


def probe_accuracy(rows: Tensor, labels: Tensor, fold: Tensor, test_rows: Tensor | None = None) -> float:
    """The cross-validated accuracy of a ridge probe of labels [N] from rows [N, F]. fold [N].

    test_rows [N, F]: what the probe is tested on instead of the rows that it is fitted to, such as the same rows
    steered: a probe that learned before steering.
    """
    rows = rows.double()
    test_rows = rows if test_rows is None else test_rows.double()
    gram, cross = rows @ rows.T, test_rows @ rows.T
    one_hot = torch.nn.functional.one_hot(labels).double()
    right = torch.zeros(len(labels), dtype=torch.bool)
    for held_out in fold.unique():
        train, test = fold != held_out, fold == held_out
        right[test] = _ridge_labels(gram[train][:, train], cross[test][:, train], one_hot[train]) == labels[test]
    return float(right.double().mean())


def _ridge_labels(gram: Tensor, cross: Tensor, one_hot: Tensor) -> Tensor:
    """The labels [m] by ridge regression, from inner products.

    gram [n, n]: of training rows. cross [m, n]: of test rows with them. one_hot [n, A]: training labels.
    """
    mean = gram.mean(0)
    centred = gram - mean - mean[:, None] + mean.mean()
    centred_cross = cross - mean - cross.mean(1, keepdim=True) + mean.mean()
    penalty = PENALTY * centred.diagonal().mean() + 1e-12
    shares = one_hot.mean(0)
    weights = torch.linalg.solve(centred + penalty * torch.eye(len(gram), dtype=gram.dtype), one_hot - shares)
    return (centred_cross @ weights + shares).argmax(1)


def probe_tokens(
    tokens: Sequence[Tensor],
    labels: Sequence[Hashable],
    contexts: Sequence[Hashable],
    steer: Callable[[Tensor], Tensor],
    needs_all_tokens: bool = False,
) -> TokenProbe | None:
    """The probe on each image's tokens [T, D], unsteered and steered; None if there are fewer contexts than folds.

    needs_all_tokens: `steer` gets all tokens of an image, not only those that are probed.
    """
    if len(set(contexts)) < FOLDS:
        return None
    values = {value: k for k, value in enumerate(sorted(set(labels), key=str))}
    before: list[Tensor] = []
    after: list[Tensor] = []
    displacements: list[Tensor] = []
    for image_tokens in tokens:
        probed = positions(len(image_tokens))
        rows = image_tokens[probed].float()
        steered = (steer(image_tokens)[probed] if needs_all_tokens else steer(image_tokens[probed])).float()
        lengths = torch.linalg.vector_norm(rows, dim=1).clamp(min=1e-12)
        before.append(rows.flatten())
        after.append(steered.flatten())
        displacements.append(torch.linalg.vector_norm(steered - rows, dim=1) / lengths)
    indices = torch.tensor([values[label] for label in labels])
    fold = folds(contexts)
    return TokenProbe(
        before=probe_accuracy(torch.stack(before), indices, fold),
        after=probe_accuracy(torch.stack(after), indices, fold),
        chance=float(indices.bincount().max() / len(indices)),
        displacement=float(torch.cat(displacements).mean()),
    )


@dataclass(frozen=True)
class Predicted:
    """The share of a label's variance that a column explains, and the largest share with permuted labels."""

    share: float
    chance: float

    @property
    def confounded(self) -> bool:
        return self.share > max(CONFOUNDED, self.chance)

    def __str__(self) -> str:
        return f"{max(self.share, 0):.0%}, by chance at most {max(self.chance, 0):.0%}"


@dataclass(frozen=True)
class Matching:
    """How unpaired pictures were compared.

    compared: the pictures in strata with several values. predicted: the label, by all columns that are matched by;
    None if strata are too small. by_column: by each of them alone. left: by each other column, within strata.
    """

    matched_by: list[str]
    images: int
    compared: int
    strata: int
    compared_strata: int
    predicted: Predicted | None
    by_column: dict[str, Predicted]
    left: dict[str, Predicted]
    warnings: list[str]


def matching(activations: Activations, attribute: str, known: Targets, together: Attribute) -> Matching:
    """How the pictures of an attribute were compared, and what that leaves. together: all attributes that are fitted.

    Columns of contexts are known where a context is a tuple of (column, value) pairs, as in a set of pictures.
    """
    everybody = torch.zeros_like(known.strata)
    mixed = torch.zeros(int(known.strata.max()) + 1).index_add_(0, known.strata, known.z.abs().sum(1).float()) > 1e-6
    inside = mixed[known.strata]
    columns = _context_columns(activations.contexts)
    names = (together,) if isinstance(together, str) else together
    others = [name for name in activations.attributes[0] if name not in {*names, attribute}]
    by_column = {name: explained(known.coded, _groups(labels), everybody) for name, labels in columns.items()}
    left = {
        name: explained(known.coded[inside], _groups(list(activations.labels(name)))[inside], known.strata[inside])
        for name in others
    }
    result = Matching(
        matched_by=list(columns),
        images=len(inside),
        compared=int(inside.sum()),
        strata=len(mixed),
        compared_strata=int(mixed.sum()),
        predicted=explained(known.coded, known.strata, everybody),
        by_column={name: share for name, share in by_column.items() if share},
        left={name: share for name, share in left.items() if share},
        warnings=[],
    )
    return replace(result, warnings=_matching_warnings(attribute, result))


def explained(coded: Tensor, groups: Tensor, strata: Tensor) -> Predicted | None:
    """The share of the variance within strata [N] of labels [N, m] that groups [N] explain.

    None if there are too many groups for the number of images, or if labels do not vary within strata.
    """
    cells = torch.stack([strata, groups]).unique(dim=1, return_inverse=True)[1]
    strata = strata.unique(return_inverse=True)[1]
    free, free_of_cells = (len(coded) - int(numbers.max()) - 1 for numbers in (strata, cells))
    z = coded - stratum_means(coded, strata)
    energy = float((z**2).sum())
    if free_of_cells < FREEDOM or not energy > 1e-9 * len(coded):
        return None

    def share(rows: Tensor) -> float:
        return 1 - float(((rows - stratum_means(rows, cells)) ** 2).sum()) / free_of_cells / (energy / free)

    generator = torch.Generator().manual_seed(SEED)
    return Predicted(share(z), max(share(permuted_within(strata, z, generator)) for _ in range(PERMUTATIONS)))


def _context_columns(contexts: Sequence[Hashable]) -> dict[str, list[Hashable]]:
    """The columns of contexts that are (column, value) pairs; none for any other contexts."""
    columns: dict[str, list[Hashable]] = {}
    for context in contexts:
        if not isinstance(context, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in context):
            return {}
        for column, value in context:
            columns.setdefault(str(column), []).append(value)
    return {column: values for column, values in columns.items() if len(values) == len(contexts)}


def _groups(labels: Sequence[Hashable]) -> Tensor:
    """The number [N] of each label's group: its value, or of many numbers ten groups of equal size."""
    numbers = [as_number(str(label)) for label in labels]
    distinct = list(dict.fromkeys(labels))
    if len(distinct) <= MOST_NUMBERS or None in numbers:
        number_of = {label: number for number, label in enumerate(distinct)}
        return torch.tensor([number_of[label] for label in labels])
    column = torch.tensor(numbers, dtype=torch.float64)
    tenths = column.quantile(torch.linspace(0, 1, 11, dtype=torch.float64)[1:-1])
    return torch.searchsorted(tenths, column)


def _matching_warnings(attribute: str, result: Matching) -> list[str]:
    texts = []
    pictures = f"{result.compared} of {result.images} pictures"
    strata = f"{result.compared_strata} of {result.strata} strata"
    if result.predicted and result.predicted.confounded:
        strongest = max(result.by_column.items(), key=lambda item: item[1].share, default=None)
        most = f", most of all {strongest[0]} ({max(strongest[1].share, 0):.0%})" if strongest else ""
        texts.append(
            f"Confounded: what pictures are matched by explains {result.predicted} of {attribute}{most}. Only those "
            f"that agree in it are compared: {pictures} in {strata}. What else goes with {attribute} and is no "
            "column is removed with it."
        )
    for column, share in result.left.items():
        if share.confounded:
            texts.append(
                f"Confounded after matching: {column} explains {share} of {attribute} among pictures that agree in "
                f"what they are matched by, and is removed with {attribute}. Match by {column}, too."
            )
    if result.compared < COMPARED_LIMIT * result.images:
        texts.append(
            f"Few pictures are compared: {pictures} are in the {strata} that have several values of {attribute}. "
            "Match by fewer columns, or by wider groups."
        )
    return texts
