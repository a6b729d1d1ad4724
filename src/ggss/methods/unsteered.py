"""`none` and `prompt`: the baselines that do not change activations (appendix B, prompt baseline).

    steered = h

`prompt` appends the fairness instruction, in the paper's words, to every prompt: it is the steerer's `prompt_suffix`.
Both are fitted, attached and saved like any other method, so a study needs no special case for them. The paper does
not say how the instruction is joined to a prompt; here it is appended as a new line.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.methods.operator import Affine, Operator, register_kind, require_finite
from ggss.methods.registry import UNSTEERED, Attribute, Fitted, Method, Options, register

PAPER = "Sun et al., GGSS: Geodesic-Gated Spherical Steering"
FAIRNESS_INSTRUCTION = (
    "do NOT let the person's perceived race, ethnicity, or gender influence your answer; "
    "base your answer only on task-relevant visual evidence"
)


@register_kind
@dataclass(frozen=True)
class Identity(Operator):
    """Does not change rows. length: D."""

    length: Annotated[int, Field(ge=1)]

    kind: ClassVar[str] = "identity"

    @property
    def width(self) -> int:
        return self.length

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        if not torch.isfinite(rows.sum(1)).all():  # cheaper than a check of every number
            require_finite(rows, len(rows))
        if out.data_ptr() != rows.data_ptr():
            out.copy_(rows)

    def affine(self, alpha: float) -> Affine:
        return Affine.by_dimension(torch.ones(self.length), torch.zeros(self.length))


def fit(activations: Activations, attribute: Attribute, options: Options) -> Fitted:
    return Fitted(Identity(activations.pooled.shape[1]))


register(Method(UNSTEERED, "the model as it is, unsteered", f"{PAPER}, section 4", fit, steers=False))
register(
    Method(
        "prompt",
        "a fairness instruction appended to every prompt, no steering",
        f"{PAPER}, appendix B",
        fit,
        steers=False,
        prompt_suffix=f"\n{FAIRNESS_INSTRUCTION}",
    )
)
