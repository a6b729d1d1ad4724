"""Importing modules that name torchvision where there is none.

vLLM's models import image processors of transformers that import torchvision, and use none of it for the families
that ggss steers: their images are prepared by `ggss.models.processors`. So torchvision is a name without content
while these modules are imported, and is gone again afterwards: nothing takes it for the real one.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

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
