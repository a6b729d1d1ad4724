"""`splince`: erases an attribute and keeps the covariance with a task (Holstege et al. 2025); PACE with that rule.

    W = Sigma_x^(-1/2)       A = colsp(W Sigma_xz)       B = colsp(W Sigma_xy)       x rows, z attribute, y task
    P = W^-1 V (U^T V)^-1 U^T W        U spans the complement of A;   V spans B and the complement of A + B
    steered = h - alpha (I - P) (h - mean)

P is the only projection with cov(P x, z) = 0, so that no linear probe reads z, and cov(P x, y) = cov(x, y), so that
what a linear probe reads of y is as it was, that changes x least among these. LEACE has the first condition and not
the second; if A and B are orthogonal, the two are the same.

**What the paper claims.** More of a task's accuracy is left than by LEACE and other projections where attribute and
task go together and the last layer is fixed or regularised (Bias in Bios, multilingual toxicity, a language model's
choice of words). If a last layer is trained again without a penalty, the range of a projection makes no difference.
On pictures the gains are small.

**In the form of an oblique projection.** I - P moves along W^-1 A and detects along W N (A^T N)^-1, where N is the
part of A outside B: k columns each instead of a D x D matrix, and `projection.Oblique` applies it. It is affine and
can be exported. Both conditions hold exactly for the mean rows of the discovery pictures, whatever Sigma_x is.

**In a complete counterfactual set** every value is equally frequent with every value of the task, so that LEACE keeps
most of the task's covariance by itself: the rule makes a difference where tokens vary a lot along both.

**Done otherwise here.** x are the mean rows of pictures, and the map is applied to tokens. There are fewer pictures
than dimensions, so Sigma_x is shrunk as in `leace`. y are the one-hot values of `keep`: an attribute, or a column
that is held fixed, such as the occupation; several columns can be kept. By default these are all other columns but
the one that names people (the last that is held fixed). A column that shares a direction with the attribute cannot be
kept while the attribute is erased: this is refused.

**`splince-pace`** asks whether the rule helps PACE. It moves along the same V as `pace`. Detection is the nearest, in
units of how tokens vary, that does not see what mean rows have in common with `keep`:

    S as in `pace`      B = Sigma_xy      N = S^-1 (V - B (B^T S^-1 B)^-1 B^T S^-1 V)      detection N (V^T N)^-1

Without anything that the two share it is `pace`. Not from a paper.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError, no_such
from ggss.methods import pace
from ggss.methods.leace import shrunk_variances
from ggss.methods.operator import Identity
from ggss.methods.projection import Oblique
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import classes, refuse_equal, span

SMALLEST_SINE = 0.05  # of the angle between what is erased and what is kept; below it detection is all noise
RANK = 1e-6  # a covariance this small, relative to the largest, is rounding of float32 activations
STRIP = 4096  # tokens in one product

KEEP: Any = Field(
    None, description="the column, or several, whose covariance is kept; all others but the one that names people"
)


class SplinceOptions(Options):
    keep: str | tuple[str, ...] | None = KEEP


class SplincePaceOptions(pace.PaceOptions):
    keep: str | tuple[str, ...] | None = KEEP


def kept_columns(
    activations: Activations, attribute: Attribute, keep: str | tuple[str, ...] | None
) -> dict[str, list[Hashable]]:
    """The label of each image in every column that is kept. InputError if there is none, or one is not there."""
    steered = (attribute,) if isinstance(attribute, str) else attribute
    columns = {name: activations.labels(name) for name in activations.attributes[0]}
    if all(_is_columns(context) for context in activations.contexts):
        fixed: list[dict[str, Hashable]] = [dict(context) for context in activations.contexts]  # type: ignore[arg-type]
        columns |= {name: [row[name] for row in fixed] for name in fixed[0]}
        people = list(fixed[0])[-1:]
    else:
        people = []
    if keep is None:
        others = {name: labels for name, labels in columns.items() if name not in (*steered, *people)}
        chosen = {name: labels for name, labels in others.items() if len(set(labels)) > 1}
        if not chosen:
            raise InputError(f"no column but {', '.join(steered)} varies in these pictures: there is nothing to keep")
        return chosen
    names = (keep,) if isinstance(keep, str) else keep
    for name in names:
        if name not in columns:
            raise no_such(f"no column {name!r} that could be kept", name, columns)
        if name in steered:
            raise InputError(f"{name!r} is to be erased, so it cannot be kept; seen keep={keep!r}")
        if len(set(columns[name])) < 2:
            raise InputError(f"all pictures have the same {name!r}, {columns[name][0]!r}: there is nothing to keep")
    return {name: columns[name] for name in names}


def _is_columns(context: Hashable) -> bool:
    """Whether a context is pairs of a column's name and its value, as those of pictures are."""
    return isinstance(context, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in context
    )


def coded(labels: Sequence[Hashable]) -> Tensor:
    """One-hot values of labels [N, values], minus their mean, in float64."""
    values = sorted(set(labels), key=str)
    one_hot = torch.nn.functional.one_hot(torch.tensor([values.index(label) for label in labels])).double()
    return one_hot - one_hot.mean(0)


def column_space(matrix: Tensor) -> Tensor:
    """An orthonormal basis of the columns of a matrix [D, m], which may be dependent."""
    left, singular, _ = torch.linalg.svd(matrix, full_matrices=False)
    return left[:, singular > RANK * singular[0]]


def outside(erased: Tensor, kept: Tensor) -> tuple[Tensor, float]:
    """N (A^T N)^-1 for orthonormal A [r, k] and B [r, m], and the sine of the smallest angle between their spans.

    InputError if they share a direction.
    """
    rest = erased - kept @ (kept.T @ erased)
    sine = float(torch.linalg.svdvals(rest)[-1])
    if sine < SMALLEST_SINE:
        raise InputError(
            f"what is erased and what is kept share a direction (the sine of their angle is {sine:.3f}): erasing one "
            "erases the other; keep another column"
        )
    return rest @ torch.linalg.inv(erased.T @ rest), sine


def fit(activations: Activations, attribute: Attribute, options: SplinceOptions) -> Fitted:
    refuse_equal(activations.pooled.double())
    kept = kept_columns(activations, attribute, options.keep)
    classes(activations, attribute)  # raises if a value has a single image
    data = span(activations.pooled.double())
    rows, count = data.coordinates, len(activations)
    variances = shrunk_variances((rows**2).sum(0) / count, count, activations.pooled.shape[1])
    scale = variances.sqrt()
    names = (attribute,) if isinstance(attribute, str) else attribute
    z = torch.cat([coded(activations.labels(name)) for name in names], 1)
    y = torch.cat([coded(labels) for labels in kept.values()], 1)
    covariance = rows.T @ z / count
    if not float(covariance.norm()) > RANK * float(variances.sum().sqrt()):
        raise InputError(f"no linear trace of {attribute!r} in the activations: there is nothing to erase")
    erased = column_space(covariance / scale[:, None])
    detection, sine = outside(erased, column_space(rows.T @ y / count / scale[:, None]))
    operator = Oblique(
        data.mean.float(),
        (data.directions @ (detection / scale[:, None])).float().contiguous(),
        (data.directions @ (erased * scale[:, None])).float().contiguous(),
    )
    return Fitted(operator, diagnostics={"k": erased.shape[1], **_described(kept, sine)})


def _described(kept: dict[str, list[Hashable]], sine: float) -> dict[str, Any]:
    return {"notes": [f"Kept: {', '.join(kept)}; sine of the angle to what is erased {sine:.2f}."]}


def fit_pace(
    activations: Activations, attribute: Attribute, options: SplincePaceOptions, neutral: Activations | None = None
) -> Fitted:
    refuse_equal(activations.pooled.double())
    kept = kept_columns(activations, attribute, options.keep)
    fitted = pace.fit(activations, attribute, options, neutral)
    if isinstance(fitted.operator, Identity):
        return fitted
    operator = fitted.operator
    assert isinstance(operator, Oblique)
    mu, movement = operator.mu.double(), operator.movement.double()
    moment = second_moment(activations.tokens, mu)
    share = options.neutral_share if neutral is not None else 0.0
    neutral_moment = second_moment(neutral.tokens, mu) if neutral is not None and share else None
    factor = torch.linalg.cholesky(pace.mixed(moment, neutral_moment, share, float(fitted.diagnostics["shrinkage"])))
    y = torch.cat([coded(labels) for labels in kept.values()], 1)
    covariance = (activations.pooled.double() - mu).T @ y / len(activations)
    whitened = torch.linalg.solve_triangular(factor, torch.cat([movement, covariance], 1), upper=False)
    erased, triangle = torch.linalg.qr(whitened[:, : movement.shape[1]])
    detection, sine = outside(erased, column_space(whitened[:, movement.shape[1] :]))
    # The movement is L A R for A = erased, R = triangle: its detection is L^-T N R^-T.
    unwhitened = torch.linalg.solve_triangular(factor.T, detection, upper=True)
    detection = torch.linalg.solve_triangular(triangle, unwhitened.T, upper=True).T
    constrained = replace(operator, detection=detection.float().contiguous())
    described = _described(kept, sine)
    notes = [*fitted.diagnostics.get("notes", []), *described["notes"]]
    diagnostics = {
        **fitted.diagnostics,
        **pace.displacements(constrained, activations, neutral),
        "notes": notes,
    }
    return Fitted(constrained, fitted.statistics, diagnostics)


def second_moment(tokens: Sequence[Tensor], mu: Tensor) -> Tensor:
    """The mean of (h - mu) (h - mu)^T [D, D] over all tokens that are not zero, in float64."""
    total, count = torch.zeros(len(mu), len(mu), dtype=torch.float64), 0
    for image in tokens:
        for strip in image[image.any(1)].split(STRIP):
            rows = (strip.double() - mu).float()
            total += (rows.T @ rows).double()
            count += len(rows)
    return total / max(count, 1)


register(
    Method(
        name="splince",
        summary="LEACE's erasure under the condition that the covariance with a task stays as it is",
        reference="Holstege et al. 2025, Preserving Task-Relevant Information Under Linear Concept Removal, "
        "arXiv 2506.10703",
        fit=fit,
        options=SplinceOptions,
    )
)
register(
    Method(
        name="splince-pace",
        summary="PACE that keeps the covariance with a task, as SPLINCE does",
        reference="this library; after Holstege et al. 2025, arXiv 2506.10703",
        fit=fit_pace,
        options=SplincePaceOptions,
        needs_tokens=True,
        takes_neutral=True,
    )
)
