"""MeanDiff: classify an image, subtract the shift of its class (appendix A.5; after Zou et al. 2023).

    r^ = classifier(mean row of the image)
    meandiff-*-euclidean     h - alpha (mean_r^ - mean)
    meandiff-*-spherical     |h| Normalize(exp_mu(log_mu(h^) - alpha log_mu(mu_r^))),      mu, mu_r Fréchet means

The classifier is trained on pooled rows: an RBF-kernel SVM (C = 1, gamma = scale) or multinomial logistic regression
(C = 1). It is stored as arrays and evaluated here, in float64, with the same predictions as scikit-learn: the SVM
votes over pairs of classes as libsvm does, and of classes with equal votes the first wins.

The paper trains the classifier "on these pooled activations" and does not say whether the spherical form normalises
them first. The authors' code does, and so do we: the spherical classifier sees the direction of the pooled row.
`trained_on="pooled"` gives it the pooled row itself, as the Euclidean forms do. The optimum of the logistic
regression is computed to convergence; the authors' code stops after 1000 steps of lbfgs.

The authors' code steers the output of a module as one piece, so it classifies the mean row of all images of a prompt:
`pooled_over="prompt"`. Both images of a 2AFC question then lose the shift of the same class.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.operator import Array, register_kind
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.spherical import POOLED_OVER, ByImage, PooledOver, Removal, check_frame, move
from ggss.methods.subspace import Classes, classes, logistic_regression, refuse_equal, representatives, span


@dataclass(frozen=True)
class ClassShift(ByImage):
    """Base: classifies each image and subtracts the shift of its class, a row of `shifts`, from its rows.

    unit: the classifier gets the direction of the mean row instead of the mean row.
    """

    shifts: Tensor
    unit: bool = field(default=False, kw_only=True)

    def classify(self, pooled: Tensor) -> int:
        """The class of a mean row, or of its direction, [D] in float64."""
        raise NotImplementedError

    def subtract(self, rows: Tensor, alpha: Tensor, label: int, out: Tensor) -> None:
        raise NotImplementedError

    def steer_image(self, rows: Tensor, pooled: Tensor, alpha: Tensor, out: Tensor) -> None:
        self.subtract(rows, alpha, self.classify(sphere.normalize(pooled) if self.unit else pooled), out)


@dataclass(frozen=True)
class Linear(ClassShift):
    """Classified by logistic regression. weights [A, D] and intercepts [A] in float64; one row for two classes."""

    weights: Annotated[Tensor, Array("C", "D", dtype=torch.float64)]
    intercepts: Annotated[Tensor, Array("C", dtype=torch.float64)]

    def validate(self) -> None:
        super().validate()
        rows, values = len(self.weights), len(self.shifts)
        if rows != (1 if values == 2 else values):
            raise InputError(f"a classifier of {rows} rows does not decide between {values} values")

    def classify(self, pooled: Tensor) -> int:
        scores = self.weights.to(pooled) @ pooled + self.intercepts.to(pooled)
        return int(scores[0] > 0) if len(scores) == 1 else int(scores.argmax())


@dataclass(frozen=True)
class Kernel(ClassShift):
    """Classified by an RBF SVM.

    support [S, D]: support vectors ordered by class. counts [A]: how many each class has. dual [A - 1, S]: dual
    coefficients. intercepts [A (A - 1) / 2]: one for each pair of classes.
    """

    support: Annotated[Tensor, Array("S", "D")]
    counts: Annotated[Tensor, Array("A", dtype=torch.int64, ge=0)]
    dual: Annotated[Tensor, Array("A-1", "S", dtype=torch.float64)]
    intercepts: Annotated[Tensor, Array("pairs", dtype=torch.float64)]
    gamma: Annotated[float, Field(gt=0)]

    def validate(self) -> None:
        super().validate()
        values = len(self.counts)
        sizes = (sum(self.counts.tolist()), len(self.dual), len(self.intercepts))
        if sizes != (expected := (len(self.support), values - 1, values * (values - 1) // 2)):
            raise InputError(
                f"an SVM of {values} classes has {expected} support vectors, dual rows and intercepts, seen {sizes}"
            )

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
class EuclideanShift(ClassShift):
    """Subtracts delta_r = mean_r - mean. shifts [A, D] in float32."""

    shifts: Annotated[Tensor, Array("A", "D")]

    @property
    def width(self) -> int:
        return self.shifts.shape[1]

    def subtract(self, rows: Tensor, alpha: Tensor, label: int, out: Tensor) -> None:
        torch.addcmul(rows, alpha, self.shifts[label].to(rows), value=-1, out=out)


@dataclass(frozen=True)
class SphericalShift(ClassShift):
    """Subtracts log_mu(mu_r) in the tangent space at mu, norms restored.

    mu [D], an orthonormal basis [D, k] of the tangent shifts, and their coordinates, shifts [A, k], in float32.
    """

    mu: Annotated[Tensor, Array("D")]
    basis: Annotated[Tensor, Array("D", "k")]
    shifts: Annotated[Tensor, Array("A", "k")]

    @property
    def width(self) -> int:
        return self.mu.shape[0]

    def subtract(self, rows: Tensor, alpha: Tensor, label: int, out: Tensor) -> None:
        shift = self.shifts[label]
        move(rows, alpha, self.mu, self.basis, lambda b, a: Removal(a * shift.to(b).expand_as(b), 1.0), out)

    def validate(self) -> None:
        super().validate()
        check_frame(self.mu, self.basis)


@register_kind
@dataclass(frozen=True)
class SvmEuclidean(Kernel, EuclideanShift):
    kind: ClassVar[str] = "meandiff-svm-euclidean"


@register_kind
@dataclass(frozen=True)
class SvmSpherical(Kernel, SphericalShift):
    kind: ClassVar[str] = "meandiff-svm-spherical"


@register_kind
@dataclass(frozen=True)
class LrEuclidean(Linear, EuclideanShift):
    kind: ClassVar[str] = "meandiff-lr-euclidean"


@register_kind
@dataclass(frozen=True)
class LrSpherical(Linear, SphericalShift):
    kind: ClassVar[str] = "meandiff-lr-spherical"


class MeanDiffOptions(Options):
    c: float = Field(1.0, gt=0, description="inverse strength of the classifier's penalty")
    pooled_over: PooledOver = POOLED_OVER

    @property
    def unit(self) -> bool:
        """Whether the classifier sees the directions of pooled rows."""
        return False


class SphericalMeanDiffOptions(MeanDiffOptions):
    trained_on: Literal["unit", "pooled"] = Field(
        "unit", description="the classifier sees the directions of pooled rows, or the rows themselves"
    )

    @property
    def unit(self) -> bool:
        return self.trained_on == "unit"


def fit_svm(pooled: Tensor, known: Classes, c: float) -> tuple[dict[str, Any], float]:
    """The SVM's arrays, and its accuracy on the rows [N, D] it was trained on."""
    from sklearn.svm import SVC

    rows, labels = pooled.double().numpy(), known.labels.numpy()
    model = SVC(kernel="rbf", C=c, gamma="scale").fit(rows, labels)
    # For two classes scikit-learn reverses the sign of libsvm's decision function.
    sign = -1 if len(known.values) == 2 else 1
    arrays = {
        "support": torch.from_numpy(model.support_vectors_).float(),  # exact: the rows are float32
        "counts": torch.from_numpy(model.n_support_).long(),
        "dual": torch.from_numpy(sign * model.dual_coef_),
        "intercepts": torch.from_numpy(sign * model.intercept_),
        "gamma": float(model._gamma),
    }
    return arrays, float(model.score(rows, labels))


def fit_logistic(pooled: Tensor, known: Classes, c: float) -> tuple[dict[str, Any], float]:
    """The regression's arrays, and its accuracy on the rows [N, D] it was trained on."""
    data = span(pooled.double())
    model = logistic_regression(data.coordinates, known.labels, c)
    weights = model.weights @ data.directions.T
    return {"weights": weights, "intercepts": model.intercepts - weights @ data.mean}, model.accuracy


def euclidean_shifts(activations: Activations, known: Classes) -> dict[str, Tensor]:
    """The fields of an `EuclideanShift`."""
    pooled = activations.pooled.double()
    shifts = known.means(pooled) - pooled.mean(0)
    refuse_none(shifts, float(pooled.norm(dim=1).mean()))
    return {"shifts": shifts.float()}


def spherical_shifts(activations: Activations, known: Classes) -> dict[str, Tensor]:
    """The fields of a `SphericalShift`."""
    points = representatives(activations.pooled)
    mu = sphere.frechet_mean(points)
    means = torch.stack([sphere.frechet_mean(points[known.labels == a]) for a in range(len(known.values))])
    shifts = sphere.log(mu, means)
    refuse_none(shifts, 1.0)
    _, singular, directions = torch.linalg.svd(shifts, full_matrices=False)
    basis = directions[singular > 1e-9 * float(singular[0])].T
    return {"mu": mu.float(), "basis": basis.float().contiguous(), "shifts": (shifts @ basis).float()}


def refuse_none(shifts: Tensor, size: float) -> None:
    """InputError when shifts [A, D] are zero, up to the rounding of float32. size: the mean length of the rows."""
    if not float(shifts.norm()) > 1e-7 * size:
        raise InputError("the mean activations of all values are equal: there is no shift to subtract")


def _register(classifier: Any, shifts: Any, operator_class: type[ClassShift], summary: str) -> None:
    def fit(activations: Activations, attribute: Attribute, options: MeanDiffOptions) -> Fitted:
        known = classes(activations, attribute)
        pooled = activations.pooled
        refuse_equal(pooled.double())
        arrays, accuracy = classifier(representatives(pooled).float() if options.unit else pooled, known, options.c)
        together = options.pooled_over == "prompt"
        operator = operator_class(**arrays, **shifts(activations, known), unit=options.unit, together=together)
        return Fitted(operator, diagnostics={"accuracy": accuracy})

    reference = "Zou et al. 2023, Representation Engineering; Sun et al., GGSS, appendix A.5"
    options = SphericalMeanDiffOptions if shifts is spherical_shifts else MeanDiffOptions
    register(Method(operator_class.kind, summary, reference, fit, options))


_SUMMARY = "{} classifies an image, and the {} shift of its class is subtracted"
_register(fit_svm, euclidean_shifts, SvmEuclidean, _SUMMARY.format("an RBF SVM", "mean"))
_register(fit_svm, spherical_shifts, SvmSpherical, _SUMMARY.format("an RBF SVM", "tangent"))
_register(fit_logistic, euclidean_shifts, LrEuclidean, _SUMMARY.format("logistic regression", "mean"))
_register(fit_logistic, spherical_shifts, LrSpherical, _SUMMARY.format("logistic regression", "tangent"))
