"""The entry point of group `vllm.general_plugins`: vLLM calls `register` in each of its processes.

It does something only where the variable GGSS_STEERERS is set, be it empty: then steerers can be loaded later.

vLLM only logs what goes wrong while a plug-in is imported, and goes on without it; what `register` raises ends it. So
everything that can fail is inside.

vLLM's processes end with the one that started them, also if that was killed: orphans would keep their memory.

Importing modules that name torchvision where there is none.

vLLM's models import image processors of transformers that import torchvision, and use none of it for the families
that ggss steers: their images are prepared by `ggss.models.processors`. So torchvision is a name without content
while these modules are imported, and is gone again afterwards: nothing takes it for the real one.
"""

import functools
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def end_with_parent() -> None:
    """From now on this process ends as soon as its parent has; nothing happens in a process without one."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="ggss-parent", daemon=True).start()


_MODULES = (
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)


class _Nothing(ModuleType):
    """Every name that is asked of it is nothing, too."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or _Nothing(f"{self.__name__}.{name}")


@contextmanager
def named_torchvision() -> Iterator[None]:
    """Inside the block `import torchvision` succeeds; if there is a real one, it is used."""
    from transformers.utils.import_utils import is_torchvision_available

    # It remembers its answer: transformers must not believe that there is one.
    if is_torchvision_available() or find_spec("torchvision") is not None:
        yield
        return
    sys.modules |= {name: _Nothing(name) for name in _MODULES}
    try:
        yield
    finally:
        for name in _MODULES:
            del sys.modules[name]


# pyright: reportMissingImports=false
# vLLM has an environment of its own, and is not there where types are checked.


_registered = False


def register() -> None:
    """Put steered classes in the place of vLLM's, and decide on requests' strengths. InputError for a bad steerer."""
    global _registered
    from ggss.vllm_plugin import steering

    if _registered or steering.ENVIRONMENT not in os.environ:
        return
    from vllm.renderers.base import BaseRenderer

    from vllm import ModelRegistry

    end_with_parent()
    steering.ASKED.fill(steering.AskedStrengths.from_environment())
    with named_torchvision():
        from ggss.vllm_plugin.models import CLASSES
    for architecture, steered in CLASSES.items():
        ModelRegistry.register_model(architecture, steered)
    renderer: Any = BaseRenderer
    renderer._process_tokens = _checked(renderer._process_tokens)
    renderer._process_tokens_async = _checked(renderer._process_tokens_async)
    _registered = True


def _checked(process: Any) -> Any:
    """A step of vLLM's renderer through which every request goes, with and without images."""

    @functools.wraps(process)
    def checked(renderer: Any, prompt: Any, **options: Any) -> Any:
        from vllm.exceptions import VLLMValidationError

        from ggss.errors import InputError
        from ggss.vllm_plugin.steering import ASKED

        try:
            prompt = ASKED.prompt(prompt)
        except InputError as error:
            raise VLLMValidationError(str(error)) from error
        return process(renderer, prompt, **options)

    return checked
