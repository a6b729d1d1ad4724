"""`sae`: the features of a sparse autoencoder that tell the attribute's values apart are switched off.

    z_j(h) = the activation of feature j          d_j = its decoder direction          (`sparse_autoencoder`)
    s_j = share of the variance of z_j between the variants of a context that the attribute's value explains
    S = {j: s_j >= separation}
    h_steered = h - alpha sum over j in S of scale z_j(h) d_j

z_j of an image is the mean over its tokens. s_j is eta squared: of the deviations of z_j from the mean of its
context, the part that the means of the values explain.

**What the papers do.** DeBiasLens (An et al. 2026) trains sparse autoencoders on the outputs of a model's image or
text encoder over large sets of faces or captions, without labels, calls those features social that respond most to
one group, and sets them to zero. SEM (Guimard et al. 2026) scores the features of an autoencoder of CLIP's text
embeddings by how they respond to biased prompts and to the query, and attenuates or boosts each by its score.

**Done otherwise here.** The autoencoder is small and is trained on the tokens of the discovery set alone, in
seconds, where both papers have millions of samples and Matryoshka dictionaries; with few pictures its features are
coarser than theirs. Features are chosen by how the counterfactual variants of a context differ in them, for any
number of values, and are switched off as in DeBiasLens. The rest of the token, and what the autoencoder cannot
reconstruct, is kept: the features are subtracted from the token, not left out of a reconstruction. InputError if no
feature separates the values.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.classes import refuse_equal
from ggss.methods.declared import Array
from ggss.methods.euclidean import finite_coordinates
from ggss.methods.operator import Operator, register
from ggss.methods.passes import project, recombine
from ggss.methods.registry import Attribute, Fitted, Method, Options
from ggss.methods.registry import register as register_method
from ggss.methods.sparse_autoencoder import SparseAutoencoder, drawn, train

MOST_FEATURES = 1024  # unless more are asked for: more would take minutes to train


class SaeOptions(Options):
    features: int | None = Field(
        None, ge=2, description="features of the autoencoder; the width of a token, 1024 at most"
    )
    top: int = Field(8, ge=1, description="features of a token that are active, on average")
    steps: int = Field(500, ge=1, description="steps of training")
    batch: int = Field(256, ge=2, description="tokens of a step")
    separation: float = Field(0.5, ge=0, le=1, description="explained share from which a feature is switched off")
    seed: int = Field(42, ge=0, description="seed of the tokens drawn, the first weights and the batches")


@register
@dataclass(frozen=True)
class SwitchedOff(Operator):
    """Encoder rows [k, D] and biases [k] of the features in the token's own units, decoder rows [k, D], threshold."""

    encoder: Annotated[Tensor, Array("k", "D")]
    bias: Annotated[Tensor, Array("k")]
    decoder: Annotated[Tensor, Array("k", "D")]
    threshold: Annotated[float, Field(ge=0)]

    kind: ClassVar[str] = "switched-off-features"
    any_dtype: ClassVar[bool] = True

    @property
    def width(self) -> int:
        return self.encoder.shape[1]

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        encoder, decoder = self.encoder.to(rows.device), self.decoder.to(rows.device)
        active = finite_coordinates(project(rows, encoder)[0] + self.bias.to(rows.device), rows)
        active = torch.where(active > self.threshold, active, 0)
        recombine(rows, torch.ones_like(alpha), -alpha * active, decoder, out)


def separations(table: Tensor) -> Tensor:
    """The share [F] of the variance between the variants of a context that the value explains, of [U, A, F]."""
    deviations = table - table.mean(1, keepdim=True)
    total = deviations.square().sum((0, 1))
    explained = len(table) * deviations.mean(0).square().sum(0)
    return torch.where(total > 0, explained / total, 0)


def switched_off(found: SparseAutoencoder, chosen: Tensor) -> SwitchedOff:
    """The operator for some features [k]. The autoencoder's centre and scale are folded into the weights."""
    encoder = found.encoder[chosen] / found.scale
    bias = found.bias[chosen] - encoder @ found.centre
    return SwitchedOff(encoder, bias, found.scale * found.decoder[chosen], found.threshold)


def fit(activations: Activations, attribute: Attribute, options: SaeOptions) -> Fitted:
    groups = activations.groups(attribute)
    generator = torch.Generator().manual_seed(options.seed)
    rows = drawn(activations.tokens, generator)
    refuse_equal(rows.double())
    count = min(activations.pooled.shape[1], MOST_FEATURES) if options.features is None else options.features
    if options.top >= count:
        raise InputError(f"top = {options.top} active features of {count}: choose fewer, or more features")
    found = train(rows, count, options.top, options.steps, options.batch, generator)
    means = torch.stack([found.features(tokens).double().mean(0) for tokens in activations.tokens])
    separation = separations(groups.of(means))
    chosen = (separation >= options.separation).nonzero().flatten()
    if not len(chosen):
        raise InputError(
            f"no feature of {count} separates {groups.values}: the value explains {separation.max():.0%} of "
            f"the best one's variance, {options.separation:.0%} is wanted; lower separation or use more images"
        )
    left = (rows - found.decoded(found.features(rows))).double().square().sum()
    explained = 1 - float(left / (rows - found.centre).double().square().sum())
    return Fitted(
        switched_off(found, chosen),
        {"separation": separation.float(), "switched_off": chosen},
        {
            "reconstructed": explained,
            "switched_off": len(chosen),
            "never_active": int((means.sum(0) == 0).sum()),
            "active": float((found.features(rows) > 0).double().sum(1).mean()),
        },
    )


register_method(
    Method(
        name="sae",
        summary="features of a sparse autoencoder that separate the values, switched off",
        reference="An et al. 2026, Interpretable Debiasing of Vision-Language Models for Social Fairness, arXiv "
        "2602.24014; Guimard et al. 2026, SEM: Sparse Embedding Modulation, arXiv 2603.19028",
        fit=fit,
        options=SaeOptions,
        needs_tokens=True,
    )
)
