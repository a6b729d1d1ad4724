"""Capturing the outputs of a model's modules while it runs."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ggss.models.eager import eager
from ggss.models.projector import resolve

RECORDER = "output_capturing_hook"  # with which transformers records hidden states; it stays when it was once needed


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody watches or changes a module's output."""
    return any(getattr(hook, "__name__", "") != RECORDER for hook in module._forward_hooks.values())


@contextmanager
def captured(model: nn.Module, sites: Mapping[str, str]) -> Iterator[dict[str, list[Tensor]]]:
    """Site -> the outputs of the module at its path, in this thread only: a tensor of flat rows for each call."""
    found: dict[str, list[Tensor]] = {site: [] for site in sites}
    thread = threading.get_ident()

    def keep(site: str, output: Any) -> None:
        if threading.get_ident() == thread:
            rows = output[0] if isinstance(output, tuple) else output
            found[site].append(rows.detach().flatten(0, -2).clone())

    modules = {site: resolve(model, path) for site, path in sites.items()}
    hooks = [
        module.register_forward_hook(lambda _, __, output, site=site: keep(site, output))
        for site, module in modules.items()
    ]
    try:
        with eager():
            yield found
    finally:
        for hook in hooks:
            hook.remove()
