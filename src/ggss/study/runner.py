"""`ggss study run`: run a plan, batch by batch, into the store.

The driver decides what is missing, workers answer, and only the driver writes. If it is stopped at any time and run
again, it continues with the batch it was in. If the plan has changed, it asks only what is new.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ggss.analysis.asking import ask_missing
from ggss.errors import InputError, problems
from ggss.models import ModelIdentity
from ggss.probes.steered_model import batches
from ggss.progress import note, track
from ggss.study import fit_hashes, grid
from ggss.study.checking import CheckedPlan
from ggss.study.cost import Count, with_estimate
from ggss.study.database import StoreError
from ggss.study.discovery_set import DiscoverySet
from ggss.study.executors import Executor, WorkerDied, executor
from ggss.study.grid import Cell, Unit
from ggss.study.plan import Plan
from ggss.study.plan_items import PlanItems
from ggss.study.results import Results
from ggss.study.scheduler import Scheduler, merged
from ggss.study.store import Fit, Store, writing
from ggss.study.stored_runs import StoredRuns
from ggss.version import library_versions

LIVES = 5  # workers that may die during one call before it fails

log = logging.getLogger(__name__)

Call = Callable[..., Any]


@dataclass(frozen=True)
class Summary:
    """The result of a run: how many questions were asked now, and how many were answered before.

    changed: a sentence for each model that is not what it was when it was last run here.
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
) -> Summary:
    """Run a plan into a folder, or continue a run in it. say: is told how long it will take, once that is known.

    InputError if the plan cannot be run here, or at the end if some methods failed: then the rest is done.
    """
    checked = CheckedPlan(plan)
    if show is not False:
        note(*checked.notes())
    pool = executor(how, plan, workers)  # before anything is stored: it may be refused
    try:
        with writing(folder) as store:
            store.tell("plan", plan.model_dump(mode="json"))
            store.tell("versions", library_versions())
            driver = Driver(plan, store, checked.asked)
            slots = [driver.work(pool, slot) for slot in range(pool.slots)]
            done = merged(slots, driver.scheduler.close, pool.close)
            told = with_estimate(done, driver.questions(), say, pool.slots)
            asked = reused = 0
            for now, before in track(told, plan.name, driver.batches(), show):
                asked += now
                reused += before
    finally:
        pool.close()
    if driver.scheduler.failures:
        raise problems("the rest is done, but these could not be run", driver.scheduler.failures)
    return Summary(asked, reused, tuple(driver.changed))


@dataclass
class Driver:
    """The state of the process that writes; its `work` may run in several threads."""

    plan: Plan
    store: Store
    asked: PlanItems
    scheduler: Scheduler = field(init=False)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(grid.units(self.plan))
        self.runs = StoredRuns(self.plan, self.store, self.asked)
        self.discovery = DiscoverySet(self.plan)
        self.changed: list[str] = []
        self._identities: dict[str, ModelIdentity] = {}
        self._batches = {
            task: batches(self.asked.items(task), self.plan.questions_together) for task in self.plan.tasks
        }

    def batches(self) -> int:
        """All batches of the plan, asked already or not."""
        return sum(len(self._batches[cell.task]) for cell in self._cells())

    def questions(self) -> int:
        """All questions of the plan, asked already or not."""
        return sum(len(self.asked.items(cell.task)) for cell in self._cells())

    def _cells(self) -> Iterator[Cell]:
        for unit in grid.units(self.plan):
            yield from (*grid.sweep(self.plan, unit), *grid.at_best(self.plan, unit, self.plan.alphas[0]))

    def work(self, pool: Executor, slot: int) -> Iterator[Count]:
        """Take units from the scheduler until there are none."""
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
        """A method on a model: the sweep, then what is measured at the best alpha of the sweep."""
        identity = self.identity(unit.model, call)
        sure: dict[str, Fit] = {}
        for cell in grid.sweep(self.plan, unit):
            yield from self.cell(cell, identity, sure, call)
        if any(grid.at_best(self.plan, unit, self.plan.alphas[0])):
            alpha = Results(self.plan, self.runs).best_alpha(unit.model, unit.method)
            if alpha is None:
                raise InputError("no best alpha can be chosen: no bias task has a baseline and readable answers")
            for cell in grid.at_best(self.plan, unit, alpha):
                yield from self.cell(cell, identity, sure, call)

    def identity(self, model: str, call: Call) -> str:
        """The hash of the model's identity, which all workers must agree on."""
        found: ModelIdentity = call("open", model)
        first = self._identities.setdefault(model, found)
        if different := found.differences(first):
            raise InputError(
                f"{model} differs between workers, or has changed while the study was running: {', '.join(different)}"
            )
        if first is found and (changed := self.runs.identify(model, found)):
            self.changed.append(f"{model} is not what it was, and is asked again; changed: {', '.join(changed)}")
        return found.hash

    def cell(self, cell: Cell, identity: str, sure: dict[str, Fit], call: Call) -> Iterator[Count]:
        """One task under one steering: ask what has no answer yet, a batch at a time.

        sure: by attribute, the fits that the worker has confirmed.
        """
        items = self.asked.items(cell.task)
        fit = sure.get(cell.attribute) or self.known(cell, identity)
        answered = self.answered(cell, fit)
        if cell.attribute not in sure and any(item.key not in answered for item in items):
            fit = sure[cell.attribute] = self.fitted(cell, identity, call)
            answered = self.answered(cell, fit)
        assert fit is not None
        key = self.runs.key(cell, fit)
        yield from ask_missing(
            items,
            self._batches[cell.task],
            answered,
            lambda numbers: call("read", cell, numbers, identity),
            lambda answers: self.store.write(key, [(item, *answer) for item, answer in answers.items()]),
        )

    def known(self, cell: Cell, identity: str) -> Fit | None:
        """The cell's fit in the store, if nothing that it depends on has changed."""
        fit = self.runs.fit(cell)
        return fit if fit and (fit.identity, fit.steering) == (identity, self.steering(cell)) else None

    def steering(self, cell: Cell) -> str:
        data = self.discovery.of(cell.attribute).content_hash if cell.attribute else ""
        return fit_hashes.steering(self.plan, cell.method, cell.attribute, data)

    def fitted(self, cell: Cell, identity: str, call: Call) -> Fit:
        """The cell's fit, made by the worker and written to the store."""
        recipe = fit_hashes.recipe(self.plan, cell.model, cell.method, cell.attribute)
        made = call("fit", cell.model, cell.method, cell.attribute)
        fit = Fit(recipe, identity, self.steering(cell), made.notes, made.gates, made.cosine)
        self.store.remember(cell.model, cell.method, cell.attribute, fit)
        return fit

    def answered(self, cell: Cell, fit: Fit | None) -> set[str]:
        return set() if fit is None else self.store.answered(self.runs.key(cell, fit))


def calls(pool: Executor, slot: int) -> Call:
    """Calls to a slot's worker; if it dies, it is replaced and the call repeated."""
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
