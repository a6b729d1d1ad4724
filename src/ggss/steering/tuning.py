"""Choose method, k, sites and strength from the discovery set alone: no question is asked, no answer is seen.

Contexts are halved. Each candidate is fitted on one half, and judged on the people of the other:

    left      |c'| / |c| of the contrasts c[p, v] of all parts (`pace`) after and before steering
    moved     how far steering moves those tokens, and those of neutral pictures if there are any

Both are better if they are lower. Of parts, because what an attribute leaves in single tokens does not show in their
mean, and the language model sees the tokens. Of the candidates that leave at most `CLOSE` more than the one that
leaves least, the one that moves tokens least is chosen, fitted again on all contexts, and returned with that strength
as its recommendation. All sites of the activations are steered: what passes one site cannot be taken away at another.

Two other measures were tried and do not serve: a discriminant that sees all tokens reads the value from any trace
after every method, and contrasts in units of the tokens' variation grow when norms are restored, along directions in
which tokens hardly vary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import torch
from torch import Tensor

from ggss.activations import Activations, Rows, pool
from ggss.errors import InputError
from ggss.methods.aligned import aligned_blocks
from ggss.methods.pace_parts import find_parts
from ggss.methods.registry import get
from ggss.steering.fitting import fit
from ggss.steering.steerer import Steerer

AUTO = "auto"
CLOSE = 0.05  # of the contrast before: differences below it do not decide


@dataclass(frozen=True)
class Candidate:
    """A method with its options, at one strength."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    alpha: float = 1.0

    @property
    def label(self) -> str:
        given = "".join(f", {name} = {value}" for name, value in self.options.items())
        return f"{self.method}{given}, alpha {self.alpha:g}"


CANDIDATES = (
    *(Candidate(name) for name in ("ggss", "ggss-contrast", "leace-spherical", "svd-pooled-euclidean")),
    *(Candidate("pace", options, alpha) for options in ({}, {"k": 4}, {"k": 8}) for alpha in (0.75, 1.0)),
)


@dataclass(frozen=True)
class Judged:
    """A candidate on held-out people: the contrast that is left, and how far tokens move, each a mean over sites."""

    candidate: Candidate
    left: float
    moved: float

    @property
    def said(self) -> str:
        return f"{self.candidate.label}: contrast left {self.left:.2f}, tokens moved {self.moved:.3f}"


def tune(
    activations: Activations,
    attribute: str,
    *,
    neutral: Activations | None = None,
    candidates: Sequence[Candidate] = CANDIDATES,
) -> Steerer:
    """The steerer that hides an attribute at the smallest movement of tokens, chosen without asking the model.

    Args:
        activations: with tokens, at all sites that may be steered.
        attribute: the attribute to hide.
        neutral: tokens of pictures that show nobody, at the same sites; optional.
        candidates: what is chosen from.

    Returns:
        A steerer fitted on all contexts. Its recommended strength is the chosen one; its notes say what was compared.

    Raises:
        InputError: with fewer than four contexts, or if no candidate can be fitted.

    Examples:
        >>> from ggss.steering.tuning import Candidate
        >>> own = ggss.tune(acts, "race", candidates=[Candidate("ggss"), Candidate("ggss", alpha=0.5)])
        >>> own.method, own.recommended_alpha
        ('ggss', 1.0)
    """
    first, second = halves(activations)
    folds = ((first, second), (second, first))
    sites = list(activations.sites)
    judged, refused = [], []
    for candidate in candidates:
        try:
            judged.append(_judged(candidate, folds, attribute, sites, neutral))
        except InputError as error:
            refused.append(f"{candidate.label} could not be fitted: {str(error).splitlines()[0]}")
    if not judged:
        raise InputError(f"no candidate can be fitted on half of the contexts: {'; '.join(refused[:3])}")
    least = min(one.left for one in judged)
    best = min((one for one in judged if one.left <= least + CLOSE), key=lambda one: one.moved)
    steerer = _fitted(best.candidate, activations, attribute, neutral)
    why = [
        f"Chosen on held-out contexts, without asking the model: {best.candidate.label}. Of all candidates that "
        f"leave at most {CLOSE:g} more of the contrast than the lowest, {least:.2f}, it moves tokens least.",
        *(one.said for one in judged),
        *refused,
    ]
    site = sites[0]
    found = dict(steerer.diagnostics)
    found[site] = {**found.get(site, {}), "notes": [*why, *found.get(site, {}).get("notes", [])]}
    return replace(steerer, diagnostics=found).recommending(best.candidate.alpha)


def halves(activations: Activations) -> tuple[Activations, Activations]:
    """Every second context, and the others; all images of a context stay together."""
    order = list(dict.fromkeys(activations.contexts))
    if len(order) < 4:
        raise InputError(f"there are {len(order)} contexts, and a choice on held-out ones needs four or more")
    second = set(order[1::2])
    chosen = [[i for i, c in enumerate(activations.contexts) if (c in second) == half] for half in (False, True)]
    return activations.of(chosen[0]), activations.of(chosen[1])


def contrast(acts: Activations, attribute: str, unsteered: Activations) -> float:
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


class SteeredTokens(Sequence[Tensor]):
    """Tokens of images, steered when they are accessed."""

    def __init__(self, tokens: Sequence[Tensor], steerer: Steerer, site: str, alpha: float) -> None:
        self.tokens, self.steerer, self.site, self.alpha = tokens, steerer, site, alpha

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, i: int) -> Tensor: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, i: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(i, slice):
            return SteeredTokens(self.tokens[i], self.steerer, self.site, self.alpha)
        return self.steerer.steer(self.tokens[i].float(), alpha=self.alpha, site=self.site)


def _judged(
    candidate: Candidate,
    folds: Sequence[tuple[Activations, Activations]],
    attribute: str,
    sites: Sequence[str],
    neutral: Activations | None,
) -> Judged:
    shares, moves = [], []
    for train, test in folds:
        for site in sites:
            steerer = _fitted(candidate, train.at(site), attribute, neutral and neutral.at(site))
            plain = test.at(site)
            before = contrast(plain, attribute, plain)
            if not before > 0:
                raise InputError("the images of every context give equal tokens: there is nothing to hide")
            shares.append(contrast(_steered(plain, steerer, site, candidate.alpha), attribute, plain) / before)
            moves += [_moved(one.at(site), steerer, site, candidate.alpha) for one in (test, neutral) if one]
    return Judged(candidate, _mean(shares), _mean(moves))


def _fitted(candidate: Candidate, acts: Activations, attribute: str, neutral: Activations | None) -> Steerer:
    beside = neutral if get(candidate.method).takes_neutral else None
    return fit(candidate.method, acts, attribute, neutral=beside, **candidate.options)


def _steered(acts: Activations, steerer: Steerer, site: str, alpha: float) -> Activations:
    tokens = SteeredTokens(acts.tokens, steerer, site, alpha)
    pooled = torch.stack([pool(own) for own in tokens])
    return Activations.from_rows({site: Rows(pooled, tokens)}, acts.attributes, acts.contexts)


def _moved(acts: Activations, steerer: Steerer, site: str, alpha: float) -> float:
    """The mean movement of tokens, in parts of their length."""
    total, count = 0.0, 0
    for tokens in acts.tokens:
        rows = tokens.float()
        rows = rows[rows.any(1)]
        steered = steerer.steer(rows, alpha=alpha, site=site)
        total, count = total + float(((steered - rows).norm(dim=1) / rows.norm(dim=1)).sum()), count + len(rows)
    return total / max(count, 1)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
