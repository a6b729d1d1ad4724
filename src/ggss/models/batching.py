"""Work in batches: one that does not fit in memory is halved, and later ones are no larger than what fitted."""

import gc
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from ggss import ranges
from ggss.errors import InputError, out_of_memory

T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger(__name__)


class Batches:
    """One kind of work of one model. `most`: the largest batch that may be tried, once a larger one did not fit."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.most: int | None = None

    def __call__(self, items: Sequence[T], size: int, work: Callable[[Sequence[T]], Sequence[R]]) -> list[R]:
        """What `work` returns for each item, in order; it is given at most `size` items at a time."""
        ranges.BATCH.check("the batch size", size)
        done: list[R] = []
        while len(done) < len(items):
            together = items[len(done) : len(done) + min(size, self.most or size)]
            fitted = self._tried(together, work)
            if fitted is None:
                self._halve(len(together))
            else:
                done += fitted
        return done

    def _tried(self, items: Sequence[T], work: Callable[[Sequence[T]], Sequence[R]]) -> Sequence[R] | None:
        """None if memory ran out. The exception ends here: it holds on to the tensors of the failed batch."""
        try:
            return work(items)
        except Exception as error:
            if not out_of_memory(error):
                raise
            if len(items) == 1:
                raise InputError(
                    f"not enough memory for one of the {self.what} alone: use smaller images, --dtype bfloat16, "
                    "or a device with more memory"
                ) from error
            return None

    def _halve(self, failed: int) -> None:
        if self.most is None:
            log.warning(f"{failed} {self.what} at a time do not fit in memory: going on with fewer")
        self.most = max(1, failed // 2)
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()
