"""`rlace`: relaxed linear adversarial concept erasure (Ravfogel et al. 2022), probe against projection.

    max over P, min over W, b      mean over i of loss(y_i, W (I - P) x_i + b) + |W|^2 / (2 c N)
    P in the Fantope               0 <= P <= I, trace P = k: the convex hull of the orthogonal projections of rank k

    repeat:  W, b <- one step of gradient descent      P <- Fantope projection of (P + one step of gradient ascent)
    V: the k eigenvectors of P with the largest eigenvalues             steered = h - alpha V V^T h

The Fantope projection keeps the eigenvectors of a symmetric matrix and shifts its eigenvalues by a constant, clipped
to 0 and 1, such that they sum to k. x are pooled rows, y the values, loss the cross-entropy. The result is the P, of
those evaluated, whose rounded projection leaves the best possible probe the largest loss. The best probe is
scikit-learn's logistic regression with the same penalty.

**What the paper does.** It plays the same game with stochastic gradients (batches of 128, up to 75,000 of them),
starts from a random P, and keeps the P with the lowest accuracy of a classifier on other data.

**Done otherwise here.** Discovery sets have some hundred rows, so gradients are of all rows and the game is played
in the span of the data, scaled to a mean square of 1 a coordinate. No images are held out: the value of the game
decides which P is kept, not an accuracy. k is the number of values - 1, the smallest rank that can hide all of them
from a linear probe; the paper mostly removes one dimension of two values. A probe is at chance if and only if the
mean rows of all values are equal (Belrose et al. 2023), so at this k the game, played to its end, removes the span
of the values' mean differences: what `directional-ablation` writes down at once. At a smaller k they differ.
`around="mean"` projects around the mean row.
"""

import math

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import classes, logistic_regression, span
from ggss_rivals.directional_ablation import Centre, projection

EVALUATED_EVERY = 20  # steps of the game between two evaluations by the best possible probe


class RlaceOptions(Options):
    k: int | None = Field(None, ge=1, description="rank of the projection; the number of values - 1")
    c: float = Field(1.0, gt=0, description="inverse strength of the probe's L2 penalty")
    steps: int = Field(200, ge=1, description="steps of the game")
    descent: float = Field(0.1, gt=0, description="step size of the probe")
    ascent: float = Field(100.0, gt=0, description="step size of the projection")
    seed: int = Field(42, ge=0, description="seed of the first P")
    around: Centre = Field("origin", description="what is projected around: the origin, as published, or the mean")


def fantope(matrix: Tensor, k: int) -> Tensor:
    """The nearest matrix in the Fantope of rank k to a symmetric one [r, r]."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * capped(values, k)) @ vectors.T


def capped(values: Tensor, k: int) -> Tensor:
    """clip(values - shift, 0, 1) with the shift for which they sum to k; exact, as the sum is piecewise linear."""
    corners = torch.cat([values, values - 1]).sort().values
    sums = (values - corners[:, None]).clamp(0, 1).sum(1)  # falls from len(values) to 0
    i = min(int((sums >= k).sum()) - 1, len(corners) - 2)
    fall = sums[i] - sums[i + 1]
    share = (sums[i] - k) / fall if fall > 0 else torch.zeros_like(fall)
    return (values - corners[i].lerp(corners[i + 1], share)).clamp(0, 1)


def probe_loss(rows: Tensor, labels: Tensor, basis: Tensor, c: float) -> float:
    """The loss of the best probe on rows [N, r] after the span of an orthonormal basis [r, k] is removed."""
    remaining = rows - rows @ basis @ basis.T
    probe = logistic_regression(remaining, labels, c)
    scores = remaining @ probe.weights.T + probe.intercepts
    if len(probe.weights) == 1:  # of two values scikit-learn keeps one row: the score of the second
        scores = torch.cat([torch.zeros_like(scores), scores], 1)
    return float(cross_entropy(scores, labels))


def play(rows: Tensor, labels: Tensor, k: int, options: RlaceOptions) -> tuple[Tensor, list[float]]:
    """The basis [r, k] of the best projection for rows [N, r], and the probe's loss at each evaluation; float64."""
    count, width = rows.shape
    targets = one_hot(labels).double()
    generator = torch.Generator().manual_seed(options.seed)
    start = 0.1 * torch.randn(width, width, generator=generator, dtype=torch.float64)
    p = fantope((start + start.T) / 2, k)
    weights, intercepts = rows.new_zeros(targets.shape[1], width), rows.new_zeros(targets.shape[1])
    best, losses = rows.new_zeros(width, k), [-math.inf]
    for step in range(1, options.steps + 1):
        remaining = rows - rows @ p
        error = ((remaining @ weights.T + intercepts).softmax(1) - targets) / count
        weights = weights - options.descent * (error.T @ remaining + weights / (options.c * count))
        intercepts = intercepts - options.descent * error.sum(0)
        error = ((remaining @ weights.T + intercepts).softmax(1) - targets) / count
        gradient = -rows.T @ error @ weights
        p = fantope(p + options.ascent * (gradient + gradient.T) / 2, k)
        if step % EVALUATED_EVERY == 0 or step == options.steps:
            basis = torch.linalg.eigh(p)[1][:, -k:]
            loss = probe_loss(rows, labels, basis, options.c)
            if loss > max(losses):
                best = basis
            losses.append(loss)
    return best, losses[1:]


def fit(activations: Activations, attribute: Attribute, options: RlaceOptions) -> Fitted:
    known, pooled = classes(activations, attribute), activations.pooled.double()
    data = span(pooled)
    width = data.coordinates.shape[1]
    k = len(known.values) - 1 if options.k is None else options.k
    if k >= width:
        raise InputError(
            f"a projection of rank {k} was asked for, but these {len(pooled)} images differ in {width} dimensions"
        )
    rows = data.coordinates / data.coordinates.square().mean().sqrt()
    basis, losses = play(rows, known.labels, k, options)
    before = probe_loss(rows, known.labels, basis[:, :0], options.c)
    return Fitted(
        projection(data.directions @ basis, pooled, options.around),
        {"values": torch.tensor(losses)},
        {"probe_loss_before": before, "probe_loss": max(losses), "chance_loss": math.log(len(known.values))},
    )


register(
    Method(
        name="rlace",
        summary="a projection that wins a minimax game against a linear probe",
        reference="Ravfogel et al. 2022, Linear Adversarial Concept Erasure, arXiv 2201.12091",
        fit=fit,
        options=RlaceOptions,
    )
)
