"""What one site is steered with: an operator holds a method's numbers and maps rows to steered rows.

A method's `fit` makes operators; a `Steerer` keeps one per site, stores them, and attaches them to a model.
An operator works on float32 rows; `apply` brings any dtype and shape to that and back, in blocks of rows, so
that the only large allocation is the result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from ggss.errors import InputError

BLOCK_ROWS = 1024


class Steered(NamedTuple):
    """The steered rows [N, D], and the gate of each row [N] where the method has one."""

    rows: Tensor
    gate: Tensor | None


@dataclass(frozen=True)
class Operator:
    """Base of all operators: a frozen dataclass whose tensors and scalars are all there is to store.

    Subclasses set `kind`, a unique name in artefacts, and implement `__call__`. An operator that treats an
    image as a whole (it pools its rows) sets `needs_images` and is given all rows at once. Fields named in
    `streamed` are sequences of tensors too large to hold: they are read one at a time, from a file of their own.
    """

    kind: ClassVar[str]
    needs_images: ClassVar[bool] = False
    streamed: ClassVar[tuple[str, ...]] = ()

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> Tensor | None:
        """Write the steered rows into `out`, which may be `rows` itself; return the gate [N] if there is one.

        rows and out [N, D] float32, alpha [N, 1] float32, images [N] long or None.
        """
        raise NotImplementedError

    @property
    def width(self) -> int:
        """D, the length of the rows this operator steers."""
        raise NotImplementedError

    def validate(self) -> None:
        """Raise InputError when the numbers do not make sense together; called after reading from disk."""

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
    """Class decorator: make a kind of operator loadable from artefacts."""
    kind = getattr(operator, "kind", "")
    if not kind or kind in _KINDS:
        raise ValueError(f"operator {operator.__name__} needs a kind of its own; {kind!r} is empty or taken")
    _KINDS[kind] = operator
    return operator


def kind_named(kind: str) -> type[Operator]:
    import_module("ggss.methods")  # the built-in kinds register themselves when their methods are imported
    if kind not in _KINDS:
        raise InputError(f"unknown operator {kind!r}; this version knows {', '.join(sorted(_KINDS))}")
    return _KINDS[kind]


def apply(
    operator: Operator, rows: Tensor, alpha: Tensor, images: Tensor | None = None, out: Tensor | None = None
) -> Steered:
    """Steer rows [N, D] of any floating dtype. alpha [N, 1] float32. `out` may be `rows` itself.

    Raises InputError for a wrong width or rows that are not finite.
    """
    if rows.shape[-1] != operator.width:
        raise InputError(f"the steerer is for rows of width {operator.width}, these have {rows.shape[-1]}")
    if out is None:
        out = torch.empty_like(rows)
    step = max(rows.shape[0], 1) if operator.needs_images else BLOCK_ROWS
    gates: list[Tensor] = []
    for start in range(0, rows.shape[0], step):
        block = slice(start, start + step)
        some = None if images is None else images[block]
        if rows.dtype == torch.float32:
            gate = operator(rows[block], alpha[block], some, out[block])
        else:
            wide = rows[block].float()
            gate = operator(wide, alpha[block], some, wide)
            out[block] = wide
        if gate is not None:
            gates.append(gate)
    return Steered(out, torch.cat(gates) if gates else None)


def require_finite(rows: Tensor, total: int) -> None:
    """One check for all operators: refuse suspicious rows [n, D], out of `total`, that hold NaN or infinity."""
    bad = int((~torch.isfinite(rows)).any(1).sum())
    if bad:
        raise InputError(f"{bad} of {total} tokens are not finite (NaN or infinite); nothing was steered")
