"""`ggss study run`: run a plan, batch by batch, into the store.

The driver decides what is missing, workers answer, and only the driver writes. A run that was stopped continues with
the batch it was in; if the plan has changed, only what is new is asked. A scheduler assigns units of work to the
executor's slots, each of which has a thread in this process.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ggss.analysis.asking import ask_missing
from ggss.errors import InputError, problems
from ggss.methods.registry import UNSTEERED
from ggss.models import ModelIdentity
from ggss.probes.steered_model import batches
from ggss.study import grid
from ggss.study.checking import CheckedPlan
from ggss.study.executors import Executor, WorkerDied, executor
from ggss.study.grid import Cell, Unit
from ggss.study.plan import DiscoverySet, Plan, PlanItems
from ggss.study.results import MACHINES, VERSIONS, Results, StoredRuns
from ggss.study.store import Fit, Store, StoreError, writing
from ggss.terminal import note, track
from ggss.version import hardware, library_versions

log = logging.getLogger(__name__)

LIVES = 5  # workers that may die during one call before it fails

Count = tuple[int, int]  # in a batch: questions asked, and questions that were answered before
Clock = Callable[[], float]
Call = Callable[..., Any]


def with_estimate(
    counts: Iterable[Count],
    questions: int,
    say: Callable[[str], None],
    workers: int = 1,
    clock: Clock = time.monotonic,
) -> Iterator[Count]:
    """Yields the counts of batches as they come, and says once how long the rest of the questions will take.

    The first batch loads the model and is not measured. After it, as many batches are measured as there are workers.
    """
    left, measured, batches, start = questions, 0, 0, None
    for count in counts:
        yield count
        left -= sum(count)
        if count[0] == 0 or batches > workers:
            continue
        if start is None:
            start = clock()
            continue
        measured, batches = measured + count[0], batches + 1
        if batches == workers:
            seconds = (clock() - start) / measured
            batches += 1
            say(f"{left:,} questions are left: about {duration(left * seconds)}")


def duration(seconds: float) -> str:
    """A duration in words."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"


class Scheduler:
    """Assigns units to workers. A model's other methods wait for its baseline, with which they are compared."""

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
    """Yields the values of all streams as they come. Each stream runs in its own thread, a single one in this thread.

    stops: functions that make the streams end early. The first exception of any stream is raised here.
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


@dataclass(frozen=True)
class Summary:
    """The result of a run: how many questions were asked now, and how many were answered before.

    changed: a sentence for each model that has changed since it was last run here.
    """

    asked: int
    reused: int
    changed: tuple[str, ...] = ()


def run(
    plan: Plan,
    folder: str | Path,
    how: str = "in-process",
    workers: int | None = None,
    show: bool | None = None,
    say: Callable[[str], None] = log.info,
    keep_answers: bool = False,
) -> Summary:
    """Run a plan into a folder, or continue a run in it.

    say: called with sentences for the user: which code has changed since the last run, how long the run will take.
    keep_answers: use the answers of code that has changed since, and add new answers to them.

    InputError if the plan cannot be run here; or at the end, if some methods failed and the rest is done.
    """
    checked = CheckedPlan(plan)
    if show is not False:
        note(*checked.notes())
    pool = executor(how, plan, workers)  # before anything is stored: it may be refused
    try:
        with writing(folder) as store:
            driver = Driver(plan, store, checked.plan_items)
            if changed := driver.runs.use_code(grid.code_digests(plan), keep_answers):
                say(
                    f"{changed}: what depends on it is asked again, and the old answers stay in the store under "
                    "their old key; --keep-answers goes on with them instead"
                )
            store.tell("plan", plan.model_dump(mode="json"))
            store.tell(VERSIONS, library_versions())
            _tell_machine(store)
            slots = [driver.work(pool, slot) for slot in range(pool.slots)]
            done = merged(slots, driver.scheduler.close, pool.close)
            counts = with_estimate(done, driver.questions(), say, pool.slots)
            asked = reused = 0
            for now, before in track(counts, plan.name, driver.batches(), show):
                asked += now
                reused += before
    finally:
        pool.close()
    if driver.scheduler.failures:
        raise problems("the rest is done, but these could not be run", driver.scheduler.failures)
    return Summary(asked, reused, tuple(driver.changed))


def _tell_machine(store: Store) -> None:
    """Record on which machines and between which days the study was run; a report shows it."""
    known, today = store.about(MACHINES) or {}, date.today().isoformat()
    machines = dict.fromkeys([*known.get("hardware", ()), hardware()])
    store.tell(MACHINES, {"hardware": list(machines), "first": known.get("first", today), "last": today})


@dataclass
class Driver:
    """The process that writes to the store. `work` may run in several threads."""

    plan: Plan
    store: Store
    plan_items: PlanItems
    scheduler: Scheduler = field(init=False)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(grid.units(self.plan))
        self.runs = StoredRuns(self.plan, self.store, self.plan_items)
        self.discovery = DiscoverySet(self.plan)
        self.changed: list[str] = []
        self._identities: dict[str, ModelIdentity] = {}
        self._batches = {
            task: batches(self.plan_items.items(task), self.plan.questions_together) for task in self.plan.tasks
        }

    def batches(self) -> int:
        """The number of all batches of the plan, asked already or not."""
        return sum(len(self._batches[cell.task]) for cell in self._cells())

    def questions(self) -> int:
        """The number of all questions of the plan, asked already or not."""
        return sum(len(self.plan_items.items(cell.task)) for cell in self._cells())

    def _cells(self) -> Iterator[Cell]:
        for unit in grid.units(self.plan):
            yield from (*grid.sweep(self.plan, unit), *grid.at_best(self.plan, unit, self.plan.alphas[0]))

    def work(self, pool: Executor, slot: int) -> Iterator[Count]:
        """Do units from the scheduler until there are none."""
        call = calls(pool, slot)
        model = ""
        while unit := self.scheduler.take(model):
            model = unit.model
            failure = ""
            try:
                yield from self.unit(unit, call)
            except StoreError:
                raise
            except InputError as error:
                failure = str(error)
            self.runs.failed(unit, failure)
            self.scheduler.done(unit, f"{unit.method} on {unit.model}: {failure}" if failure else None)

    def unit(self, unit: Unit, call: Call) -> Iterator[Count]:
        """Do a method on a model: the sweep, then what is measured at the best alpha of the sweep."""
        identity = self.identity(unit.model, call)
        confirmed: dict[str, Fit] = {}
        for cell in grid.sweep(self.plan, unit):
            yield from self.cell(cell, identity, confirmed, call)
        if any(grid.at_best(self.plan, unit, self.plan.alphas[0])):
            alpha = Results(self.plan, self.runs).best_alpha(unit.model, unit.method)
            if alpha is None:
                raise InputError("no best alpha can be chosen: no bias task has a baseline and readable answers")
            for cell in grid.at_best(self.plan, unit, alpha):
                yield from self.cell(cell, identity, confirmed, call)

    def identity(self, model: str, call: Call) -> str:
        """The hash of the model's identity, which all workers must agree on."""
        identity: ModelIdentity = call("open", model)
        first = self._identities.setdefault(model, identity)
        if different := identity.differences(first):
            raise InputError(
                f"{model} differs between workers, or has changed while the study was running: {', '.join(different)}"
            )
        if first is identity and (changed := self.runs.identify(model, identity)):
            self.changed.append(
                f"{model} has changed since it was last run, and is asked again; changed: {', '.join(changed)}"
            )
        return identity.hash

    def cell(self, cell: Cell, identity: str, confirmed: dict[str, Fit], call: Call) -> Iterator[Count]:
        """Ask what has no answer yet of a task under one steering, a batch at a time.

        confirmed: by attribute, the fits that the worker has made in this run.
        """
        items = self.plan_items.items(cell.task)
        fit = confirmed.get(cell.attribute) or self.known(cell, identity)
        answered = self.answered(cell, fit)
        if cell.attribute not in confirmed and any(item.key not in answered for item in items):
            fit = confirmed[cell.attribute] = self.fitted(cell, identity, call)
            answered = self.answered(cell, fit)
        assert fit is not None
        key = self.runs.key(cell, fit)
        yield from ask_missing(
            items,
            self._batches[cell.task],
            answered,
            lambda numbers: call("read", cell, numbers, identity),
            lambda answers: self.store.write(key, answers),
        )

    def known(self, cell: Cell, identity: str) -> Fit | None:
        """The cell's fit in the store, if nothing that it depends on has changed."""
        fit = self.runs.fit(cell)
        return fit if fit and (fit.identity, fit.steering) == (identity, self.steering(cell)) else None

    def steering(self, cell: Cell) -> str:
        data = self.discovery.of(cell.attribute).content_hash if cell.attribute else ""
        return grid.steering_hash(self.plan, cell.method, cell.attribute, data, self.runs.code)

    def fitted(self, cell: Cell, identity: str, call: Call) -> Fit:
        """The cell's fit, made by the worker and written to the store."""
        recipe = grid.recipe(self.plan, *cell[:3], self.runs.code)
        reply = call("fit", cell.model, cell.method, cell.attribute)
        fit = Fit(recipe, identity, self.steering(cell), reply.notes, reply.gates, reply.cosine)
        self.store.remember(cell.model, cell.method, cell.attribute, fit)
        return fit

    def answered(self, cell: Cell, fit: Fit | None) -> set[str]:
        return set() if fit is None else self.store.answered(self.runs.key(cell, fit))


def calls(pool: Executor, slot: int) -> Call:
    """A function that calls a slot's worker. If the worker dies, it is replaced and the call is repeated."""
    remote = None

    def call(name: str, *args: Any) -> Any:
        nonlocal remote
        for _ in range(LIVES):
            remote = remote or pool.start(slot)
            try:
                return remote.call(name, *args)
            except WorkerDied:
                remote.close()
                remote = None
        raise InputError(
            f"{LIVES} workers died one after the other over the same work: is there enough memory? "
            "Use fewer --workers and run the same command again"
        )

    return call
