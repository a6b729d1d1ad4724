"""An operator holds the numbers that a method found for one site, and turns rows into steered rows with them.

A method's `fit` makes operators. A `Steerer` has one for each site, saves them, and attaches them to a model.
`apply` calls an operator on rows of any floating dtype, block by block, so that the only large allocation is the
result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from ggss.errors import InputError
from ggss.methods import declared

BLOCK_ROWS = 8192  # an operator's own numbers, some float64 per row, then take a few MB
CONVERTED_ROWS = 1024  # fewer where a block is first copied to float32


class Steered(NamedTuple):
    """The steered rows [N, D], and the gate of each row [N] where the method has one."""

    rows: Tensor
    gate: Tensor | None


@dataclass(frozen=True)
class Operator:
    """Base of all operators: a frozen dataclass. Its tensors and scalars are everything that is saved.

    They are checked when an operator is made, wherever its numbers come from: each field as its type declares
    (`declared`), then all together by `validate`. A subclass sets `kind`, its unique name in artefacts, and
    implements `__call__`. It also sets

    - `needs_images` if it works on an image as a whole (it pools the rows); it then gets all rows in one call;
    - `any_dtype` if it takes rows of any floating dtype; it otherwise gets float32 rows;
    - `streamed`, the names of fields that are sequences of tensors too large for memory. They are saved in a file
      of their own and read one tensor at a time.
    """

    kind: ClassVar[str]
    needs_images: ClassVar[bool] = False
    any_dtype: ClassVar[bool] = False
    streamed: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        declared.check(self)
        self.validate()

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> Tensor | None:
        """Write the steered rows into `out`, which may be `rows` itself; return the gate [N] if there is one.

        rows and out [N, D], float32 unless `any_dtype`; alpha [N, 1] float32; images [N] long or None.
        """
        raise NotImplementedError

    @property
    def width(self) -> int:
        """D, the length of the rows this operator steers."""
        raise NotImplementedError

    def validate(self) -> None:
        """Raise InputError if the numbers do not fit together. Called when the operator is made."""

    def tensors(self) -> dict[str, Tensor]:
        return {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}

    def scalars(self) -> dict[str, Any]:
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.streamed}
        return {name: value for name, value in named.items() if not isinstance(value, Tensor)}

    def streams(self) -> dict[str, Sequence[Tensor]]:
        return {name: getattr(self, name) for name in self.streamed}

    @classmethod
    def load(cls, tensors: Mapping[str, Tensor | Sequence[Tensor]], scalars: Mapping[str, Any]) -> Self:
        return cls(**tensors, **scalars)


_KINDS: dict[str, type[Operator]] = {}


Kind = TypeVar("Kind", bound=Operator)


def register(operator: type[Kind]) -> type[Kind]:
    """Class decorator: operators of this kind can be read from artefacts."""
    kind = getattr(operator, "kind", "")
    if not kind or kind in _KINDS:
        raise ValueError(f"operator {operator.__name__} needs a kind of its own; {kind!r} is empty or already used")
    _KINDS[kind] = operator
    return operator


def kind_named(kind: str) -> type[Operator]:
    """The operator class with this kind; InputError if there is none."""
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
        own = None if images is None else images[block]
        if converted:
            wide = rows[block].float()
            gate = operator(wide, alpha[block], own, wide)
            out[block] = wide
        else:
            gate = operator(rows[block], alpha[block], own, out[block])
        if gate is not None:
            gates.append(gate)
    return Steered(out, torch.cat(gates) if gates else None)


def require_finite(rows: Tensor, total: int) -> None:
    """Raise InputError if any of the rows [n, D] holds NaN or infinity. total: the number of rows in the message."""
    bad = int((~torch.isfinite(rows)).any(1).sum())
    if bad:
        raise InputError(f"{bad} of {total} tokens are not finite (NaN or infinite); nothing was steered")
