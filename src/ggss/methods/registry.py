"""The table of the methods that `fit(name, ...)` accepts. A method is one `Method` in one file."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from ggss.errors import InputError, nearest
from ggss.methods.operator import Operator
from ggss.plugins import Registry

Attribute = str | tuple[str, ...]

UNSTEERED = "none"  # the method that every other one is compared with


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

    needs_tokens: the activations must hold tokens, not only pooled means. steers: False for a baseline that does not
    change activations, so that it has no strength and no attribute. prompt_suffix: the text appended to every
    prompt; only the prompt baseline has one. takes_neutral: `fit` also has a fourth argument, `neutral`: activations
    of pictures that show nobody, or None. fit_live: of a method that learns from a live model's answers; its `fit`
    refuses. It gets (vlm, questions, sites, attribute, options), has a budget among its options, and returns a
    `Fitted` for each site.
    """

    name: str
    summary: str
    reference: str
    fit: Callable[..., Fitted]
    options: type[Options] = Options
    needs_tokens: bool = False
    steers: bool = True
    prompt_suffix: str = ""
    takes_neutral: bool = False
    fit_live: Callable[..., Mapping[str, Fitted]] | None = None


def _malformed(method: Method) -> str:
    if not isinstance(method, Method):
        return f"it is a {type(method).__name__}, not a ggss.methods.Method"
    return "" if method.summary and method.reference else "it needs a summary and a reference"


METHODS: Registry[Method] = Registry("method", "ggss.methods", _malformed)


def register(method: Method) -> Method:
    """Add a method to the table; docs/methods.md ends with one of under 40 lines.

    Args:
        method: its name, summary, reference and `fit`.

    Returns:
        The method.

    Raises:
        InputError: if its name is taken or it is malformed.

    Examples:
        >>> try:
        ...     ggss.methods.register(ggss.methods.get("ggss"))
        ... except ggss.InputError as error:
        ...     "ggss" in str(error)
        True
    """
    return METHODS.add(getattr(method, "name", ""), method)


def names() -> list[str]:
    """All method names, in the order of the table.

    Returns:
        Those of ggss and of every plug-in.

    Examples:
        >>> ggss.methods.names()[:3]
        ['none', 'prompt', 'ggss']
    """
    return METHODS.names()


def fitted_names() -> list[str]:
    """The names of the methods that are fitted to activations: all but those that need a live model."""
    return [name for name in names() if get(name).fit_live is None]


def get(name: str) -> Method:
    """A method by its name.

    Args:
        name: see `names()`.

    Returns:
        The table's row.

    Raises:
        InputError: if there is none, with the nearest name.

    Examples:
        >>> ggss.methods.get("ggss").summary
        'pooled spherical subspace, calibrated gate, slerp'
    """
    return METHODS.get(name)


def checked_options(method: Method, options: Mapping[str, Any]) -> Options:
    try:
        return method.options(**options)
    except ValidationError as error:
        fields = method.options.model_fields
        known = ", ".join(f"{k}={v.default}" for k, v in fields.items()) or "none"
        wrong = "; ".join(_told(e["type"], ".".join(map(str, e["loc"])), e["msg"], fields) for e in error.errors())
        raise InputError(f"options of {method.name}: {wrong} (its options and defaults: {known})") from None


def _told(kind: str, name: str, message: str, known: Iterable[str]) -> str:
    near = nearest(name, known) if kind == "extra_forbidden" else ""
    return f"{name}: {message.lower()}{f', {near}' if near else ''}"
