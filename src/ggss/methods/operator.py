"""Operators: what a method fits for one site, and how it turns rows of visual tokens into steered rows.

A method's `fit` returns an operator. A `Steerer` has one for each site, saves them, and attaches them to a model.
`apply` calls an operator on rows of any floating dtype, block by block, so that the only large allocation is the
result.

**Fields.** The type of each field declares what it may hold, and is checked whenever an operator is made.

    gate_std: Annotated[float, Field(ge=0)]             a number: pydantic's types and bounds, in strict mode
    basis: Annotated[Tensor, Array("D", "k")]           a tensor: its shape, dtype and bounds

A letter of a shape has the same size in all fields of an operator. Every number must be finite, declared or not. It
makes no difference whether an operator was fitted, read from a folder or a `.pt` file, or made by hand. Conditions on
several fields together (an orthonormal basis) are in `Operator.validate`.

**Two passes.** Every update that projects tokens is made of two passes over them, `project` and `recombine`.

    project        products = H W,  norms = |H| by row         H [N, D]: the tokens; W [D, m]: a few directions
    recombine      out = scale H + weights W^T                 one scale and m weights for each token

Between the two, a method works on a few numbers per token, so the passes are nearly all of its cost. Memory limits
them, not arithmetic. Each pass goes over the tokens in strips of rows that stay in the CPU's cache: the norm reads a
strip from memory and the product finds it in the cache. Tokens in half precision are converted to float32 strip by
strip, so there is never a float32 copy of all of them.

The form of the two products is chosen by measurement, at 2880 x 4096 with 5 directions on an AVX2 CPU. W^T H^T
takes 7 ms where H W takes 20. Adding weights W^T in batches of 8 rows takes 4 ms where one tall product takes 8;
with more than 10 directions the tall product is faster.

**Affine maps.** An operator that does the same to every token says which map that is (`Operator.affine`).

    h' = scale * h + left right^T h + offset

Such a map can be folded into the Linear that gives h (`ggss.steering.export`). For an operator that is not affine,
`nearest_map` finds the one that is nearest to it on some tokens, by least squares of what the operator adds:

    M, c = argmin  sum |h' - h - M h - c|^2 + ridge |M|^2

How near that is, is measured on other tokens (`explained`).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor

from ggss.errors import InputError

BLOCK_ROWS = 8192  # rows in one call of an operator: its float64 numbers per row then take a few MB
CONVERTED_ROWS = 1024  # the same where a block is first copied to float32
STRIP_BYTES = 2**22  # size of a strip in float32, for each thread
MOST_THREADS = 8  # more threads do not make a strip larger
BATCH_ROWS = 8  # rows of one small product in `recombine`
FEW_DIRECTIONS = 10  # up to this many, small products are faster than a tall one


@dataclass(frozen=True, init=False)
class Array:
    """A tensor of this shape (letters, or numbers), dtype (None: any) and range."""

    shape: tuple[str | int, ...]
    dtype: torch.dtype | None
    ge: float
    le: float

    def __init__(
        self,
        *shape: str | int,
        dtype: torch.dtype | None = torch.float32,
        ge: float = -math.inf,
        le: float = math.inf,
    ) -> None:
        for name, value in {"shape": shape, "dtype": dtype, "ge": ge, "le": le}.items():
            object.__setattr__(self, name, value)

    def problem(self, value: Any, sizes: dict[str | int, int]) -> str:
        """What is wrong with a value, or an empty string. The size of each new letter is added to `sizes`."""
        if not isinstance(value, Tensor):
            return f"must be a tensor, seen {_describe(value)}"
        if value.layout != torch.strided or value.is_complex() or (self.dtype and value.dtype != self.dtype):
            return f"must be a dense tensor of {self.dtype or 'real numbers'}, seen {value.dtype} ({value.layout})"
        expected = [size if isinstance(size, int) else sizes.get(size) for size in self.shape]
        fits = value.ndim == len(expected) and all(e in (None, n) for e, n in zip(expected, value.shape, strict=True))
        if self.shape and not (fits and value.numel()):
            known = ", ".join(f"{letter} = {size}" for letter, size in sizes.items() if letter in self.shape)
            shape = f"[{', '.join(map(str, self.shape))}]{f' with {known}' if known else ''}"
            return f"must be {shape}, seen {list(value.shape)}"
        if self.shape:
            sizes.update({letter: n for letter, n in zip(self.shape, value.shape, strict=True) if letter != n})
        if value.is_floating_point() and not torch.isfinite(value).all():
            return "holds numbers that are not finite"
        if value.numel() and not self.ge <= float(value.min()) <= float(value.max()) <= self.le:
            return f"must be from {self.ge:g} to {self.le:g}, seen {float(value.min()):g} to {float(value.max()):g}"
        return ""


def _check(operator: Any) -> None:
    """Raise InputError unless every field holds what its type declares; convert integers in float fields."""
    problems: list[str] = []
    sizes: dict[str | int, int] = {}
    for name, declared in _field_types(type(operator)).items():
        value = getattr(operator, name)
        if isinstance(declared, Array):
            if problem := declared.problem(value, sizes):
                problems.append(f"{name} {problem}")
            continue
        try:
            object.__setattr__(operator, name, declared.validate_python(value))
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Input ")
            problems.append(f"{name} {reason}, seen {_describe(value)}")
    if problems:
        raise InputError(f"a {operator.kind!r} operator: {'; '.join(problems)}")


def _describe(value: Any) -> str:
    return repr(value) if isinstance(value, int | float) and abs(value) < 1e300 else f"a {type(value).__name__}"


@cache
def _field_types(kind: type[Any]) -> dict[str, "Array | TypeAdapter[Any]"]:
    """The `Array` or the pydantic adapter of each field's type, by name; streamed fields are left out."""
    hints, types = get_type_hints(kind, include_extras=True), {}
    for field in fields(kind):
        hint = hints[field.name]
        plain, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if plain is Tensor:
            types[field.name] = next((array for array in metadata if isinstance(array, Array)), Array(dtype=None))
        elif get_origin(plain) is not Sequence:
            types[field.name] = TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))
    return types


class Steered(NamedTuple):
    """The steered rows [N, D], and the gate of each row [N] where the method has one."""

    rows: Tensor
    gate: Tensor | None


@dataclass(frozen=True)
class Operator:
    """Base of all operators: a frozen dataclass. Its tensors and scalars are everything that is saved.

    When an operator is made, each field is checked against its type (`Array`), then all together by `validate`.
    A subclass sets `kind`, its unique name in artefacts, and implements `__call__`. It also sets

    - `needs_images` if the update of a row depends on other rows of its image; it then gets all rows in one call;
    - `any_dtype` if it takes rows of any floating dtype; it otherwise gets float32 rows;
    - `streamed`, the names of fields that are sequences of tensors too large for memory. Each is saved in a separate
      file and read one tensor at a time.
    """

    kind: ClassVar[str]
    needs_images: ClassVar[bool] = False
    any_dtype: ClassVar[bool] = False
    streamed: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        _check(self)
        self.validate()

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> Tensor | None:
        """Write the steered rows into `out`, which may be `rows` itself. Return the gate [N] if the method has one.

        rows and out [N, D], float32 unless `any_dtype`; alpha [N, 1] float32; images [N] long or None.
        """
        raise NotImplementedError

    @property
    def width(self) -> int:
        """D, the length of the rows this operator steers."""
        raise NotImplementedError

    def validate(self) -> None:
        """Raise InputError if the numbers do not fit together. Called when the operator is made."""

    def affine(self, alpha: float) -> "Affine | None":
        """What is done to every row at this strength, if that is one affine map; None if it depends on the row."""
        return None

    def tensors(self) -> dict[str, Tensor]:
        return {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}

    def scalars(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.streamed}
        return {name: value for name, value in values.items() if not isinstance(value, Tensor)}

    def streams(self) -> dict[str, Sequence[Tensor]]:
        return {name: getattr(self, name) for name in self.streamed}

    @classmethod
    def load(cls, tensors: Mapping[str, Tensor | Sequence[Tensor]], scalars: Mapping[str, Any]) -> Self:
        return cls(**tensors, **scalars)


_KINDS: dict[str, type[Operator]] = {}

Kind = TypeVar("Kind", bound=Operator)


def register_kind(operator: type[Kind]) -> type[Kind]:
    """Class decorator: operators of this kind can be read from artefacts."""
    kind = getattr(operator, "kind", "")
    if not kind or kind in _KINDS:
        raise ValueError(f"operator {operator.__name__} needs a kind of its own; {kind!r} is empty or already used")
    _KINDS[kind] = operator
    return operator


def kind_named(kind: str) -> type[Operator]:
    """The operator class of this kind; InputError if there is none."""
    import_module("ggss.methods").names()  # operators are registered when the methods are imported, plug-ins too
    if kind not in _KINDS:
        raise InputError(f"unknown operator {kind!r}; this version knows {', '.join(sorted(_KINDS))}")
    return _KINDS[kind]


def apply(
    operator: Operator, rows: Tensor, alpha: Tensor, images: Tensor | None = None, out: Tensor | None = None
) -> Steered:
    """Steer rows [N, D] of any floating dtype, with alpha [N, 1] float32, into `out` or a new tensor.

    out: of the rows' shape and dtype; it may be `rows` itself.
    Raises InputError if the rows have the wrong width or are not finite.
    """
    if rows.shape[-1] != operator.width:
        raise InputError(f"the steerer is for rows of width {operator.width}, these have {rows.shape[-1]}")
    if out is None:
        out = torch.empty_like(rows)
    converted = rows.dtype != torch.float32 and not operator.any_dtype
    step = max(len(rows), 1) if operator.needs_images else CONVERTED_ROWS if converted else BLOCK_ROWS
    gates: list[Tensor] = []
    for start in range(0, len(rows), step):
        block = slice(start, start + step)
        block_images = None if images is None else images[block]
        if converted:
            copy = rows[block].float()
            gate = operator(copy, alpha[block], block_images, copy)
            out[block] = copy
        else:
            gate = operator(rows[block], alpha[block], block_images, out[block])
        if gate is not None:
            gates.append(gate)
    return Steered(out, torch.cat(gates) if gates else None)


def require_finite(rows: Tensor, total: int) -> None:
    """Raise InputError if any of the rows [n, D] holds NaN or infinity. total: how many rows the message says."""
    bad = int((~torch.isfinite(rows)).any(1).sum())
    if bad:
        raise InputError(f"{bad} of {total} tokens are not finite (NaN or infinite) and cannot be steered")


def project(rows: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Products [N, m] of rows [N, D] with directions [m, D], and the rows' norms [N, 1].

    The rows have any floating dtype; the directions and both results are float32.
    """
    products, norms = directions.new_empty(len(rows), len(directions)), directions.new_empty(len(rows), 1)
    for strip, buffer in _strips(rows):
        tokens = rows[strip] if buffer is None else buffer.copy_(rows[strip])
        torch.linalg.vector_norm(tokens, dim=1, keepdim=True, out=norms[strip])
        products[strip] = (directions @ tokens.T).T
    return products, norms


def recombine(rows: Tensor, scale: Tensor, weights: Tensor, directions: Tensor, out: Tensor) -> None:
    """Write scale [N, 1] * rows [N, D] + weights [N, m] @ directions [m, D] into `out`, which may be `rows` itself.

    rows and out have the same floating dtype; the others are float32.
    """
    for strip, buffer in _strips(rows):
        if buffer is None:
            _add(torch.mul(rows[strip], scale[strip], out=out[strip]), weights[strip], directions)
        else:
            _add(buffer.copy_(rows[strip]).mul_(scale[strip]), weights[strip], directions)
            out[strip] = buffer


def _add(rows: Tensor, weights: Tensor, directions: Tensor) -> None:
    """rows [n, D] += weights [n, m] @ directions [m, D]."""
    batches = len(rows) // BATCH_ROWS if rows.device.type == "cpu" and len(directions) <= FEW_DIRECTIONS else 0
    even = batches * BATCH_ROWS
    if batches:
        repeated = directions.expand(batches, *directions.shape)
        rows[:even].unflatten(0, (batches, -1)).baddbmm_(weights[:even].unflatten(0, (batches, -1)), repeated)
    if even < len(rows):
        rows[even:].addmm_(weights[even:], directions)


def _strips(rows: Tensor) -> Iterator[tuple[slice, Tensor | None]]:
    """The strips of rows [N, D]; each with a float32 buffer of its size if the rows are not float32."""
    step = max(len(rows), 1)
    if rows.device.type == "cpu":  # on a GPU one large call is faster than many small ones
        threads = min(torch.get_num_threads(), MOST_THREADS)
        step = max(STRIP_BYTES * threads // (4 * rows.shape[1]) // BATCH_ROWS, 1) * BATCH_ROWS
    buffer = None
    if rows.dtype != torch.float32:
        buffer = rows.new_empty(min(step, len(rows)), rows.shape[1], dtype=torch.float32)
    for start in range(0, len(rows), step):
        stop = min(start + step, len(rows))
        yield slice(start, stop), None if buffer is None else buffer[: stop - start]


RIDGE = 1e-3  # of the tokens' mean variance. With less, pictures unlike those of the fit are moved at random


@dataclass(frozen=True)
class Affine:
    """The map h -> scale * h + left right^T h + offset, in float64: what can be folded into a Linear that gives h.

    scale and offset [D]; left and right [D, k]. Rows that are exactly zero are mapped as all others are.
    """

    scale: Tensor
    left: Tensor
    right: Tensor
    offset: Tensor

    @classmethod
    def projection(cls, alpha: float, mean: Tensor, movement: Tensor, detection: Tensor) -> "Affine":
        """h - alpha V W^T (h - mean), for a mean [D], movement V [D, k] and detection W [D, k]."""
        mean, movement, detection = (tensor.detach().cpu().double() for tensor in (mean, movement, detection))
        return cls(torch.ones_like(mean), -alpha * movement, detection, alpha * movement @ (detection.T @ mean))

    @classmethod
    def by_dimension(cls, scale: Tensor, offset: Tensor) -> "Affine":
        """scale * h + offset, both [D]."""
        scale, offset = scale.detach().cpu().double(), offset.detach().cpu().double()
        return cls(scale, scale.new_zeros(len(scale), 0), scale.new_zeros(len(scale), 0), offset)

    @property
    def is_identity(self) -> bool:
        return bool((self.scale == 1).all()) and not self.offset.any() and not (self.left.any() and self.right.any())

    def __call__(self, rows: Tensor) -> Tensor:
        """The map of rows [N, D] in float64."""
        return rows * self.scale + (rows @ self.right) @ self.left.T + self.offset

    def then(self, later: "Affine") -> "Affine":
        """This map, and the later one after it."""
        return Affine(
            self.scale * later.scale,
            torch.cat([later.scale[:, None] * self.left + later.left @ (later.right.T @ self.left), later.left], 1),
            torch.cat([self.right, self.scale[:, None] * later.right], 1),
            later(self.offset[None])[0],
        )

    def fold(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """The weight [D, inputs] and bias [D] in float64 of the Linear that gives the mapped rows by itself."""
        weight = weight.detach().cpu().double()
        bias = torch.zeros_like(self.offset) if bias is None else bias.detach().cpu().double()
        return self.scale[:, None] * weight + self.left @ (self.right.T @ weight), self(bias[None])[0]

    def low_rank(self) -> tuple[Tensor, Tensor]:
        """B [D, r] and A [D, r] such that the map is h + B A^T h + offset."""
        scaled = (self.scale != 1).nonzero().flatten()
        units = torch.eye(len(self.scale), dtype=self.scale.dtype)[:, scaled]
        return torch.cat([self.left, units * (self.scale - 1)[scaled]], 1), torch.cat([self.right, units], 1)


@register_kind
@dataclass(frozen=True)
class Identity(Operator):
    """Does not change rows. length: D."""

    length: Annotated[int, Field(ge=1)]

    kind: ClassVar[str] = "identity"

    @property
    def width(self) -> int:
        return self.length

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        if not torch.isfinite(rows.sum(1)).all():  # cheaper than a check of every number
            require_finite(rows, len(rows))
        if out.data_ptr() != rows.data_ptr():
            out.copy_(rows)

    def affine(self, alpha: float) -> Affine:
        return Affine.by_dimension(torch.ones(self.length), torch.zeros(self.length))


@dataclass(frozen=True)
class AffineMap(Operator):
    """h + alpha (matrix h + offset): matrix [D, D] and offset [D] in float32. It is not saved in artefacts."""

    matrix: Annotated[Tensor, Array("D", "D")]
    offset: Annotated[Tensor, Array("D")]

    kind: ClassVar[str] = "affine"

    @property
    def width(self) -> int:
        return len(self.offset)

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        added = rows @ self.matrix.to(rows.device).T + self.offset.to(rows.device)
        torch.add(rows, alpha * added, out=out)

    def affine(self, alpha: float) -> Affine:
        matrix = self.matrix.double()
        identity = torch.eye(self.width, dtype=matrix.dtype)
        return Affine(
            torch.ones(self.width, dtype=matrix.dtype), alpha * matrix, identity, alpha * self.offset.double()
        )


def steered_pairs(operator: Operator, tokens: Iterable[Tensor], alpha: float) -> Iterable[tuple[Tensor, Tensor]]:
    """For the tokens [T, D] of each image: these, and what the operator adds to them, in float64."""
    for rows in tokens:
        rows = rows.float()
        done = apply(operator, rows, torch.full((len(rows), 1), alpha), torch.zeros(len(rows), dtype=torch.long)).rows
        yield rows.double(), done.double() - rows.double()


def nearest_map(operator: Operator, tokens: Iterable[Tensor], alpha: float) -> AffineMap:
    """The affine map that is nearest to an operator at a strength, on the tokens of some images; at alpha 1."""
    width = operator.width
    products = torch.zeros(width + 1, width + 1, dtype=torch.float64)
    targets = torch.zeros(width + 1, width, dtype=torch.float64)
    for rows, added in steered_pairs(operator, tokens, alpha):
        ones = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        products += ones.T @ ones
        targets += ones.T @ added
    count = float(products[-1, -1])
    if not count:
        raise InputError("no tokens were given: the nearest affine map is found on the tokens of some images")
    mean = products[-1, :-1] / count
    covariance = products[:-1, :-1] / count - torch.outer(mean, mean)
    shared = targets[:-1] / count - torch.outer(mean, targets[-1] / count)
    ridge = RIDGE * covariance.trace() / width * torch.eye(width, dtype=torch.float64)
    matrix = torch.linalg.solve(covariance + ridge, shared).T
    return AffineMap(matrix.float().contiguous(), (targets[-1] / count - matrix @ mean).float())


def explained(operator: Operator, nearest: AffineMap, tokens: Iterable[Tensor], alpha: float) -> float:
    """R^2: the share of the variance of what an operator adds to tokens that its nearest affine map adds, too."""
    missed, total, count = 0.0, 0.0, 0
    mean = torch.zeros(operator.width, dtype=torch.float64)
    matrix, offset = nearest.matrix.double(), nearest.offset.double()
    for rows, added in steered_pairs(operator, tokens, alpha):
        missed += float((added - rows @ matrix.T - offset).square().sum())
        total += float(added.square().sum())
        mean += added.sum(0)
        count += len(rows)
    variance = total - float(mean.square().sum()) / max(count, 1)
    return 1 - missed / variance if variance else float("nan")
