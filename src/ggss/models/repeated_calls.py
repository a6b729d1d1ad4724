"""Calls that a model repeats: a part that gets the same inputs again gives the same output, without computing it.

An examination sends two pictures through a model many times, each time with other hooks at its sites. Before the
sites everything is the same each time, and behind them too wherever a hook changed nothing. At billions of weights
each pass that need not be computed saves seconds. Inputs are compared to the last digit: with one that differs
anywhere, the part computes.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.utils.generic import ModelOutput

from ggss.models.capture import is_hooked

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


class _Unfamiliar(TypeError):
    """A value that cannot be compared or copied."""


class _CacheHere:
    """The place of a cache of keys and values in what is kept. The cache itself is not kept: it is large."""


class RepeatedCalls:
    """What the parts of a model were called with inside `remembered`, and what they returned."""

    def __init__(self) -> None:
        self._going_on = False

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """While inside, more than one token is written. The second one needs what the text model puts into its cache
        for the first, so a part that is given a cache computes; what it returns is kept for later."""
        self._going_on = True
        try:
            yield
        finally:
            self._going_on = False

    def remembering(self, part: nn.Module) -> Callable[..., Any]:
        """A forward for the part that does not compute the same twice."""
        compute = part.forward
        kept: list[tuple[Any, Any]] = []

        def forward(*args: Any, **kwargs: Any) -> Any:
            given: list[Cache] = []
            try:
                inputs = None if _hooked_inside(part) else _copied((args, kwargs), lambda one: _noted(one, given))
            except _Unfamiliar:
                inputs = None
            if inputs is None:
                return compute(*args, **kwargs)
            if not (given and self._going_on):
                for earlier, output in kept:
                    if _same(earlier, inputs):
                        return _copied(output, lambda _: given[0])
            output = compute(*args, **kwargs)
            with suppress(_Unfamiliar):
                kept.append((inputs, _copied(output, lambda one: _given_back(one, given))))
            return output

        return forward


@contextmanager
def remembered(model: nn.Module, sites: Collection[nn.Module]) -> Iterator[RepeatedCalls]:
    """While inside, no part of the model computes the same twice; a part is as large as can be without a site in it.

    A part with hooks in it computes each time, for they may act each time. Hooks on the part itself act as always.
    """
    calls = RepeatedCalls()
    changed = [(part, vars(part).get("forward")) for part in _parts(model, sites)]
    for part, _ in changed:
        part.forward = calls.remembering(part)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield calls
    finally:
        for part, before in changed:
            if before is None:
                del part.forward
            else:
                part.forward = before


def _parts(module: nn.Module, sites: Collection[nn.Module]) -> Iterator[nn.Module]:
    for part in module.children():
        if any(own is site for own in part.modules() for site in sites) or isinstance(part, nn.ModuleList):
            yield from _parts(part, sites)
        elif next(part.parameters(), None) is not None:
            yield part


def _hooked_inside(part: nn.Module) -> bool:
    return any(own is not part and (is_hooked(own) or own._forward_pre_hooks) for own in part.modules())


def _copied(value: Any, at_cache: Callable[[Any], Any]) -> Any:
    """A copy that nobody else can change, with what `at_cache` returns in place of each cache."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Cache | _CacheHere):
        return at_cache(value)
    if isinstance(value, _PLAIN):
        return value
    if type(value) in (tuple, list):
        return type(value)(_copied(one, at_cache) for one in value)
    if type(value) is dict or isinstance(value, ModelOutput):
        return type(value)(**{name: _copied(one, at_cache) for name, one in value.items()})
    raise _Unfamiliar(type(value))


def _noted(cache: Cache, given: list[Cache]) -> _CacheHere:
    """A call with what came before in its cache depends on all of that, which is not compared."""
    if cache.get_seq_length():
        raise _Unfamiliar("a cache that is not empty")
    given.append(cache)
    return _CacheHere()


def _given_back(cache: Cache, given: list[Cache]) -> _CacheHere:
    if not given or cache is not given[0]:
        raise _Unfamiliar("a cache that the caller did not give")
    return _CacheHere()


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, _CacheHere) or one == other
