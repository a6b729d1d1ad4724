"""`sfid`: selective feature imputation for debiasing (Jung et al. 2024). The attribute's dimensions are overwritten.

    J: the dimensions with the largest importance in a random forest that predicts the value from the pooled row
    v_j = mean of x_j over the images of low confidence: those whose largest class probability is below a threshold
    h_j <- h_j + alpha (v_j - h_j)      for j in J          all other dimensions are left as they are

An image that the forest is not sure of shows little of the attribute, so its values are neutral ones to put in.

**What the paper does.** A random forest on the frozen embeddings of a vision-language model (text, image, or both)
with binary gender labels; the dimensions with the highest impurity importance are replaced, for every input, by the
mean of low-confidence samples of a validation set. How many dimensions and which threshold are chosen by hand.

**Done otherwise here.** The forest is trained on pooled rows of a site and every token is imputed. There is no
validation set: confidence is out-of-bag, from the trees that did not see an image. Any number of values. A tenth of
the dimensions is imputed unless given, and the least confident tenth of the images always counts as of low
confidence, so that there is always something to impute. alpha goes from nothing to the paper's overwriting at 1.

**Mind** that the method changes single dimensions: an attribute along directions that mix all of them, such as a
rotated one, is only weakened.
"""

from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.operator import Affine, Array, Operator, register_kind, require_finite
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import classes, refuse_equal

LEAST_SHARE = 0.1  # of the images, the least confident: they always count as of low confidence


class SfidOptions(Options):
    dimensions: int | None = Field(None, ge=1, description="how many dimensions are imputed; a tenth of them")
    confidence: float = Field(0.7, gt=0, le=1, description="class probability below which an image counts as neutral")
    trees: int = Field(100, ge=50, description="trees of the random forest")
    seed: int = Field(42, ge=0, description="seed of the random forest")


@register_kind
@dataclass(frozen=True)
class Imputation(Operator):
    """dimensions J [k], and the values [k] that they are set to."""

    dimensions: Annotated[Tensor, Array("k", dtype=torch.int64, ge=0)]
    values: Annotated[Tensor, Array("k")]
    length: Annotated[int, Field(ge=1)]

    kind: ClassVar[str] = "imputation"

    @property
    def width(self) -> int:
        return self.length

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        require_finite(rows, len(rows))
        dimensions, values = self.dimensions.to(rows.device), self.values.to(rows.device)
        if out.data_ptr() != rows.data_ptr():
            out.copy_(rows)
        unsteered = rows[:, dimensions]
        out[:, dimensions] = unsteered + alpha * (values - unsteered)

    def affine(self, alpha: float) -> Affine:
        scale, offset = torch.ones(self.length, dtype=torch.float64), torch.zeros(self.length, dtype=torch.float64)
        scale[self.dimensions], offset[self.dimensions] = 1 - alpha, alpha * self.values.double()
        return Affine.by_dimension(scale, offset)

    def validate(self) -> None:
        largest = int(self.dimensions.max())
        if largest >= self.length or len(self.dimensions.unique()) < len(self.dimensions):
            raise InputError(
                f"an 'imputation' operator: dimensions must be different numbers below {self.length}, "
                f"seen up to {largest}"
            )


def fit(activations: Activations, attribute: Attribute, options: SfidOptions) -> Fitted:
    from sklearn.ensemble import RandomForestClassifier

    known, pooled = classes(activations, attribute), activations.pooled
    refuse_equal(pooled.double())
    width = pooled.shape[1]
    count = ceil(width / 10) if options.dimensions is None else options.dimensions
    if count > width:
        raise InputError(f"{count} dimensions were to be imputed, but the tokens have {width}")
    forest = RandomForestClassifier(options.trees, oob_score=True, random_state=options.seed, n_jobs=1)
    forest.fit(pooled.numpy(), known.labels.numpy())
    importance = torch.from_numpy(forest.feature_importances_)
    dimensions = importance.argsort(descending=True, stable=True)[:count].sort().values
    confidence = torch.from_numpy(forest.oob_decision_function_).max(1).values
    unsure_count = max(int((confidence < options.confidence).sum()), ceil(LEAST_SHARE * len(confidence)))
    unsure = confidence.argsort(stable=True)[:unsure_count]
    values = pooled.double()[unsure][:, dimensions].mean(0).float()
    return Fitted(
        Imputation(dimensions, values, width),
        {"importance": importance.float(), "confidence": confidence.float()},
        {
            "accuracy": float(forest.oob_score_),
            "importance_share": float(importance[dimensions].sum()),
            "low_confidence_images": len(unsure),
        },
    )


register(
    Method(
        name="sfid",
        summary="the dimensions that a random forest needs, set to the values of images it is unsure of",
        reference="Jung et al. 2024, A Unified Debiasing Approach for Vision-Language Models across Modalities "
        "and Tasks, arXiv 2410.07593",
        fit=fit,
        options=SfidOptions,
    )
)
