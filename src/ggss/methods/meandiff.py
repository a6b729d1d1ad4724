"""MeanDiff: classify an image, subtract the shift of its class (appendix A.5; after Zou et al. 2023).

    r^ = classifier(mean row of the image)
    meandiff-*-euclidean     h - alpha (mean_r^ - mean)
    meandiff-*-spherical     |h| Normalize(exp_mu(log_mu(h^) - alpha log_mu(mu_r^))),      mu, mu_r Fréchet means

The classifier is trained on pooled rows: an RBF-kernel SVM (C = 1, gamma = scale) or multinomial logistic
regression (C = 1). It is stored as arrays and evaluated here, in float64, with the same predictions as scikit-learn:
the SVM votes over pairs of classes as libsvm does, and of classes with equal votes the first wins.

Left open by the paper: both geometries classify the pooled row itself, not its direction. Pooling is over all rows
of the image that the site gives. Without `images` all rows count as one image.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.by_image import mean_row, parts
from ggss.methods.classes import Classes, classes, logistic_regression, refuse_equal, span
from ggss.methods.operator import Operator, register, require_finite
from ggss.methods.registry import Attribute, Fitted, Method, Options
from ggss.methods.registry import register as register_method
from ggss.methods.spherical import Removal, check_frame, move, precise
from ggss.methods.subspace import representatives


@dataclass(frozen=True)
class ClassShift(Operator):
    """Base: finds the class of each image and subtracts the shift of that class from the image's rows."""

    needs_images: ClassVar[bool] = True

    def classify(self, pooled: Tensor) -> int:
        """The class of a mean row [D] in float64."""
        raise NotImplementedError

    def subtract(self, rows: Tensor, alpha: Tensor, label: int, out: Tensor) -> None:
        raise NotImplementedError

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        for own in parts(images, len(rows)):
            mine = rows[own]
            pooled = mean_row(mine, precise(rows))
            if not torch.isfinite(pooled).all():
                require_finite(mine, len(rows))
            label = self.classify(pooled)
            if isinstance(own, slice):
                self.subtract(mine, alpha[own], label, out[own])
            else:
                self.subtract(mine, alpha[own], label, mine)
                out[own] = mine


@dataclass(frozen=True)
class Linear(ClassShift):
    """weights [A, D] and intercepts [A] in float64; one row decides between two classes."""

    weights: Tensor
    intercepts: Tensor

    def classify(self, pooled: Tensor) -> int:
        scores = self.weights.to(pooled) @ pooled + self.intercepts.to(pooled)
        return int(scores[0] > 0) if len(scores) == 1 else int(scores.argmax())


@dataclass(frozen=True)
class Kernel(ClassShift):
    """An RBF SVM: support vectors [S, D] ordered by class, how many each class has [A], dual coefficients
    [A - 1, S], one intercept per pair of classes [A (A - 1) / 2], gamma."""

    support: Tensor
    counts: Tensor
    dual: Tensor
    intercepts: Tensor
    gamma: float

    def classify(self, pooled: Tensor) -> int:
        """libsvm's vote: for classes i < j, row j - 1 of the dual weighs class i's vectors and row i class j's."""
        distances = ((self.support.to(pooled) - pooled) ** 2).sum(1)
        weighted = self.dual.to(pooled) * torch.exp(-self.gamma * distances)
        sums = torch.stack([part.sum(1) for part in weighted.split(self.counts.tolist(), 1)], 1)
        pairs = torch.triu_indices(len(self.counts), len(self.counts), 1).tolist()
        votes = [0] * len(self.counts)
        for i, j, intercept in zip(*pairs, self.intercepts.tolist(), strict=True):
            votes[i if float(sums[j - 1, i] + sums[i, j]) + intercept > 0 else j] += 1
        return votes.index(max(votes))


@dataclass(frozen=True)
class Flat(ClassShift):
    """shifts [A, D] in float32."""

    shifts: Tensor

    @property
    def width(self) -> int:
        return self.shifts.shape[1]

    def subtract(self, rows: Tensor, alpha: Tensor, label: int, out: Tensor) -> None:
        torch.addcmul(rows, alpha, self.shifts[label].to(rows), value=-1, out=out)


@dataclass(frozen=True)
class Curved(ClassShift):
    """mu [D], an orthonormal basis [D, k] of the tangent shifts, and their coordinates [A, k], in float32."""

    mu: Tensor
    basis: Tensor
    shifts: Tensor

    @property
    def width(self) -> int:
        return self.mu.shape[0]

    def subtract(self, rows: Tensor, alpha: Tensor, label: int, out: Tensor) -> None:
        shift = self.shifts[label]
        move(rows, alpha, self.mu, self.basis, lambda b, a: Removal(a * shift.to(b).expand_as(b), 1.0), out)

    def validate(self) -> None:
        check_frame(self.mu, self.basis)


@register
@dataclass(frozen=True)
class SvmEuclidean(Kernel, Flat):
    kind: ClassVar[str] = "meandiff-svm-euclidean"


@register
@dataclass(frozen=True)
class SvmSpherical(Kernel, Curved):
    kind: ClassVar[str] = "meandiff-svm-spherical"


@register
@dataclass(frozen=True)
class LrEuclidean(Linear, Flat):
    kind: ClassVar[str] = "meandiff-lr-euclidean"


@register
@dataclass(frozen=True)
class LrSpherical(Linear, Curved):
    kind: ClassVar[str] = "meandiff-lr-spherical"


class MeanDiffOptions(Options):
    c: float = Field(1.0, gt=0, description="inverse strength of the classifier's penalty")


def svm(activations: Activations, known: Classes, c: float) -> tuple[dict[str, Any], float]:
    """The SVM's arrays, and its accuracy on the images it was trained on."""
    from sklearn.svm import SVC

    rows, labels = activations.pooled.double().numpy(), known.labels.numpy()
    model = SVC(kernel="rbf", C=c, gamma="scale").fit(rows, labels)
    # For two classes scikit-learn reverses the sign of libsvm's decision function.
    sign = -1 if len(known.values) == 2 else 1
    arrays = {
        "support": torch.from_numpy(model.support_vectors_).float(),  # exact: pooled rows are float32
        "counts": torch.from_numpy(model.n_support_).long(),
        "dual": torch.from_numpy(sign * model.dual_coef_),
        "intercepts": torch.from_numpy(sign * model.intercept_),
        "gamma": float(model._gamma),
    }
    return arrays, float(model.score(rows, labels))


def lr(activations: Activations, known: Classes, c: float) -> tuple[dict[str, Any], float]:
    """The regression's arrays, and its accuracy on the images it was trained on."""
    data = span(activations.pooled.double())
    model = logistic_regression(data.coordinates, known.labels, c)
    weights = model.weights @ data.directions.T
    return {"weights": weights, "intercepts": model.intercepts - weights @ data.mean}, model.accuracy


def flat(activations: Activations, known: Classes) -> dict[str, Tensor]:
    pooled = activations.pooled.double()
    shifts = known.means(pooled) - pooled.mean(0)
    refuse_none(shifts, float(pooled.norm(dim=1).mean()))
    return {"shifts": shifts.float()}


def curved(activations: Activations, known: Classes) -> dict[str, Tensor]:
    points = representatives(activations.pooled)
    mu = sphere.frechet_mean(points)
    means = torch.stack([sphere.frechet_mean(points[known.labels == a]) for a in range(len(known.values))])
    shifts = sphere.log(mu, means)
    refuse_none(shifts, 1.0)
    _, size, directions = torch.linalg.svd(shifts, full_matrices=False)
    basis = directions[size > 1e-9 * float(size[0])].T
    return {"mu": mu.float(), "basis": basis.float().contiguous(), "shifts": (shifts @ basis).float()}


def refuse_none(shifts: Tensor, size: float) -> None:
    """InputError when shifts [A, D] of rows of a given size are zero, up to the rounding of float32."""
    if not float(shifts.norm()) > 1e-7 * size:
        raise InputError("the mean activations of all values are equal: there is no shift to subtract")


def _method(classifier: Any, geometry: Any, operator: type[ClassShift], summary: str) -> None:
    def fit(activations: Activations, attribute: Attribute, options: MeanDiffOptions) -> Fitted:
        known = classes(activations, attribute)
        refuse_equal(activations.pooled.double())
        arrays, accuracy = classifier(activations, known, options.c)
        return Fitted(operator(**arrays, **geometry(activations, known)), diagnostics={"accuracy": accuracy})

    reference = "Zou et al. 2023, Representation Engineering; Sun et al., GGSS, appendix A.5"
    register_method(Method(operator.kind, summary, reference, fit, MeanDiffOptions))


_method(svm, flat, SvmEuclidean, "an RBF SVM names an image's value, its mean shift is subtracted")
_method(svm, curved, SvmSpherical, "an RBF SVM names an image's value, its tangent shift is subtracted")
_method(lr, flat, LrEuclidean, "logistic regression names an image's value, its mean shift is subtracted")
_method(lr, curved, LrSpherical, "logistic regression names an image's value, its tangent shift is subtracted")
