"""Compiled models run uncompiled while ggss watches or steers them.

`torch.compile` does not look for hooks again: code that was compiled before a hook was installed never calls it, and
code that was compiled with a hook still calls it after the hook was removed. Code for shapes it has not seen yet is
compiled anew, so that some batches would be steered and others not. Inside `eager()` compiled code is not used and
none is made: every hook fires, for every shape. The compiled code is used again afterwards.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_lock = threading.Lock()
_inside = 0
_stance = ExitStack()

DYNAMO = "torch._dynamo"  # it takes seconds to import; as long as nobody has, nothing was compiled


@contextmanager
def eager() -> Iterator[None]:
    """No compiled code runs inside the block, in any thread. Blocks of several threads may overlap."""
    global _inside
    imported = DYNAMO in sys.modules
    with _lock:
        if imported and _inside == 0:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))
        _inside += imported
    try:
        yield
    finally:
        with _lock:
            _inside -= imported
            if imported and _inside == 0:
                _stance.close()
        if not imported and DYNAMO in sys.modules:
            torch.compiler.reset()  # what was compiled inside the block has its hooks
