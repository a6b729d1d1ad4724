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

**mu** is the mean of the pictures' mean tokens.

**Parts** say which tokens of different people show the same thing. They are positions (token t of every image) where
all images have the same number of tokens, else clusters of content: spherical k-means on each group's mean token at a
position, relative to mu. The mean is over the variants of a group, so all of them have the same part at a position.
Clusters are fitted to at most `SAMPLE` of these means, drawn with a fixed seed.

**k** counts the eigenvalues above chance: mean + 4 standard deviations of the largest eigenvalue with labels permuted
within contexts, 16 times (the variants of each group change places). With labels that mean nothing no eigenvalue is
above it, and the steerer changes nothing. Of several attributes each is tested separately, and the directions of all
are removed.

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

**Memory.** The statistics are collected in one pass over the tokens, and do not grow with the number of images:

    sums [P, A, D]        of the tokens of part p shown with value v, and with permuted labels `PERMUTATIONS` times
    moments [2, D, D]     second moments around mu of the tokens at even and at odd positions

At D = 4096 the moments are 2 x 134 MB. The sums are 18 x P A D numbers of float32: 24 MB for 16 parts of 5 values,
378 MB for 256 positions. Neutral pictures take two more D x D matrices.

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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations, Groups
from ggss.errors import InputError
from ggss.methods.ggss import GateOptions, calibrated
from ggss.methods.operator import Identity, Operator
from ggss.methods.projection import Oblique
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import (
    POSITIONS,
    Targets,
    aligned_blocks,
    oriented,
    permuted_within,
    targets,
    top_eigenvectors,
)
from ggss.terminal import track

PartsOption = Literal["auto", "positions"] | int

CLUSTERS = 16  # of content, where parts are not positions
SAMPLE = 20_000  # mean tokens that clusters are fitted to
ROUNDS = 25  # of k-means
SEED = 42
MOST_BYTES = 2**30  # what the sums of positions may take, those with permuted labels included
PERMUTATIONS = 16
SHRINKAGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
TOGETHER = 8  # unpaired images that are read at once
MANY = 4.0  # standard deviations above the mean largest eigenvalue with permuted labels: the threshold of chance
MOST_DIRECTIONS = 64
DISPLACEMENT_IMAGES = 32  # whose tokens are steered to report how far they move
DEPENDENT = 0.05  # a second attribute's direction with less than this length outside the first's span is left out


@dataclass(frozen=True)
class Parts:
    """`count` parts: clusters of content with centres [count, D], or positions without. why: for the fit's notes."""

    count: int
    why: str
    mu: Tensor
    centres: Tensor | None = None

    def of(self, start: int, block: Tensor) -> Tensor:
        """The part [positions] of each position of a block [positions, values, D] that begins at `start`."""
        if self.centres is None:
            return torch.arange(start, start + len(block))
        return (_unit_rows(block.mean(1) - self.mu) @ self.centres.T).argmax(1)


def find_parts(activations: Activations, groups: Groups, option: PartsOption, mu: Tensor, copies: int) -> Parts:
    """The parts of the tokens. copies: how many sums [P, A, D] in float32 the caller will hold."""
    counts = {len(activations.tokens[image]) for image in range(len(activations))} if option != 1 else set()
    if option == 1:
        return Parts(1, "all tokens are one part, as asked", mu, torch.zeros(1, len(mu), dtype=torch.float64))
    size = max(counts) * len(groups.values) * len(mu) * 4 * copies
    if option == "positions" and len(counts) > 1:
        raise _unequal(counts)
    if option == "positions" or (option == "auto" and len(counts) == 1 and size <= MOST_BYTES):
        reason = ", as asked" if option == "positions" else ": all images have that many tokens"
        return Parts(max(counts), f"the {max(counts)} positions of a picture{reason}", mu)
    clusters = CLUSTERS if option == "auto" else option
    if option != "auto":
        why = "as asked"
    elif len(counts) > 1:
        why = f"images have {min(counts)} to {max(counts)} tokens"
    else:
        why = f"the sums of {max(counts)} positions would take {size / 2**30:.1f} GiB"
    return Parts(clusters, f"{clusters} clusters of content: {why}", mu, _clusters(activations, groups, clusters, mu))


def unpaired_parts(activations: Activations, option: PartsOption, columns: int, mu: Tensor) -> Parts:
    """The parts of unpaired pictures: positions, or whole pictures. columns: of the labels' targets.

    InputError if clusters of content were asked for.
    """
    whole = torch.zeros(1, len(mu), dtype=torch.float64)
    if option == 1:
        return Parts(1, "whole pictures, as asked", mu, whole)
    if option not in ("auto", "positions"):
        raise InputError(
            f"parts={option!r} are clusters of what the versions of a person show, and these pictures are unpaired: "
            "use 'auto', 'positions' or 1"
        )
    counts = {len(tokens) for tokens in activations.tokens}
    size = max(counts) * columns * len(mu) * 4 * (PERMUTATIONS + 2)
    if option == "positions" and len(counts) > 1:
        raise _unequal(counts)
    if option == "positions" or (len(counts) == 1 and size <= MOST_BYTES):
        return Parts(max(counts), f"the {max(counts)} positions of a picture: all images have that many tokens", mu)
    if len(counts) > 1:
        return Parts(1, f"whole pictures: these have {min(counts)} to {max(counts)} tokens", mu, whole)
    return Parts(1, f"whole pictures: the sums of positions would take {size / 2**30:.1f} GiB", mu, whole)


def _unequal(counts: set[int]) -> InputError:
    return InputError(
        f"parts='positions' needs images of one number of tokens, these have {min(counts)} to {max(counts)}; "
        "use parts='auto' or a number of content clusters"
    )


def _clusters(activations: Activations, groups: Groups, count: int, mu: Tensor) -> Tensor:
    """Centres [count, D] of unit length, by spherical k-means from randomly drawn rows."""
    generator = torch.Generator().manual_seed(SEED)
    per_group = max(SAMPLE // len(groups.contexts), 1)
    sample = []
    for _, _, block in aligned_blocks(activations, groups, "parts of tokens"):
        means = block.mean(1) - mu
        sample.append(means[torch.randperm(len(means), generator=generator)[:per_group]])
    rows = _unit_rows(torch.cat(sample))
    distinct = rows.unique(dim=0)
    if len(distinct) < count:
        raise InputError(f"{count} parts were asked for, but there are {len(distinct)} different tokens")
    centres = distinct[torch.randperm(len(distinct), generator=generator)[:count]]
    for _ in range(ROUNDS):
        nearest = (rows @ centres.T).argmax(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, rows)
        moved = torch.where(sums.norm(dim=1, keepdim=True) > 0, _unit_rows(sums), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def _unit_rows(rows: Tensor) -> Tensor:
    lengths = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(lengths > 0, lengths, 1)


@dataclass(frozen=True)
class Contrasts:
    """observed [P, A, D]: c, what each value does to each part, times the square root of the part's number of tokens.

    For an ordered attribute [P, 1, D]: the slope. null [PERMUTATIONS, ...]: the same with labels permuted within
    contexts.
    """

    observed: Tensor
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


def gather(
    activations: Activations, groups: Groups, parts: Parts, around: str = "mu", numbers: Tensor | None = None
) -> tuple[Contrasts, Moments]:
    """Contrasts and second moments of the tokens of all groups. around: "mu", or "parts" for each part's mean.

    numbers [A]: what the values of an ordered attribute are.
    """
    values, width = len(groups.values), len(parts.mu)
    generator = torch.Generator().manual_seed(SEED)
    # A part has two cells: its tokens at even and at odd positions.
    sums = torch.zeros(parts.count, 2, values, width, dtype=torch.float64)
    counts = torch.zeros(parts.count, 2, dtype=torch.float64)
    null = torch.zeros(PERMUTATIONS, parts.count, values, width)
    folds = torch.zeros(2, width, width, dtype=torch.float64)
    orders: list[Tensor] = []
    last_group = -1
    for group, start, block in aligned_blocks(activations, groups, "contrasts of tokens"):
        if group != last_group:
            orders = [torch.randperm(values, generator=generator) for _ in range(PERMUTATIONS)]
            last_group = group
        part, centred = parts.of(start, block), block - parts.mu
        odd = torch.arange(start, start + len(block)) % 2
        sums.view(-1, values, width).index_add_(0, 2 * part + odd, centred)
        counts.view(-1).index_add_(0, 2 * part + odd, torch.ones(len(block), dtype=torch.float64))
        centred_float32 = centred.float()
        for permuted_sums, order in zip(null, orders, strict=True):
            permuted_sums.index_add_(0, part, centred_float32[:, order])
        for fold in (0, 1):
            rows = centred_float32[odd == fold].reshape(-1, width)
            folds[fold] += rows.T @ rows
    if around == "parts":
        means = sums.sum((1, 2)) / (values * counts.sum(1)).clamp(min=1)[:, None]
        for fold in (0, 1):
            part_sums, part_counts = sums[:, fold].sum(1), (values * counts[:, fold])[:, None]
            folds[fold] += means.T @ (part_counts * means) - part_sums.T @ means - means.T @ part_sums
    per_part = counts.sum(1)
    weights = torch.where(per_part > 0, per_part, 1).rsqrt()[:, None, None]
    observed, chance = _contrasts(sums.sum(1), numbers) * weights, _contrasts(null, numbers) * weights.float()
    return Contrasts(observed, chance), Moments(folds, values * counts.sum(0))


def gather_unpaired(
    activations: Activations, known: Mapping[str, Targets], parts: Parts
) -> tuple[dict[str, Contrasts], Moments]:
    """The contrasts of each attribute, and the moments, of unpaired pictures. known: the targets by attribute.

    The tokens are read twice: the moments are those of tokens whose labels are independent of strata.
    """
    width, count = len(parts.mu), len(activations)
    generator = torch.Generator().manual_seed(SEED)
    nulls = {
        name: torch.stack([permuted_within(t.strata, t.z, generator) for _ in range(PERMUTATIONS)]).float()
        for name, t in known.items()
    }
    sums = {n: torch.zeros(t.z.shape[1], parts.count * width, dtype=torch.float64) for n, t in known.items()}
    null_sums = {n: torch.zeros(PERMUTATIONS, t.z.shape[1], parts.count * width) for n, t in known.items()}
    for images, rows in _part_rows(activations, parts):
        for name, target in known.items():
            sums[name] += target.z[images].T @ rows
            null_sums[name] += nulls[name][:, images].transpose(1, 2) @ rows.float()
    by_part = {name: sums[name].unflatten(1, (parts.count, width)).transpose(0, 1) for name in known}
    slopes = {name: target.slopes(by_part[name]) for name, target in known.items()}

    def centres(image: int) -> Tensor:
        moved = [target.independent[image] @ slopes[name] for name, target in known.items()]
        return parts.mu - torch.stack(moved).sum(0)

    moments = token_moments(activations, centres, width, "tokens of unpaired pictures", by_position=True)
    tokens = float(moments.counts.sum()) / count / parts.count
    contrasts = {}
    for name, target in known.items():
        # As many tokens for a contrast as a part has in the groups of a complete set.
        scale = (tokens * target.z.shape[1] / count) ** 0.5
        null = null_sums[name].unflatten(2, (parts.count, width)).transpose(1, 2)
        contrasts[name] = Contrasts(by_part[name] * scale, null * scale)
    return contrasts, moments


def _part_rows(activations: Activations, parts: Parts) -> Iterator[tuple[list[int], Tensor]]:
    """Batches of images, and their rows relative to mu, [images, P D] in float64: positions, or mean tokens."""
    batches = [list(range(i, min(i + TOGETHER, len(activations)))) for i in range(0, len(activations), TOGETHER)]
    for images in track(batches, "contrasts of unpaired pictures"):
        if parts.centres is None:
            rows = torch.stack([activations.tokens[image].double() for image in images])
        else:
            rows = activations.pooled[images].double()[:, None]
        yield images, (rows - parts.mu).flatten(1)


def neutral_moments(neutral: Activations, mu: Tensor) -> Moments:
    """Second moments around mu of pictures without people."""
    return token_moments(neutral, lambda image: mu[None], len(mu), "neutral pictures", by_position=False)


def token_moments(
    activations: Activations, centres: Callable[[int], Tensor], width: int, what: str, by_position: bool
) -> Moments:
    """Second moments of all tokens around the centres [1 or T, D] of their image. what: the progress bar's title.

    by_position: every second token is in the other fold; else every second picture is.
    """
    folds, counts = torch.zeros(2, width, width, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for number, tokens in enumerate(track(activations.tokens, what, len(activations))):
        centre = centres(number).expand(len(tokens), -1)
        for start in range(0, len(tokens), POSITIONS):
            rows = (tokens[start : start + POSITIONS].double() - centre[start : start + POSITIONS]).float()
            for fold in (0, 1):
                block = rows[fold::2] if by_position else rows[: len(rows) if number % 2 == fold else 0]
                folds[fold] += block.T @ block
                counts[fold] += len(block)
    return Moments(folds, counts)


def _contrasts(sums: Tensor, numbers: Tensor | None) -> Tensor:
    """Of sums [.., A, D] of equally many tokens: minus their mean over the values; or the slope, [.., 1, D]."""
    centred = sums - sums.mean(-2, keepdim=True)
    if numbers is None:
        return centred
    deviations = numbers - numbers.mean()
    return (deviations / deviations.norm()).to(sums)[None] @ centred


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
    """Detection W [D, k] in units where W^T S W = I, the eigenvalues of B, and the threshold of chance."""

    detection: Tensor
    eigenvalues: Tensor
    chance: float


def fit(
    activations: Activations, attribute: Attribute, options: PaceOptions, neutral: Activations | None = None
) -> Fitted:
    return fit_form(activations, attribute, options, neutral, PACE)


def fit_form(
    activations: Activations, attribute: Attribute, options: Any, neutral: Activations | None, form: Form
) -> Fitted:
    """PACE, or an ablation of it, fitted to one or several attributes at one site."""
    names = (attribute,) if isinstance(attribute, str) else attribute
    width = activations.pooled.shape[1]
    mu = activations.pooled.double().mean(0)
    parts_option = options.parts if form.parts is None else form.parts
    if activations.unpaired:
        known = {name: targets(activations, name) for name in names}
        columns = sum(target.z.shape[1] for target in known.values())
        parts = unpaired_parts(activations, parts_option, columns, mu)
        contrasts, moments = gather_unpaired(activations, known, parts)
    else:
        statistics: dict[str, tuple[Parts, Contrasts, Moments]] = {}
        for name in names:
            groups, ordered = activations.groups(name), name in activations.ordered
            numbers = torch.tensor([float(str(value)) for value in groups.values]) if ordered else None
            parts = find_parts(activations, groups, parts_option, mu, PERMUTATIONS + 2)
            statistics[name] = parts, *gather(activations, groups, parts, form.around, numbers)
        contrasts = {name: observed for name, (_, observed, _) in statistics.items()}
        parts, _, moments = statistics[names[0]]
    if not float(moments.mean.trace()) > 1e-12 * float(mu @ mu):
        raise InputError("the tokens of all images are equal: there is nothing to learn from")
    neutral_statistics = None if neutral is None or not options.neutral_share else neutral_moments(neutral, mu)
    shrinkage, shrinkage_reason = chosen_shrinkage(moments, neutral_statistics, options)
    covariance = mixed(moments.mean, neutral_statistics and neutral_statistics.mean, options.neutral_share, shrinkage)
    if not form.whitened:
        covariance = torch.eye(width, dtype=torch.float64) * covariance.trace() / width
    by_attribute = {name: directions(found, covariance, options.k) for name, found in contrasts.items()}
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
        "parts": parts.count,
        "shrinkage": shrinkage,
        **displacements(operator, activations, neutral),
        "notes": _notes(by_attribute, parts, options, shrinkage_reason),
        "warnings": _warnings(by_attribute),
    }
    return Fitted(operator, eigenvalues, diagnostics)


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
    best, lowest_loss = SHRINKAGES[0], float("inf")
    for shrinkage in SHRINKAGES:
        loss = 0.0
        for fold in (0, 1):
            if neutral is None:
                covariance = mixed(moments.fold(fold), None, 0, shrinkage)
            else:
                covariance = mixed(moments.mean, neutral.fold(fold), options.neutral_share, shrinkage)
            loss += _negative_log_likelihood(covariance, held_out.fold(1 - fold))
        if loss < lowest_loss:
            best, lowest_loss = shrinkage, loss
    return best, reason


def _negative_log_likelihood(covariance: Tensor, moment: Tensor) -> float:
    """-2 log-likelihood per token, up to a constant, of tokens with this second moment under a Gaussian."""
    factor = torch.linalg.cholesky(covariance)
    return float(2 * factor.diagonal().log().sum() + torch.cholesky_solve(moment, factor).trace())


def directions(contrasts: Contrasts, covariance: Tensor, k: int | None) -> Directions:
    """W of the largest eigenvalues of B: k of them, or those above chance.

    With S = L L^T, B has the eigenvalues of L^-1 C^T C L^-T, and W = L^-T of its eigenvectors.
    """
    factor = torch.linalg.cholesky(covariance)
    width = len(covariance)
    values, vectors = _eigenvectors(_whitened(factor, contrasts.observed), min(MOST_DIRECTIONS, width - 1))
    tops = torch.stack([_eigenvectors(_whitened(factor, null.double()), 1)[0][0] for null in contrasts.null])
    chance = float(tops.mean() + MANY * tops.std())
    if k is None:
        count = int((values > max(chance, 1e-12)).sum())
    elif k > int((values > 1e-9 * max(float(values[0]), 1e-9)).sum()):
        raise InputError(f"k = {k} directions were asked for, but the contrasts of the parts span fewer")
    else:
        count = k
    detection = torch.linalg.solve_triangular(factor.T, vectors[:, :count], upper=True)
    return Directions(oriented(detection) if count else detection, values, chance)


def _whitened(factor: Tensor, contrasts: Tensor) -> Tensor:
    """L^-1 C^T [D, P A] of contrasts [P, A, D]."""
    return torch.linalg.solve_triangular(factor, contrasts.reshape(-1, contrasts.shape[-1]).T, upper=False)


def _eigenvectors(columns: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest eigenvalues of X X^T and their vectors [D, count], for X = columns [D, m]."""
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
        for image in images.tolist():
            rows = source.tokens[image].float()
            rows = rows[rows.any(1)]
            steered = torch.empty_like(rows)
            operator(rows, torch.ones(len(rows), 1), None, steered)
            total += float(((steered - rows).norm(dim=1) / rows.norm(dim=1)).sum())
            count += len(rows)
        means[name] = total / max(count, 1)
    return means


def _notes(
    by_attribute: dict[str, Directions], parts: Parts, options: PaceOptions, shrinkage_reason: str
) -> list[str]:
    """The choices of a fit, a sentence each."""
    notes = [f"Parts are {parts.why}.", f"The shrinkage of the covariance: {shrinkage_reason}."]
    for name, result in by_attribute.items():
        count = result.detection.shape[1]
        reason = "as asked" if options.k is not None else f"above {result.chance:.3g}, what permuted labels give"
        largest = ", ".join(f"{value:.3g}" for value in result.eigenvalues[: count + 1].tolist())
        notes.append(f"{name}: {count} directions, {reason}; eigenvalues {largest}.")
    return notes


def _warnings(by_attribute: dict[str, Directions]) -> list[str]:
    return [
        f"Nothing is removed for {name!r}: no direction is above what permuted labels give "
        f"(largest eigenvalue {float(result.eigenvalues[0]):.3g}, chance {result.chance:.3g})."
        for name, result in by_attribute.items()
        if not result.detection.shape[1]
    ]


register(
    Method(
        name="pace",
        summary="part-aware counterfactual erasure: oblique removal of what the attribute does to each part",
        reference="this library; after Belrose et al. 2023, LEACE: Perfect Linear Concept Erasure in Closed Form",
        fit=fit,
        options=PaceOptions,
        needs_tokens=True,
        takes_neutral=True,
        takes_unpaired=True,
    )
)


class PaceGatedOptions(GateOptions, PaceOptions):
    pass


def _gated(operator: Oblique, activations: Activations, options: Any) -> Oblique:
    """The operator with a gate, calibrated on the magnitudes |W^T (h - mu)| of all tokens but zero ones."""
    mu, detection = operator.mu.double(), operator.detection.double()
    magnitudes = [((rows[rows.any(1)].double() - mu) @ detection).norm(dim=1) for rows in activations.tokens]
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
