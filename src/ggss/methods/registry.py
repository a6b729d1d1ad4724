"""The table of methods: what `fit(name, ...)` can be asked for. A method is one `Method` in one file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.operator import Operator

Attribute = str | tuple[str, ...]


class Options(BaseModel):
    """Base of a method's options: names and types are checked, unknown names refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Fitted:
    """What a method found at one site: the operator, and the statistics and diagnostics worth keeping."""

    operator: Operator
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    diagnostics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A row of the table: `fit(activations at one site, attribute, options) -> Fitted`.

    needs_tokens: the activations must hold tokens, not only pooled means. prompt_suffix: what is to be appended to
    every prompt; only the prompt baseline has one.
    """

    name: str
    summary: str
    reference: str
    fit: Callable[[Activations, Attribute, Any], Fitted]
    options: type[Options] = Options
    needs_tokens: bool = False
    prompt_suffix: str = ""


_METHODS: dict[str, Method] = {}


def register(method: Method) -> Method:
    """Add a method; a second one of the same name, or one without name, summary or reference, is refused."""
    if not (method.name and method.summary and method.reference):
        raise ValueError(f"method {method.name!r} needs a name, a summary and a reference")
    if method.name in _METHODS:
        raise ValueError(f"method {method.name!r} is registered already")
    _METHODS[method.name] = method
    return method


def names() -> list[str]:
    """All method names, in the order of the table."""
    return list(_METHODS)


def get(name: str) -> Method:
    if name not in _METHODS:
        raise InputError(f"no method {name!r}; there are {', '.join(_METHODS)}")
    return _METHODS[name]


def checked_options(method: Method, options: Mapping[str, Any]) -> Options:
    try:
        return method.options(**options)
    except ValidationError as error:
        known = ", ".join(f"{k}={v.default}" for k, v in method.options.model_fields.items()) or "none"
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors())
        raise InputError(f"options of {method.name}: {wrong} (its options and defaults: {known})") from None
