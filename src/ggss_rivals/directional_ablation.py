"""`directional-ablation`: the directions between the values' means are projected out (Ratzlaff et al. 2024).

    d_a = mean of the images of value a - mean of all images        V: orthonormal basis of all d_a
    steered = h - alpha V V^T h

**What the paper does.** It takes the mean activations of a language model while it writes text that names the
protected attribute, subtracts those of text that does not, and projects this one direction out of the residual
stream at all layers and positions, for every token that is read or written. It needs no training and about a
thousand samples.

**Done otherwise here.** Activations come from pictures, not from text that the model wrote: the pooled rows of the
site, whatever it is; sites in the text model are named like those of the projector. There is no text without the
attribute, but every value of it in every context, so the mean over all values takes its place; K values give K - 1
directions instead of one. One operator a site, fitted on that site's rows; the paper removes one layer's direction
at all layers. As in the paper the projection is around the origin, so that it also removes what all tokens have in
common along V; `around="mean"` keeps that part: h - alpha V V^T (h - mean).
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.meandiff import refuse_none
from ggss.methods.projection import Euclidean
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import classes, oriented, refuse_equal

RANK = 1e-6  # a difference this small, relative to the largest, is rounding of float32 activations

Centre = Literal["origin", "mean"]


class AblationOptions(Options):
    k: int | None = Field(None, ge=1, description="directions that are removed; the number of values - 1")
    around: Centre = Field("origin", description="what is projected around: the origin, as published, or the mean")


def projection(basis: Tensor, pooled: Tensor, around: Centre) -> Euclidean:
    """The orthogonal projection that removes span(basis) around the origin or the mean of pooled rows [N, D]."""
    mean = pooled.mean(0) if around == "mean" else torch.zeros(pooled.shape[1])
    return Euclidean(mean.float(), oriented(basis).float().contiguous())


def fit(activations: Activations, attribute: Attribute, options: AblationOptions) -> Fitted:
    known, pooled = classes(activations, attribute), activations.pooled.double()
    refuse_equal(pooled)
    differences = known.means(pooled) - pooled.mean(0)
    refuse_none(differences, float(pooled.norm(dim=1).mean()))
    _, singular, directions = torch.linalg.svd(differences, full_matrices=False)
    rank = min(int((singular > RANK * singular[0]).sum()), len(known.values) - 1)
    k = rank if options.k is None else options.k
    if k > rank:
        raise InputError(f"k = {k} directions were asked for, but the mean rows of {known.values} span {rank}")
    energy = singular[: len(known.values) - 1] ** 2
    return Fitted(projection(directions[:k].T, pooled, options.around), {"explained_variance": energy / energy.sum()})


register(
    Method(
        name="directional-ablation",
        summary="the directions between the values' mean activations projected out",
        reference="Ratzlaff et al. 2024, Debiasing Large Vision-Language Models by Ablating Protected Attribute "
        "Representations, arXiv 2410.13976",
        fit=fit,
        options=AblationOptions,
    )
)
