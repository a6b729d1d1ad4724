"""INLP: iterative null-space projection (Ravfogel et al. 2020; appendix A.5).

    repeat: fit multinomial logistic regression (C = 1) on X; stop when its accuracy is within 1e-6 of 1 / K;
            append the orthonormalised rows of its weights to V; X <- X - X V_m V_m^T       at most 10 times

    inlp-euclidean      X: pooled rows                              h - alpha V V^T (h - mean)
    inlp-spherical      X: normalised pooled rows                   exp_mu(t - alpha V V^T t), norm restored

Left open by the paper: accuracy is measured on the training rows; accuracy below chance also stops the loop. The
spherical form "normalizes, computes a Fréchet global mean, and projects in the tangent space": it is trained on the
normalised rows, as in the authors' code. `trained_on="tangent"` trains it on their tangent vectors log_mu, in the
space where it projects.

**Other than the authors' code.** That code trains on at most 20,000 random tokens where a GPU library (cuML) is
installed, and on pooled rows elsewhere; X here is always pooled rows, so that a result does not depend on the
machine. It keeps a direction for each of the K rows of the weights; these sum to zero, so one of the K is rounding of
the solver, and is left out here. It stops after 1000 steps of lbfgs; here the regression is solved to convergence, in
the span of the data (`subspace.Span`), which changes only its cost.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.projection import Euclidean
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.spherical import Tangent
from ggss.methods.subspace import Classes, classes, logistic_regression, representatives, span

CHANCE_MARGIN = 1e-6  # an accuracy this close to 1 / K ends the iteration


class InlpOptions(Options):
    c: float = Field(1.0, gt=0, description="inverse strength of the L2 penalty")
    iterations: int = Field(10, ge=1, description="largest number of classifiers")


class SphericalInlpOptions(InlpOptions):
    trained_on: Literal["unit", "tangent"] = Field(
        "unit", description="what X is: the normalised pooled rows, or their tangent vectors"
    )


def fit_euclidean(activations: Activations, attribute: Attribute, options: InlpOptions) -> Fitted:
    pooled = activations.pooled.double()
    basis, accuracies = null_directions(pooled, classes(activations, attribute), options)
    return Fitted(Euclidean(pooled.mean(0).float(), basis), {"accuracies": accuracies})


def fit_spherical(activations: Activations, attribute: Attribute, options: SphericalInlpOptions) -> Fitted:
    points = representatives(activations.pooled)
    mu = sphere.frechet_mean(points)
    rows = points if options.trained_on == "unit" else sphere.log(mu, points)
    basis, accuracies = null_directions(rows, classes(activations, attribute), options)
    return Fitted(Tangent.orthogonal(mu, basis), {"accuracies": accuracies})


def null_directions(rows: Tensor, known: Classes, options: InlpOptions) -> tuple[Tensor, Tensor]:
    """V_bias [D, k] in float32, the orthonormalised directions of all classifiers; and each classifier's accuracy."""
    data = span(rows)
    residual, removed, accuracies = data.coordinates, [], []
    for _ in range(options.iterations):
        probe = logistic_regression(residual, known.labels, options.c)
        accuracies.append(probe.accuracy)
        if probe.accuracy <= 1 / len(known.values) + CHANCE_MARGIN:
            break
        _, singular, directions = torch.linalg.svd(probe.weights, full_matrices=False)
        directions = directions[singular > 1e-9 * singular[0]]
        removed.append(directions)
        residual = residual - residual @ directions.T @ directions
    if not removed:
        raise InputError(
            f"a linear classifier reads {known.values} no better than chance (accuracy {accuracies[0]:.2f}): "
            "there is nothing to remove"
        )
    stacked = torch.linalg.qr(torch.cat(removed).T)[0]
    if stacked.shape[1] >= residual.shape[1]:
        raise InputError(
            f"INLP used up all {residual.shape[1]} dimensions in which these {len(residual)} images differ, after "
            f"{len(removed)} classifiers: use more images or fewer iterations"
        )
    return (data.directions @ stacked).float().contiguous(), torch.tensor(accuracies)


for _name, _summary, _fit, _options in (
    ("inlp-euclidean", "iterated linear probes projected out in Euclidean space", fit_euclidean, InlpOptions),
    ("inlp-spherical", "iterated linear probes projected out in tangent space", fit_spherical, SphericalInlpOptions),
):
    register(
        Method(
            _name,
            _summary,
            "Ravfogel et al. 2020, Null It Out: Guarding Protected Attributes by Iterative Nullspace Projection",
            _fit,
            _options,
        )
    )
