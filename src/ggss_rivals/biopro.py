"""`biopro`: projection of neutral pictures alone (BioPro, Lin et al. 2025). What shows the attribute keeps it.

    s_ua = x_ua - mean over a of x_ua            x_ua: the mean row of the picture of context u with value a
    V [D, k]: the top k right singular vectors of all s_ua, k = number of values - 1
    neutral(x)  if |V^T x| <= tau                tau: a quantile, 95 %, of |V^T x| over neutral pictures
    steered = h - alpha V V^T h                  for every token of a neutral picture; h in all others

**What the paper claims.** Debiasing that treats everybody alike is wrong where the attribute is legitimate: a caption
of a woman should say so, one of a person who cannot be made out should not guess. A low-dimensional subspace from
counterfactual embeddings is projected out, without training, and only of neutral inputs; gender bias falls in neutral
cases and faithfulness stays in explicit ones (captions, and pictures from text). For pictures from text it has a
calibration term, and it extends to continuous variables such as brightness.

**What is from the paper, and what is a reading.** The abstract and public summaries could be read, its equations not.
From the paper: the subspace, the orthogonal projection, and that neutral inputs alone are projected. A reading: how
a neutral input is recognised. Here a picture is neutral if its part in the subspace is no larger than that of known
neutral pictures, so these must be given (`neutral=`, or `--neutral FOLDER`). The projection is around the origin, as
`directional-ablation` is. The subspace is that of `svd-pooled-euclidean`.

**Left out and done otherwise.** Pictures in place of captions: the embeddings are mean rows of a site, and each site
has a gate of its own. The calibration term of pictures from text is left out, and so are continuous variables.
`steerer.gate` is 1 where a picture is projected.

**Mind** that a picture which shows the attribute is not debiased at all: where it can be seen in every picture, as in
a counterfactual set, nothing changes. If neutral pictures have much in the subspace for another reason, everything
counts as neutral, and it is a plain projection; a warning says so. A plan has no neutral pictures, so it cannot fit
this method; `experiments/tools/rivals_live.py` measures it.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.methods.ablations import euclidean_subspace
from ggss.methods.operator import Array, Operator, register_kind, require_finite
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.spherical import check_orthonormal, mean_row, precise, rows_by_image

TELLS_NOTHING = 0.5  # share of discovery pictures that count as neutral, above which the gate is warned of


class BioProOptions(Options):
    k: int | None = Field(None, ge=1, description="directions that are removed; the number of values - 1")
    quantile: float = Field(
        0.95, gt=0, le=1, description="share of neutral pictures whose part in the subspace is no larger than tau"
    )


@register_kind
@dataclass(frozen=True)
class NeutralProjection(Operator):
    """Projects images out of span(basis) whose mean row has no more than `threshold` in it; basis V [D, k]."""

    basis: Annotated[Tensor, Array("D", "k")]
    threshold: Annotated[float, Field(ge=0)]

    kind: ClassVar[str] = "neutral-projection"
    needs_images: ClassVar[bool] = True

    @property
    def width(self) -> int:
        return self.basis.shape[0]

    def validate(self) -> None:
        check_orthonormal(self.basis)

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> Tensor:
        require_finite(rows, len(rows))
        gate = torch.zeros(len(rows), device=rows.device)
        basis = self.basis.to(rows.device)
        if out.data_ptr() != rows.data_ptr():
            out.copy_(rows)
        for index in rows_by_image(images, len(rows)):
            image_rows = rows[index]
            if self.neutral(mean_row(image_rows, precise(rows))[None])[0]:
                gate[index] = 1
                out[index] = image_rows - alpha[index] * (image_rows @ basis) @ basis.T
        return gate

    def neutral(self, pooled: Tensor) -> Tensor:
        """Whether pictures with these mean rows [n, D] are neutral, [n]."""
        return magnitudes(pooled, self.basis) <= self.threshold


def magnitudes(pooled: Tensor, basis: Tensor) -> Tensor:
    """|V^T x| of mean rows [n, D]."""
    return torch.linalg.vector_norm(pooled @ basis.to(pooled), dim=1)


def fit(activations: Activations, attribute: Attribute, options: BioProOptions, neutral: Activations) -> Fitted:
    _, subspace = euclidean_subspace(activations, attribute, options.k)
    basis = subspace.basis.float().contiguous()
    of_neutral = magnitudes(neutral.pooled.double(), basis)
    operator = NeutralProjection(basis, float(of_neutral.quantile(options.quantile)))
    share = float(operator.neutral(activations.pooled.double()).double().mean())
    warnings = []
    if share > TELLS_NOTHING:
        warnings.append(
            f"{share:.0%} of the discovery pictures count as neutral: neutral pictures have as much in the subspace, "
            f"so the gate cannot tell whether {attribute!r} is shown, and projects what shows it, too. Give neutral "
            "pictures that are otherwise like these, or use directional-ablation."
        )
    return Fitted(
        operator,
        {"explained_variance": subspace.explained_variance.float()},
        {
            "threshold": operator.threshold,
            "neutral_pictures": len(neutral),
            "discovery_neutral": share,
            "warnings": warnings,
        },
    )


register(
    Method(
        name="biopro",
        summary="projection of pictures in which the attribute cannot be seen; the others are left alone",
        reference="Lin et al. 2025, BioPro: On Difference-Aware Gender Fairness for Vision-Language Models, "
        "arXiv 2512.00807",
        fit=fit,
        options=BioProOptions,
        takes_neutral=True,
        needs_neutral=True,
    )
)
