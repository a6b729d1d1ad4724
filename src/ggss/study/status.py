"""The progress of a study, and a forecast of the time that a plan will take."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ggss.data.pictures import Picture
from ggss.study import grid
from ggss.study.checking import CheckedPlan, folder_of, has_weights
from ggss.study.grid import Cell, Unit
from ggss.study.plan import Plan, PlanItems
from ggss.study.results import Results, StoredRuns, opened

BUDGET = 30.0  # seconds that a forecast may take, all models together
FEW_TOKENS = 6  # of an answer; the time of longer ones follows from these
READ_BYTES = 2e8  # of weights that a machine loads in a second, at least


@dataclass(frozen=True)
class Progress:
    """The progress of a method on a model: questions answered, and `of` how many.

    alpha: the chosen one, once there is one. warnings: of discovery. failure: why the rest could not be run, when it
    was last tried.
    """

    unit: Unit
    answered: int
    of: int
    alpha: float | None
    warnings: tuple[str, ...]
    failure: str = ""


def status(folder: str | Path) -> tuple[Plan, list[Progress]]:
    """The plan that was last run in a folder, and the progress of each of its units."""
    watched = WatchedStudy(folder)
    return watched.plan, watched.look()


class WatchedStudy:
    """A study whose progress is read repeatedly while it runs. The store is only read.

    Cells that were complete are not read again, because answers are never deleted.
    """

    def __init__(self, folder: str | Path) -> None:
        self.plan, self._runs = opened(folder)
        self._complete: dict[Cell, int] = {}
        self._finished: dict[Unit, Progress] = {}

    def look(self) -> list[Progress]:
        """The progress of each unit of the plan now."""
        units = []
        for unit in grid.units(self.plan):
            progress = self._finished.get(unit) or _progress(self.plan, self._runs, unit, self._count)
            if progress.answered == progress.of:
                self._finished[unit] = progress
            units.append(progress)
        return units

    def _count(self, cell: Cell) -> int:
        if cell not in self._complete:
            count = self._runs.count(cell)
            if count < len(self._runs.plan_items.items(cell.task)):
                return count
            self._complete[cell] = count
        return self._complete[cell]


def _progress(plan: Plan, runs: StoredRuns, unit: Unit, count: Callable[[Cell], int]) -> Progress:
    cells = list(grid.sweep(plan, unit))
    answered = [count(cell) for cell in cells]
    sizes = [len(runs.plan_items.items(cell.task)) for cell in cells]
    steers = plan.method(unit.method).steers
    alpha = Results(plan, runs).best_alpha(*unit) if answered == sizes and steers else None
    late = list(grid.at_best(plan, unit, plan.alphas[0] if alpha is None else alpha))
    sizes += [len(runs.plan_items.items(cell.task)) for cell in late]
    answered += [count(cell) for cell in late] if alpha is not None else []
    fits = [runs.store.fit(*unit, attribute) for attribute in grid.attributes(plan, plan.method(unit.method))]
    notes = dict.fromkeys(note for fit in fits if fit for note in fit.notes)
    failure = runs.failure(unit) if sum(answered) < sum(sizes) else ""
    return Progress(unit, sum(answered), sum(sizes), alpha, tuple(notes), failure)


@dataclass(frozen=True)
class Forecast:
    """What a plan asks of a model, and the seconds that one worker will need for it, if they were measured.

    at_most: answers were not generated to their end, and the seconds are those of the longest possible ones.
    why: why nothing was measured; "" if it was, or if it was not asked for.
    """

    model: str
    methods: int
    questions: int
    pictures: int
    seconds: float | None
    at_most: bool = False
    why: str = ""


def forecast(
    checked: CheckedPlan, measure: bool = True, budget: float = BUDGET, clock: Callable[[], float] = time.monotonic
) -> Iterator[Forecast]:
    """A forecast for each model. Measuring encodes a few pictures and generates a few tokens of answers.

    budget: seconds for all models. A model that would take longer to load is not loaded, and a task that is not
    reached within the budget counts like the slowest that was. clock: the time in seconds.
    """
    plan, plan_items, end = checked.plan, checked.plan_items, clock() + budget
    for model in plan.models:
        units = [unit for unit in grid.units(plan) if unit.model == model.name]
        counts: dict[str, int] = dict.fromkeys(plan.tasks, 0)
        for unit in units:
            for cell in (*grid.sweep(plan, unit), *grid.at_best(plan, unit, plan.alphas[0])):
                counts[cell.task] += len(plan_items.items(cell.task))
        pictures = plan_items.pictures()
        counted = Forecast(model.name, len(units), sum(counts.values()), len(pictures), None)
        if not measure:
            yield counted
        elif why := _not_loaded(checked, model.name, end - clock()):
            yield replace(counted, why=why)
        else:
            yield _measured(plan, counted, plan_items, counts, pictures, end, clock)


def _not_loaded(checked: CheckedPlan, name: str, left: float) -> str:
    """Why a model is not loaded for a forecast; "" if it is."""
    if name in checked.unchecked:
        return "it is on the hub, and is not downloaded for a forecast"
    if left <= 0:
        return f"the {BUDGET:.0f} s of the forecast were over"
    folder = folder_of(checked.plan.model(name))
    if not has_weights(folder):
        return "its weights are not all here, and are not downloaded for a forecast"
    weights = [file.stat().st_size for file in folder.glob("*") if file.is_file()]
    if sum(weights) / READ_BYTES > left:
        return f"loading its {sum(weights) / 1e9:.1f} GB may take longer than the {BUDGET:.0f} s of a forecast"
    return ""


def _measured(
    plan: Plan,
    counted: Forecast,
    plan_items: PlanItems,
    counts: dict[str, int],
    pictures: Sequence[Picture],
    end: float,
    clock: Callable[[], float],
) -> Forecast:
    from ggss.models import load_vlm
    from ggss.models.features import BATCH
    from ggss.probes.steered_model import SteeredModel, batches

    entry = plan.model(counted.model)
    vlm = load_vlm(entry.name, entry.dtype, entry.device_map, entry.trust_remote_code, entry.attention)
    model = SteeredModel.of(vlm)

    def seconds_of(work: Callable[[], object]) -> float:
        start = clock()
        work()
        return clock() - start

    first = seconds_of(lambda: model.see(pictures[:1]))  # the first call of anything is slow
    some = pictures[1 : 1 + BATCH] if first * BATCH < end - clock() else pictures[1:2]
    seconds = seconds_of(lambda: model.see(some)) / max(len(some), 1) * len(pictures)
    measured: dict[str, float] = {}
    at_most = False
    for task in counts:
        if clock() >= end:
            break
        items, longest = plan_items.items(task), plan_items.max_new_tokens(task)
        few = min(longest, FEW_TOKENS)
        batch = [items[number] for number in batches(items, plan.questions_together)[0]]
        alone = seconds_of(lambda: model.read_batch(batch[:1], few))  # noqa: B023 (called at once)
        if alone * len(batch) * 2 > end - clock():
            batch = batch[:1]
        model.see([picture for item in batch for picture in item.images])
        begun = seconds_of(lambda: model.read_batch(batch, 1))  # noqa: B023
        taken = begun if few == 1 else seconds_of(lambda: model.read_batch(batch, few))  # noqa: B023
        if longest > few:
            taken += max(taken - begun, 0.0) / (few - 1) * (longest - few)
            at_most = True
        measured[task] = taken / len(batch)
    if not measured:
        return replace(counted, why=f"the {BUDGET:.0f} s of the forecast were over")
    slowest = max(measured.values())
    seconds += sum(measured.get(task, slowest) * count for task, count in counts.items())
    return replace(counted, seconds=seconds, at_most=at_most or len(measured) < len(counts))
