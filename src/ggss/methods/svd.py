"""SVD ablations: hard projection without gate and slerp, pooled or per token, flat or spherical (appendix A.4).

    pooled, flat        s_ua = hbar_ua - mean over a of hbar_ua             h - alpha V V^T (h - mean)
    pooled, spherical   s_ua = log_{c_u}(y_ua)                              exp_mu(t - alpha V V^T t), norm kept
    per token           the same for every token position t: s_uat around the centre c_ut of its A variants

V holds the top k right singular vectors of all shifts, k = number of values - 1 by default.

Per token there are images x tokens shifts, 819 200 of 4096 numbers for 400 images of 2048 tokens. They are never
all in memory: each group of variants is read, its shifts are computed a few hundred positions at a time, and only
their Gram matrix S^T S [D, D] is kept (134 MB at D = 4096, in float64; the products of a block are float32). Its
eigenvectors are the right singular vectors. Positions must correspond, so the images of a group need equal token
counts; groups may differ.

Left open by the paper: the reference point of the per-token forms. Here it is the pooled one, mean or Fréchet
mean, so that a per-token form differs from its pooled form in the subspace alone.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations, Groups
from ggss.errors import InputError
from ggss.methods.aligned import aligned_blocks
from ggss.methods.euclidean import Euclidean
from ggss.methods.ggss import SubspaceOptions, discover
from ggss.methods.registry import Attribute, Fitted, Method, register
from ggss.methods.subspace import Subspace, find_subspace, oriented, representatives, top_eigenvectors
from ggss.methods.tangent import Tangent

ROUNDING = 1e-6  # an eigenvalue this small, relative to the largest, is a rounding error of float32 products


def pooled_euclidean(activations: Activations, attribute: Attribute, options: SubspaceOptions) -> Fitted:
    mean, subspace = flat_subspace(activations, attribute, options.k)
    return Fitted(
        Euclidean(mean.float(), subspace.basis.float().contiguous()),
        {
            "singular_values": subspace.singular_values.float(),
            "explained_variance": subspace.explained_variance.float(),
        },
    )


def flat_subspace(activations: Activations, attribute: Attribute, k: int | None) -> tuple[Tensor, Subspace]:
    """The mean pooled row [D] and the subspace of pooled shifts, in float64."""
    pooled = activations.pooled.double()
    table = activations.groups(attribute).of(pooled)
    return pooled.mean(0), find_subspace(table - table.mean(1, keepdim=True), k)


def pooled_spherical(activations: Activations, attribute: Attribute, options: SubspaceOptions) -> Fitted:
    found = discover(activations, attribute, options.k)
    return Fitted(Tangent.orthogonal(*found.frame), found.statistics, found.diagnostics)


def token_euclidean(activations: Activations, attribute: Attribute, options: SubspaceOptions) -> Fitted:
    basis, statistics = token_subspace(activations, attribute, options.k, flat_shifts)
    return Fitted(Euclidean(activations.pooled.double().mean(0).float(), basis), statistics)


def token_spherical(activations: Activations, attribute: Attribute, options: SubspaceOptions) -> Fitted:
    mu = sphere.frechet_mean(representatives(activations.pooled))
    basis, statistics = token_subspace(activations, attribute, options.k, curved_shifts)
    return Fitted(Tangent.orthogonal(mu, basis), statistics)


def flat_shifts(block: Tensor) -> Tensor:
    return block - block.mean(1, keepdim=True)


def curved_shifts(block: Tensor) -> Tensor:
    points = sphere.normalize(block)
    return sphere.log(sphere.frechet_mean(points).unsqueeze(1), points)


def token_subspace(
    activations: Activations, attribute: Attribute, k: int | None, shifts_of: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The basis [D, k] in float32 and its singular values, from the tokens' shifts as a stream.

    shifts_of: from tokens [positions, values, D] in float64 to their shifts.
    """
    groups = activations.groups(attribute)
    k = len(groups.values) - 1 if k is None else k
    gram = token_gram(activations, groups, shifts_of)
    width = len(gram)
    if not 1 <= k < width:
        raise InputError(f"k = {k} directions were asked for in {width} dimensions; choose a smaller k")
    if not float(gram.trace()) > 0:
        raise InputError("the images of every context give equal tokens: there are no shifts to find directions in")
    energy, vectors = top_eigenvectors(gram, k)
    if not float(energy[-1]) > ROUNDING * float(energy[0]):
        raise InputError(f"k = {k} directions were asked for, but the tokens' shifts span fewer; choose a smaller k")
    share = energy / gram.trace()
    return oriented(vectors).float().contiguous(), {
        "singular_values": energy.sqrt().float(),
        "explained_variance": share.float(),
    }


def token_gram(activations: Activations, groups: Groups, shifts_of: Callable[[Tensor], Tensor]) -> Tensor:
    """S^T S [D, D] in float64 of all tokens' shifts."""
    width = activations.pooled.shape[1]
    gram = torch.zeros(width, width, dtype=torch.float64)
    for _, _, block in aligned_blocks(activations, groups, "shifts of tokens"):
        shift = shifts_of(block).reshape(-1, width).float()
        gram += shift.T @ shift
    return gram


for _name, _summary, _fit in (
    ("svd-pooled-euclidean", "SVD of pooled shifts, hard projection in flat space", pooled_euclidean),
    ("svd-pooled-spherical", "SVD of pooled tangent shifts, hard projection in tangent space", pooled_spherical),
    ("svd-token-euclidean", "SVD of every token's shifts, hard projection in flat space", token_euclidean),
    ("svd-token-spherical", "SVD of every token's tangent shifts, hard projection in tangent space", token_spherical),
):
    register(
        Method(
            _name,
            _summary,
            "Sun et al., GGSS: Geodesic-Gated Spherical Steering, appendix A.4",
            _fit,
            SubspaceOptions,
            needs_tokens=_name.startswith("svd-token"),
        )
    )
