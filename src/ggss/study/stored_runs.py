"""Runs that are read from the store when they are needed."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from ggss.analysis.run import Run, Source
from ggss.errors import InputError
from ggss.models import ModelIdentity
from ggss.study import fit_hashes, grid
from ggss.study.grid import Cell, Unit
from ggss.study.plan import Plan
from ggss.study.plan_items import PlanItems
from ggss.study.results import Fitted, Results
from ggss.study.store import Fit, Key, Store, reading

IDENTITY = "identity of "  # and a model's name: a fact about the study
FAILURE = "failure of "  # and a method on a model
KEPT = 256  # runs, with their metrics


class StoredRuns(Mapping[Cell, Run]):
    """The complete runs that a store has for a plan."""

    def __init__(self, plan: Plan, store: Store, asked: PlanItems) -> None:
        self.plan, self.store, self.asked = plan, store, asked
        self._read = lru_cache(KEPT)(self._load)

    def fit(self, cell: Cell) -> Fit | None:
        """The cell's fit, or None if it was not fitted, or if the plan or the model has changed since."""
        found = self.store.fit(cell.model, cell.method, cell.attribute)
        wanted = fit_hashes.recipe(self.plan, cell.model, cell.method, cell.attribute)
        if found is None or found.recipe != wanted:
            return None
        # A run that was stopped may have answers of the model before and after it changed: they are not compared.
        return found if found.identity == self.identity(cell.model).hash else None

    def identity(self, model: str) -> ModelIdentity:
        """The model's identity when it was last run."""
        parts = self.store.about(f"{IDENTITY}{model}")
        return ModelIdentity(parts if isinstance(parts, dict) else {})

    def identify(self, model: str, identity: ModelIdentity) -> list[str]:
        """Write down a model's identity; returns what has changed since it was last run."""
        before = self.identity(model)
        if before != identity:
            self.store.tell(f"{IDENTITY}{model}", dict(identity.parts))
        return identity.differences(before) if before.parts else []

    def failure(self, unit: Unit) -> str:
        """Why a method could not be run on a model; "" if it could, or was not tried as the plan has it now."""
        told = self.store.about(_failure(unit)) or {}
        return str(told["why"]) if told.get("recipes") == self._recipes(unit) else ""

    def failed(self, unit: Unit, why: str) -> None:
        """Write down why a method could not be run; "" if it could, after all."""
        if why != self.failure(unit):
            self.store.tell(_failure(unit), {"why": why, "recipes": self._recipes(unit)})

    def _recipes(self, unit: Unit) -> list[str]:
        """All that decides a method's fits on a model."""
        attributes = grid.attributes(self.plan, self.plan.method(unit.method))
        return [fit_hashes.recipe(self.plan, *unit, attribute) for attribute in attributes]

    def key(self, cell: Cell, fit: Fit) -> Key:
        return Key(fit.identity, fit.steering, cell.alpha, self.asked.hash(cell.task))

    def fits(self) -> dict[Fitted, Fit]:
        """All fits of the plan."""
        cells = dict.fromkeys(grid.Cell(*cell[:3], 0.0, "") for cell in grid.all_cells(self.plan))
        return {cell[:3]: fit for cell in cells if (fit := self.fit(cell))}

    def count(self, cell: Cell) -> int:
        """How many of a cell's items are answered."""
        fit = self.fit(cell)
        if fit is None:
            return 0
        answered = self.store.answered(self.key(cell, fit))
        return sum(item.key in answered for item in self.asked.items(cell.task))

    def __getitem__(self, cell: Cell) -> Run:
        return self._read(cell)

    def _load(self, cell: Cell) -> Run:
        fit = self.fit(cell)
        items = self.asked.items(cell.task)
        answers = self.store.answers(self.key(cell, fit)) if fit else {}
        if any(item.key not in answers for item in items):
            raise KeyError(cell)
        rows = [answers[item.key] for item in items]
        said, probabilities = tuple(answer for answer, _ in rows), tuple(own for _, own in rows)
        return Run(cell.task, items, said, probabilities, self._source(cell, fit))

    def _source(self, cell: Cell, fit: Fit | None) -> Source:
        return Source(
            cell.model,
            cell.method,
            cell.attribute,
            cell.alpha,
            self.asked.suite(cell.task).name,
            self.asked.hash(cell.task),
            fit.steering if fit else "",
            self.asked.max_new_tokens(cell.task),
            self.identity(cell.model).parts if fit else {},
        )

    def __iter__(self) -> Iterator[Cell]:
        return (cell for cell in grid.all_cells(self.plan) if self.count(cell) == len(self.asked.items(cell.task)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _failure(unit: Unit) -> str:
    return f"{FAILURE}{unit.method} on {unit.model}"


def stored(folder: str | Path) -> Results:
    """The results in a study's folder."""
    plan, runs = opened(folder)
    fits = runs.fits()
    gates = {names: fit.gates for names, fit in fits.items() if fit.gates}
    cosines = {names: fit.cosine for names, fit in fits.items() if fit.cosine is not None}
    return Results(plan, runs, gates, cosines)


def opened(folder: str | Path) -> tuple[Plan, StoredRuns]:
    """A study's plan as it was last run, and its runs."""
    store = reading(folder)
    said = store.about("plan")
    if said is None:
        raise InputError(f"the study in {str(folder)!r} was never started: run it first")
    plan = Plan.of(said, f"the plan in {str(store.path)!r}")
    return plan, StoredRuns(plan, store, PlanItems(plan))
