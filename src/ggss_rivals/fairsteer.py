"""`fairsteer`: detect, then steer (Li et al. 2025). A linear classifier decides whether an image is steered at all.

    P(a | x) = softmax(W x + b)_a         a: one of the values, or neutral         x: the mean row of the image
    a^ = argmax P                         v_a = mean of all images - mean of value a's images         v_neutral = 0
    steered = h + alpha v_a^            if P(a^ | x) > threshold, else h

**What the paper does.** Per layer of a language model, on the activation of the last token: a linear classifier is
trained to tell biased answers from unbiased ones; a debiasing vector is the mean difference between the activations
of about a hundred pairs of prompts, unbiased minus biased; while the model writes, the vector is added wherever the
classifier says biased, that is where its probability is above one half.

**Done otherwise here.** Discovery has pictures and no answers, so "biased" means that the attribute can be read.
The classifier is multinomial logistic regression with one class a value and one more, neutral: the centres of the
contexts, each the mean over all values, which is what a picture looks like when its attribute cannot be read. Of
two values the paper has one vector; here each value has its own, towards the mean of all. An image has many tokens,
so the classifier gets its mean row and all of its tokens are steered; `detect="token"` gives it every token
separately. `meandiff-lr-euclidean` is the same without a neutral class and without a threshold. `steerer.gate`
is 1 where the vector was added.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.methods.meandiff import refuse_none
from ggss.methods.operator import Array, Operator, register_kind, require_finite
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.spherical import mean_row, precise, rows_by_image
from ggss.methods.subspace import classes, logistic_regression, span


class FairSteerOptions(Options):
    c: float = Field(1.0, gt=0, description="inverse strength of the detector's L2 penalty")
    threshold: float = Field(0.5, ge=0, lt=1, description="probability above which an image is steered")
    detect: Literal["image", "token"] = Field("image", description="what is classified: images, or single tokens")


@register_kind
@dataclass(frozen=True)
class DetectedShift(Operator):
    """The detector's weights [A, D] and intercepts [A] in float64, and a vector [A, D] for each of its classes."""

    weights: Annotated[Tensor, Array("A", "D", dtype=torch.float64)]
    intercepts: Annotated[Tensor, Array("A", dtype=torch.float64)]
    vectors: Annotated[Tensor, Array("A", "D")]
    threshold: Annotated[float, Field(ge=0, lt=1)]
    by_token: bool

    kind: ClassVar[str] = "detected-shift"
    needs_images: ClassVar[bool] = True

    @property
    def width(self) -> int:
        return self.vectors.shape[1]

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> Tensor:
        require_finite(rows, len(rows))
        gate = torch.zeros(len(rows), device=rows.device)
        vectors = self.vectors.to(rows.device)
        if out.data_ptr() != rows.data_ptr():
            out.copy_(rows)
        for index in rows_by_image(images, len(rows)):
            dtype = precise(rows)
            label, detected = self.detect(
                rows[index].to(dtype) if self.by_token else mean_row(rows[index], dtype)[None]
            )
            gate[index] = detected.float()
            out[index] = out[index] + alpha[index] * detected.float()[:, None] * vectors[label]
        return gate

    def detect(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The class of each row [n, D], and whether it is steered: its class is a value, above the threshold."""
        scores = rows @ self.weights.to(rows).T + self.intercepts.to(rows)
        probability, label = scores.softmax(1).max(1)
        return label, (probability > self.threshold) & (label < len(self.vectors) - 1)


def fit(activations: Activations, attribute: Attribute, options: FairSteerOptions) -> Fitted:
    known, pooled = classes(activations, attribute), activations.pooled.double()
    data = span(pooled)
    vectors = pooled.mean(0) - known.means(pooled)
    refuse_none(vectors, float(pooled.norm(dim=1).mean()))
    neutral = activations.groups(attribute).of(data.coordinates).mean(1)
    rows = torch.cat([data.coordinates, neutral])
    labels = torch.cat([known.labels, torch.full((len(neutral),), len(known.values))])
    detector = logistic_regression(rows, labels, options.c)
    weights = detector.weights @ data.directions.T
    operator = DetectedShift(
        weights.contiguous(),
        detector.intercepts - weights @ data.mean,
        torch.cat([vectors, torch.zeros_like(vectors[:1])]).float(),
        options.threshold,
        options.detect == "token",
    )
    _, detected = operator.detect(pooled)
    _, neutral_detected = operator.detect(data.mean + neutral @ data.directions.T)
    return Fitted(
        operator,
        diagnostics={
            "accuracy": detector.accuracy,
            "detected": float(detected.double().mean()),
            "neutral_detected": float(neutral_detected.double().mean()),
        },
    )


register(
    Method(
        name="fairsteer",
        summary="a mean shift subtracted only where a linear classifier reads the attribute",
        reference="Li et al. 2025, FairSteer: Inference Time Debiasing for LLMs with Dynamic Activation Steering, "
        "arXiv 2504.14492",
        fit=fit,
        options=FairSteerOptions,
    )
)
