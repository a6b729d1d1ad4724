"""`auto`: chooses the method and its k from the discovery set alone, without asking the model anything.

Contexts are halved. Each candidate is fitted on one half, and judged on the people of the other, at alpha 1:

    contrast_left   |c'| / |c| of the contrasts c[p, v] of all parts (`pace`), after and before steering
    displacement    how far steering moves those tokens, and those of neutral pictures if there are any

Both are better if they are lower. Contrasts are of parts, because what an attribute leaves in single tokens does not
show in their mean, and the language model reads the tokens. Of the candidates that leave at most `CLOSE` more than
the lowest, the one that moves tokens least is chosen, and fitted again on all contexts. Each site has its own choice.
A candidate of a package that is not installed is left out.

**`bend-token-euclidean`** keeps the tokens of all discovery pictures, and reads them twice for every picture that it
steers. So it is chosen only if no other candidate is close to what it leaves, and it is left out where these tokens
are more than `MOST_NUMBERS`.

**Several attributes** are steered by one operator, and its share of the contrast is that of the attribute of which
most is left. If a single attribute is asked for while others vary in the pictures, the contrast of each of these is
measured on the same held-out people, too. Where it grows by more than `CLOSE` in both halves, a warning says so, with
what the best candidate leaves that is fitted to both attributes. The steerer stays that of the attribute that was
asked for: hiding another one is a decision of the user's.

Two other measures were tried and do not serve: a discriminant that reads all tokens finds the value from any trace
after every method, and contrasts in units of the tokens' variation grow when norms are restored, along directions in
which tokens hardly vary. Strengths are not chosen: below 1 each candidate leaves more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.operator import Operator, apply
from ggss.methods.pace import find_parts
from ggss.methods.registry import Attribute, Fitted, Method, Options, checked_options, get, names, register
from ggss.methods.subspace import aligned_blocks

CLOSE = 0.05  # of the unsteered contrast: differences below it do not decide
MOST_NUMBERS = 2**28  # in the tokens of all pictures, for a candidate that steers by comparing with all of them: 1 GB

Folds = Sequence[tuple[Activations, Activations]]


@dataclass(frozen=True)
class Candidate:
    """A method with its options."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    keeps_tokens: bool = False

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
    Candidate("bend-token-euclidean", keeps_tokens=True),
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
    folds = ((first, second), (second, first))
    scores = compare(candidates, folds, attribute, neutral)
    if not scores.scores:
        raise InputError(f"no candidate can be fitted on half of the contexts: {'; '.join(scores.failures[:3])}")
    best = scores.best
    fitted = best.candidate.fit(activations, attribute, neutral)
    spill_over = _spill_over(best.candidate, candidates, folds, attribute, neutral)
    notes = [
        f"Chosen on held-out contexts, without asking the model: {best.candidate.label}. Of all candidates that "
        f"leave at most {CLOSE:g} more of the contrast than the lowest, {scores.least:.2f}, it moves tokens least.",
        *(score.summary for score in scores.scores),
        *scores.failures,
        *spill_over.notes,
        *fitted.diagnostics.get("notes", []),
    ]
    warnings = [*spill_over.warnings, *fitted.diagnostics.get("warnings", [])]
    return replace(fitted, diagnostics={**fitted.diagnostics, "notes": notes, "warnings": warnings})


@dataclass(frozen=True)
class CandidateScores:
    """The scores of the candidates that could be fitted, and a sentence for each of the others."""

    scores: Sequence[Score]
    failures: Sequence[str]

    @property
    def least(self) -> float:
        """The lowest share of the contrast that a candidate leaves."""
        return min(score.contrast_left for score in self.scores)

    @property
    def best(self) -> Score:
        """Of those close to the lowest, the one that moves tokens least; one that keeps all tokens comes last."""
        close = [score for score in self.scores if score.contrast_left <= self.least + CLOSE]
        return min(close, key=lambda score: (score.candidate.keeps_tokens, score.displacement))


def compare(
    candidates: Sequence[Candidate], folds: Folds, attribute: Attribute, neutral: Activations | None
) -> CandidateScores:
    """The candidates on held-out people."""
    numbers = sum(len(tokens) for fold in folds[0] for tokens in fold.tokens) * folds[0][0].pooled.shape[1]
    scores, failures = [], []
    for candidate in candidates:
        if candidate.method not in names():
            continue
        if candidate.keeps_tokens and numbers > MOST_NUMBERS:
            failures.append(f"{candidate.label} was left out: it would keep {4 * numbers / 2**30:.1f} GiB of tokens")
            continue
        try:
            scores.append(_score(candidate, folds, attribute, neutral))
        except InputError as error:
            failures.append(f"{candidate.label} could not be fitted: {str(error).splitlines()[0]}")
    return CandidateScores(scores, failures)


class SpillOver(NamedTuple):
    """Sentences on what steering does to other attributes: the numbers, and where one grows."""

    notes: list[str]
    warnings: list[str]


def _spill_over(
    chosen: Candidate,
    candidates: Sequence[Candidate],
    folds: Folds,
    attribute: Attribute,
    neutral: Activations | None,
) -> SpillOver:
    """What the chosen candidate does to the contrasts of the attributes that are not steered."""
    asked, result = columns(attribute), SpillOver([], [])
    operators = [(chosen.fit(train, attribute, neutral).operator, test) for train, test in folds]
    for other in dict.fromkeys(name for row in folds[0][0].attributes for name in row if name not in asked):
        try:
            shares = [_share(operator, test, other) for operator, test in operators]
        except InputError:  # it does not vary, or not in every context
            continue
        share = sum(shares) / len(shares)
        sentence = f"Steering {', '.join(asked)} leaves {share:.2f} of the contrast of {other} on held-out people"
        result.notes.append(f"{sentence}.")
        if min(shares) > 1 + CLOSE:
            both = (*asked, other)
            joint = compare(candidates, folds, both, neutral)
            together = ""
            if joint.scores:
                best = joint.best
                together = (
                    f" Steering {', '.join(both)} together ({best.candidate.label}) leaves at most "
                    f"{best.contrast_left:.2f} of each."
                )
            result.warnings.append(
                f"{sentence}: it shows more of {other} than before.{together} "
                f"Use --attribute {','.join(both)} unless {other} has to stay as it is."
            )
    return result


def columns(attribute: Attribute) -> tuple[str, ...]:
    """The names of one attribute or several."""
    return (attribute,) if isinstance(attribute, str) else attribute


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


def _fully_steered(operator: Operator, tokens: Tensor) -> Tensor:
    rows = tokens.float()
    return apply(operator, rows, torch.ones(len(rows), 1), torch.zeros(len(rows), dtype=torch.long)).rows


def _score(candidate: Candidate, folds: Folds, attribute: Attribute, neutral: Activations | None) -> Score:
    """The candidate's means over the folds (train, test); of several attributes, the largest contrast left."""
    shares, displacements = [], []
    for train, test in folds:
        operator = candidate.fit(train, attribute, neutral).operator
        shares.append(max(_share(operator, test, name) for name in columns(attribute)))
        displacements += [_displacement(acts, operator) for acts in (test, neutral) if acts]
    return Score(candidate, sum(shares) / len(shares), sum(displacements) / len(displacements))


def _share(operator: Operator, test: Activations, attribute: str) -> float:
    """The contrast of an attribute after steering, as a share of what it was."""
    before = contrast(test, attribute, test)
    if not before > 0:
        raise InputError("the images of every context give equal tokens: there is nothing to hide")
    return contrast(_steered(test, operator), attribute, test) / before


def _steered(acts: Activations, operator: Operator) -> Activations:
    return acts.mapped(partial(_fully_steered, operator))


def _displacement(acts: Activations, operator: Operator) -> float:
    """The mean of |h' - h| / |h| over tokens; zero tokens do not count."""
    total, count = 0.0, 0
    for tokens, steered in zip(acts.tokens, _steered(acts, operator).tokens, strict=True):
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
