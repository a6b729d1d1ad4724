"""Runs read from the store as they are asked for."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from ggss.errors import InputError
from ggss.steering.gates import Gates
from ggss.study import grid, identity
from ggss.study.asked_items import Questions
from ggss.study.grid import Cell
from ggss.study.plan import Plan
from ggss.study.results import Results, Run
from ggss.study.store import Fit, Key, Store, reading

KEPT = 256  # runs, with their metrics


class StoredRuns(Mapping[Cell, Run]):
    """The whole runs that a store has for a plan."""

    def __init__(self, plan: Plan, store: Store, questions: Questions) -> None:
        self.plan, self.store, self.questions = plan, store, questions
        self._read = lru_cache(KEPT)(self._load)

    def fit(self, cell: Cell) -> Fit | None:
        """What the cell's names stand for, unless the plan has said otherwise since."""
        found = self.store.fit(cell.model, cell.method, cell.attribute)
        wanted = identity.recipe(self.plan, cell.model, cell.method, cell.attribute)
        return found if found and found.recipe == wanted else None

    def key(self, cell: Cell, fit: Fit) -> Key:
        return Key(fit.weights, fit.steerer, cell.alpha, self.questions.hash(cell.task))

    def gates(self) -> dict[tuple[str, str, str], Gates]:
        """By model, method and attribute."""
        found = {}
        for cell in dict.fromkeys(grid.Cell(*cell[:3], 0.0, "") for cell in grid.all_cells(self.plan)):
            if (fit := self.fit(cell)) and fit.gates:
                found[cell[:3]] = fit.gates
        return found

    def count(self, cell: Cell) -> int:
        """How many of a cell's items have their answer."""
        fit = self.fit(cell)
        if fit is None:
            return 0
        answered = self.store.answered(self.key(cell, fit))
        return sum(item.key in answered for item in self.questions.items(cell.task))

    def __getitem__(self, cell: Cell) -> Run:
        return self._read(cell)

    def _load(self, cell: Cell) -> Run:
        fit = self.fit(cell)
        items = self.questions.items(cell.task)
        answers = self.store.answers(self.key(cell, fit)) if fit else {}
        if any(item.key not in answers for item in items):
            raise KeyError(cell)
        rows = [answers[item.key] for item in items]
        return Run(*cell, items, tuple(answer for answer, _ in rows), tuple(chances for _, chances in rows))

    def __iter__(self) -> Iterator[Cell]:
        return (
            cell for cell in grid.all_cells(self.plan) if self.count(cell) == len(self.questions.items(cell.task))
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)


def stored(folder: str | Path) -> Results:
    """The results in a study's folder."""
    plan, runs = opened(folder)
    return Results(plan, runs, runs.gates())


def opened(folder: str | Path) -> tuple[Plan, StoredRuns]:
    """A study's plan as it was last run, and its runs."""
    store = reading(folder)
    said = store.about("plan")
    if said is None:
        raise InputError(f"the study in {str(folder)!r} was never begun: run it first")
    plan = Plan.of(said, f"the plan in {str(store.path)!r}")
    return plan, StoredRuns(plan, store, Questions(plan))
