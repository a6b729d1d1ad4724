"""`pace`: part-aware counterfactual erasure. Beyond the paper.

    m[p, v]   mean token of part p shown with value v;   m[p] its mean over v;   n[p] tokens of part p per value
    c[p, v] = m[p, v] - m[p]                                     what the attribute does to part p
    S       = (1 - s) M + s (trace M / D) I,   M = mean of (h - mu) (h - mu)^T         how tokens vary anyway
    B       = S^-1/2 (sum over p, v of n[p] c c^T) S^-1/2        the attribute, in units of that variation
    U       = eigenvectors of the k largest eigenvalues of B
    W = S^-1/2 U,   V = S^1/2 U = S W          steered = h - alpha V W^T (h - mu)

The variants of an identity are aligned: token t of one shows what token t of another shows. So the means over people
of *parts* of pictures can be compared, not only those of whole pictures: hair, face and coat carry an attribute along
different directions, and there may be more of them than values - 1. Of all maps that take a contrast away, the
oblique one moves tokens least, given how they vary (LEACE's insight). Nothing at inference needs the parts.

**Norms** are not restored: the factor that restores a norm depends on what was removed, and so tells of it. On
held-out people of the discovery set it leaves more of the contrasts at the same movement (`pace-norm`, docs/pace.md).

**Parts** are positions where all images share one grid, else clusters of content. **mu** is the mean
of the pictures' mean tokens.

**k** counts the eigenvalues above what chance gives: mean + 4 standard deviations of the largest eigenvalue with
labels permuted within contexts, 16 times. With labels that mean nothing no eigenvalue is above it, and the steerer
changes nothing. Of several attributes each is tested on its own, and the directions of all are removed.

**s** is chosen by how well S predicts tokens that it was not made of (their Gaussian log-likelihood), among
`SHRINKAGES`. A covariance of portraits predicts other portraits well without shrinkage. But pictures without people
vary elsewhere, and where portraits hardly vary detection is so sharp that other pictures are moved far. Held-out
positions stand for them: tokens at even positions predict those at odd ones, and the reverse. With **neutral
pictures** (any, without labels) M is (1 - neutral_share) M of portraits + neutral_share M of neutral pictures, and
one half of the neutral pictures predicts the other.

Where tokens are few, `k`, `shrinkage` and `parts` can be given. Memory while fitting: see below.

PACE's parts: which tokens of different people show the same thing.

    positions     token t of every image, if all images have one number of tokens
    clusters      content: spherical k-means on each group's mean token at a position, as seen from mu

The mean is over the variants of a group, so all of them agree on the part of a position. Clusters are found on at
most `SAMPLE` of these means, drawn with a fixed seed.

What PACE needs to know of the tokens, gathered in one pass; nothing of it grows with the number of images.

    sums [P, A, D]        of the tokens of part p shown with value v, and with permuted labels `PERMUTATIONS` times
    moments [2, D, D]     second moments around mu of the tokens at even and at odd positions

At D = 4096 the moments are 2 x 134 MB. The sums are 18 x P A D numbers of float32: 24 MB for 16 parts of 5 values,
378 MB for 256 positions. Neutral pictures take two more D x D matrices. Labels are permuted within contexts: each
group's variants change places, so that what is left of a contrast is what chance makes of the same pictures.

Ablations of PACE: each leaves one thing out, or puts one in.

    pace-no-whitening   S = I: an orthogonal projection along the contrasts' own principal directions
    pace-pooled         all tokens are one part: A - 1 contrasts of whole pictures
    pace-within-parts   S from (h - m[p]) (h - m[p])^T: what parts differ in does not count as variation
    pace-orthogonal     detects along V, where it moves: V W^T replaced by the orthogonal projection onto span(V)
    pace-gated          GGSS's gate of |W^T (h - mu)|, calibrated on the tokens of the discovery pictures
    pace-norm           each token gets its norm back
    pace-slerp          a share alpha of the arc to the target of pace-norm; at alpha = 1 the same as pace-norm

Everything else is as in `pace`, the choice of k and of the shrinkage included.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations, Groups
from ggss.errors import InputError
from ggss.methods.ggss import GateOptions, calibrated
from ggss.methods.operator import Operator
from ggss.methods.projection import Oblique
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import POSITIONS, aligned_blocks, oriented, top_eigenvectors
from ggss.methods.unsteered import Identity
from ggss.terminal import track

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


PERMUTATIONS = 16
STATISTICS_SEED = 42


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
    generator = torch.Generator().manual_seed(STATISTICS_SEED)
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


SHRINKAGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
MANY = 4.0  # standard deviations of the largest eigenvalue under permuted labels
MOST_DIRECTIONS = 64
LOOKED_AT = 32  # images whose tokens tell how far steering moves them
DEPENDENT = 0.05  # a direction of a second attribute with less than this of its length outside the first's is theirs


class PaceOptions(Options):
    k: int | None = Field(None, ge=1, description="number of directions; those above permuted labels")
    shrinkage: float | None = Field(
        None, gt=0, lt=1, description="share of the mean variance in the covariance; chosen on held-out tokens"
    )
    parts: Literal["auto", "positions"] | int = Field(
        "auto", description="positions, a number of clusters of content, or what the pictures allow"
    )
    neutral_share: float = Field(0.5, ge=0, lt=1, description="weight of neutral pictures in the covariance")


@dataclass(frozen=True)
class Form:
    """What an ablation changes; the defaults are PACE."""

    whitened: bool = True
    oblique: bool = True
    parts: Wanted | None = None
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
    names = (attribute,) if isinstance(attribute, str) else attribute
    width = activations.pooled.shape[1]
    mu = activations.pooled.double().mean(0)
    wanted = options.parts if form.parts is None else form.parts
    gathered: dict[str, tuple[Parts, Contrasts, Moments]] = {}
    for name in names:
        groups = activations.groups(name)
        own = find_parts(activations, groups, wanted, mu, PERMUTATIONS + 2)
        gathered[name] = own, *gather(activations, groups, own, form.around)
    parts, _, moments = gathered[names[0]]
    contrasts = {name: found for name, (_, found, _) in gathered.items()}
    if not float(moments.mean.trace()) > 1e-12 * float(mu @ mu):
        raise InputError("the tokens of all images are equal: there is nothing to learn from")
    others = None if neutral is None or not options.neutral_share else neutral_moments(neutral, mu)
    shrinkage, judged = chosen_shrinkage(moments, others, options)
    covariance = mixed(moments.mean, others and others.mean, options.neutral_share, shrinkage)
    if not form.whitened:
        covariance = torch.eye(width, dtype=torch.float64) * covariance.trace() / width
    found = {name: directions(one, covariance, options.k) for name, one in contrasts.items()}
    detection = union([one.detection for one in found.values()], covariance)
    operator: Operator = Identity(width)
    if detection.shape[1]:
        movement = covariance @ detection
        if not form.oblique:
            detection = movement = torch.linalg.qr(movement)[0]
        operator = Oblique(mu.float(), detection.float().contiguous(), movement.float().contiguous())
        operator = form.finish(operator, activations, options)
    statistics = {f"eigenvalues_{name}": one.eigenvalues.float() for name, one in found.items()}
    told = {
        "k": detection.shape[1],
        "parts": parts.count,
        "shrinkage": shrinkage,
        **displaced(operator, activations, neutral),
        "notes": _notes(found, parts, options, judged),
        "warnings": _warnings(found),
    }
    return Fitted(operator, statistics, told)


def mixed(portraits: Tensor, neutral: Tensor | None, share: float, shrinkage: float) -> Tensor:
    """S [D, D]: the second moment of portraits and neutral pictures, shrunk towards its mean variance."""
    both = portraits if neutral is None else (1 - share) * portraits + share * neutral
    width = len(both)
    return (1 - shrinkage) * both + shrinkage * both.trace() / width * torch.eye(width, dtype=both.dtype)


def chosen_shrinkage(moments: Moments, neutral: Moments | None, options: PaceOptions) -> tuple[float, str]:
    """The shrinkage with the largest likelihood of held-out tokens, and a sentence that says how it was chosen."""
    if options.shrinkage is not None:
        return options.shrinkage, "as asked"
    judging = moments if neutral is None else neutral
    if not judging.counts.min() > 0:
        return SHRINKAGES[-2], "there are too few tokens to choose it by"
    told = (
        "half of the positions predict the others"
        if neutral is None
        else "half of the neutral pictures predict the others"
    )
    best, smallest = SHRINKAGES[0], float("inf")
    for shrinkage in SHRINKAGES:
        lost = 0.0
        for fold in (0, 1):
            if neutral is None:
                made = mixed(moments.fold(fold), None, 0, shrinkage)
            else:
                made = mixed(moments.mean, neutral.fold(fold), options.neutral_share, shrinkage)
            lost += surprise(made, judging.fold(1 - fold))
        if lost < smallest:
            best, smallest = shrinkage, lost
    return best, told


def surprise(covariance: Tensor, seen: Tensor) -> float:
    """-2 log-likelihood per token, up to a constant, of tokens of second moment `seen` under a Gaussian."""
    factor = torch.linalg.cholesky(covariance)
    return float(2 * factor.diagonal().log().sum() + torch.cholesky_solve(seen, factor).trace())


def directions(contrasts: Contrasts, covariance: Tensor, k: int | None) -> Directions:
    """W of the largest eigenvalues of B: k of them, or those above chance.

    With S = L L^T, B has the eigenvalues of L^-1 C^T C L^-T, and W = L^-T of its eigenvectors.
    """
    factor = torch.linalg.cholesky(covariance)
    width = len(covariance)
    values, vectors = eigenvectors(_whitened(factor, contrasts.own), min(MOST_DIRECTIONS, width - 1))
    tops = torch.stack([eigenvectors(_whitened(factor, one.double()), 1)[0][0] for one in contrasts.null])
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


def eigenvectors(columns: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest eigenvalues of columns [D, m] times their transpose, and their vectors [D, count]."""
    width, many = columns.shape
    if min(width, many) > 2 * count + 20 and min(width, many) > 256:
        small = columns @ columns.T if width <= many else columns.T @ columns
        values, vectors = top_eigenvectors(small, count)
        if width > many:
            vectors = columns @ vectors / values.clamp(min=1e-300).sqrt()
        return values, vectors
    left, size, _ = torch.linalg.svd(columns, full_matrices=False)
    return size[:count] ** 2, left[:, :count]


def union(bases: list[Tensor], covariance: Tensor) -> Tensor:
    """W [D, k] with W^T S W = I that spans all bases; what of a later one is already there is left out."""
    whole = bases[0]
    for basis in bases[1:]:
        rest = basis - whole @ (whole.T @ (covariance @ basis))
        gram = rest.T @ covariance @ rest
        size, turned = torch.linalg.eigh(gram)
        kept = size > DEPENDENT**2
        whole = torch.cat([whole, rest @ turned[:, kept] / size[kept].sqrt()], 1)
    return whole


def displaced(operator: Operator, activations: Activations, neutral: Activations | None) -> dict[str, float]:
    """How far tokens move at alpha 1, in parts of their length: those of portraits, and of neutral pictures."""
    seen = {"displacement": activations} | ({} if neutral is None else {"neutral_displacement": neutral})
    told = {}
    for name, source in seen.items():
        moved, count = 0.0, 0
        for image in torch.linspace(0, len(source) - 1, min(LOOKED_AT, len(source))).round().long().tolist():
            rows = source.tokens[image].float()
            rows = rows[rows.any(1)]
            steered = torch.empty_like(rows)
            operator(rows, torch.ones(len(rows), 1), None, steered)
            moved += float(((steered - rows).norm(dim=1) / rows.norm(dim=1)).sum())
            count += len(rows)
        told[name] = moved / max(count, 1)
    return told


def _notes(found: dict[str, Directions], parts: Parts, options: PaceOptions, judged: str) -> list[str]:
    """The choices of a fit, a sentence each."""
    said = [f"Parts are {parts.why}.", f"The shrinkage of the covariance: {judged}."]
    for name, one in found.items():
        count = one.detection.shape[1]
        chosen = "as asked" if options.k is not None else f"above {one.chance:.3g}, what permuted labels give"
        largest = ", ".join(f"{value:.3g}" for value in one.eigenvalues[: count + 1].tolist())
        said.append(f"{name}: {count} directions, {chosen}; eigenvalues {largest}.")
    return said


def _warnings(found: dict[str, Directions]) -> list[str]:
    return [
        f"Nothing is removed for {name!r}: no direction is above what permuted labels give "
        f"(largest eigenvalue {float(one.eigenvalues[0]):.3g}, chance {one.chance:.3g})."
        for name, one in found.items()
        if not one.detection.shape[1]
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
    )
)


class PaceGatedOptions(GateOptions, PaceOptions):
    pass


def gated(operator: Oblique, activations: Activations, options: Any) -> Oblique:
    """With a gate whose median and std are those of the magnitudes of all tokens; zero tokens do not count."""
    mu, detection = operator.mu.double(), operator.detection.double()
    magnitudes = [((rows[rows.any(1)].double() - mu) @ detection).norm(dim=1) for rows in activations.tokens]
    return replace(operator, **calibrated(torch.cat(magnitudes), options))


def on_the_arc(operator: Oblique, activations: Activations, options: Any) -> Oblique:
    return replace(operator, arc=True)


def at_its_norm(operator: Oblique, activations: Activations, options: Any) -> Oblique:
    return replace(operator, restored=True)


def variant(name: str, summary: str, form: Form, options: type[Options] = PaceOptions) -> None:
    def fit(
        activations: Activations, attribute: Attribute, options: Any, neutral: Activations | None = None
    ) -> Fitted:
        return fit_form(activations, attribute, options, neutral, form)

    reference = "this library; an ablation of pace"
    register(Method(name, summary, reference, fit, options, needs_tokens=True, takes_neutral=True))


variant("pace-no-whitening", "PACE blind to how tokens vary anyway", Form(whitened=False))
variant("pace-pooled", "PACE with whole pictures instead of parts", Form(parts=1))
variant("pace-within-parts", "PACE with the covariance around each part's mean instead of mu", Form(around="parts"))
variant("pace-orthogonal", "PACE with an orthogonal projection along its movement", Form(oblique=False))
variant("pace-gated", "PACE with GGSS's gate", Form(finish=gated), PaceGatedOptions)
variant("pace-norm", "PACE with each token's norm restored", Form(finish=at_its_norm))
variant("pace-slerp", "PACE along the arc instead of the straight line", Form(finish=on_the_arc))
