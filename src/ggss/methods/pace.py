"""`pace`: part-aware counterfactual erasure, and its ablations. Beyond the paper.

    m[p, v]   mean token of part p shown with value v;   m[p] its mean over v;   n[p] tokens of part p per value
    c[p, v] = m[p, v] - m[p]                                     the contrasts: what the attribute does to part p
    S       = (1 - s) M + s (trace M / D) I,   M = mean of (h - mu) (h - mu)^T         how tokens vary anyway
    B       = S^-1/2 (sum over p, v of n[p] c c^T) S^-1/2        the attribute, in units of that variation
    U       = eigenvectors of the k largest eigenvalues of B
    W = S^-1/2 U,   V = S^1/2 U = S W          steered = h - alpha V W^T (h - mu)

The variants of an identity are aligned: token t of one shows what token t of another shows. So the means over people
of *parts* of pictures can be compared, not only those of whole pictures: hair, face and coat carry an attribute along
different directions, and there may be more of them than values - 1. Of all maps that remove a contrast, the oblique
projection moves tokens least, relative to how they vary (as in LEACE). Parts are not needed at inference.

**Norms** are not restored: the factor that restores a norm depends on what was removed, and so reveals it. On
held-out people of the discovery set it leaves more of the contrasts at the same movement (`pace-norm`, docs/pace.md).

**mu** is the mean of the pictures' mean tokens. Rows that are zero, or that the text model never gets, are no tokens
(`ggss.activations`).

**Parts** say which tokens of different people show the same thing: cells of a grid over the picture, positions, or
clusters of content (`ggss.activations.statistics`). A part counts by the evidence that it adds (`part_weights`): what
two tokens show in the same way is not counted twice. With `weights="tokens"` it counts by its tokens, n[p].

**k** counts eigenvalues above chance: the largest eigenvalue with labels permuted within contexts, 16 times, after
what the labels explain was taken out. A direction counts if its eigenvalue is above the mean + 4 standard deviations
of these; or above the mean + 2, if both halves of the people have it in three of four halvings (more than half of its
squared length is in the span of their first directions). One with less than a twentieth of the first eigenvalue does
not count. With labels that mean nothing no direction counts, and the steerer changes nothing. Of several attributes
each is tested separately, and the directions of all are removed. The notes say how many directions halves of the
people have.

**Labels** are compared with what they are in held-out people (`agreement_of_labels`). If few agree, there is a
warning. **Other people**: the notes say how much of the contrasts is probably left in people who were not in the fit,
with as many identities as there are and with half of them (`left_in_others`).

**s** is chosen by how well S predicts held-out tokens (their Gaussian log-likelihood), among `SHRINKAGES`. A
covariance of portraits predicts other portraits well without shrinkage. But pictures without people vary along other
directions. Where portraits hardly vary, detection is so sharp that other pictures are moved far. Held-out positions
stand for such pictures: tokens at even positions predict those at odd ones, and the reverse. With **neutral
pictures** (any, without labels) M is (1 - neutral_share) M of portraits + neutral_share M of neutral pictures, and
one half of the neutral pictures predicts the other.

Where tokens are few, `k`, `shrinkage` and `parts` can be set.

**An ordered attribute** (an age in years) has one contrast for each part instead of one for each value: the slope,
sum over v of e[v] m[p, v], where e are the numbers minus their mean, scaled to length 1.

**Unpaired pictures** have no group whose mean could say what a token shows, so parts are positions where all pictures
have the same number of tokens, and whole pictures elsewhere. The contrasts are those within strata
(`subspace.targets`): class means, or a slope, at a position. They are right whatever the positions show. Where
positions show the same thing in all pictures, as in faces that are cut out alike, they are as sharp as those of a
complete set; where they do not, they are those of whole pictures (docs/unpaired.md). Labels are permuted within
strata. S is of all tokens, moved so that labels are independent of strata.

**Memory.** Tokens are read once, or not kept at all (`collect(summarise=True)`): see `ggss.activations.statistics`.

**Ablations.** Each leaves one thing out, or adds one. Everything else is as in `pace`, the choice of k and of the
shrinkage included.

    pace-no-whitening   S = I: an orthogonal projection along the principal directions of the contrasts
    pace-pooled         all tokens are one part: A - 1 contrasts of whole pictures
    pace-within-parts   S from (h - m[p]) (h - m[p])^T: what parts differ in does not count as variation
    pace-orthogonal     detects along V, where it moves: V W^T replaced by the orthogonal projection onto span(V)
    pace-gated          GGSS's gate of |W^T (h - mu)|, calibrated on the tokens of the discovery pictures
    pace-norm           each token gets its norm back
    pace-slerp          a share alpha of the arc to the target of pace-norm; at alpha = 1 the same as pace-norm
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations, Groups
from ggss.activations.statistics import SAMPLE, Moments, PartsOption, TokenStatistics, gather, summed, whole_pictures
from ggss.activations.statistics import find_parts as find_parts
from ggss.errors import InputError
from ggss.methods.diagnostics import AGREEMENT_LIMIT, halvings, label_agreement
from ggss.methods.ggss import GateOptions, calibrated
from ggss.methods.operator import Identity, Operator
from ggss.methods.projection import Oblique
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import (
    Targets,
    oriented,
    permuted_within,
    targets,
    top_eigenvectors,
)

SEED = 42
PERMUTATIONS = 16
SHRINKAGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
MANY, FEW = 4.0, 2.0  # standard deviations above the mean largest eigenvalue with permuted labels: see k
STABLE = 0.75  # of the halvings
CARRIED = 0.05  # of the largest eigenvalue: a direction that carries less is not worth moving tokens for
BUNDLES = 16  # of people, of which halves are made
HALVINGS, JUDGED = 16, 4  # halves that directions are compared in, and those that labels are
MOST_DIRECTIONS = 64
DISPLACEMENT_IMAGES = 32  # whose tokens are steered to report how far they move
DEPENDENT = 0.05  # a second attribute's direction with less than this length outside the first's span is left out


@dataclass(frozen=True)
class Contrasts:
    """What each value does to each part, [P, m, D], times the square root of the part's number of tokens.

    null [PERMUTATIONS, P, m, D]: the same with permuted labels. bundles [G, P, m, D]: what each bundle of people
    contributes to observed. people [N]: the bundle of each image.
    """

    observed: Tensor
    null: Tensor
    bundles: Tensor
    people: Tensor


def contrasts_of(
    statistics: TokenStatistics, known: Targets, strata: Tensor, people: Tensor, paired: bool
) -> Contrasts:
    """The contrasts of an attribute. strata [N]: within which labels are permuted. people [N]: who is shown.

    Labels are permuted after what they explain was taken out (Freedman and Lane 1983): otherwise what a strong
    direction does would count as chance for a weak one.
    """
    z, (images, parts, width) = known.z, statistics.sums.shape
    rows, counts = statistics.sums, statistics.counts
    if not paired:  # pictures of different lengths count equally; versions of a person have the same length
        rows = rows * (counts.mean(0) / counts.clamp(min=1)).float()[:, :, None]
    rows = rows.flatten(1)
    generator = torch.Generator().manual_seed(SEED)
    permuted = torch.stack([permuted_within(strata, z, generator) for _ in range(PERMUTATIONS)])
    bundles = torch.randperm(int(people.max()) + 1, generator=generator)[people] % BUNDLES
    of_bundles = torch.stack([z * (bundles == number)[:, None] for number in range(int(bundles.max()) + 1)])
    weights = torch.cat([permuted, of_bundles]).transpose(1, 2)
    sums = (weights.flatten(0, 1).float() @ rows).unflatten(0, weights.shape[:2]).unflatten(2, (parts, width))
    null, by_bundle = sums.transpose(1, 2).split([PERMUTATIONS, len(of_bundles)])
    observed = torch.stack([z.T @ part.double() for part in rows.split(width, 1)])
    explained = permuted.transpose(1, 2) @ z @ torch.linalg.pinv(z.T @ z, hermitian=True)
    free = images - len(strata.unique())
    null = null - torch.einsum("rab,pbd->rpad", explained.float(), observed.float())
    null *= (free / max(free - known.directions, 1)) ** 0.5
    scale = (z.shape[1] / counts.sum(0).clamp(min=1)).sqrt()[:, None, None]
    return Contrasts(observed * scale, null * scale.float(), by_bundle * scale.float(), bundles)


def independent_moments(statistics: TokenStatistics, known: Sequence[Targets]) -> Moments:
    """The moments of unpaired tokens, moved until labels are independent of strata (`Targets.independent`)."""
    moments, counts = statistics.moments, statistics.counts
    means = statistics.sums.double() / counts.clamp(min=1)[:, :, None]
    steps = torch.cat([target.independent for target in known], 1)  # [N, m]
    slopes = torch.cat([target.slopes(torch.einsum("nm,npd->pmd", target.z, means)) for target in known], 1)
    folds, share = moments.folds.clone(), statistics.sampled
    for part, slope in enumerate(slopes):
        cross = slope.T @ (steps.T @ statistics.sums[:, part].double())
        moved = slope.T @ (steps.T @ (counts[:, part, None] * steps)) @ slope
        in_fold = statistics.fold_counts[part] / statistics.fold_counts[part].sum().clamp(min=1)
        folds += share * in_fold[:, None, None] * (cross + cross.T + moved)
    return replace(moments, folds=folds)


def within_parts(statistics: TokenStatistics) -> Moments:
    """The moments around each part's mean instead of mu; InputError if they are not those of all tokens."""
    if statistics.sampled < 1:
        raise InputError(
            f"moments around parts need all tokens, and {statistics.sampled:.0%} of these were taken (at most "
            f"{SAMPLE:,}): use fewer pictures, or the method pace"
        )
    means = statistics.sums.double().sum(0) / statistics.counts.sum(0).clamp(min=1)[:, None]
    folds = [means.T @ (in_fold[:, None] * means) for in_fold in statistics.fold_counts.T]
    return replace(statistics.moments, folds=statistics.moments.folds - statistics.sampled * torch.stack(folds))


class PaceOptions(Options):
    k: int | None = Field(
        None, ge=1, description="number of directions; by default those above what permuted labels give"
    )
    shrinkage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of the mean variance in the covariance; by default chosen on held-out tokens",
    )
    parts: PartsOption = Field(
        "auto", description="positions, or a number of clusters of content; auto: what the pictures allow"
    )
    weights: Literal["evidence", "tokens"] = Field(
        "evidence", description="parts count by the evidence that each adds, or by their number of tokens"
    )
    neutral_share: float = Field(0.5, ge=0, lt=1, description="weight of neutral pictures in the covariance")


@dataclass(frozen=True)
class Form:
    """What an ablation changes; the defaults are PACE."""

    whitened: bool = True
    oblique: bool = True
    parts: PartsOption | None = None
    around: str = "mu"
    finish: Callable[[Oblique, Activations, Any], Oblique] = lambda operator, activations, options: operator


PACE = Form()


@dataclass(frozen=True)
class Directions:
    """What was found for an attribute.

    detection: W [D, k] in units where W^T S W = I. eigenvalues: of B. chance: their threshold. stability: of the
    first directions, the share of halvings in which both halves of the people have them. in_halves: the fewest and
    the most directions above chance in halves of the people; None with fewer than four. left, agreement: see
    `left_in_others` and `agreement_of_labels`.
    """

    detection: Tensor
    eigenvalues: Tensor
    chance: float
    stability: list[float]
    in_halves: tuple[int, int] | None
    left: Mapping[int, float] | None = None
    agreement: float | None = None


def fit(
    activations: Activations, attribute: Attribute, options: PaceOptions, neutral: Activations | None = None
) -> Fitted:
    return fit_form(activations, attribute, options, neutral, PACE)


def fit_form(
    activations: Activations, attribute: Attribute, options: Any, neutral: Activations | None, form: Form
) -> Fitted:
    """PACE, or an ablation of it, fitted to one or several attributes at one site."""
    names, paired = (attribute,) if isinstance(attribute, str) else attribute, not activations.unpaired
    known = {name: targets(activations, name) for name in names}
    groups = {name: activations.groups(name) for name in names} if paired else {}
    statistics = gather(
        activations, options.parts if form.parts is None else form.parts, groups[names[0]] if paired else None
    )
    mu, width = statistics.mu, len(statistics.mu)
    moments = statistics.moments if form.around == "mu" else within_parts(statistics)
    if not paired:
        moments = independent_moments(statistics, list(known.values()))
    if not torch.isfinite(moments.mean).all():
        raise InputError(f"tokens of size {float(statistics.sums.abs().max()):.1e} overflow float32 when squared")
    if not float(moments.mean.trace()) > 1e-12 * float(mu @ mu):
        raise InputError("the tokens of all images are equal: there is nothing to learn from")
    neutral_statistics = None if neutral is None or not options.neutral_share else neutral_moments(neutral, mu)
    shrinkage, shrinkage_reason = chosen_shrinkage(moments, neutral_statistics, options)
    covariance = mixed(moments.mean, neutral_statistics and neutral_statistics.mean, options.neutral_share, shrinkage)
    if not form.whitened:
        covariance = torch.eye(width, dtype=torch.float64) * covariance.trace() / width
    numbers = {context: number for number, context in enumerate(dict.fromkeys(activations.contexts))}
    people = torch.tensor([numbers[context] for context in activations.contexts])
    by_attribute: dict[str, Directions] = {}
    for name, target in known.items():
        strata = groups[name].numbers if paired else target.strata
        shown = people if paired else torch.arange(len(activations))
        contrasts = contrasts_of(statistics, target, strata, shown, paired)
        whitened = WhitenedContrasts.of(contrasts, covariance, options.weights)
        result = directions(whitened, options.k)
        by_attribute[name] = replace(
            result,
            left=left_in_others(whitened, contrasts, int(shown.max()) + 1, result.detection.shape[1]),
            agreement=agreement_of_labels(whitened, contrasts, statistics, target, groups[name])
            if paired and name not in activations.ordered
            else None,
        )
    detection = union([result.detection for result in by_attribute.values()], covariance)
    operator: Operator = Identity(width)
    if detection.shape[1]:
        movement = covariance @ detection
        if not form.oblique:
            detection = movement = torch.linalg.qr(movement)[0]
        operator = Oblique(mu.float(), detection.float().contiguous(), movement.float().contiguous())
        operator = form.finish(operator, activations, options)
    eigenvalues = {f"eigenvalues_{name}": result.eigenvalues.float() for name, result in by_attribute.items()}
    diagnostics = {
        "k": detection.shape[1],
        "parts": statistics.parts,
        "shrinkage": shrinkage,
        **displacements(operator, activations, neutral),
        "label_agreement": {name: result.agreement for name, result in by_attribute.items()},
        "left_in_others": {
            name: {str(people): share for people, share in (result.left or {}).items()}
            for name, result in by_attribute.items()
        },
        "notes": _notes(by_attribute, statistics, options, shrinkage_reason),
        "warnings": _warnings(by_attribute),
    }
    return Fitted(operator, eigenvalues, diagnostics)


def neutral_moments(neutral: Activations, mu: Tensor) -> Moments:
    """Second moments around mu of pictures without people; every second picture is in the other fold."""
    statistics = neutral.statistics
    if statistics is None:
        empty = TokenStatistics(len(neutral), len(mu), 1, by_picture=True)
        statistics = summed(neutral, whole_pictures(neutral), empty)
    return statistics.moments.around(mu)


def mixed(portraits: Tensor, neutral: Tensor | None, share: float, shrinkage: float) -> Tensor:
    """S [D, D]: the second moment of portraits and neutral pictures, shrunk towards its mean variance."""
    both = portraits if neutral is None else (1 - share) * portraits + share * neutral
    width = len(both)
    return (1 - shrinkage) * both + shrinkage * both.trace() / width * torch.eye(width, dtype=both.dtype)


def chosen_shrinkage(moments: Moments, neutral: Moments | None, options: PaceOptions) -> tuple[float, str]:
    """The shrinkage with the largest likelihood of held-out tokens, and how it was chosen, for the notes."""
    if options.shrinkage is not None:
        return options.shrinkage, "as asked"
    held_out = moments if neutral is None else neutral
    if not held_out.counts.min() > 0:
        return SHRINKAGES[-2], "there are too few tokens to choose it by"
    reason = (
        "half of the positions predict the others"
        if neutral is None
        else "half of the neutral pictures predict the others"
    )
    losses = torch.zeros(len(SHRINKAGES), dtype=torch.float64)
    for fold in (0, 1):
        base = (
            moments.fold(fold)
            if neutral is None
            else mixed(moments.mean, neutral.fold(fold), options.neutral_share, 0)
        )
        losses += _negative_log_likelihoods(base, held_out.fold(1 - fold))
    return SHRINKAGES[int(losses.argmin())], reason


def _negative_log_likelihoods(base: Tensor, moment: Tensor) -> Tensor:
    """-2 log-likelihood per token, up to a constant, of tokens with this second moment, by shrinkage of the base."""
    values, vectors = torch.linalg.eigh(base)
    along = ((moment @ vectors) * vectors).sum(0)
    losses = []
    for shrinkage in SHRINKAGES:
        variances = (1 - shrinkage) * values.clamp(min=0) + shrinkage * values.clamp(min=0).mean()
        losses.append(variances.log().sum() + (along / variances).sum())
    return torch.stack(losses)


@dataclass(frozen=True)
class WhitenedContrasts:
    """The contrasts of an attribute, weighted, in units where S = L L^T is I.

    observed [P, m, D], bundles [G, P, m, D], weights [P] of the parts; factor: L. chance: the largest eigenvalues
    with permuted labels.
    """

    observed: Tensor
    bundles: Tensor
    weights: Tensor
    factor: Tensor
    chance: Tensor

    @classmethod
    def of(cls, contrasts: Contrasts, covariance: Tensor, weights: str) -> "WhitenedContrasts":
        factor = torch.linalg.cholesky(covariance)
        null = _whitened(factor, contrasts.null)
        weight = part_weights(null) if weights == "evidence" else null.new_ones(null.shape[1])
        root = weight.sqrt()[:, None, None]
        tops = torch.stack([largest_eigenvectors(permuted * root, 1)[0][0] for permuted in null])
        observed, bundles = (_whitened(factor, c) * root for c in (contrasts.observed, contrasts.bundles))
        return cls(observed, bundles, weight, factor, tops)

    def above(self, many: float) -> float:
        """The largest eigenvalue by chance: mean and `many` standard deviations."""
        return max(float(self.chance.mean() + many * self.chance.std()), 1e-12)

    def eigenvectors(self, bundles: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The largest eigenvalues of B and their vectors, of all people or of these bundles of them."""
        contrasts = self.observed
        if bundles is not None:
            contrasts = self.bundles[bundles].sum(0) * (len(self.bundles) / len(bundles)) ** 0.5
        return largest_eigenvectors(contrasts, min(MOST_DIRECTIONS, len(self.factor) - 1))

    def detection(self, vectors: Tensor) -> Tensor:
        """W = L^-T U."""
        return torch.linalg.solve_triangular(self.factor.T, vectors, upper=True)


def part_weights(null: Tensor) -> Tensor:
    """How much each part counts, from contrasts of permuted labels [R, P, m, D]: 1 on average.

        r[p, q] = the correlation of what chance does to parts p and q        weight[p] = 1 / sum over q of r[p, q]^2

    What two tokens show in the same way is no evidence twice: a part that is there twice counts half each time.
    """
    rows = null.transpose(0, 1).flatten(1)
    energy = rows.square().sum(1)
    correlation = rows @ rows.T / (energy[:, None] * energy).sqrt().clamp(min=1e-30)
    weights = torch.where(energy > 0, 1 / correlation.square().sum(1).clamp(min=1e-30), 0)
    return weights * len(weights) / weights.sum() if energy.any() else torch.ones_like(weights)


def directions(whitened: WhitenedContrasts, k: int | None) -> Directions:
    """W of the largest eigenvalues of B: k of them, or those that count.

    With S = L L^T, B has the eigenvalues of L^-1 C^T C L^-T, and W = L^-T of its eigenvectors.
    """
    values, vectors = whitened.eigenvectors()
    strict, loose = whitened.above(MANY), whitened.above(FEW)
    carried = values > CARRIED * values[0]
    candidates = max(int((carried & (values > loose)).sum()), k or 1)
    both = [[whitened.eigenvectors(half) for half in halves] for halves in halvings(len(whitened.bundles), HALVINGS)]
    shared = [
        torch.stack([(half[:, :candidates].T @ vectors[:, :candidates]).square().sum(0) for _, half in halves]).amin(
            0
        )
        for halves in both
    ]
    stability = values.new_zeros(len(values))
    if shared:
        stability[:candidates] = (torch.stack(shared) > 0.5).double().mean(0)
    counts = carried & ((values > strict) | ((values > loose) & (stability >= STABLE)))
    if k is not None:
        if k > int((values > 1e-9 * max(float(values[0]), 1e-9)).sum()):
            raise InputError(f"k = {k} directions were asked for, but the contrasts of the parts span fewer")
        counts = torch.arange(len(values)) < k
    in_halves = [_above(half_values, strict) for halves in both for half_values, _ in halves]
    detection = whitened.detection(vectors[:, counts])
    return Directions(
        oriented(detection) if counts.any() else detection,
        values,
        strict,
        stability[:candidates].tolist(),
        (min(in_halves), max(in_halves)) if in_halves else None,
    )


def _above(values: Tensor, chance: float) -> int:
    """How many eigenvalues are above chance, and not small beside the first."""
    return int((values > max(chance, CARRIED * float(values[0]))).sum())


def left_in_others(whitened: WhitenedContrasts, contrasts: Contrasts, people: int, k: int) -> dict[int, float] | None:
    """The share of the contrasts that is left in people who were not in the fit, by their number; None if unknown.

    Of halves of the people, one is fitted, and the other judged: <R c1, R c2> / <c1, c2> for the contrasts of its own
    two halves, which has no share of noise. The same with a quarter, and from both by 1 / people what all leave. All
    with k directions.
    """
    count = len(whitened.bundles)
    if count < BUNDLES:
        return None
    energy = torch.zeros(3, dtype=torch.float64)
    for fitted, judged in halvings(count, HALVINGS):
        first, second = (
            contrasts.bundles[half].sum(0).flatten(0, 1).double() for half in (judged[::2], judged[1::2])
        )
        rests = [energy.new_tensor(float((first * second).sum()))]
        for bundles in (fitted, fitted[: count // 4]):
            vectors = whitened.eigenvectors(bundles)[1][:, :k]
            detection, movement = whitened.detection(vectors), whitened.factor @ vectors
            rests.append(
                ((first - first @ detection @ movement.T) * (second - second @ detection @ movement.T)).sum()
            )
        energy += torch.stack(rests)
    if not float(energy[0]) > 0:
        return None
    half, quarter = (energy[1:] / energy[0]).clamp(0, 1).tolist()
    everybody = max(half - max(quarter - half, 0) / 2, 0)
    return {people: everybody**0.5, people // 2: half**0.5, people // 4: quarter**0.5}


def agreement_of_labels(
    whitened: WhitenedContrasts, contrasts: Contrasts, statistics: TokenStatistics, known: Targets, groups: Groups
) -> float | None:
    """How many versions of people are most like what their label is in other people; None with fewer than four."""
    shares = []
    for fitted, _ in halvings(len(whitened.bundles), HALVINGS)[:JUDGED]:
        values, vectors = whitened.eigenvectors(fitted)
        detection = whitened.detection(vectors[:, : max(_above(values, whitened.above(MANY)), 1)])
        by_column = (contrasts.bundles[fitted].sum(0).double() @ detection) * whitened.weights[:, None, None]
        patterns = torch.einsum("am,pmk->apk", known.coded[groups.index[0]], by_column)
        held_out = groups.index[~torch.isin(contrasts.people[groups.index[:, 0]], fitted)]
        coordinates = (statistics.sums[held_out.flatten()] @ detection.float()).unflatten(0, held_out.shape)
        shares.append(label_agreement(coordinates.flatten(2).double(), patterns.flatten(1)))
    return sum(shares) / len(shares) if shares else None


def _whitened(factor: Tensor, contrasts: Tensor) -> Tensor:
    """Contrasts [.., D] in units where S = I: L^-1 c."""
    columns = contrasts.reshape(-1, contrasts.shape[-1]).double().T
    return torch.linalg.solve_triangular(factor, columns, upper=False).T.reshape(contrasts.shape)


def largest_eigenvectors(contrasts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest eigenvalues of the sum of c c^T over contrasts [.., D], and their vectors [D, count]."""
    columns = contrasts.flatten(0, -2).T
    width, m = columns.shape
    if min(width, m) > 2 * count + 20 and min(width, m) > 256:
        gram = columns @ columns.T if width <= m else columns.T @ columns
        values, vectors = top_eigenvectors(gram, count)
        if width > m:
            vectors = columns @ vectors / values.clamp(min=1e-300).sqrt()
        return values, vectors
    left, singular, _ = torch.linalg.svd(columns, full_matrices=False)
    return singular[:count] ** 2, left[:, :count]


def union(bases: list[Tensor], covariance: Tensor) -> Tensor:
    """W [D, k] with W^T S W = I that spans all bases [D, k_i]; a direction already in the span is left out."""
    union_basis = bases[0]
    for basis in bases[1:]:
        rest = basis - union_basis @ (union_basis.T @ (covariance @ basis))
        gram = rest.T @ covariance @ rest
        squared_lengths, rotation = torch.linalg.eigh(gram)
        new = squared_lengths > DEPENDENT**2
        union_basis = torch.cat([union_basis, rest @ rotation[:, new] / squared_lengths[new].sqrt()], 1)
    return union_basis


def displacements(operator: Operator, activations: Activations, neutral: Activations | None) -> dict[str, float]:
    """The mean movement of tokens at alpha 1 as a share of their length, of portraits and of neutral pictures."""
    sources = {"displacement": activations} | ({} if neutral is None else {"neutral_displacement": neutral})
    means = {}
    for name, source in sources.items():
        total, count = 0.0, 0
        images = torch.linspace(0, len(source) - 1, min(DISPLACEMENT_IMAGES, len(source))).round().long()
        tokens = some_tokens(source)
        for image in images.tolist():
            rows = tokens[image].float()
            steered = torch.empty_like(rows)
            operator(rows, torch.ones(len(rows), 1), None, steered)
            lengths = rows.norm(dim=1)
            shown = lengths > 0  # a zero row has no length to move by
            total += float(((steered - rows).norm(dim=1) / lengths)[shown].sum())
            count += int(shown.sum())
        means[name] = total / max(count, 1)
    return means


def some_tokens(activations: Activations) -> Sequence[Tensor]:
    """The tokens of each image, or those that were kept with the statistics."""
    statistics = activations.statistics
    return activations.tokens if statistics is None or statistics.kept is None else statistics.kept


def _notes(
    by_attribute: dict[str, Directions], statistics: TokenStatistics, options: PaceOptions, shrinkage_reason: str
) -> list[str]:
    """The choices of a fit, a sentence each."""
    notes = [f"Parts are {statistics.why}.", f"The shrinkage of the covariance: {shrinkage_reason}."]
    if statistics.sampled < 1:
        notes.append(f"The covariance is that of {statistics.sampled:.0%} of the tokens, drawn at random.")
    for name, result in by_attribute.items():
        count = result.detection.shape[1]
        reason = "as asked" if options.k is not None else f"above {result.chance:.3g}, what permuted labels give"
        largest = ", ".join(f"{value:.3g}" for value in result.eigenvalues[: count + 1].tolist())
        notes.append(f"{name}: {count} directions, {reason}; eigenvalues {largest}.")
        if result.in_halves is not None:
            fewest, most = result.in_halves
            shares = ", ".join(f"{share:.0%}" for share in result.stability[: max(count, 1)])
            notes.append(
                f"{name}: halves of the people have {fewest} to {most} directions above that threshold; both halves "
                f"have the directions in {shares} of {HALVINGS} halvings."
            )
        if result.left is not None:
            (people, left), (fewer, more_left), _ = result.left.items()
            notes.append(
                f"{name}: with {people} identities, about {left:.0%} of the contrasts is left in other people; with "
                f"{fewer}, {more_left:.0%}."
            )
        if result.agreement is not None:
            notes.append(
                f"{name}: {result.agreement:.0%} of the pictures are most like what their label is in other people."
            )
    return notes


def _warnings(by_attribute: dict[str, Directions]) -> list[str]:
    texts = []
    for name, result in by_attribute.items():
        if not result.detection.shape[1]:
            texts.append(
                f"Nothing is removed for {name!r}: no direction is above what permuted labels give "
                f"(largest eigenvalue {float(result.eigenvalues[0]):.3g}, chance {result.chance:.3g})."
            )
        if result.agreement is not None and result.agreement < AGREEMENT_LIMIT:
            texts.append(
                f"The labels of {name!r} may be wrong, or hardly show: {result.agreement:.0%} of the pictures are "
                "most like what their label is in other people. Look at the labels."
            )
    return texts


register(
    Method(
        name="pace",
        summary="part-aware counterfactual erasure: oblique removal of what the attribute does to each part",
        reference="this library; after Belrose et al. 2023, LEACE: Perfect Linear Concept Erasure in Closed Form",
        fit=fit,
        options=PaceOptions,
        needs_tokens=True,
        takes_statistics=True,
        takes_neutral=True,
        takes_unpaired=True,
    )
)


class PaceGatedOptions(GateOptions, PaceOptions):
    pass


def _gated(operator: Oblique, activations: Activations, options: Any) -> Oblique:
    """The operator with a gate, calibrated on the magnitudes |W^T (h - mu)| of all tokens but zero ones."""
    mu, detection = operator.mu.double(), operator.detection.double()
    magnitudes = [((rows.double() - mu) @ detection).norm(dim=1) for rows in some_tokens(activations)]
    return replace(operator, **calibrated(torch.cat(magnitudes), options))


def _along_arc(operator: Oblique, activations: Activations, options: Any) -> Oblique:
    return replace(operator, arc=True)


def _norm_restored(operator: Oblique, activations: Activations, options: Any) -> Oblique:
    return replace(operator, restored=True)


def _register_ablation(name: str, summary: str, form: Form, options: type[Options] = PaceOptions) -> None:
    def fit(
        activations: Activations, attribute: Attribute, options: Any, neutral: Activations | None = None
    ) -> Fitted:
        return fit_form(activations, attribute, options, neutral, form)

    reference = "this library; an ablation of pace"
    register(
        Method(
            name,
            summary,
            reference,
            fit,
            options,
            needs_tokens=True,
            takes_statistics=form.parts is None,
            takes_neutral=True,
            takes_unpaired=form.around == "mu",  # the mean of the only part is no part's mean
        )
    )


_register_ablation("pace-no-whitening", "PACE without whitening by how tokens vary", Form(whitened=False))
_register_ablation("pace-pooled", "PACE with whole pictures instead of parts", Form(parts=1))
_register_ablation(
    "pace-within-parts", "PACE with the covariance around each part's mean instead of mu", Form(around="parts")
)
_register_ablation("pace-orthogonal", "PACE with an orthogonal projection along its movement", Form(oblique=False))
_register_ablation("pace-gated", "PACE with GGSS's gate", Form(finish=_gated), PaceGatedOptions)
_register_ablation("pace-norm", "PACE with each token's norm restored", Form(finish=_norm_restored))
_register_ablation("pace-slerp", "PACE along the arc instead of the straight line", Form(finish=_along_arc))
