"""BendVLM-style retrieval equalisation (Gerych et al. 2024; appendix A.5).

An image is moved until it is equally near to the closest references of every value.

    e = mean token of the image, e^ = e / |e|        R_i: the discovery images' e^, with their values
    1. q = Normalize(e^ - B B^T e^)                  B: orthonormal, spans the differences of the values' centres
    2. pi_r: from the 10 references of value r with the largest cosine to q
    3. e*: closest to q such that all pi_r are equally near
    4. steered = h + (e' - e), for every token h     e' = e + alpha (|e| e* - e); spherical: |e| Normalize(e')

    bend-euclidean      pi_r = Normalize(mean of the 10)        e* = Normalize(x), x closest to q with
                                                                <x, pi_r> equal for all r
    bend-spherical      pi_r = log_mu(Fréchet mean of the 10)   e* = exp_mu(x), x closest to log_mu(q) with
                                                                |x - pi_r| equal for all r

mu is the Fréchet mean of the R_i. Both sets of conditions are linear in x, so step 3 is one least-squares solution.

**Which norm is restored**, in the spherical form at every alpha: that of the mean token, |e'| = |e|. With it the norm
of the image is restored, |vec(H)|, because adding e' - e to T tokens changes its square by T (|e'|^2 - |e|^2). Norms
of single tokens are not. The Euclidean form has |e'| = |e| at alpha = 1 only.

**What the paper says, what its code does, what we do.** The paper's embedding is the "global activation e = vec(H)":
all tokens in a row. An image can then be compared only with references of as many tokens, and the paper's own cap of
2048 tokens per reference is below the 2880 or 2304 of its LLaVA-NeXT images. The authors' code, and this method, take
the mean token, which every image has. The equations with vec(H) are `bend-token-*`. Where the paper is silent, the
code decides: retrieval by the projected q, Fréchet means for spherical prototypes, the place of alpha. The paper is
not silent where it "equalizes cosine distance": Euclidean prototypes are normalised here. It also asks for "norm
restoration": the code leaves out the Normalize of step 4, which changes nothing at alpha = 1.

**`projector="release"`: the B of the authors' code.** It stacks the A differences of the values' centres from the
centre of all references, and half the difference of each pair of these: A (A + 1) / 2 rows, 15 for five values. All
their singular vectors make up B. In exact arithmetic the rows have rank A - 1; in the spherical form rank A, because
Fréchet means do not average to mu, and then mu itself is nearly inside the span of B: most of an image is projected
out before its neighbours are looked for. The other singular vectors are rounding errors of float32. The authors' code
takes them from scikit-learn's randomised SVD without a seed, so no two of its runs have the same; here it has a seed.
`norms="release"`: Euclidean prototypes keep the length of their mean, and the spherical step 4 has no Normalize.

An image whose mean token is zero, or of which the projection leaves nothing, has no direction and is not changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.operator import Array, register_kind
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.spherical import POOLED_OVER, ByImage, PooledOver, check_frame, check_orthonormal
from ggss.methods.subspace import Classes, classes, oriented, representatives

RANK = 1e-9  # singular values below this, relative to the largest, count as zero
ROUNDING = 1e-4  # how far the length of a reference may be from 1
RESOLUTION = 1e-6  # what is left of a unit vector, or centres' distances, below this is rounding of float32 rows
SEED = 0  # of scikit-learn's randomised SVD
REFERENCE = "Gerych et al. 2024, BendVLM: Test-Time Debiasing of Vision-Language Embeddings"

Neighbours = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Bend(ByImage):
    """Base of both forms. references R [n, D] of unit length and the basis B [D, k] in float32.

    labels [n]: the value of each reference. neighbours: how many references of a value make its prototype.
    """

    references: Annotated[Tensor, Array("n", "D", ge=-1 - ROUNDING, le=1 + ROUNDING)]
    basis: Annotated[Tensor, Array("D", "k")]
    labels: Annotated[Tensor, Array("n", dtype=torch.int64, ge=0)]
    neighbours: Neighbours = 10
    restored: bool = field(default=True, kw_only=True)
    """Whether Euclidean prototypes are normalised, and a moved mean of the spherical form gets its norm back."""

    @property
    def width(self) -> int:
        return self.references.shape[1]

    def equalised(self, query: Tensor, nearest: Tensor) -> Tensor:
        """e* [D] of the projected direction q [D], from the nearest references [A, neighbours, D]; float64."""
        raise NotImplementedError

    def moved(self, pooled: Tensor, correction: Tensor, alpha: float) -> Tensor:
        """e' [D] from e and |e| e* - e."""
        return pooled + alpha * correction

    def steer_image(self, rows: Tensor, pooled: Tensor, alpha: Tensor, out: Tensor) -> None:
        moved = self.moved(pooled, self.correction(pooled), float(alpha[0]))
        torch.add(rows, (moved - pooled).to(rows), out=out)

    def correction(self, pooled: Tensor) -> Tensor:
        """|e| e* - e [D] of an image with the mean row e [D]."""
        references, basis = self.references.to(pooled), self.basis.to(pooled)
        norm = sphere.norm(pooled)
        direction = pooled / torch.where(norm > 0, norm, 1)
        remainder = direction - basis @ (basis.T @ direction)
        if float(remainder.norm()) < RESOLUTION:
            return torch.zeros_like(pooled)
        query = remainder / remainder.norm()
        cosines, labels = references @ query, self.labels.to(pooled.device)
        nearest = []
        for value in range(int(labels.max()) + 1):
            members = (labels == value).nonzero().flatten()
            nearest.append(references[members[cosines[members].topk(self.neighbours).indices]])
        return norm * self.equalised(query, torch.stack(nearest)) - pooled

    def validate(self) -> None:
        check_orthonormal(self.basis)
        check_labels(self.labels, self.neighbours)
        off = float((self.references.norm(dim=1) - 1).abs().max())
        if off > ROUNDING:
            raise InputError(f"the references do not have length 1 (off by {off:.1e})")


def check_labels(labels: Tensor, neighbours: int) -> None:
    """InputError unless labels [n] are 0, 1, ..., each of at least as many references as there are neighbours."""
    if int(labels.max()) >= len(labels) or not (counts := torch.bincount(labels)).all():
        raise InputError("the references' labels are not 0, 1, ... with at least one reference each")
    if neighbours > int(counts.min()):
        raise InputError(f"{neighbours} neighbours are asked for where a value has {int(counts.min())} references")


def closest(start: Tensor, prototypes: Tensor, offsets: Tensor) -> Tensor:
    """x [D] closest to `start` [D] with <x, pi_r> = offsets_r + a constant, for prototypes [A, D] and offsets [A]."""
    differences = prototypes - prototypes.mean(0)
    excess = differences @ start - (offsets - offsets.mean())
    system = differences @ differences.T
    return start - differences.T @ (torch.linalg.pinv(system, rtol=RANK, hermitian=True) @ excess)


@register_kind
@dataclass(frozen=True)
class BendEuclidean(Bend):
    kind: ClassVar[str] = "bend-euclidean"

    def equalised(self, query: Tensor, nearest: Tensor) -> Tensor:
        prototypes = sphere.normalize(nearest.mean(1)) if self.restored else nearest.mean(1)
        moved = closest(query, prototypes, torch.zeros_like(prototypes[:, 0]))
        length = moved.norm()
        return moved / length if float(length) >= RESOLUTION else query


@register_kind
@dataclass(frozen=True)
class BendSpherical(Bend):
    """mu [D]: the Fréchet mean of the references, in float32."""

    mu: Annotated[Tensor, Array("D")] = field(kw_only=True)

    kind: ClassVar[str] = "bend-spherical"

    def equalised(self, query: Tensor, nearest: Tensor) -> Tensor:
        mu = self.mu.to(query)
        mu = mu / mu.norm()
        prototypes = sphere.log(mu, sphere.frechet_mean(nearest))
        moved = closest(sphere.log(mu, query), prototypes, (prototypes**2).sum(1) / 2)
        return sphere.normalize(sphere.exp(mu, moved))

    def validate(self) -> None:
        super().validate()
        check_frame(self.mu, self.basis)

    def moved(self, pooled: Tensor, correction: Tensor, alpha: float) -> Tensor:
        moved = super().moved(pooled, correction, alpha)
        if not self.restored:
            return moved
        length, norm = sphere.norm(moved), sphere.norm(pooled)
        # Halfway to an opposite e* there is no direction.
        return torch.where(length > RESOLUTION * norm, moved * (norm / length), pooled)


class BendOptions(Options):
    neighbours: Neighbours = Field(10, description="references per value that make its prototype")
    projector: Literal["paper", "release"] = Field(
        "paper", description="B: the differences of the values' centres, or all singular vectors of the authors' code"
    )
    norms: Literal["paper", "release"] = Field(
        "paper", description="norms of prototypes and moved means are restored, or left as in the authors' code"
    )
    pooled_over: PooledOver = POOLED_OVER


def check_counts(known: Classes, neighbours: int) -> None:
    """InputError unless every value has at least as many images as neighbours."""
    counts = torch.bincount(known.labels)
    rarest = int(counts.argmin())
    if counts[rarest] < neighbours:
        raise InputError(
            f"value {known.values[rarest]!r} has {counts[rarest]} images and {neighbours} neighbours are asked "
            f"for: use more images or neighbours={counts[rarest]}"
        )


def fit_euclidean(activations: Activations, attribute: Attribute, options: BendOptions) -> Fitted:
    return Fitted(BendEuclidean(**_fields(activations, attribute, options, lambda rows: rows.mean(0))))


def fit_spherical(activations: Activations, attribute: Attribute, options: BendOptions) -> Fitted:
    mu = sphere.frechet_mean(representatives(activations.pooled))
    return Fitted(BendSpherical(**_fields(activations, attribute, options, sphere.frechet_mean), mu=mu.float()))


def _fields(
    activations: Activations, attribute: Attribute, options: BendOptions, mean: Callable[[Tensor], Tensor]
) -> dict[str, Any]:
    """The fields of a `Bend`. mean: of rows [n, D] in the form's geometry, for the authors' projector."""
    known = classes(activations, attribute)
    check_counts(known, options.neighbours)
    references = representatives(activations.pooled)
    centres = known.means(references)
    _, singular, rows = torch.linalg.svd(centres - centres.mean(0), full_matrices=False)
    if not float(singular[0]) > RESOLUTION:
        raise InputError(
            f"the mean images of all values of {attribute!r} are equal within the resolution of float32: "
            "there is nothing to equalise"
        )
    basis = oriented(rows[singular > RANK * singular[0]].T)
    if options.projector == "release":
        basis = released_basis([references[known.labels == a] for a in range(len(known.values))], mean)
    return {
        "references": references.float(),
        "basis": basis.float().contiguous(),
        "labels": known.labels,
        "neighbours": options.neighbours,
        "restored": options.norms == "paper",
        "together": options.pooled_over == "prompt",
    }


def released_basis(references: Sequence[Tensor], mean: Callable[[Tensor], Tensor]) -> Tensor:
    """The authors' B [D, A (A + 1) / 2], at most D columns, from the references [n, D] of each value."""
    from sklearn.decomposition import TruncatedSVD

    centre = mean(torch.cat(list(references))).float()
    differences = [(mean(rows).float() - centre).numpy() for rows in references]
    halves = [(one - other) / 2 for one, other in combinations(differences, 2)]
    rows = np.stack([*differences, *halves])
    vectors = TruncatedSVD(min(rows.shape), random_state=SEED).fit(rows).components_
    return torch.linalg.qr(torch.from_numpy(vectors).double().T)[0]


for _name, _summary, _fit in (
    ("bend-euclidean", "each image's mean made equally near to every value's nearest references", fit_euclidean),
    ("bend-spherical", "each image's mean made equally near to every value in tangent space", fit_spherical),
):
    register(Method(_name, _summary, REFERENCE, _fit, BendOptions))
