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

**Parts** are positions where all images share one grid, else clusters of content (`pace_parts`). **mu** is the mean
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

Where tokens are few, `k`, `shrinkage` and `parts` can be given. Memory while fitting: `pace_statistics`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.oblique import Oblique
from ggss.methods.operator import Operator
from ggss.methods.pace_parts import Parts, Wanted, find_parts
from ggss.methods.pace_statistics import PERMUTATIONS, Contrasts, Moments, gather, neutral_moments
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import oriented, top_eigenvectors
from ggss.methods.unsteered import Identity

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
