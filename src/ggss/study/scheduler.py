"""Which worker does what: units are assigned to slots, and their progress is collected from threads."""

import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

from ggss.methods.registry import UNSTEERED
from ggss.study.grid import Unit


class Scheduler:
    """The units that are left. A model's other methods wait for its baseline, with which they are compared."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.failures: list[str] = []
        self._left = list(units)
        self._busy: list[Unit] = []
        self._compared: set[str] = set()
        self._closed = False
        self._changed = threading.Condition()

    def take(self, model: str) -> Unit | None:
        """The next unit for a worker that has a model open; None when there are no more.

        Loading a model is slow: first units of the same model, then of one that no worker has open, then any.
        """
        with self._changed:
            while not self._closed:
                ready = [unit for unit in self._left if unit.method == UNSTEERED or unit.model in self._compared]
                others = {unit.model for unit in self._busy}
                if ready:
                    unit = min(ready, key=lambda unit: (unit.model != model, unit.model in others))
                    self._left.remove(unit)
                    self._busy.append(unit)
                    return unit
                if not self._busy:
                    break
                self._changed.wait()
            return None

    def close(self) -> None:
        """Assign no more units."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def done(self, unit: Unit, failure: str | None = None) -> None:
        """Mark a unit as finished; if a baseline failed, the other units of its model are dropped."""
        with self._changed:
            self._busy.remove(unit)
            if failure:
                self.failures.append(failure)
            if unit.method == UNSTEERED and failure:
                self._left = [other for other in self._left if other.model != unit.model]
            elif unit.method == UNSTEERED:
                self._compared.add(unit.model)
            self._changed.notify_all()


def merged(streams: Sequence[Iterator[Any]], *stops: Callable[[], None]) -> Iterator[Any]:
    """The streams' values as they come, each stream in a thread of its own (a single stream in this thread).

    `stops` make the streams end early; the first exception of any is raised here.
    """
    if len(streams) == 1:
        yield from streams[0]
        return
    queue: SimpleQueue[tuple[str, Any]] = SimpleQueue()

    def drain(stream: Iterator[Any]) -> None:
        try:
            for value in stream:
                queue.put(("value", value))
            queue.put(("end", None))
        except BaseException as error:
            queue.put(("error", error))

    threads = [threading.Thread(target=drain, args=(stream,), daemon=True) for stream in streams]
    for thread in threads:
        thread.start()
    try:
        left = len(threads)
        while left:
            kind, value = queue.get()
            if kind == "error":
                raise value
            if kind == "value":
                yield value
            else:
                left -= 1
    finally:
        for stop in stops:
            stop()
        for thread in threads:
            thread.join()
