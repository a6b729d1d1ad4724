"""`sae`: a sparse autoencoder's features that separate the attribute's values are switched off.

    z_j(h) = the activation of feature j          d_j = its decoder direction          (`SparseAutoencoder`)
    s_j = share of the variance of z_j between the variants of a context that the attribute's value explains
    S = {j: s_j >= separation}
    steered = h - alpha sum over j in S of scale z_j(h) d_j

z_j of an image is the mean over its tokens. s_j is eta squared: of the deviations of z_j from the mean of its
context, the part that the means of the values explain.

**The autoencoder** is a small BatchTopK (Bussmann et al. 2024), trained in seconds on discovery tokens.

    x = (h - centre) / scale          a = relu(E x + b)          z = a if among the top * B largest of a batch
    x^ = D^T z                        minimise mean |x - x^|^2 with Adam; rows of D are kept at length 1

The number of active features is `top` on average over a batch of B tokens. After training a feature is active where
it is above one threshold, the mean of the smallest activation that the last batches kept. So each feature of a token
can be computed alone, and a method needs only the rows of the features that it uses. Features that die are not
revived. The draw of tokens, the first weights and the batches come from one seed.

**What the papers do.** DeBiasLens (An et al. 2026) trains sparse autoencoders on the outputs of a model's image or
text encoder over large sets of faces or captions, without labels, calls those features social that respond most to
one group, and sets them to zero. SEM (Guimard et al. 2026) scores the features of an autoencoder of CLIP's text
embeddings by how they respond to biased prompts and to the query, and attenuates or boosts each by its score.

**Done otherwise here.** The autoencoder is small and is trained on the tokens of the discovery set alone, where both
papers have millions of samples and Matryoshka dictionaries; with few pictures its features are coarser than theirs.
Features are chosen by how the counterfactual variants of a context differ in them, for any number of values, and are
switched off as in DeBiasLens. The rest of the token, and what the autoencoder cannot reconstruct, is kept: the
features are subtracted from the token, not left out of a reconstruction. InputError if no feature separates the
values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.operator import Array, Operator, project, recombine, register_kind
from ggss.methods.projection import finite_coordinates
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import refuse_equal
from ggss.terminal import track

TOKENS_OF_IMAGE = 64  # drawn of each image, at most
NUMBERS = 2**26  # in all tokens drawn: 256 MB
LAST = 100  # batches whose thresholds are averaged
MOST_FEATURES = 1024  # by default: more would take minutes to train


@dataclass(frozen=True)
class SparseAutoencoder:
    """encoder and decoder [F, D], bias [F], centre [D], scale and threshold; float32."""

    encoder: Tensor
    bias: Tensor
    decoder: Tensor
    centre: Tensor
    scale: float
    threshold: float

    def features(self, rows: Tensor) -> Tensor:
        """The activations [N, F] of rows [N, D]."""
        a = ((rows.float() - self.centre) / self.scale) @ self.encoder.T + self.bias
        return torch.where(a > self.threshold, a, 0)

    def decoded(self, features: Tensor) -> Tensor:
        """Rows [N, D] from features [N, F]."""
        return self.centre + self.scale * (features @ self.decoder)


def sample_tokens(tokens: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Randomly drawn tokens of all images, equally many of each, [M, D] float32."""
    count = min(max(NUMBERS // (len(tokens) * tokens[0].shape[1]), 1), TOKENS_OF_IMAGE)
    return torch.cat([image[torch.randperm(len(image), generator=generator)[:count]].float() for image in tokens])


def train(
    rows: Tensor, count: int, top: int, steps: int, batch: int, generator: torch.Generator
) -> SparseAutoencoder:
    """An autoencoder of rows [M, D] with `count` features, `top` of them active on average. The rows must differ."""
    centre = rows.double().mean(0).float()
    scale = float((rows - centre).double().square().sum(1).mean().sqrt())
    x = (rows - centre) / scale
    # Directions of tokens are better first features than random ones: few of them never fire.
    first = x[torch.randint(len(x), (count,), generator=generator)]
    first = first + 0.1 / x.shape[1] ** 0.5 * torch.randn(first.shape, generator=generator)
    decoder = (first / first.norm(dim=1, keepdim=True)).requires_grad_()
    encoder = decoder.detach().clone().requires_grad_()
    bias = torch.zeros(count, requires_grad=True)
    adam = torch.optim.Adam([encoder, bias, decoder], lr=2e-3)
    thresholds: list[float] = []
    for _ in track(range(steps), "sparse autoencoder", steps):
        batch_rows = x[torch.randint(len(x), (batch,), generator=generator)]
        with torch.enable_grad():
            a = torch.relu(batch_rows @ encoder.T + bias)
            smallest_active = a.detach().flatten().topk(top * batch).values[-1]
            z = torch.where(a >= smallest_active, a, 0)
            loss = (batch_rows - z @ decoder).square().sum(1).mean()
            adam.zero_grad()
            loss.backward()
        adam.step()
        with torch.no_grad():
            decoder /= decoder.norm(dim=1, keepdim=True)
        thresholds.append(float(smallest_active))
    threshold = sum(thresholds[-LAST:]) / len(thresholds[-LAST:])
    return SparseAutoencoder(encoder.detach(), bias.detach(), decoder.detach(), centre, scale, threshold)


class SaeOptions(Options):
    features: int | None = Field(
        None, ge=2, description="features of the autoencoder; the width of a token, 1024 at most"
    )
    top: int = Field(8, ge=1, description="features of a token that are active, on average")
    steps: int = Field(500, ge=1, description="steps of training")
    batch: int = Field(256, ge=2, description="tokens of a step")
    separation: float = Field(0.5, ge=0, le=1, description="explained share from which a feature is switched off")
    seed: int = Field(42, ge=0, description="seed of the tokens drawn, the first weights and the batches")


@register_kind
@dataclass(frozen=True)
class SwitchedOff(Operator):
    """Removes k features. encoder [k, D] and bias [k] in the units of tokens, decoder [k, D]."""

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
    """s [F]: the share of the variance between variants that the value explains, from features [U, A, F]."""
    deviations = table - table.mean(1, keepdim=True)
    total = deviations.square().sum((0, 1))
    explained = len(table) * deviations.mean(0).square().sum(0)
    return torch.where(total > 0, explained / total, 0)


def switched_off(autoencoder: SparseAutoencoder, features: Tensor) -> SwitchedOff:
    """The operator for some features [k]. The autoencoder's centre and scale are folded into the weights."""
    encoder = autoencoder.encoder[features] / autoencoder.scale
    bias = autoencoder.bias[features] - encoder @ autoencoder.centre
    return SwitchedOff(encoder, bias, autoencoder.scale * autoencoder.decoder[features], autoencoder.threshold)


def fit(activations: Activations, attribute: Attribute, options: SaeOptions) -> Fitted:
    groups = activations.groups(attribute)
    generator = torch.Generator().manual_seed(options.seed)
    rows = sample_tokens(activations.tokens, generator)
    refuse_equal(rows.double())
    count = min(activations.pooled.shape[1], MOST_FEATURES) if options.features is None else options.features
    if options.top >= count:
        raise InputError(f"top = {options.top} active features of {count}: choose fewer, or more features")
    autoencoder = train(rows, count, options.top, options.steps, options.batch, generator)
    means = torch.stack([autoencoder.features(tokens).double().mean(0) for tokens in activations.tokens])
    separation = separations(groups.of(means))
    features = (separation >= options.separation).nonzero().flatten()
    if not len(features):
        raise InputError(
            f"no feature of {count} separates {groups.values}: the value explains {separation.max():.0%} of "
            f"the best one's variance, {options.separation:.0%} is needed; lower separation or use more images"
        )
    residual = (rows - autoencoder.decoded(autoencoder.features(rows))).double().square().sum()
    explained = 1 - float(residual / (rows - autoencoder.centre).double().square().sum())
    return Fitted(
        switched_off(autoencoder, features),
        {"separation": separation.float(), "switched_off": features},
        {
            "reconstructed": explained,
            "switched_off": len(features),
            "never_active": int((means.sum(0) == 0).sum()),
            "active": float((autoencoder.features(rows) > 0).double().sum(1).mean()),
        },
    )


register(
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
