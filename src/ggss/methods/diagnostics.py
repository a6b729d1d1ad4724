"""Three checks of a subspace before it is removed from a model.

- **Effective rank** of the representatives: (sum of eigenvalues)^2 / sum of squares of the covariance of the
  contexts' centres. If the tokens of a model vary in few dimensions, removing one of them does more harm.
- **Variance share**: the part of that covariance inside the subspace. The centres contain no shifts, so this is
  content other than the attribute that is removed with it.
- **Split-half stability**: the cosines of the principal angles between the subspaces of two halves of the
  contexts, averaged over random halvings. A direction that the other half does not confirm is not reliable.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from ggss import sphere
from ggss.activations import Groups
from ggss.errors import InputError

SHARE_LIMIT = 0.20
STABILITY_LIMIT = 0.70
HALVINGS = 5
SEED = 42


def effective_rank(deviations: Tensor) -> float:
    """The participation ratio of the covariance of rows [N, D] of deviations from their mean."""
    energy = torch.linalg.svdvals(deviations) ** 2
    total = energy.sum()
    return float(total**2 / (energy**2).sum()) if total > 0 else 0.0


def variance_share(deviations: Tensor, basis: Tensor) -> float:
    """The part of the variance of rows [N, D] inside an orthonormal basis [D, k]."""
    total = (deviations**2).sum()
    return float(((deviations @ basis) ** 2).sum() / total) if total > 0 else 0.0


def principal_cosines(a: Tensor, b: Tensor) -> Tensor:
    """The cosines of the principal angles between two orthonormal bases [D, k], largest first."""
    return torch.linalg.svdvals(a.T @ b).clamp(max=1)


def split_half(table: Tensor, identity: Tensor, find: Callable[[Tensor], Tensor]) -> list[float]:
    """Mean principal cosines between bases found on two halves of a table [U, A, D] of shifts.

    identity [U] is the number of each context's source; all contexts of a source stay in one half. Empty if there
    are fewer than four sources, or if the shifts of a half are too few for `find`.
    """
    sources = identity.unique()
    if len(sources) < 4:
        return []
    generator = torch.Generator().manual_seed(SEED)
    cosines = []
    for _ in range(HALVINGS):
        drawn = sources[torch.randperm(len(sources), generator=generator)]
        first = torch.isin(identity, drawn[: len(sources) // 2])
        try:
            cosines.append(principal_cosines(find(table[first]), find(table[~first])))
        except InputError:
            return []
    return torch.stack(cosines).mean(0).tolist()


def diagnose(
    points: Tensor,
    contexts: Sequence[Hashable],
    mu: Tensor,
    groups: Groups,
    table: Tensor,
    basis: Tensor,
    find: Callable[[Tensor], Tensor],
) -> dict[str, Any]:
    """All three checks for representatives [N, D] with their shifts [U, A, D], and a warning for each that fails.

    contexts [N]: the identity that each picture shows. An identity may have several rows in the table of groups:
    where race is varied, one for its men and one for its women.
    """
    centres = sphere.log(mu, sphere.frechet_mean(groups.of(points)))
    deviations = centres - centres.mean(0)
    k = basis.shape[1]
    numbers: dict[Hashable, int] = {}
    identity = torch.tensor([numbers.setdefault(contexts[i], len(numbers)) for i in groups.index[:, 0].tolist()])
    found: dict[str, Any] = {
        "effective_rank": effective_rank(deviations),
        "variance_share": variance_share(deviations, basis),
        "chance_share": k / points.shape[1],
        "split_half_cosines": split_half(table, identity, find),
    }
    found["warnings"] = warnings(found, k)
    return found


def warnings(found: dict[str, Any], k: int) -> list[str]:
    said = []
    if found["variance_share"] > SHARE_LIMIT:
        said.append(
            f"Removal is likely to cost capability: {found['variance_share']:.0%} of the variance that is not the "
            f"attribute's lies inside the {k}-dimensional subspace (chance: {found['chance_share']:.1%}; effective "
            f"rank of the representatives: {found['effective_rank']:.1f})."
        )
    cosines = found["split_half_cosines"]
    if not cosines:
        said.append(
            f"Stability is unknown: there are fewer than four identities, or half of them do not span {k} directions."
        )
    elif min(cosines) < STABILITY_LIMIT:
        said.append(
            f"The subspace is not stable: two halves of the contexts agree on it with a smallest principal cosine "
            f"of {min(cosines):.2f} (1 is equal); use more contexts, a smaller k, or a label-aware method."
        )
    return said
