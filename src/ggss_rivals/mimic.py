"""`mimic`: the tokens of each value are moved to the mean and covariance of all (Singh et al. 2024).

    a = argmax softmax(W x + b)              x: the mean row of the image; the detected value
    m_a, Sigma_a                             mean and covariance of the tokens of value a; m, Sigma: averaged over a
    A_a = Sigma_a^(-1/2) (Sigma_a^(1/2) Sigma Sigma_a^(1/2))^(1/2) Sigma_a^(-1/2)
    steered = h + alpha (m + A_a (h - m_a) - h)

The map is the optimal transport between two Gaussian distributions: of all affine maps that give one class the mean
and the covariance of another, it moves least. With A_a = I only means are matched (`covariance=False`).

**What the paper claims.** Both maps are the least-squares optimal affine steering functions under their conditions.
Matching covariances, too, gives fairer classifiers of biographies and dialects, and less toxic text, than matching
means, and representations in which classes are not told apart by their neighbours. Activation transport (Rodriguez et
al. 2025, Linear-AcT) is the same idea for each neuron alone.

**Done otherwise here.** The paper maps one class to another and knows the class of what it maps. A picture's value is
not known, so multinomial logistic regression reads it from the mean row, as in `fairsteer`, and the target is not
another value but the mean of all. Sigma is D x D: it is transported in the `rank` principal components of all tokens
alone, with variances shrunk towards their mean by `SHRINKAGE`; outside these only means are matched.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.meandiff import refuse_none
from ggss.methods.operator import Array, Operator, register_kind, require_finite
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.spherical import check_orthonormal, mean_row, precise, rows_by_image
from ggss.methods.subspace import classes, logistic_regression, span, top_eigenvectors
from ggss_rivals.splince import second_moment

SHRINKAGE = 0.01
RANK = 32  # principal components, unless another number is asked for


class MimicOptions(Options):
    covariance: bool = Field(True, description="whether covariances are matched, too, or means alone")
    rank: int | None = Field(
        None, ge=1, description="principal components of the tokens in which covariances are matched; usually 32"
    )
    c: float = Field(1.0, gt=0, description="inverse strength of the classifier's L2 penalty")


@register_kind
@dataclass(frozen=True)
class Transport(Operator):
    """The classifier's weights [A, D] and intercepts [A]; a mean [A, D] and a map [A, r, r] minus I for each value.

    target [D]: the mean of all. components [D, r]: in which the maps are. Classifier in float64, the rest float32.
    """

    weights: Annotated[Tensor, Array("A", "D", dtype=torch.float64)]
    intercepts: Annotated[Tensor, Array("A", dtype=torch.float64)]
    means: Annotated[Tensor, Array("A", "D")]
    maps: Annotated[Tensor, Array("A", "r", "r")]
    target: Annotated[Tensor, Array("D")]
    components: Annotated[Tensor, Array("D", "r")]

    kind: ClassVar[str] = "transport"
    needs_images: ClassVar[bool] = True

    @property
    def width(self) -> int:
        return self.target.shape[0]

    def validate(self) -> None:
        check_orthonormal(self.components)

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        require_finite(rows, len(rows))
        components, target = self.components.to(rows.device), self.target.to(rows.device)
        for index in rows_by_image(images, len(rows)):
            own, dtype = rows[index], precise(rows)
            scores = mean_row(own, dtype) @ self.weights.to(rows.device, dtype).T + self.intercepts.to(
                rows.device, dtype
            )
            value = int(scores.argmax())
            mean = self.means[value].to(rows.device)
            turned = ((own - mean) @ components) @ self.maps[value].to(rows.device).T @ components.T
            out[index] = own + alpha[index] * (target - mean + turned)


def gaussian_map(source: Tensor, target: Tensor) -> Tensor:
    """A of the module, for two covariances [r, r]."""
    root, inverse = _powers(source)
    middle, _ = _powers(root @ target @ root)
    return inverse @ middle @ inverse


def _powers(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The square root of a symmetric positive matrix, and its inverse."""
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    roots = values.clamp(min=1e-300).sqrt()
    return (vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T


def fit(activations: Activations, attribute: Attribute, options: MimicOptions) -> Fitted:
    known, pooled = classes(activations, attribute), activations.pooled.double()
    data = span(pooled)
    means = known.means(pooled)
    target = means.mean(0)
    refuse_none(target - means, float(pooled.norm(dim=1).mean()))
    width = pooled.shape[1]
    rank = min(RANK, width - 1) if options.rank is None else options.rank
    if rank >= width:
        raise InputError(f"rank = {rank} components were asked for, but the tokens have {width} dimensions")
    components = top_eigenvectors(second_moment(activations.tokens, target), rank)[1]
    maps = torch.zeros(len(means), rank, rank, dtype=torch.float64)
    if options.covariance:
        moments = torch.zeros_like(maps)
        counts = torch.zeros(len(means), dtype=torch.float64)
        for label, tokens in zip(known.labels.tolist(), activations.tokens, strict=True):
            rows = (tokens[tokens.any(1)].double() - means[label]) @ components
            moments[label] += rows.T @ rows
            counts[label] += len(rows)
        if not counts.all():
            value = known.values[int(counts.argmin())]
            raise InputError(
                f"every token of the images of {value!r} is zero, so they have no covariance: leave these images out"
            )
        covariances = moments / counts[:, None, None]
        identity = torch.eye(rank, dtype=torch.float64)
        level = covariances.diagonal(dim1=1, dim2=2).mean()
        covariances = (1 - SHRINKAGE) * covariances + SHRINKAGE * level * identity
        mean_covariance = covariances.mean(0)
        maps = torch.stack([gaussian_map(source, mean_covariance) for source in covariances]) - identity
    classifier = logistic_regression(data.coordinates, known.labels, options.c)
    weights, intercepts = classifier.weights @ data.directions.T, classifier.intercepts
    if len(weights) == 1:  # of two values scikit-learn keeps one row: the score of the second
        weights, intercepts = torch.cat([-weights, weights]) / 2, torch.cat([-intercepts, intercepts]) / 2
    operator = Transport(
        weights.contiguous(),
        intercepts - weights @ data.mean,
        means.float(),
        maps.float(),
        target.float(),
        components.float().contiguous(),
    )
    return Fitted(operator, diagnostics={"accuracy": classifier.accuracy})


register(
    Method(
        name="mimic",
        summary="the tokens of the detected value moved to the mean and covariance of all values",
        reference="Singh et al. 2024, Representation Surgery: Theory and Practice of Affine Steering, "
        "arXiv 2402.09631",
        fit=fit,
        options=MimicOptions,
        needs_tokens=True,
    )
)
