"""`pace-kernel`: PACE, and then what kernel regression reads of each token's own contrast. Beyond the paper.

    p(h) = h - V W^T (h - mu)                                        PACE
    y(h) = p(h) - mean of p over the versions of the token           what PACE leaves: the token's own contrast
    f    = argmin over f  mean |y(h) - f(p(h))|^2 + ridge |f|^2      f(x) = Q sum over j of k(x, z_j) a_j
    k(x, z) = exp(-|R^T x - R^T z|^2 / (2 bandwidth^2))
    steered = h - alpha (h - p(h) + f(p(h)))

PACE removes what an attribute does to a part of a picture *on average over people*. What it does to one person beyond
that average is left, and where a model compares two versions of one person it can answer from it. A linear map that
removes this too moves tokens far (docs/pace.md). But tokens that look alike have contrasts that are alike: so f
predicts a token's own contrast from the token itself. Far from all tokens of the fit f is 0, so pictures of other
things hardly move, least with **neutral pictures** (any, without labels), whose own contrast is 0.

**Versions** of a token are those at the same position in pictures that differ in the attribute alone (of several
attributes: in these alone). The mean over them takes no label: f removes whatever can be read of how versions
differ. Where labels mean nothing PACE finds no direction, and then nothing is removed here, either.

**Chosen on other people**: bandwidth (`BANDWIDTHS`, times the tokens' spread) and ridge (`RIDGES`) leave the least of
the own contrasts, sum |y - f|^2 / sum |y|^2, of people who were not in the fit, over both halves of the people. If
that is more than `USEFUL`, f = 0 and the method is `pace`.

**Cost.** R [D, r] are the principal directions of tokens, Q [D, q] those of own contrasts, and z_j (m centres) are
tokens drawn at random: Nyström's approximation, on at most `TOKENS` tokens. Steering takes two products with r + k
and q + k directions and a kernel of [tokens, m]: more than PACE, little beside the model. It is no affine map, so it
cannot be exported into weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, ClassVar, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.operator import Array, Operator, apply, project, recombine, register_kind
from ggss.methods.pace import PACE, PaceOptions, displacements, fit_form, largest_eigenvectors, some_tokens
from ggss.methods.projection import Oblique, finite_coordinates
from ggss.methods.registry import Attribute, Fitted, Method, register
from ggss.methods.spherical import check_orthonormal, precise
from ggss.methods.subspace import oriented

BANDWIDTHS = (0.35, 0.5, 0.7, 1.0)  # of the root of the tokens' total variance
RIDGES = (3e-5, 1e-4, 3e-4, 1e-3)
CENTRES, READ, WRITTEN = 1000, 64, 32  # m, r and q, at most
TOKENS = 10_000  # that f is fitted to
NEUTRAL = 4  # tokens of portraits for each neutral one
USEFUL = 0.95  # of the own contrasts of other people: if more is left, nothing was learned
SEED = 42
JITTER = 1e-9  # of the mean diagonal: centres may be nearly alike


@register_kind
@dataclass(frozen=True)
class KernelContrast(Operator):
    """Removes what PACE detects, then the own contrast that a token is expected to have.

    mu [D], detection W [D, k] and movement V [D, k] as in `Oblique`; reading R [D, r], centres R^T (z - mu) [m, r],
    weights a [m, q] and writing Q [D, q]; all in float32.
    """

    mu: Annotated[Tensor, Array("D")]
    detection: Annotated[Tensor, Array("D", "k")]
    movement: Annotated[Tensor, Array("D", "k")]
    reading: Annotated[Tensor, Array("D", "r")]
    centres: Annotated[Tensor, Array("m", "r")]
    weights: Annotated[Tensor, Array("m", "q")]
    writing: Annotated[Tensor, Array("D", "q")]
    bandwidth: Annotated[float, Field(gt=0)]

    kind: ClassVar[str] = "kernel-contrast"
    any_dtype: ClassVar[bool] = True

    @classmethod
    def of(cls, pace: Oblique, regression: "Regression") -> Self:
        tensors = regression.reading, regression.centres, regression.weights, regression.writing
        parts = [tensor.float().contiguous() for tensor in tensors]
        return cls(pace.mu, pace.detection, pace.movement, *parts, bandwidth=regression.bandwidth)

    @property
    def width(self) -> int:
        return self.mu.shape[0]

    def validate(self) -> None:
        Oblique(self.mu, self.detection, self.movement)  # raises
        check_orthonormal(self.reading)
        check_orthonormal(self.writing)

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        mu, detection, movement, reading, centres, weights, writing = (
            tensor.to(rows.device) for tensor in self.tensors().values()
        )
        precision, k = precise(rows), detection.shape[1]
        directions = torch.cat([detection, reading], 1).T.contiguous()
        products, norms = project(rows, directions)
        coordinates = finite_coordinates(products, rows).to(precision) - directions.to(precision) @ mu.to(precision)
        z = coordinates[:, :k]
        read = coordinates[:, k:] - z @ (movement.to(precision).T @ reading.to(precision))
        contrasts = gaussian(read.float(), centres, self.bandwidth) @ weights
        removed = torch.where(norms > 0, -alpha * torch.cat([z.float(), contrasts], 1), 0)
        recombine(rows, torch.ones_like(alpha), removed, torch.cat([movement, writing], 1).T.contiguous(), out)


def gaussian(read: Tensor, centres: Tensor, bandwidth: float) -> Tensor:
    """k [N, m] of tokens [N, r] and centres [m, r]."""
    return torch.exp(torch.cdist(read, centres).square() / (-2 * bandwidth**2))


class OwnContrasts(NamedTuple):
    """Tokens after PACE [N, D], what each differs from the mean of its versions [N, D], and who it is of [N]."""

    tokens: Tensor
    contrasts: Tensor
    people: Tensor

    def of(self, chosen: Tensor) -> "OwnContrasts":
        return OwnContrasts(*(part[chosen] for part in self))


def own_contrasts(activations: Activations, pace: Oblique, names: Sequence[str]) -> OwnContrasts:
    """Of tokens at the same positions in pictures that differ in these attributes alone; `TOKENS` at the most.

    InputError if such pictures have different numbers of tokens: then their positions do not correspond.
    """
    versions: dict[object, list[int]] = {}
    for image, (context, attributes) in enumerate(zip(activations.contexts, activations.attributes, strict=True)):
        others = tuple(sorted((name, str(value)) for name, value in attributes.items() if name not in names))
        versions.setdefault((context, others), []).append(image)
    people = {context: number for number, context in enumerate(dict.fromkeys(activations.contexts))}
    tokens, generator = some_tokens(activations), torch.Generator().manual_seed(SEED)
    drawn = max(TOKENS // len(activations), 1)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for images in versions.values():
        rows = [tokens[image] for image in images]
        if len({len(row) for row in rows}) > 1:
            counts = ", ".join(str(len(row)) for row in rows)
            raise InputError(
                f"the versions in context {activations.contexts[images[0]]!r} have {counts} tokens: their positions "
                "do not correspond; use pictures of one size, or the method pace"
            )
        positions = torch.randperm(len(rows[0]), generator=generator)[:drawn]
        left = torch.stack([after(pace, row[positions]) for row in rows])
        person = torch.full((left[..., 0].numel(),), people[activations.contexts[images[0]]])
        parts.append((left.flatten(0, 1), (left - left.mean(0)).flatten(0, 1), person))
    return OwnContrasts(*(torch.cat(part) for part in zip(*parts, strict=True)))


def after(pace: Oblique, rows: Tensor) -> Tensor:
    """p(h) in float64 of tokens [N, D]."""
    return apply(pace, rows.float(), torch.ones(len(rows), 1)).rows.double()


def neutral_tokens(neutral: Activations, pace: Oblique, count: int) -> Tensor:
    """About so many tokens of pictures that show nobody, after PACE [N, D]."""
    rows = torch.cat([row.float() for row in some_tokens(neutral)])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(SEED))
    return after(pace, rows[order[:count]])


@dataclass(frozen=True)
class Regression:
    """f: see `KernelContrast`, here in float64."""

    mu: Tensor
    reading: Tensor
    centres: Tensor
    weights: Tensor
    writing: Tensor
    bandwidth: float

    def __call__(self, tokens: Tensor) -> Tensor:
        """f of tokens after PACE [N, D]."""
        read = (tokens - self.mu) @ self.reading
        return gaussian(read, self.centres, self.bandwidth) @ self.weights @ self.writing.T


def regressions(data: OwnContrasts, neutral: Tensor, mu: Tensor) -> dict[tuple[float, float], Regression]:
    """f for every bandwidth and ridge, fitted to these tokens, and to neutral ones [M, D] with a contrast of 0."""
    tokens = torch.cat([data.tokens, neutral])
    contrasts = torch.cat([data.contrasts, torch.zeros_like(neutral)])
    reading, writing = principal(data.tokens - data.tokens.mean(0), READ), principal(data.contrasts, WRITTEN)
    read, targets = (tokens - mu) @ reading, contrasts @ writing
    spread = float((data.tokens - data.tokens.mean(0)).square().sum(1).mean()) ** 0.5
    order = torch.randperm(len(read), generator=torch.Generator().manual_seed(SEED))
    centres = read[order[:CENTRES]]
    found = {}
    for scale in BANDWIDTHS:
        kernel, between = (gaussian(rows, centres, scale * spread) for rows in (read, centres))
        gram, shared = kernel.T @ kernel, kernel.T @ targets
        for ridge in RIDGES:
            penalised = gram + ridge * len(read) * between
            penalised += JITTER * penalised.diagonal().mean() * torch.eye(len(centres), dtype=torch.float64)
            weights = torch.linalg.solve(penalised, shared)
            found[scale, ridge] = Regression(mu, reading, centres, weights, writing, scale * spread)
    return found


def principal(rows: Tensor, count: int) -> Tensor:
    """The first principal directions [D, count] of rows [N, D] around 0, fewer where the rows have fewer."""
    values, directions = largest_eigenvectors(rows, min(count, rows.shape[1] - 1))
    return oriented(directions[:, values > 1e-12 * values[0]])


def left_in_others(data: OwnContrasts, neutral: Tensor, mu: Tensor) -> dict[tuple[float, float], float]:
    """By bandwidth and ridge, sum |y - f|^2 / sum |y|^2 in people who were not in the fit, over both halves."""
    left = dict.fromkeys(product(BANDWIDTHS, RIDGES), 0.0)
    for half in (0, 1):
        fitted = data.people % 2 == half
        judged = data.of(~fitted)
        for choice, regression in regressions(data.of(fitted), neutral, mu).items():
            left[choice] += float((judged.contrasts - regression(judged.tokens)).square().sum())
    total = float(data.contrasts.square().sum())
    return {choice: share / total for choice, share in left.items()}


def fit(
    activations: Activations, attribute: Attribute, options: PaceOptions, neutral: Activations | None = None
) -> Fitted:
    fitted = fit_form(activations, attribute, options, neutral, PACE)
    if not isinstance(pace := fitted.operator, Oblique):
        return fitted
    names = (attribute,) if isinstance(attribute, str) else attribute
    data, mu = own_contrasts(activations, pace, names), pace.mu.double()
    scale = float(data.tokens.square().sum(1).mean())
    operator: Operator = pace
    if int(data.people.max()) < 3 or not float(data.contrasts.square().sum(1).mean()) > 1e-12 * scale:
        note = "Kernel regression was left out: it needs four people, and contrasts that PACE leaves."
    else:
        no_tokens = data.tokens[:0]
        others = no_tokens if neutral is None else neutral_tokens(neutral, pace, len(data.tokens) // NEUTRAL)
        left = left_in_others(data, others, mu)
        choice = min(left, key=left.__getitem__)
        note = f"Of what PACE leaves of each person's own contrasts, kernel regression leaves {left[choice]:.0%} in "
        note += f"people who were not in the fit; bandwidth {choice[0]:g} of the tokens' spread, ridge {choice[1]:g}."
        if left[choice] > USEFUL:
            note += " That is too little to use it: this steerer is that of pace."
        else:
            operator = KernelContrast.of(pace, regressions(data, others, mu)[choice])
    notes = {"notes": [*fitted.diagnostics["notes"], note]}
    moved = displacements(operator, activations, neutral)
    return replace(fitted, operator=operator, diagnostics={**fitted.diagnostics, **moved, **notes})


register(
    Method(
        name="pace-kernel",
        summary="PACE, then kernel regression of what it leaves of each token's own contrast",
        reference="this library; Nyström's approximation as in Rudi et al. 2015, Less is More: Nyström Computational "
        "Regularization",
        fit=fit,
        options=PaceOptions,
        needs_tokens=True,
        takes_statistics=True,
        takes_neutral=True,
    )
)
