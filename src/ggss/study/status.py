"""How far a study is, and how long a plan will take."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ggss.data.picture import Picture
from ggss.study import grid
from ggss.study.checking import CheckedPlan
from ggss.study.grid import Cell, Unit
from ggss.study.plan import Plan
from ggss.study.plan_items import PlanItems
from ggss.study.results import Results
from ggss.study.stored_runs import StoredRuns, opened


@dataclass(frozen=True)
class Progress:
    """A method on a model: questions answered, of how many, the alpha chosen so far, the warnings of discovery.

    failure: why the rest could not be run, when it was last tried.
    """

    unit: Unit
    answered: int
    of: int
    alpha: float | None
    warnings: tuple[str, ...]
    failure: str = ""


def status(folder: str | Path) -> tuple[Plan, list[Progress]]:
    """Each unit of the plan that was last run in the folder."""
    watched = WatchedStudy(folder)
    return watched.plan, watched.look()


class WatchedStudy:
    """A study that is looked at again and again while it runs. The store is only read.

    What was complete is not read again: answers are never deleted.
    """

    def __init__(self, folder: str | Path) -> None:
        self.plan, self._runs = opened(folder)
        self._complete: dict[Cell, int] = {}
        self._finished: dict[Unit, Progress] = {}

    def look(self) -> list[Progress]:
        """How far each unit of the plan is now."""
        found = []
        for unit in grid.units(self.plan):
            one = self._finished.get(unit) or _progress(self.plan, self._runs, unit, self._count)
            if one.answered == one.of:
                self._finished[unit] = one
            found.append(one)
        return found

    def _count(self, cell: Cell) -> int:
        if cell not in self._complete:
            count = self._runs.count(cell)
            if count < len(self._runs.asked.items(cell.task)):
                return count
            self._complete[cell] = count
        return self._complete[cell]


def _progress(plan: Plan, runs: StoredRuns, unit: Unit, count: Callable[[Cell], int]) -> Progress:
    cells = list(grid.sweep(plan, unit))
    answered = [count(cell) for cell in cells]
    sizes = [len(runs.asked.items(cell.task)) for cell in cells]
    steers = plan.method(unit.method).steers
    alpha = Results(plan, runs).best_alpha(*unit) if answered == sizes and steers else None
    late = list(grid.at_best(plan, unit, plan.alphas[0] if alpha is None else alpha))
    sizes += [len(runs.asked.items(cell.task)) for cell in late]
    answered += [count(cell) for cell in late] if alpha is not None else []
    fits = [runs.store.fit(*unit, attribute) for attribute in grid.attributes(plan, plan.method(unit.method))]
    notes = dict.fromkeys(note for fit in fits if fit for note in fit.notes)
    failure = runs.failure(unit) if sum(answered) < sum(sizes) else ""
    return Progress(unit, sum(answered), sum(sizes), alpha, tuple(notes), failure)


@dataclass(frozen=True)
class Forecast:
    """What a plan asks of a model, and the seconds that one worker will need for it, if they were measured."""

    model: str
    methods: int
    questions: int
    pictures: int
    seconds: float | None


def forecast(checked: CheckedPlan, measure: bool = True) -> Iterator[Forecast]:
    """Model by model. Measuring takes some seconds: it encodes a few pictures and asks a batch of each task."""
    plan, asked_items = checked.plan, checked.asked
    for model in plan.models:
        units = [unit for unit in grid.units(plan) if unit.model == model.name]
        asked: dict[str, int] = dict.fromkeys(plan.tasks, 0)
        for unit in units:
            for cell in (*grid.sweep(plan, unit), *grid.at_best(plan, unit, plan.alphas[0])):
                asked[cell.task] += len(asked_items.items(cell.task))
        shown = asked_items.pictures()
        seconds = _measured(plan, model.name, asked_items, asked, shown) if measure else None
        yield Forecast(model.name, len(units), sum(asked.values()), len(shown), seconds)


def _measured(
    plan: Plan, name: str, asked_items: PlanItems, asked: dict[str, int], pictures: Sequence[Picture]
) -> float:
    from ggss.models import load_vlm
    from ggss.models.feature_cache import BATCH
    from ggss.probes.steered_model import SteeredModel, batches

    wanted = plan.model(name)
    vlm = load_vlm(wanted.name, wanted.dtype, wanted.device_map, wanted.trust_remote_code, wanted.attention)
    model = SteeredModel.of(vlm)
    model.see(pictures[:1])  # the first call of anything is slow
    start, some = time.perf_counter(), pictures[1 : 1 + BATCH]
    model.see(some)
    seconds = (time.perf_counter() - start) / max(len(some), 1) * len(pictures)
    for task, count in asked.items():
        items, length = asked_items.items(task), asked_items.max_new_tokens(task)
        batch = [items[number] for number in batches(items, plan.questions_together)[0]]
        model.see([picture for item in batch for picture in item.images])
        model.read_batch(batch[:1], length)
        start = time.perf_counter()
        model.read_batch(batch, length)
        seconds += (time.perf_counter() - start) / len(batch) * count
    return seconds
