"""What an operator's fields may hold is declared in their types, and checked whenever an operator is made.

    gate_std: Annotated[float, Field(ge=0)]             a number: the types and bounds of pydantic, strictly
    basis: Annotated[Tensor, Array("D", "k")]           a tensor: its shape, dtype and bounds

A letter of a shape has one size in all fields of an operator. Every number must be finite, declared or not. It makes
no difference whether an operator was fitted, read from a folder or a `.pt` file, or made by hand. What several fields
must fulfil together (an orthonormal basis) is in `Operator.validate`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from ggss.errors import InputError


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

    def problem(self, seen: Any, sizes: dict[str | int, int]) -> str:
        """What is wrong with a value, or nothing. The size of each new letter is added to `sizes`."""
        if not isinstance(seen, Tensor):
            return f"must be a tensor, seen {_shown(seen)}"
        if seen.layout != torch.strided or seen.is_complex() or (self.dtype and seen.dtype != self.dtype):
            return f"must be a dense tensor of {self.dtype or 'real numbers'}, seen {seen.dtype} ({seen.layout})"
        wanted = [size if isinstance(size, int) else sizes.get(size) for size in self.shape]
        fits = seen.ndim == len(wanted) and all(w in (None, s) for w, s in zip(wanted, seen.shape, strict=True))
        if self.shape and not (fits and seen.numel()):
            known = ", ".join(f"{k} = {v}" for k, v in sizes.items() if k in self.shape)
            shape = f"[{', '.join(map(str, self.shape))}]{f' with {known}' if known else ''}"
            return f"must be {shape}, seen {list(seen.shape)}"
        if self.shape:
            sizes.update({letter: n for letter, n in zip(self.shape, seen.shape, strict=True) if letter != n})
        if seen.is_floating_point() and not torch.isfinite(seen).all():
            return "holds numbers that are not finite"
        if seen.numel() and not self.ge <= float(seen.min()) <= float(seen.max()) <= self.le:
            return f"must be from {self.ge:g} to {self.le:g}, seen {float(seen.min()):g} to {float(seen.max()):g}"
        return ""


def check(operator: Any) -> None:
    """InputError unless every field holds what its type declares. A whole number becomes a float where one is due."""
    found: list[str] = []
    sizes: dict[str | int, int] = {}
    for name, declared in _declared(type(operator)).items():
        seen = getattr(operator, name)
        if isinstance(declared, Array):
            if problem := declared.problem(seen, sizes):
                found.append(f"{name} {problem}")
            continue
        try:
            object.__setattr__(operator, name, declared.validate_python(seen))
        except ValidationError as error:
            why = error.errors()[0]["msg"].removeprefix("Input ")
            found.append(f"{name} {why}, seen {_shown(seen)}")
    if found:
        raise InputError(f"a {operator.kind!r} operator: {'; '.join(found)}")


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, int | float) and abs(value) < 1e300 else f"a {type(value).__name__}"


@cache
def _declared(kind: type[Any]) -> dict[str, "Array | TypeAdapter[Any]"]:
    """For each field the array or the adapter of its type; fields that are streams are left out."""
    hints, made = get_type_hints(kind, include_extras=True), {}
    for field in fields(kind):
        hint = hints[field.name]
        plain, *extra = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if plain is Tensor:
            made[field.name] = next((one for one in extra if isinstance(one, Array)), Array(dtype=None))
        elif get_origin(plain) is not Sequence:
            made[field.name] = TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))
    return made
