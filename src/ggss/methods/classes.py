"""What the classifier-based methods share: labels, the span of the data, and logistic regression in it."""

import warnings
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.registry import Attribute

ITERATIONS = 1000
TOLERANCE = 1e-9
CONVERGED = 1e-3  # the largest gradient of the loss, relative to the weights, that counts as zero


@dataclass(frozen=True)
class Classes:
    """The values of an attribute and each image's index [N] among them."""

    values: tuple[Hashable, ...]
    labels: Tensor

    def means(self, rows: Tensor) -> Tensor:
        """The mean row [A, D] of each value."""
        return torch.stack([rows[self.labels == a].mean(0) for a in range(len(self.values))])


def classes(activations: Activations, attribute: Attribute) -> Classes:
    """The labels of the images; InputError if a value has fewer than two of them."""
    labels = activations.labels(attribute)
    values = activations.groups(attribute).values
    for value, count in Counter(labels).items():
        if count < 2:
            raise InputError(
                f"value {value!r} of {attribute!r} has one image; a classifier needs two of each or more"
            )
    return Classes(values, torch.tensor([values.index(label) for label in labels]))


@dataclass(frozen=True)
class Span:
    """Rows [N, D] as mean + coordinates [N, r] @ directions^T, with orthonormal directions [D, r]; float64.

    A fit with an L2 penalty, or of covariances, stays in the span of its data. So in these coordinates it is the
    same fit in r < N dimensions instead of D.
    """

    mean: Tensor
    coordinates: Tensor
    directions: Tensor


def span(rows: Tensor) -> Span:
    """InputError when the rows are all equal."""
    refuse_equal(rows)
    mean = rows.mean(0)
    left, singular, right = torch.linalg.svd(rows - mean, full_matrices=False)
    kept = singular > TOLERANCE * singular[0]
    return Span(mean, (left * singular)[:, kept], right[kept].T)


def refuse_equal(rows: Tensor) -> None:
    """InputError when the rows are all equal, up to the rounding of float32."""
    if not float((rows - rows.mean(0)).norm()) > 1e-7 * float(rows.norm()):
        raise InputError(f"the activations of all {len(rows)} images are equal: there is nothing to learn from")


@dataclass(frozen=True)
class Logistic:
    """Multinomial weights [A, D] (one row of them for two values), intercepts, and training accuracy."""

    weights: Tensor
    intercepts: Tensor
    accuracy: float


def logistic_regression(rows: Tensor, labels: Tensor, c: float) -> Logistic:
    """scikit-learn's multinomial logistic regression with an L2 penalty, solved to convergence.

    The paper does not name a solver; the optimum is unique, and Newton's method reaches it. InputError if it did not.
    """
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=c, solver="newton-cg", tol=TOLERANCE, max_iter=ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the line search warns of rounding errors; the result is checked below
        model.fit(rows.numpy(), labels.numpy())
    weights, intercepts = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    found = Logistic(weights, intercepts, float(model.score(rows.numpy(), labels.numpy())))
    asked_for = TOLERANCE * c * len(rows) * weights.numel() ** 0.5  # scikit-learn divides its gradient by c N
    if not float(gradient(found, rows, labels, c).norm()) <= max(CONVERGED * float(weights.norm()), asked_for):
        raise InputError(
            f"logistic regression did not converge on activations of size {float(rows.norm(dim=1).mean()):.1e}; "
            "rescale them"
        )
    return found


def gradient(model: Logistic, rows: Tensor, labels: Tensor, c: float) -> Tensor:
    """The gradient by the weights of |w|^2 / 2 + c times the sum of the log losses: zero at the optimum."""
    scores = rows @ model.weights.T + model.intercepts
    if len(model.weights) == 1:
        errors = scores.sigmoid() - labels[:, None]
    else:
        errors = scores.softmax(1) - torch.nn.functional.one_hot(labels)
    return model.weights + c * errors.T @ rows
