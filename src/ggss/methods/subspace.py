"""The counterfactual subspace on the sphere (section 3.1): representatives, shifts, SVD, mu, gate statistics.

    y_ua = Normalize(mean_t H_ua,t)       c_u = Frechet mean over a of y_ua       s_ua = log_{c_u}(y_ua)
    S = [s_ua] = U Sigma V^T              V_bias = first k columns of V           mu = Frechet mean of all y_ua
    b(y) = |V_bias^T log_mu(y)|           median and standard deviation of b calibrate the gate

Fitted in float64. The sign of a basis vector is arbitrary; the entry of largest magnitude is made positive. Which
median and which deviation is an option (`ggss`).

Pooling is the paper's (appendix A.1): the mean over the tokens that are kept, 2048 at most, of each image. The
authors' code takes the mean over all tokens of an image, also where more than 2048 are given.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ggss import sphere
from ggss.activations import Groups
from ggss.errors import InputError


@dataclass(frozen=True)
class Subspace:
    """basis [D, k], all singular values of the shift matrix, and its shifts [U * A, D]; float64."""

    basis: Tensor
    singular_values: Tensor
    shifts: Tensor

    @property
    def explained_variance(self) -> Tensor:
        """rho_j = sigma_j^2 / sum of sigma^2."""
        energy = self.singular_values**2
        return energy / energy.sum()


def representatives(pooled: Tensor) -> Tensor:
    """y: the pooled rows [N, D] on the unit sphere, in float64."""
    lengths = sphere.norm(pooled.double())
    if (lengths == 0).any():
        raise InputError(
            f"the mean token of image {int((lengths == 0).nonzero()[0, 0])} is zero: it has no direction"
        )
    return sphere.normalize(pooled.double())


def shifts(points: Tensor, groups: Groups) -> Tensor:
    """s_ua for representatives [N, D], as [U, A, D]."""
    table = groups.of(points)
    centres = sphere.frechet_mean(table)
    return sphere.log(centres.unsqueeze(1), table)


def find_subspace(shift_table: Tensor, k: int | None = None) -> Subspace:
    """The top-k right singular vectors of the shifts [U, A, D]; k is the number of values - 1 by default."""
    contexts, values, width = shift_table.shape
    stacked = shift_table.reshape(-1, width)
    k = values - 1 if k is None else k
    _, singular, rows = torch.linalg.svd(stacked, full_matrices=False)
    # Shifts within the rounding of float32, the dtype of pooled means, give no direction.
    rank = int((singular > 1e-6 * max(float(singular[0]), 1e-6)).sum())
    if not 1 <= k <= min(rank, width - 1):
        raise InputError(
            f"k = {k} directions were asked for, but the shifts of {contexts} contexts x {values} values "
            f"in {width} dimensions span {min(rank, width - 1)}"
            + (": the images of a context give equal activations" if rank == 0 else "; choose a smaller k")
        )
    return Subspace(oriented(rows[:k].T), singular, stacked)


def oriented(basis: Tensor) -> Tensor:
    """The same columns [D, k] with signs that do not depend on the solver: the largest entry is positive."""
    peak = basis.abs().argmax(0)
    return basis * basis[peak, torch.arange(basis.shape[1])].sign()


def protected_magnitude(points: Tensor, mu: Tensor, basis: Tensor) -> Tensor:
    """b(c) = |V^T log_mu(c)| for points [N, D]: the length of each tangent vector inside the subspace."""
    return torch.linalg.vector_norm(sphere.log(mu, points) @ basis, dim=-1)


def top_eigenvectors(gram: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest eigenvalues of a symmetric matrix, largest first, and their vectors [D, k], to machine precision
    (Lanczos)."""
    from scipy.sparse.linalg import eigsh

    start = torch.ones(len(gram), dtype=torch.float64) @ gram  # any start will do, but not a random one
    values, vectors = eigsh(gram.numpy(), k, which="LA", v0=(start + gram.diagonal()).numpy())
    order = values.argsort()[::-1]
    return torch.from_numpy(values[order]), torch.from_numpy(vectors[:, order].copy())
