"""How often modules compute."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def counted(*modules: nn.Module) -> Iterator[list[int]]:
    """How often each module computes while inside."""
    counts = [0] * len(modules)

    def counting(number: int, compute: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            counts[number] += 1
            return compute(*args, **kwargs)

        return forward

    for number, module in enumerate(modules):
        module.forward = counting(number, module.forward)
    try:
        yield counts
    finally:
        for module in modules:
            del module.forward
