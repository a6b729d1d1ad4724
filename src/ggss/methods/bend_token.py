"""BendVLM-style retrieval equalisation as the paper's appendix prints it, with all tokens of an image in a row.

    e = vec(H), e^ = e / |e|          R_i: the discovery images' e^, with their values
    1. z = e^ - B B^T e^              B: orthonormal, spans the differences of the values' centres
    2. pi_r = mean of the 10 references of value r with the largest cosine to e^
    3. x: closest to z such that all pi_r are equally near

    bend-token-euclidean    equal cosines: <x, pi_r / |pi_r|> is equal for all r;     e + alpha |e| (x - e^)
    bend-token-spherical    the same in the tangent space at the Fréchet mean mu of the R_i, with t = log_mu(e^) for
                            e^ and log_mu(R_i) for R_i: |x - pi_r| is equal for all r;  |e| exp_mu(t + alpha (x - t))

Both sets of conditions are linear in x, so step 3 is one least-squares solution. The spherical form keeps the norm
of the whole image, |e|, but not the norm of each token.

**Memory.** The references of 400 images of 2880 tokens of 4096 numbers are 19 GB in float32 (9 GB in bfloat16) and
stay on disk: the token cache while fitting, `streams.safetensors` in an artefact, one image mapped at a time.
Everything above is linear in e^ and the R_i, so all algebra is done on coefficients, with the Gram matrix K = R R^T
[n, n] (1.3 MB) and q = R e^ [n]: one pass over the references for q, one for the correction sum_i w_i R_i. In memory
are the image's rows, the result, the correction, mu, two references (the one in use and the next), a float32 copy,
and the corrections of the last 4 images: eleven times 47 MB, 0.5 GB. Fitting holds a block of 256 MB for K.

**Cost.** Two passes over all references per image: the only method whose cost is not a small multiple of a memcpy.
If an image comes again, at a later decoding step or with another strength, its correction is taken from a cache.

Left open by the paper: centres are means of the R_i; retrieval sees the image as it is, before step 1; step 3 starts
from the projected z, as BendVLM's two steps do. Every image must have as many tokens as the references; `bend`, which
compares mean tokens as the authors' code does, has no such limit.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.bend import RANK, REFERENCE, BendOptions, Neighbours, check_labels, enough
from ggss.methods.bend_references import References, compared
from ggss.methods.by_image import parts
from ggss.methods.classes import classes
from ggss.methods.operator import register, require_finite
from ggss.methods.registry import Attribute, Fitted, Method
from ggss.methods.registry import register as register_method

KEPT = 4  # images whose corrections are kept
RESOLUTION = 1e-6  # squared distances of centres below this are rounding errors of float32 products


class Correction(NamedTuple):
    """The correction of an image: the tensor [T, D], and the scalars that a spherical move needs."""

    tensor: Tensor
    cosine: float = 0.0
    along: float = 0.0
    energy: float = 0.0


@dataclass(frozen=True)
class BendToken(References):
    """The references, and how many of each value are averaged into its prototype.

    Every vector is given by its coefficients on n vectors, whose Gram matrix is `space`.
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
        for own in parts(images, len(rows)):
            mine = rows[own]
            if len(mine) != self.tokens:
                raise InputError(
                    f"an image of {len(mine)} tokens cannot be compared with references of {self.tokens}: use images "
                    "of the same size and collect the discovery images with max_tokens no smaller than that, or use "
                    f"{self.kind.replace('-token', '')!r}"
                )
            norm = float(torch.linalg.vector_norm(mine, dtype=torch.float64))
            if not norm < float("inf"):
                require_finite(mine, len(rows))
            out[own] = self.bent(mine, norm, float(alpha[own][0])) if norm > 0 else mine

    def bent(self, rows: Tensor, norm: float, alpha: float) -> Tensor:
        """The corrected rows of one image of a given norm."""
        raise NotImplementedError

    def corrected(self, products: Tensor) -> tuple[Tensor, Correction]:
        """Coefficients [n] of the correction on the references, and its scalars, from q = R e^ [n]."""
        raise NotImplementedError

    def correction(self, rows: Tensor, norm: float) -> Correction:
        """The correction of an image; the last few are cached."""
        key = hashlib.blake2b(rows.detach().cpu().contiguous().numpy().data).hexdigest()
        found = self._kept.get(key)
        if found is None:
            coefficients, scalars = self.corrected(self.cosines(rows, norm))
            found = scalars._replace(tensor=self.combined(coefficients))
            for old in list(self._kept)[: len(self._kept) + 1 - KEPT]:
                self._kept.pop(old, None)
            self._kept[key] = found
        return found._replace(tensor=found.tensor.to(rows.device))

    @cached_property
    def _kept(self) -> dict[str, Correction]:
        return {}

    @cached_property
    def centre_basis(self) -> Tensor:
        """B as coefficients [n, k]: orthonormal, spans the centres' differences."""
        differences = self.centre_differences
        size, vectors = torch.linalg.eigh(differences @ self.space @ differences.T)
        kept = size > RANK * size[-1]
        return differences.T @ (vectors[:, kept] / size[kept].sqrt())


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


@register
@dataclass(frozen=True)
class BendTokenEuclidean(BendToken):
    kind: ClassVar[str] = "bend-token-euclidean"

    @property
    def space(self) -> Tensor:
        return self.gram

    def corrected(self, products: Tensor) -> tuple[Tensor, Correction]:
        prototypes = self.nearest(products, self.neighbours)
        lengths = ((prototypes @ self.gram) * prototypes).sum(1, keepdim=True).clamp(min=0).sqrt()
        prototypes = prototypes / torch.where(lengths > 0, lengths, 1)
        none = torch.zeros(len(prototypes), dtype=torch.float64)
        return equalised(self.gram, products, self.centre_basis, prototypes, none), Correction(none)

    def bent(self, rows: Tensor, norm: float, alpha: float) -> Tensor:
        return torch.add(rows, self.correction(rows, norm).tensor, alpha=alpha * norm)


@register
@dataclass(frozen=True)
class BendTokenSpherical(BendToken):
    kind: ClassVar[str] = "bend-token-spherical"

    @cached_property
    def centre(self) -> Tensor:
        """The Fréchet mean of the references' directions, as coefficients [n]: the Karcher iteration on K."""
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

    def corrected(self, products: Tensor) -> tuple[Tensor, Correction]:
        a, tangents = self.centre, self.space
        k = self.gram @ a
        f = inverse_sinc(k)
        cosine = (a @ products).clamp(-1, 1)
        seen = inverse_sinc(cosine) * f * (products - cosine * k)
        prototypes = self.nearest(products, self.neighbours)
        halves = ((prototypes @ tangents) * prototypes).sum(1) / 2
        w = equalised(tangents, seen, self.centre_basis, prototypes, halves)
        on_references = w * f - (w * f @ k) * a
        return on_references, Correction(w, float(cosine), float(w @ seen), float(w @ tangents @ w))

    def bent(self, rows: Tensor, norm: float, alpha: float) -> Tensor:
        tensor, cosine, along, energy = self.correction(rows, norm)
        cosine = torch.tensor(cosine, dtype=torch.float64)
        f = float(inverse_sinc(cosine))
        n = (torch.arccos(cosine) ** 2 + 2 * alpha * along + alpha**2 * energy).clamp(min=0).sqrt()
        s = float(torch.sinc(n / torch.pi))
        towards_mu = float(torch.cos(n)) - s * f * float(cosine)
        bent = rows * (s * f)
        bent.add_(self.mu.to(rows.device), alpha=norm * towards_mu).add_(tensor, alpha=norm * s * alpha)
        return bent.mul_(norm / float(torch.linalg.vector_norm(bent, dtype=torch.float64)))


def inverse_sinc(cosine: Tensor) -> Tensor:
    """theta / sin theta of an angle's cosine."""
    cosine = cosine.clamp(-1, 1)
    sine = (1 - cosine * cosine).sqrt()
    return torch.where(sine > 1e-6, torch.atan2(sine, cosine) / sine, 1)


def fit(activations: Activations, attribute: Attribute, options: BendOptions, kind: type[BendToken]) -> Fitted:
    known, tokens = classes(activations, attribute), activations.tokens
    enough(known, options.neighbours)
    norms, gram = compared(tokens)
    count, width = tokens[0].shape
    operator = kind(tokens, norms, known.labels, gram, count, width, options.neighbours)
    differences = operator.centre_differences
    if not float((differences @ operator.space @ differences.T).trace()) > RESOLUTION:
        raise InputError(
            f"the mean images of all values of {attribute!r} are equal to the resolution of float32: "
            "there is nothing to equalise"
        )
    return Fitted(operator)


def _method(kind: type[BendToken], summary: str) -> None:
    def fitted(activations: Activations, attribute: Attribute, options: BendOptions) -> Fitted:
        return fit(activations, attribute, options, kind)

    register_method(Method(kind.kind, summary, REFERENCE, fitted, BendOptions, needs_tokens=True))


_method(BendTokenEuclidean, "all tokens of an image in a row, made equally near to every value's references")
_method(BendTokenSpherical, "the same in tangent space, the norm of the whole image kept")
