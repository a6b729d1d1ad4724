"""INLP: iterative null-space projection (Ravfogel et al. 2020; appendix A.5).

    repeat: fit multinomial logistic regression (C = 1) on X; stop when its accuracy is within 1e-6 of 1 / K;
            append the orthonormalised rows of its weights to V; X <- X - X V_m V_m^T       at most 10 times

    inlp-euclidean      X: pooled rows                              h - alpha V V^T (h - mean)
    inlp-spherical      X: log_mu of normalised pooled rows         exp_mu(t - alpha V V^T t), norm kept

Left open by the paper: accuracy is measured on the training rows; accuracy below chance also stops the loop; the
spherical form is trained in the tangent space at the Fréchet mean, where it projects. The regression is computed in
the span of the data (`classes.Span`), which changes only its cost.
"""

import torch
from pydantic import Field
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.classes import Classes, classes, logistic_regression, span
from ggss.methods.euclidean import Euclidean
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import representatives
from ggss.methods.tangent import Tangent

CHANCE_MARGIN = 1e-6


class InlpOptions(Options):
    c: float = Field(1.0, gt=0, description="inverse strength of the L2 penalty")
    iterations: int = Field(10, ge=1, description="largest number of classifiers")


def fit_euclidean(activations: Activations, attribute: Attribute, options: InlpOptions) -> Fitted:
    pooled = activations.pooled.double()
    basis, accuracies = null_directions(pooled, classes(activations, attribute), options)
    return Fitted(Euclidean(pooled.mean(0).float(), basis), {"accuracies": accuracies})


def fit_spherical(activations: Activations, attribute: Attribute, options: InlpOptions) -> Fitted:
    points = representatives(activations.pooled)
    mu = sphere.frechet_mean(points)
    basis, accuracies = null_directions(sphere.log(mu, points), classes(activations, attribute), options)
    return Fitted(Tangent.orthogonal(mu, basis), {"accuracies": accuracies})


def null_directions(rows: Tensor, known: Classes, options: InlpOptions) -> tuple[Tensor, Tensor]:
    """The stacked, orthonormalised directions [D, k] in float32, and each classifier's accuracy."""
    data = span(rows)
    left, found, accuracies = data.coordinates, [], []
    for _ in range(options.iterations):
        probe = logistic_regression(left, known.labels, options.c)
        accuracies.append(probe.accuracy)
        if probe.accuracy <= 1 / len(known.values) + CHANCE_MARGIN:
            break
        _, size, directions = torch.linalg.svd(probe.weights, full_matrices=False)
        directions = directions[size > 1e-9 * size[0]]
        found.append(directions)
        left = left - left @ directions.T @ directions
    if not found:
        raise InputError(
            f"a linear classifier reads {known.values} no better than chance (accuracy {accuracies[0]:.2f}): "
            "there is nothing to remove"
        )
    stacked = torch.linalg.qr(torch.cat(found).T)[0]
    if stacked.shape[1] >= left.shape[1]:
        raise InputError(
            f"INLP used up all {left.shape[1]} dimensions in which these {len(left)} images differ, after "
            f"{len(found)} classifiers: use more images or fewer iterations"
        )
    return (data.directions @ stacked).float().contiguous(), torch.tensor(accuracies)


for _name, _summary, _fit in (
    ("inlp-euclidean", "iterated linear probes projected out in flat space", fit_euclidean),
    ("inlp-spherical", "iterated linear probes projected out in tangent space", fit_spherical),
):
    register(
        Method(
            _name,
            _summary,
            "Ravfogel et al. 2020, Null It Out: Guarding Protected Attributes by Iterative Nullspace Projection",
            _fit,
            InlpOptions,
        )
    )
