"""A `.pt` file of plain data: tensors, numbers, text, lists and dictionaries. It is read without running any code.

`Numbers`, `Whole` and `Real` are types of entries for pydantic: an array, and numbers, which may be tensors of one.
"""

import io
import os
import warnings
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, ConfigDict, ValidationError
from torch import Tensor

from ggss.errors import InputError
from ggss.files import read_bounded

STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


def _array(value: Any) -> Tensor:
    """A tensor, or numbers in lists, as dense finite float32."""
    if isinstance(value, list | tuple):
        try:
            value = torch.tensor(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ValueError(f"must be an array of real numbers: {str(error).splitlines()[0]}") from error
    if not isinstance(value, Tensor) or value.dtype == torch.bool or value.is_complex() or value.is_quantized:
        raise ValueError(f"must be an array of real numbers, seen a {getattr(value, 'dtype', type(value).__name__)}")
    if value.layout != torch.strided or value.device.type != "cpu":
        raise ValueError(f"must be a dense array, seen one of {value.layout} on {value.device}")
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise ValueError(f"of shape {list(value.shape)} is not stored whole")
    value = value.float().contiguous()
    if not torch.isfinite(value).all():
        raise ValueError("has numbers that are not finite")
    return value


def _number(value: Any) -> Any:
    """The number in a tensor that has only one, else the value itself."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 and not value.is_quantized else value


Numbers = Annotated[Tensor, BeforeValidator(_array)]
Whole = Annotated[int, BeforeValidator(_number)]
Real = Annotated[float, BeforeValidator(_number)]


def load_plain(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The dictionary in a file; InputError if there is none, or if reading it would run code."""
    data = read_bounded(path, "the checkpoint")
    try:
        with warnings.catch_warnings(action="ignore"):
            stored = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a different type for each way in which a file can be broken
        raise InputError(
            f"{str(path)!r} is not a checkpoint that loads without running code ({type(error).__name__})"
        ) from error
    if not isinstance(stored, dict) or not all(isinstance(key, str) for key in stored):
        raise InputError(f"{str(path)!r} holds a {type(stored).__name__}, not a dictionary of named entries")
    return stored


def require(path: str | os.PathLike[str], stored: dict[str, Any], needed: tuple[str, ...]) -> None:
    """InputError if an entry is missing."""
    missing = [key for key in needed if key not in stored]
    if missing:
        raise InputError(f"{str(path)!r} lacks {', '.join(missing)}; it has {', '.join(stored)[:200] or 'nothing'}")


def malformed(path: str | os.PathLike[str], error: ValidationError) -> InputError:
    """The first entries that are not as they should be."""
    wrong = "; ".join(
        f"{'.'.join(map(str, e['loc'][:2]))}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()[:3]
    )
    return InputError(f"{str(path)!r} is no checkpoint of this layout: {wrong}")
