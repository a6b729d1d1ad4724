"""`ggss study run`: work a plan off, batch by batch, into the store.

The driver decides what is missing, workers answer, and only the driver writes. Stopped at any moment and run again,
it goes on with the batch it was in; run with another plan, it answers what is new.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ggss.errors import InputError, problems
from ggss.progress import track
from ggss.study import grid, identity
from ggss.study.asked_items import Questions
from ggss.study.discovery_set import Discovery
from ggss.study.executors import Executor, WorkerDied, executor
from ggss.study.grid import Cell, Unit
from ggss.study.plan import Plan
from ggss.study.results import Results
from ggss.study.scheduler import Board, merged
from ggss.study.store import Fit, Store, StoreError, writing
from ggss.study.stored_runs import StoredRuns
from ggss.version import library_versions

LIVES = 5  # workers that may die in one call before it is given up

Call = Callable[..., Any]
Count = tuple[int, int]  # of a batch: questions asked, and questions that had their answer


@dataclass(frozen=True)
class Summary:
    """How a run went: questions asked now, questions whose answers were there."""

    asked: int
    reused: int


def run(
    plan: Plan, folder: str | Path, how: str = "in-process", workers: int | None = None, show: bool | None = None
) -> Summary:
    """Run a plan into a folder, or go on with it there.

    InputError if the plan cannot be run here, and at the end if some methods could not be: the rest is done then.
    """
    questions = Questions(plan)
    Discovery(plan).check()
    with writing(folder) as store:
        store.tell("plan", plan.model_dump(mode="json"))
        store.tell("versions", library_versions())
        pool = executor(how, plan, workers)
        try:
            driver = Driver(plan, store, questions)
            slots = [driver.work(pool, slot) for slot in range(pool.slots)]
            batches = track(merged(slots, driver.board.close, pool.close), plan.name, driver.batches(), show)
            counts = [0, 0]
            for asked, reused in batches:
                counts[0] += asked
                counts[1] += reused
        finally:
            pool.close()
    if driver.board.failures:
        raise problems("the rest is done, but these could not be run", driver.board.failures)
    return Summary(*counts)


@dataclass
class Driver:
    """What is known to the one who writes; its `work` may go on in several threads."""

    plan: Plan
    store: Store
    questions: Questions
    board: Board = field(init=False)

    def __post_init__(self) -> None:
        self.board = Board(grid.units(self.plan))
        self.runs = StoredRuns(self.plan, self.store, self.questions)
        self.data = Discovery(self.plan).data
        self._batches = {
            task: grid.batches(self.questions.items(task), self.plan.batch_size) for task in self.plan.tasks
        }

    def batches(self) -> int:
        """All batches of the plan, asked already or not."""
        return sum(
            len(self._batches[cell.task])
            for unit in grid.units(self.plan)
            for cell in (*grid.sweep(self.plan, unit), *grid.at_best(self.plan, unit, self.plan.alphas[0]))
        )

    def work(self, pool: Executor, slot: int) -> Iterator[Count]:
        """Take units from the board until there are none."""
        call = calls(pool, slot)
        model = ""
        while unit := self.board.take(model):
            model = unit.model
            failure = None
            try:
                yield from self.unit(unit, call)
            except StoreError:
                raise
            except InputError as error:
                failure = f"{unit.method} on {unit.model}: {error}"
            self.board.done(unit, failure)

    def unit(self, unit: Unit, call: Call) -> Iterator[Count]:
        """A method on a model: the sweep, then what is measured at the alpha that did best in it."""
        weights = call("open", unit.model)
        sure: dict[str, Fit] = {}
        for cell in grid.sweep(self.plan, unit):
            yield from self.cell(cell, weights, sure, call)
        if any(grid.at_best(self.plan, unit, self.plan.alphas[0])):
            from ggss.analysis.selection import best_alpha

            alpha = best_alpha(Results(self.plan, self.runs), unit.model, unit.method)
            if alpha is None:
                raise InputError("no alpha is best, for no bias task has a baseline and an answer: measured at none")
            for cell in grid.at_best(self.plan, unit, alpha):
                yield from self.cell(cell, weights, sure, call)

    def cell(self, cell: Cell, weights: str, sure: dict[str, Fit], call: Call) -> Iterator[Count]:
        """One task under one steering: ask what has no answer yet, a batch at a time.

        sure: by attribute, the fits that the worker has confirmed.
        """
        items, batches = self.questions.items(cell.task), self._batches[cell.task]
        fit = sure.get(cell.attribute) or self.known(cell, weights)
        answered = self.answered(cell, fit)
        if cell.attribute not in sure and any(item.key not in answered for item in items):
            fit = sure[cell.attribute] = self.fitted(cell, weights, call)
            answered = self.answered(cell, fit)
        assert fit is not None
        for batch in batches:
            missing = [number for number in batch if items[number].key not in answered]
            if missing:
                replies = call("read", cell, missing, fit.steerer)
                rows = [(items[number].key, said, chances) for number, said, chances in replies]
                self.store.write(self.runs.key(cell, fit), rows)
            yield len(missing), len(batch) - len(missing)

    def known(self, cell: Cell, weights: str) -> Fit | None:
        """What the store knows of the cell's fit, if nothing it depends on has changed."""
        fit = self.runs.fit(cell)
        return fit if fit and fit.made_with == identity.made_with(weights, self.data) else None

    def fitted(self, cell: Cell, weights: str, call: Call) -> Fit:
        """The cell's fit, made by the worker and remembered."""
        recipe = identity.recipe(self.plan, cell.model, cell.method, cell.attribute)
        made = call("fit", cell.model, cell.method, cell.attribute)
        fit = Fit(recipe, identity.made_with(weights, self.data), weights, made.steerer, made.notes, made.gates)
        self.store.remember(cell.model, cell.method, cell.attribute, fit)
        return fit

    def answered(self, cell: Cell, fit: Fit | None) -> set[str]:
        return set() if fit is None else self.store.answered(self.runs.key(cell, fit))


def calls(pool: Executor, slot: int) -> Call:
    """Calls to a slot's worker; one that died is replaced and asked again."""
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
