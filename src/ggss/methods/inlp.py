"""INLP: iterative null-space projection (Ravfogel et al. 2020; appendix A.5).

    repeat: fit multinomial logistic regression (C = 1) on X; stop when its accuracy is within 1e-6 of 1 / K;
            append the orthonormalised rows of its weights to V; X <- X - X V_m V_m^T       at most 10 times

    inlp-euclidean      X: pooled rows                              h - alpha V V^T (h - mean)
    inlp-spherical      X: normalised pooled rows                   exp_mu(t - alpha V V^T t), norm restored

Where the paper is silent, as in the authors' code: accuracy is measured on the training rows; accuracy below chance
also stops the loop. The spherical form "normalizes, computes a Fréchet global mean, and projects in the tangent
space": it is trained on the normalised rows. `trained_on="tangent"` trains it on their tangent vectors log_mu, in the
space where it projects.

**Other than the authors' code.** That code trains on at most 20,000 random tokens where a GPU library (cuML) is
installed, and on pooled rows elsewhere; X here is always pooled rows, so that a result does not depend on the
machine. It keeps a direction for each of the K rows of the weights; these sum to zero, so one of the K is rounding of
the solver, and is left out here. It stops at scikit-learn's tolerance, or after 1000 steps of lbfgs; here the
regression is solved to convergence, in the span of the data (`subspace.Span`), which changes only its cost.
`components="release"` does what that code does without cuML: scikit-learn's defaults, and K directions a round.
"""

import warnings
from typing import Literal

import numpy as np
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
    components: Literal["paper", "release"] = Field(
        "paper", description="K - 1 converged directions a round, or the K unconverged ones of the authors' code"
    )


class SphericalInlpOptions(InlpOptions):
    trained_on: Literal["unit", "tangent"] = Field(
        "unit", description="what X is: the normalised pooled rows, or their tangent vectors"
    )


def fit_euclidean(activations: Activations, attribute: Attribute, options: InlpOptions) -> Fitted:
    pooled = activations.pooled.double()
    basis, accuracies = _directions(pooled, classes(activations, attribute), options)
    return Fitted(Euclidean(pooled.mean(0).float(), basis), {"accuracies": accuracies})


def fit_spherical(activations: Activations, attribute: Attribute, options: SphericalInlpOptions) -> Fitted:
    points = representatives(activations.pooled)
    mu = sphere.frechet_mean(points)
    rows = points if options.trained_on == "unit" else sphere.log(mu, points)
    basis, accuracies = _directions(rows, classes(activations, attribute), options)
    return Fitted(Tangent.orthogonal(mu, basis), {"accuracies": accuracies})


def _directions(rows: Tensor, known: Classes, options: InlpOptions) -> tuple[Tensor, Tensor]:
    return (released_directions if options.components == "release" else null_directions)(rows, known, options)


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
        raise _nothing_to_remove(known, accuracies[0])
    stacked = torch.linalg.qr(torch.cat(removed).T)[0]
    if stacked.shape[1] >= residual.shape[1]:
        raise InputError(
            f"INLP used up all {residual.shape[1]} dimensions in which these {len(residual)} images differ, after "
            f"{len(removed)} classifiers: use more images or fewer iterations"
        )
    return (data.directions @ stacked).float().contiguous(), torch.tensor(accuracies)


def released_directions(rows: Tensor, known: Classes, options: InlpOptions) -> tuple[Tensor, Tensor]:
    """The same by the authors' code, which begins in float32."""
    from sklearn.linear_model import LogisticRegression

    residual, labels = rows.float().numpy(), known.labels.numpy()
    removed, accuracies = [], []
    for _ in range(options.iterations):
        model = LogisticRegression(C=options.c, max_iter=1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it need not converge
            model.fit(residual, labels)
        accuracies.append(float(model.score(residual, labels)))
        if accuracies[-1] <= 1 / len(known.values) + CHANCE_MARGIN:
            break
        directions = np.linalg.qr(model.coef_.T)[0]
        removed.append(directions)
        residual = residual @ (np.eye(len(directions)) - directions @ directions.T)
    if not removed:
        raise _nothing_to_remove(known, accuracies[0])
    stacked = np.concatenate(removed, 1)
    if stacked.shape[1] >= len(stacked):
        raise InputError(
            f"INLP used up all {len(stacked)} dimensions after {len(removed)} classifiers: use fewer iterations"
        )
    return torch.from_numpy(np.linalg.qr(stacked)[0]).float().contiguous(), torch.tensor(accuracies)


def _nothing_to_remove(known: Classes, accuracy: float) -> InputError:
    return InputError(
        f"a linear classifier reads {known.values} no better than chance (accuracy {accuracy:.2f}): "
        "there is nothing to remove"
    )


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
