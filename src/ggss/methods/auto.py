"""`auto`: chooses the method and its k from the discovery set alone, without asking the model anything.

Contexts are halved. Each candidate is fitted on one half, and judged on the people of the other, at alpha 1:

    contrast_left   |c'| / |c| of the contrasts c[p, v] of all parts (`pace`), after and before steering
    displacement    how far steering moves those tokens, and those of neutral pictures if there are any

Both are better if they are lower. Contrasts are of parts, because what an attribute leaves in single tokens does not
show in their mean, and the language model reads the tokens. Of the candidates that leave at most `CLOSE` more than
the lowest, the one that moves tokens least is chosen, and fitted again on all contexts. Each site has its own choice.

Two other measures were tried and do not serve: a discriminant that reads all tokens finds the value from any trace
after every method, and contrasts in units of the tokens' variation grow when norms are restored, along directions in
which tokens hardly vary. Strengths are not chosen: below 1 each candidate leaves more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ggss.activations import Activations, LazyTensors, Rows, pool
from ggss.errors import InputError
from ggss.methods.operator import Operator, apply
from ggss.methods.pace import find_parts
from ggss.methods.registry import Attribute, Fitted, Method, Options, checked_options, get, register
from ggss.methods.subspace import aligned_blocks

CLOSE = 0.05  # of the unsteered contrast: differences below it do not decide


@dataclass(frozen=True)
class Candidate:
    """A method with its options."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.method + "".join(f", {name} = {value}" for name, value in self.options.items())

    def fit(self, acts: Activations, attribute: Attribute, neutral: Activations | None) -> Fitted:
        method = get(self.method)
        extra = {"neutral": neutral} if method.takes_neutral else {}
        return method.fit(acts, attribute, checked_options(method, self.options), **extra)


CANDIDATES = (
    *(Candidate(name) for name in ("ggss", "ggss-contrast", "leace-spherical", "svd-pooled-euclidean", "pace")),
    *(Candidate("pace", {"k": k}) for k in (4, 8)),
)


@dataclass(frozen=True)
class Score:
    """A candidate on held-out people: the share of the contrast that is left, and how far tokens move."""

    candidate: Candidate
    contrast_left: float
    displacement: float

    @property
    def summary(self) -> str:
        left, moved = self.contrast_left, self.displacement
        return f"{self.candidate.label}: contrast left {left:.2f}, tokens moved {moved:.3f}"


def fit(
    activations: Activations, attribute: Attribute, options: Options, neutral: Activations | None = None
) -> Fitted:
    return choose(activations, attribute, neutral, CANDIDATES)


def choose(
    activations: Activations, attribute: Attribute, neutral: Activations | None, candidates: Sequence[Candidate]
) -> Fitted:
    """The best candidate, fitted on all contexts of one site; its notes say what was compared."""
    first, second = halves(activations)
    scores, failures = [], []
    for candidate in candidates:
        try:
            scores.append(_score(candidate, ((first, second), (second, first)), attribute, neutral))
        except InputError as error:
            failures.append(f"{candidate.label} could not be fitted: {str(error).splitlines()[0]}")
    if not scores:
        raise InputError(f"no candidate can be fitted on half of the contexts: {'; '.join(failures[:3])}")
    least = min(score.contrast_left for score in scores)
    close = [score for score in scores if score.contrast_left <= least + CLOSE]
    best = min(close, key=lambda score: score.displacement)
    fitted = best.candidate.fit(activations, attribute, neutral)
    notes = [
        f"Chosen on held-out contexts, without asking the model: {best.candidate.label}. Of all candidates that "
        f"leave at most {CLOSE:g} more of the contrast than the lowest, {least:.2f}, it moves tokens least.",
        *(score.summary for score in scores),
        *failures,
        *fitted.diagnostics.get("notes", []),
    ]
    return replace(fitted, diagnostics={**fitted.diagnostics, "notes": notes})


def halves(activations: Activations) -> tuple[Activations, Activations]:
    """Every second context, and the others; all images of a context stay together."""
    order = list(dict.fromkeys(activations.contexts))
    if len(order) < 4:
        raise InputError(f"there are {len(order)} contexts; a choice on held-out contexts needs at least four")
    second = set(order[1::2])
    images = [[i for i, c in enumerate(activations.contexts) if (c in second) == half] for half in (False, True)]
    return activations.of(images[0]), activations.of(images[1])


def contrast(acts: Activations, attribute: Attribute, unsteered: Activations) -> float:
    """|c|: the size of the contrasts of all parts at one site. The parts are those of the unsteered tokens."""
    groups = unsteered.groups(attribute)
    parts = find_parts(unsteered, groups, "auto", unsteered.pooled.double().mean(0), 1)
    sums = torch.zeros(parts.count, len(groups.values), len(parts.mu), dtype=torch.float64)
    counts = torch.zeros(parts.count, dtype=torch.float64)
    blocks = zip(
        aligned_blocks(acts, groups, "contrasts left"), aligned_blocks(unsteered, groups, "their parts"), strict=True
    )
    for (_, start, block), (_, _, unsteered_block) in blocks:
        part = parts.of(start, unsteered_block)
        sums.index_add_(0, part, block - block.mean(1, keepdim=True))
        counts.index_add_(0, part, torch.ones(len(part), dtype=torch.float64))
    return float((sums * counts.clamp(min=1).rsqrt()[:, None, None]).norm())


def _steered_tokens(tokens: Sequence[Tensor], operator: Operator) -> LazyTensors:
    """Tokens of images, steered at alpha 1 when they are accessed."""
    return LazyTensors(tokens, partial(_fully_steered, operator))


def _fully_steered(operator: Operator, tokens: Tensor) -> Tensor:
    rows = tokens.float()
    return apply(operator, rows, torch.ones(len(rows), 1), torch.zeros(len(rows), dtype=torch.long)).rows


def _score(
    candidate: Candidate,
    folds: Sequence[tuple[Activations, Activations]],
    attribute: Attribute,
    neutral: Activations | None,
) -> Score:
    """The candidate's means over the folds (train, test)."""
    shares, displacements = [], []
    for train, test in folds:
        operator = candidate.fit(train, attribute, neutral).operator
        before = contrast(test, attribute, test)
        if not before > 0:
            raise InputError("the images of every context give equal tokens: there is nothing to hide")
        shares.append(contrast(_steered(test, operator), attribute, test) / before)
        displacements += [_displacement(acts, operator) for acts in (test, neutral) if acts]
    return Score(candidate, sum(shares) / len(shares), sum(displacements) / len(displacements))


def _steered(acts: Activations, operator: Operator) -> Activations:
    tokens = _steered_tokens(acts.tokens, operator)
    pooled = torch.stack([pool(image_tokens) for image_tokens in tokens])
    return Activations.from_rows({next(iter(acts.sites)): Rows(pooled, tokens)}, acts.attributes, acts.contexts)


def _displacement(acts: Activations, operator: Operator) -> float:
    """The mean of |h' - h| / |h| over tokens; zero tokens do not count."""
    total, count = 0.0, 0
    for tokens, steered in zip(acts.tokens, _steered_tokens(acts.tokens, operator), strict=True):
        lengths = tokens.float().norm(dim=1)
        nonzero = lengths > 0
        total += float(((steered - tokens.float()).norm(dim=1)[nonzero] / lengths[nonzero]).sum())
        count += int(nonzero.sum())
    return total / max(count, 1)


register(
    Method(
        name="auto",
        summary="the method and its k, chosen on held-out contexts of the discovery pictures",
        reference="this library",
        fit=fit,
        needs_tokens=True,
        takes_neutral=True,
    )
)
