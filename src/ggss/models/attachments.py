"""What steers a model at the moment. Features that were encoded before it was attached are not steered by it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import nn

from ggss.models.sites import in_text


@dataclass(frozen=True, eq=False)
class Attachment:
    """A steerer at the sites of a model. thread: the only one in which it acts; None: it acts in all."""

    sites: frozenset[str]
    thread: int | None = None

    def acts(self) -> bool:
        """Whether it acts in this thread."""
        return self.thread in (None, threading.get_ident())


_attached: WeakKeyDictionary[nn.Module, list[Attachment]] = WeakKeyDictionary()
_lock = threading.Lock()


@contextmanager
def noted(model: nn.Module, attachment: Attachment) -> Iterator[None]:
    """The attachment is among the model's inside the block."""
    with _lock:
        _attached.setdefault(model, []).append(attachment)
    try:
        yield
    finally:
        with _lock:
            _attached[model].remove(attachment)


def acting_before_text(model: nn.Module) -> frozenset[Attachment]:
    """The attachments that act in this thread on what the vision tower and projector compute."""
    with _lock:
        present = list(_attached.get(model, ()))
    return frozenset(own for own in present if own.acts() and not all(map(in_text, own.sites)))
