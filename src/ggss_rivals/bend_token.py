"""BendVLM-style retrieval equalisation with all tokens of an image in a row, as the paper's appendix prints it.

    e = vec(H), e^ = e / |e|          R_i: the discovery images' e^, with their values
    1. z = e^ - B B^T e^              B: orthonormal, spans the differences of the values' centres
    2. pi_r = mean of the 10 references of value r with the largest cosine to e^
    3. x: closest to z such that all pi_r are equally near

    bend-token-euclidean    equal cosines: <x, pi_r / |pi_r|> is equal for all r;     e + alpha |e| (x - e^)
    bend-token-spherical    the same in the tangent space at the Fréchet mean mu of the R_i, with t = log_mu(e^) for
                            e^ and log_mu(R_i) for R_i: |x - pi_r| is equal for all r;  |e| exp_mu(t + alpha (x - t))

Both sets of conditions are linear in x, so step 3 is one least-squares solution. The spherical form keeps the norm of
the image, |e|, but not the norm of each token.

**Memory.** The references of 400 images of 2880 tokens of 4096 numbers are 19 GB in float32 (9 GB in bfloat16) and
stay on disk: the token cache while fitting, `streams.safetensors` in an artefact, one image mapped at a time.
Everything above is linear in e^ and the R_i, so all algebra is done on coefficients:

    q = R e^ [n]      sum_i w_i R_i      K = R R^T [n, n], once, while fitting (1.3 MB)

q and the sum take one pass over the references each, one reference at a time. K takes one pass for each block of
token positions; a block has these positions of all references, 256 MB. Products are float32, summed in float64. When
an image is steered, memory holds its rows, the result, the correction, mu, two references (the one in use and the
next), a float32 copy, and the corrections of the last 4 images: eleven times 47 MB, 0.5 GB.

**Cost.** Two passes over all references per image: the only method whose cost is not a small multiple of a memcpy. If
an image comes again, at a later decoding step or with another strength, its correction is taken from a cache.

Left open by the paper: centres are means of the R_i; retrieval uses the image before step 1; step 3 starts from the
projected z, as BendVLM's two steps do. Every image must have as many tokens as the references; `bend`, which compares
mean tokens as the authors' code does, has no such limit.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError, problems
from ggss.methods.bend import RANK, REFERENCE, BendOptions, Neighbours, check_counts, check_labels
from ggss.methods.operator import Array, Operator, register_kind, require_finite
from ggss.methods.registry import Attribute, Fitted, Method, register
from ggss.methods.spherical import rows_by_image
from ggss.methods.subspace import classes
from ggss.terminal import track

ROUNDING = 1e-4  # of a cosine from float32 products
BLOCK = 2**26  # numbers in a block of token positions of all references
CACHED = 4  # images whose corrections are cached
RESOLUTION = 1e-6  # squared distances of centres below this are rounding errors of float32 products


@dataclass(frozen=True)
class References(Operator):
    """n references [T, D] with their norms [n], labels [n] and the Gram matrix K [n, n] of their directions."""

    references: Sequence[Tensor]
    norms: Annotated[Tensor, Array("n", dtype=torch.float64, ge=1e-30)]
    labels: Annotated[Tensor, Array("n", dtype=torch.int64, ge=0)]
    gram: Annotated[Tensor, Array("n", "n", dtype=torch.float64, ge=-1 - ROUNDING, le=1 + ROUNDING)]
    tokens: Annotated[int, Field(ge=1)]
    length: Annotated[int, Field(ge=1)]

    streamed: ClassVar[tuple[str, ...]] = ("references",)

    @property
    def width(self) -> int:
        return self.length

    def validate(self) -> None:
        count, shape = len(self.norms), (self.tokens, self.length)
        if len(self.references) != count:
            raise InputError(f"{len(self.references)} references do not fit a Gram matrix of {count}")
        for i, reference in enumerate(self.references):
            if reference.shape != shape or not reference.is_floating_point():
                raise InputError(
                    f"reference {i} is {tuple(reference.shape)} of {reference.dtype}, not {shape} of floating point"
                )
        skewed = max((self.gram - self.gram.T).abs().max(), (self.gram.diagonal() - 1).abs().max())
        if skewed > ROUNDING:
            raise InputError(f"the Gram matrix is not symmetric with a diagonal of 1 (off by {float(skewed):.1e})")

    def cosines(self, rows: Tensor, norm: float) -> Tensor:
        """q = R e^ [n] in float64 for an image [T, D] and its norm: a pass over the references."""
        image = rows.cpu()
        dots = [float(torch.linalg.vecdot(image, reference.float()).double().sum()) for reference in self.references]
        if not all(map(math.isfinite, dots)):
            raise InputError(
                "the references hold numbers that are not finite, or overflow float32: nothing was steered"
            )
        return torch.tensor(dots, dtype=torch.float64) / (self.norms * norm)

    def combined(self, coefficients: Tensor) -> Tensor:
        """sum_i w_i R_i as [T, D] in float32: a pass over the references that have a weight."""
        total = torch.zeros(self.tokens, self.length)
        for reference, weight in zip(self.references, (coefficients / self.norms).tolist(), strict=True):
            if weight:
                total.add_(reference, alpha=weight)
        return total

    def nearest(self, cosines: Tensor, count: int) -> Tensor:
        """The mean of each value's `count` nearest references, as coefficients [A, n]."""
        coefficients = torch.zeros(int(self.labels.max()) + 1, len(cosines), dtype=torch.float64)
        for value, row in enumerate(coefficients):
            members = (self.labels == value).nonzero().flatten()
            row[members[cosines[members].topk(count).indices]] = 1 / count
        return coefficients

    @property
    def centre_differences(self) -> Tensor:
        """Each value's mean reference minus the mean of those means, as coefficients [A, n]."""
        one_hot = torch.nn.functional.one_hot(self.labels).double()
        centres = (one_hot / one_hot.sum(0)).T
        return centres - centres.mean(0)


def norms_and_gram(tokens: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The norms [n] of images [T, D] and the Gram matrix [n, n] of their directions, in float64.

    InputError if they differ in their number of tokens, or one is zero.
    """
    count = len(tokens[0])
    unequal = [f"image {i} has {len(image)}" for i, image in enumerate(tokens) if len(image) != count]
    if unequal:
        raise problems(f"image 0 has {count} tokens and every image needs as many", unequal)
    gram = gram_matrix(tokens)
    norms = gram.diagonal().sqrt()
    if not bool((norms > 0).all()):
        raise InputError(f"all tokens of image {int(norms.argmin())} are zero: it has no direction")
    return norms, (gram / norms[:, None] / norms).fill_diagonal_(1)


def gram_matrix(tokens: Sequence[Tensor]) -> Tensor:
    """<vec(H_i), vec(H_j)> [n, n] in float64, from a block of token positions of all images at a time."""
    count, width = tokens[0].shape
    gram = torch.zeros(len(tokens), len(tokens), dtype=torch.float64)
    step = min(count, max(1, BLOCK // (len(tokens) * width)))
    buffer = torch.empty(len(tokens) * step * width)  # reused: a new block beside the old one would double the memory
    for start in track(range(0, count, step), "comparing references"):
        positions = min(step, count - start)
        block = buffer[: len(tokens) * positions * width].view(len(tokens), positions, width)
        for i, image_tokens in enumerate(tokens):
            block[i] = image_tokens[start : start + positions]
        flat = block.flatten(1)
        gram += (flat @ flat.T).double()
    return gram


class Correction(NamedTuple):
    """The correction of an image: the tensor [T, D], and the scalars that a spherical move needs."""

    tensor: Tensor
    cosine: float = 0.0
    along: float = 0.0
    energy: float = 0.0


@dataclass(frozen=True)
class BendToken(References):
    """Base of both forms. neighbours: how many references of each value are averaged into its prototype.

    Every vector is represented by its coefficients on n vectors, whose Gram matrix is `space`.
    """

    neighbours: Neighbours = 10

    needs_images: ClassVar[bool] = True

    def validate(self) -> None:
        super().validate()
        check_labels(self.labels, self.neighbours)

    @property
    def space(self) -> Tensor:
        """The Gram matrix [n, n] of the references' directions, or of their tangent vectors."""
        raise NotImplementedError

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        for index in rows_by_image(images, len(rows)):
            image_rows = rows[index]
            if len(image_rows) != self.tokens:
                raise InputError(
                    f"an image of {len(image_rows)} tokens cannot be compared with references of {self.tokens}: use "
                    "images of the same size and collect the discovery images with max_tokens no smaller than that, "
                    "or use "
                    f"{self.kind.replace('-token', '')!r}"
                )
            norm = float(torch.linalg.vector_norm(image_rows, dtype=torch.float64))
            if not norm < float("inf"):
                require_finite(image_rows, len(rows))
            steered = self.steer_image(image_rows, norm, float(alpha[index][0])) if norm > 0 else image_rows
            out[index] = steered

    def steer_image(self, rows: Tensor, norm: float, alpha: float) -> Tensor:
        """The steered rows of one image [T, D] with this norm."""
        raise NotImplementedError

    def solve(self, products: Tensor) -> tuple[Tensor, Correction]:
        """Coefficients [n] of the correction on the references, and its scalars, from q = R e^ [n]."""
        raise NotImplementedError

    def correction(self, rows: Tensor, norm: float) -> Correction:
        """The correction of an image; the last few are cached."""
        key = hashlib.blake2b(rows.detach().cpu().contiguous().numpy().data).hexdigest()
        correction = self._cache.get(key)
        if correction is None:
            coefficients, scalars = self.solve(self.cosines(rows, norm))
            correction = scalars._replace(tensor=self.combined(coefficients))
            for oldest in list(self._cache)[: len(self._cache) + 1 - CACHED]:
                self._cache.pop(oldest, None)
            self._cache[key] = correction
        return correction._replace(tensor=correction.tensor.to(rows.device))

    @cached_property
    def _cache(self) -> dict[str, Correction]:
        return {}

    @cached_property
    def centre_basis(self) -> Tensor:
        """B as coefficients [n, k]: orthonormal, spans the centres' differences."""
        differences = self.centre_differences
        eigenvalues, vectors = torch.linalg.eigh(differences @ self.space @ differences.T)
        nonzero = eigenvalues > RANK * eigenvalues[-1]
        return differences.T @ (vectors[:, nonzero] / eigenvalues[nonzero].sqrt())


def equalised(gram: Tensor, products: Tensor, basis: Tensor, prototypes: Tensor, offsets: Tensor) -> Tensor:
    """Steps 1 and 3 on coefficients: w [n] with x = e + sum_i w_i v_i.

    gram [n, n] of the vectors v_i, products <v_i, e> [n], basis [n, k] and prototypes pi_r [A, n] as coefficients.
    x satisfies <x, pi_r> = offsets_r + a constant, and is the closest such vector to e without its part in the basis.
    """
    removed = basis @ (basis.T @ products)
    differences = prototypes - prototypes.mean(0)
    excess = differences @ (products - gram @ removed) - (offsets - offsets.mean())
    system = differences @ gram @ differences.T
    return -removed - differences.T @ (torch.linalg.pinv(system, rtol=RANK, hermitian=True) @ excess)


@register_kind
@dataclass(frozen=True)
class BendTokenEuclidean(BendToken):
    kind: ClassVar[str] = "bend-token-euclidean"

    @property
    def space(self) -> Tensor:
        return self.gram

    def solve(self, products: Tensor) -> tuple[Tensor, Correction]:
        prototypes = self.nearest(products, self.neighbours)
        lengths = ((prototypes @ self.gram) * prototypes).sum(1, keepdim=True).clamp(min=0).sqrt()
        prototypes = prototypes / torch.where(lengths > 0, lengths, 1)
        zeros = torch.zeros(len(prototypes), dtype=torch.float64)
        return equalised(self.gram, products, self.centre_basis, prototypes, zeros), Correction(zeros)

    def steer_image(self, rows: Tensor, norm: float, alpha: float) -> Tensor:
        return torch.add(rows, self.correction(rows, norm).tensor, alpha=alpha * norm)


@register_kind
@dataclass(frozen=True)
class BendTokenSpherical(BendToken):
    kind: ClassVar[str] = "bend-token-spherical"

    @cached_property
    def centre(self) -> Tensor:
        """The Fréchet mean of the references' directions, as coefficients [n], by the Karcher iteration on K."""
        count = len(self.gram)
        a = torch.full((count,), 1 / count, dtype=torch.float64)
        if float(a @ self.gram @ a) < RESOLUTION:  # they cancel out: start from one of them, as `sphere` does
            a = torch.eye(count, dtype=torch.float64)[0]
        a = a / (a @ self.gram @ a).sqrt()
        for _ in range(100):
            k = self.gram @ a
            f = inverse_sinc(k)
            step = f / count - (f * k).mean() * a
            size = (step @ self.gram @ step).clamp(min=0).sqrt()
            if float(size) < 1e-7:
                break
            a = torch.cos(size) * a + torch.sin(size) / size * step
            a = a / (a @ self.gram @ a).sqrt()
        return a

    @cached_property
    def mu(self) -> Tensor:
        return self.combined(self.centre)

    @property
    def space(self) -> Tensor:
        k = self.gram @ self.centre
        f = inverse_sinc(k)
        return f[:, None] * f * (self.gram - k[:, None] * k)

    def solve(self, products: Tensor) -> tuple[Tensor, Correction]:
        a, tangents = self.centre, self.space
        k = self.gram @ a
        f = inverse_sinc(k)
        cosine = (a @ products).clamp(-1, 1)
        tangent_products = inverse_sinc(cosine) * f * (products - cosine * k)
        prototypes = self.nearest(products, self.neighbours)
        halves = ((prototypes @ tangents) * prototypes).sum(1) / 2
        w = equalised(tangents, tangent_products, self.centre_basis, prototypes, halves)
        coefficients = w * f - (w * f @ k) * a
        return coefficients, Correction(w, float(cosine), float(w @ tangent_products), float(w @ tangents @ w))

    def steer_image(self, rows: Tensor, norm: float, alpha: float) -> Tensor:
        tensor, cosine, along, energy = self.correction(rows, norm)
        cosine = torch.tensor(cosine, dtype=torch.float64)
        f = float(inverse_sinc(cosine))
        n = (torch.arccos(cosine) ** 2 + 2 * alpha * along + alpha**2 * energy).clamp(min=0).sqrt()
        s = float(torch.sinc(n / torch.pi))
        mu_weight = float(torch.cos(n)) - s * f * float(cosine)
        steered = rows * (s * f)
        steered.add_(self.mu.to(rows.device), alpha=norm * mu_weight).add_(tensor, alpha=norm * s * alpha)
        return steered.mul_(norm / float(torch.linalg.vector_norm(steered, dtype=torch.float64)))


def inverse_sinc(cosine: Tensor) -> Tensor:
    """theta / sin theta, from cos theta."""
    cosine = cosine.clamp(-1, 1)
    sine = (1 - cosine * cosine).sqrt()
    return torch.where(sine > 1e-6, torch.atan2(sine, cosine) / sine, 1)


def fit(activations: Activations, attribute: Attribute, options: BendOptions, kind: type[BendToken]) -> Fitted:
    known, tokens = classes(activations, attribute), activations.complete_tokens
    check_counts(known, options.neighbours)
    norms, gram = norms_and_gram(tokens)
    count, width = tokens[0].shape
    operator = kind(tokens, norms, known.labels, gram, count, width, options.neighbours)
    differences = operator.centre_differences
    if not float((differences @ operator.space @ differences.T).trace()) > RESOLUTION:
        raise InputError(
            f"the mean images of all values of {attribute!r} are equal within the resolution of float32: "
            "there is nothing to equalise"
        )
    return Fitted(operator)


def _register(kind: type[BendToken], summary: str) -> None:
    def fit_kind(activations: Activations, attribute: Attribute, options: BendOptions) -> Fitted:
        return fit(activations, attribute, options, kind)

    register(Method(kind.kind, summary, REFERENCE, fit_kind, BendOptions, needs_tokens=True))


_register(BendTokenEuclidean, "all tokens of an image in a row, made equally near to every value's references")
_register(BendTokenSpherical, "the same in tangent space, the norm of the image restored")
