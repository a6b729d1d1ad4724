"""The counterfactual subspace on the sphere (section 3.1), and the other parts that several methods fit with.

    y_ua = Normalize(mean_t H_ua,t)       c_u = Frechet mean over a of y_ua       s_ua = log_{c_u}(y_ua)
    S = [s_ua] = U Sigma V^T              V_bias = first k columns of V           mu = Frechet mean of all y_ua
    b(y) = |V_bias^T log_mu(y)|           median and standard deviation of b calibrate the gate

Fitted in float64. The sign of a basis vector is arbitrary; the entry of largest magnitude is made positive. Which
median and which deviation is an option (`ggss`).

Pooling is the paper's (appendix A.1): the mean over at most 2048 tokens of each image, drawn where there are more.
The authors' code takes the mean over all tokens of an image.

Methods that need no more than covariances with the labels (LEACE, PACE) take these from `targets`:

    coded_i = one-hot value of image i, or its number in units of the standard deviation
    z_i = coded_i - mean of coded over the stratum of image i
    X^T z                                   the contrasts: class means, or a slope, within strata

In a complete counterfactual set every value is equally frequent in every context, so all images are one stratum. For
unpaired images a stratum is what agrees in all columns that they are matched by. What a stratum's images have in
common cancels in X^T z, whatever the label: this is the regression with an intercept for each stratum (Frisch, Waugh
and Lovell). A stratum counts as far as its labels differ; one with a single value does not count at all.

How rows vary matters, too: where the label goes with strata, a covariance would explain the one by the other, and
what is detected as the attribute would be the attribute minus what goes with it. So unpaired rows are moved along the
contrasts until their labels are independent of strata (`Targets.independent`), before their covariance is taken:

    x_i = a_s + coded_i B + e_i          ->          a_s + scale z_i B + e_i,        scale: as much variance as before

The classifier-based methods share labels (`classes`), coordinates in the span of the data (`span`), and logistic
regression in them (`logistic_regression`). Methods that read single tokens get those of a counterfactual group side
by side (`aligned_blocks`): token t of one variant shows what token t of another shows.
"""

import warnings
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations, Groups
from ggss.activations.statistics import aligned_tokens
from ggss.data.counterfactuals import unlinked
from ggss.errors import InputError
from ggss.methods.registry import Attribute

POSITIONS = 256  # read at once: a block of 5 values x 256 positions x 4096 numbers is 42 MB in float64
ITERATIONS = 1000  # of the regression's solver, at most
TOLERANCE = 1e-9  # of the regression's solver, and of singular values relative to the largest
CONVERGED = 1e-3  # the largest gradient of the loss, relative to the weights, that counts as zero
START_SEED = 42  # of the eigenvalue solver's first vector


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
    """y: the pooled rows [N, D], normalised, in float64."""
    lengths = sphere.norm(pooled.double())
    if (lengths == 0).any():
        raise InputError(
            f"the mean token of image {int((lengths == 0).nonzero()[0, 0])} is zero: it has no direction"
        )
    return sphere.normalize(pooled.double())


def shifts(points: Tensor, groups: Groups) -> Tensor:
    """The shifts s_ua of representatives [N, D], as [U, A, D]."""
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


def protected_magnitude(points: Tensor, mu: Tensor, basis: Tensor) -> Tensor:
    """b(c) = |V^T log_mu(c)| for representatives c [N, D]: the length of each tangent vector inside the subspace."""
    return torch.linalg.vector_norm(sphere.log(mu, points) @ basis, dim=-1)


def oriented(basis: Tensor) -> Tensor:
    """The same columns [D, k] with signs that do not depend on the solver: the largest entry is positive."""
    peak = basis.abs().argmax(0)
    return basis * basis[peak, torch.arange(basis.shape[1])].sign()


def top_eigenvectors(gram: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest eigenvalues of a symmetric matrix, largest first, and their vectors [D, k].

    Computed by Lanczos iteration to machine precision, from a start that is random but always the same: one made of
    the matrix itself may be mapped to zero. The contrasts of two values are opposite, and then its diagonal is.
    """
    from scipy.sparse.linalg import eigsh

    if not gram.any():
        return gram.new_zeros(k), torch.eye(len(gram), k, dtype=gram.dtype)
    start = torch.randn(len(gram), generator=torch.Generator().manual_seed(START_SEED), dtype=torch.float64)
    values, vectors = eigsh(gram.numpy(), k, which="LA", v0=start.numpy())
    order = values.argsort()[::-1]
    return torch.from_numpy(values[order]), torch.from_numpy(vectors[:, order].copy())


def aligned_blocks(activations: Activations, groups: Groups, what: str) -> Iterator[tuple[int, int, Tensor]]:
    """Yield (number of the group, first position, tokens [positions, values, D] in float64), block by block.

    what: the title of the progress bar.
    InputError if the images of a group have different numbers of tokens: then their positions do not correspond.
    """
    for number, (_, tokens) in enumerate(aligned_tokens(activations, groups, what)):
        for start in range(0, len(tokens[0]), POSITIONS):
            stop = start + POSITIONS
            yield number, start, torch.stack([image_tokens[start:stop].double() for image_tokens in tokens], 1)


@dataclass(frozen=True)
class Classes:
    """The values of an attribute and each image's index [N] among them."""

    values: tuple[Hashable, ...]
    labels: Tensor

    def means(self, rows: Tensor) -> Tensor:
        """The mean row [A, D] of each value."""
        return torch.stack([rows[self.labels == a].mean(0) for a in range(len(self.values))])


def classes(activations: Activations, attribute: Attribute) -> Classes:
    """The labels of the images; InputError if a value has fewer than two of them."""
    labels = activations.labels(attribute)
    values = activations.groups(attribute).values
    for value, count in Counter(labels).items():
        if count < 2:
            raise InputError(f"value {value!r} of {attribute!r} has one image: each value needs two or more")
    return Classes(values, torch.tensor([values.index(label) for label in labels]))


@dataclass(frozen=True)
class Targets:
    """What a fit by covariances regresses on: coded [N, m], one-hot values or a number; strata [N], their numbers.

    values: of the attribute. directions: how many a label can have, values - 1, or 1 for a number.
    """

    values: tuple[Hashable, ...]
    coded: Tensor
    strata: Tensor
    directions: int

    @cached_property
    def z(self) -> Tensor:
        """[N, m] in float64: deviations from the mean of each image's stratum."""
        return self.coded - stratum_means(self.coded, self.strata)

    def slopes(self, contrasts: Tensor) -> Tensor:
        """B [.., m, D] of contrasts X^T z [.., m, D]: by how much rows change with the label, within strata."""
        return torch.linalg.pinv(self.z.T @ self.z, rtol=TOLERANCE, hermitian=True) @ contrasts

    @cached_property
    def independent(self) -> Tensor:
        """[N, m]: by how many B each row is moved so that its label is independent of strata; 0 for one stratum."""
        centred = self.coded - self.coded.mean(0)
        return self.z * (centred.norm() / self.z.norm()) - centred


def targets(activations: Activations, attribute: Attribute) -> Targets:
    """The targets of an attribute; InputError if the images cannot be compared, or values have too few of them."""
    values, labels = activations.values(attribute), activations.labels(attribute)
    ordered = attribute in activations.ordered
    if not ordered and not isinstance(attribute, str) and (numbers := set(attribute) & set(activations.ordered)):
        raise InputError(
            f"{', '.join(sorted(numbers))} is ordered and has no intersections with other attributes: fit it alone"
        )
    if activations.unpaired:
        if problem := unlinked(str(attribute), labels, activations.contexts, ordered):
            raise InputError(problem)
        numbers_of = {context: number for number, context in enumerate(dict.fromkeys(activations.contexts))}
        strata = torch.tensor([numbers_of[context] for context in activations.contexts])
    else:
        classes(activations, attribute)  # raises
        strata = torch.zeros(len(labels), dtype=torch.long)
    if ordered:
        numbers = torch.tensor([[float(str(label))] for label in labels], dtype=torch.float64)
        coded = numbers / numbers.std(correction=0)
    else:
        index = {value: number for number, value in enumerate(values)}
        coded = torch.nn.functional.one_hot(torch.tensor([index[label] for label in labels])).double()
    return Targets(values, coded, strata, 1 if ordered else len(values) - 1)


def stratum_means(rows: Tensor, strata: Tensor) -> Tensor:
    """For each row of [N, m] the mean row of its stratum. strata [N]: numbers from 0."""
    count = int(strata.max()) + 1
    sums = torch.zeros(count, rows.shape[1], dtype=rows.dtype).index_add_(0, strata, rows)
    return (sums / strata.bincount(minlength=count)[:, None])[strata]


def permuted_within(strata: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
    """The rows [N, m], permuted within strata [N]."""
    order = torch.randperm(len(strata), generator=generator)
    permuted = torch.empty_like(rows)
    permuted[strata.argsort(stable=True)] = rows[order[strata[order].argsort(stable=True)]]
    return permuted


@dataclass(frozen=True)
class Span:
    """Rows [N, D] as mean + coordinates [N, r] @ directions^T, with orthonormal directions [D, r]; float64.

    A fit with an L2 penalty, or of covariances, stays in the span of its data. So in these coordinates it is the
    same fit in r < N dimensions instead of D.
    """

    mean: Tensor
    coordinates: Tensor
    directions: Tensor


def span(rows: Tensor) -> Span:
    """The span of rows [N, D]; InputError when they are all equal."""
    refuse_equal(rows)
    mean = rows.mean(0)
    left, singular, right = torch.linalg.svd(rows - mean, full_matrices=False)
    nonzero = singular > TOLERANCE * singular[0]
    return Span(mean, (left * singular)[:, nonzero], right[nonzero].T)


def refuse_equal(rows: Tensor) -> None:
    """InputError when the rows are all equal, up to the rounding of float32."""
    if not float((rows - rows.mean(0)).norm()) > 1e-7 * float(rows.norm()):
        raise InputError(f"the activations of all {len(rows)} images are equal: there is nothing to learn from")


@dataclass(frozen=True)
class Logistic:
    """Multinomial weights [A, D] (one row of them for two values), intercepts, and training accuracy."""

    weights: Tensor
    intercepts: Tensor
    accuracy: float


def logistic_regression(rows: Tensor, labels: Tensor, c: float) -> Logistic:
    """scikit-learn's multinomial logistic regression with an L2 penalty, solved to convergence.

    The paper does not name a solver; the optimum is unique, and Newton's method reaches it. InputError if it did not.
    """
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=c, solver="newton-cg", tol=TOLERANCE, max_iter=ITERATIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the line search warns of rounding errors; the result is checked below
        model.fit(rows.numpy(), labels.numpy())
    weights, intercepts = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    logistic = Logistic(weights, intercepts, float(model.score(rows.numpy(), labels.numpy())))
    solver_tolerance = TOLERANCE * c * len(rows) * weights.numel() ** 0.5  # scikit-learn divides its gradient by c N
    if not float(gradient(logistic, rows, labels, c).norm()) <= max(
        CONVERGED * float(weights.norm()), solver_tolerance
    ):
        raise InputError(
            f"logistic regression did not converge on activations of size {float(rows.norm(dim=1).mean()):.1e}; "
            "rescale them"
        )
    return logistic


def gradient(model: Logistic, rows: Tensor, labels: Tensor, c: float) -> Tensor:
    """The gradient by the weights of |w|^2 / 2 + c times the sum of the log losses: zero at the optimum."""
    scores = rows @ model.weights.T + model.intercepts
    if len(model.weights) == 1:
        errors = scores.sigmoid() - labels[:, None]
    else:
        errors = scores.softmax(1) - torch.nn.functional.one_hot(labels)
    return model.weights + c * errors.T @ rows
