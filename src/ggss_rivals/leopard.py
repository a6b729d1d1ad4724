"""`leopard`: an orthogonal projection after which values have one distribution (Saillenfest and Lemberger 2025).

    min over V      mean over pairs of values a, b of MMD^2(x_a - V V^T x_a, x_b - V V^T x_b)        V^T V = I
    MMD^2           mean k(x_a, x_a') + mean k(x_b, x_b') - 2 mean k(x_a, x_b)     k(x, y) = exp(-|x - y|^2 / (2 s^2))
    steered = h - alpha V V^T (h - mean)

A projection that makes the means of values equal hides them from a linear probe (`rlace`, `directional-ablation`).
One that makes their distributions equal hides them from any probe.

**What the paper claims.** The best removal of a discrete attribute from embeddings of text against nonlinear probes,
with local structure kept because the projection is orthogonal; fairer nonlinear classifiers. The rank of the
projection says how much is removed.

**What is from the paper, and what is a reading.** Its abstract and introduction could be read, its equations not.
From the paper: an orthogonal projection, learned so that class-conditional distributions are the same after it, of a
chosen rank. A reading: that the distance between distributions is the maximum mean discrepancy with a Gaussian
kernel, and its bandwidth s the median distance of rows.

**Done otherwise here.** x are mean rows of discovery pictures, in the span of the data. V starts at the span of the
values' mean differences (more columns: at random) and takes `steps` steps of Adam; the best V seen is kept. k is
the number of values - 1, as in `rlace`, so that what differs is the objective alone. The projection is around the
mean.
"""

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.meandiff import refuse_none
from ggss.methods.projection import Euclidean
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import classes, oriented, span

RANK = 1e-6  # a difference this small, relative to the largest, is rounding of float32 activations


class LeopardOptions(Options):
    k: int | None = Field(None, ge=1, description="rank of what is removed; the number of values - 1")
    steps: int = Field(200, ge=0, description="steps of the search")
    rate: float = Field(0.02, gt=0, description="size of a step")
    seed: int = Field(42, ge=0, description="seed of further columns at the start")


def discrepancy(rows: Tensor, labels: Tensor, bandwidth: float) -> Tensor:
    """The mean over pairs of values of the squared maximum mean discrepancy of rows [N, r]."""
    kernel = (-torch.cdist(rows, rows).square() / (2 * bandwidth**2)).exp()
    one_hot = torch.nn.functional.one_hot(labels).to(rows)
    shares = one_hot / one_hot.sum(0)
    between = shares.T @ kernel @ shares  # mean kernel between each two values
    own = between.diagonal()
    squared = own[:, None] + own[None] - 2 * between
    count = len(own)
    return squared.sum() / (count * (count - 1))


def removed(rows: Tensor, basis: Tensor) -> Tensor:
    """Rows [N, r] without what they have in the span of an orthonormal basis [r, k]."""
    return rows - rows @ basis @ basis.T


def search(rows: Tensor, labels: Tensor, start: Tensor, options: LeopardOptions) -> tuple[Tensor, float, float]:
    """The best basis [r, k], and the discrepancy before and after; rows [N, r] and start [r, k] in float64."""
    bandwidth = float(torch.pdist(rows).median())
    with torch.no_grad():
        before = float(discrepancy(rows, labels, bandwidth))
    free = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([free], lr=options.rate)
    best, lowest = start, float("inf")
    with torch.enable_grad():
        for step in range(options.steps + 1):
            basis = torch.linalg.qr(free)[0]
            loss = discrepancy(removed(rows, basis), labels, bandwidth)
            if float(loss.detach()) < lowest:
                best, lowest = basis.detach(), float(loss.detach())
            if step < options.steps:
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    return best, before, lowest


def fit(activations: Activations, attribute: Attribute, options: LeopardOptions) -> Fitted:
    known, pooled = classes(activations, attribute), activations.pooled.double()
    data = span(pooled)
    rows = data.coordinates / data.coordinates.square().mean().sqrt()
    differences = known.means(rows) - rows.mean(0)
    refuse_none(known.means(pooled) - pooled.mean(0), float(pooled.norm(dim=1).mean()))
    width, k = rows.shape[1], len(known.values) - 1 if options.k is None else options.k
    if k >= width:
        raise InputError(
            f"a projection of rank {k} was asked for, but these {len(pooled)} images differ in {width} dimensions"
        )
    _, singular, directions = torch.linalg.svd(differences, full_matrices=False)
    start = directions[singular > RANK * singular[0]][:k].T
    if start.shape[1] < k:
        generator = torch.Generator().manual_seed(options.seed)
        more = torch.randn(width, k - start.shape[1], generator=generator, dtype=torch.float64)
        start = torch.linalg.qr(torch.cat([start, more], 1))[0]
    basis, before, after = search(rows, known.labels, start, options)
    operator = Euclidean(data.mean.float(), oriented(data.directions @ basis).float().contiguous())
    return Fitted(operator, diagnostics={"discrepancy_before": before, "discrepancy": after})


register(
    Method(
        name="leopard",
        summary="a projection after which the values' distributions, not only their means, are alike",
        reference="Saillenfest and Lemberger 2025, Nonlinear Concept Erasure: a Density Matching Approach, "
        "arXiv 2507.12341",
        fit=fit,
        options=LeopardOptions,
    )
)
