"""`auto`: the method and its k are chosen from the discovery set alone: no question is asked, no answer is seen.

Contexts are halved. Each candidate is fitted on one half, and judged on the people of the other, at alpha 1:

    left      |c'| / |c| of the contrasts c[p, v] of all parts (`pace`) after and before steering
    moved     how far steering moves those tokens, and those of neutral pictures if there are any

Both are better if they are lower. Of parts, because what an attribute leaves in single tokens does not show in their
mean, and the language model sees the tokens. Of the candidates that leave at most `CLOSE` more than the one that
leaves least, the one that moves tokens least is chosen, and fitted again on all contexts. Each site has its own
choice.

Two other measures were tried and do not serve: a discriminant that sees all tokens reads the value from any trace
after every method, and contrasts in units of the tokens' variation grow when norms are restored, along directions in
which tokens hardly vary. Strengths are not among what is chosen from: below 1 each candidate leaves more.
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

CLOSE = 0.05  # of the contrast before: differences below it do not decide


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
        beside = {"neutral": neutral} if method.takes_neutral else {}
        return method.fit(acts, attribute, checked_options(method, self.options), **beside)


CANDIDATES = (
    *(Candidate(name) for name in ("ggss", "ggss-contrast", "leace-spherical", "svd-pooled-euclidean", "pace")),
    *(Candidate("pace", {"k": k}) for k in (4, 8)),
)


@dataclass(frozen=True)
class Judged:
    """A candidate on held-out people: the contrast that is left, and how far tokens move."""

    candidate: Candidate
    left: float
    moved: float

    @property
    def said(self) -> str:
        return f"{self.candidate.label}: contrast left {self.left:.2f}, tokens moved {self.moved:.3f}"


def fit(
    activations: Activations, attribute: Attribute, options: Options, neutral: Activations | None = None
) -> Fitted:
    return choose(activations, attribute, neutral, CANDIDATES)


def choose(
    activations: Activations, attribute: Attribute, neutral: Activations | None, candidates: Sequence[Candidate]
) -> Fitted:
    """The best candidate, fitted on all contexts of one site; its notes say what was compared."""
    first, second = halves(activations)
    judged, refused = [], []
    for candidate in candidates:
        try:
            judged.append(_judged(candidate, ((first, second), (second, first)), attribute, neutral))
        except InputError as error:
            refused.append(f"{candidate.label} could not be fitted: {str(error).splitlines()[0]}")
    if not judged:
        raise InputError(f"no candidate can be fitted on half of the contexts: {'; '.join(refused[:3])}")
    least = min(one.left for one in judged)
    best = min((one for one in judged if one.left <= least + CLOSE), key=lambda one: one.moved)
    fitted = best.candidate.fit(activations, attribute, neutral)
    why = [
        f"Chosen on held-out contexts, without asking the model: {best.candidate.label}. Of all candidates that "
        f"leave at most {CLOSE:g} more of the contrast than the lowest, {least:.2f}, it moves tokens least.",
        *(one.said for one in judged),
        *refused,
    ]
    return replace(fitted, diagnostics={**fitted.diagnostics, "notes": [*why, *fitted.diagnostics.get("notes", [])]})


def halves(activations: Activations) -> tuple[Activations, Activations]:
    """Every second context, and the others; all images of a context stay together."""
    order = list(dict.fromkeys(activations.contexts))
    if len(order) < 4:
        raise InputError(f"there are {len(order)} contexts, and a choice on held-out ones needs four or more")
    second = set(order[1::2])
    chosen = [[i for i, c in enumerate(activations.contexts) if (c in second) == half] for half in (False, True)]
    return activations.of(chosen[0]), activations.of(chosen[1])


def contrast(acts: Activations, attribute: Attribute, unsteered: Activations) -> float:
    """The size of what an attribute does to the parts of pictures, at one site; parts are those of unsteered ones."""
    groups = unsteered.groups(attribute)
    parts = find_parts(unsteered, groups, "auto", unsteered.pooled.double().mean(0), 1)
    sums = torch.zeros(parts.count, len(groups.values), len(parts.mu), dtype=torch.float64)
    counts = torch.zeros(parts.count, dtype=torch.float64)
    blocks = zip(
        aligned_blocks(acts, groups, "contrasts left"), aligned_blocks(unsteered, groups, "their parts"), strict=True
    )
    for (_, start, block), (_, _, plain) in blocks:
        part = parts.of(start, plain)
        sums.index_add_(0, part, block - block.mean(1, keepdim=True))
        counts.index_add_(0, part, torch.ones(len(part), dtype=torch.float64))
    return float((sums * counts.clamp(min=1).rsqrt()[:, None, None]).norm())


def _steered_tokens(tokens: Sequence[Tensor], operator: Operator) -> LazyTensors:
    """Tokens of images, steered at alpha 1 when they are accessed."""
    return LazyTensors(tokens, partial(_fully_steered, operator))


def _fully_steered(operator: Operator, tokens: Tensor) -> Tensor:
    rows = tokens.float()
    return apply(operator, rows, torch.ones(len(rows), 1), torch.zeros(len(rows), dtype=torch.long)).rows


def _judged(
    candidate: Candidate,
    folds: Sequence[tuple[Activations, Activations]],
    attribute: Attribute,
    neutral: Activations | None,
) -> Judged:
    shares, moves = [], []
    for train, test in folds:
        operator = candidate.fit(train, attribute, neutral).operator
        before = contrast(test, attribute, test)
        if not before > 0:
            raise InputError("the images of every context give equal tokens: there is nothing to hide")
        shares.append(contrast(_steered(test, operator), attribute, test) / before)
        moves += [_moved(one, operator) for one in (test, neutral) if one]
    return Judged(candidate, sum(shares) / len(shares), sum(moves) / len(moves))


def _steered(acts: Activations, operator: Operator) -> Activations:
    tokens = _steered_tokens(acts.tokens, operator)
    pooled = torch.stack([pool(own) for own in tokens])
    return Activations.from_rows({next(iter(acts.sites)): Rows(pooled, tokens)}, acts.attributes, acts.contexts)


def _moved(acts: Activations, operator: Operator) -> float:
    """The mean movement of tokens, in parts of their length; zero tokens do not count."""
    total, count = 0.0, 0
    for own, steered in zip(acts.tokens, _steered_tokens(acts.tokens, operator), strict=True):
        lengths = own.float().norm(dim=1)
        seen = lengths > 0
        total += float(((steered - own.float()).norm(dim=1)[seen] / lengths[seen]).sum())
        count += int(seen.sum())
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
