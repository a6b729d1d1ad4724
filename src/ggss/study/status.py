"""How far a study is, and how long a plan will take."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ggss.analysis.selection import best_alpha
from ggss.study import grid
from ggss.study.asked_items import Questions
from ggss.study.grid import Unit
from ggss.study.plan import Plan
from ggss.study.results import Results
from ggss.study.stored_runs import StoredRuns, opened
from ggss.study.worker import COMPANY


@dataclass(frozen=True)
class Progress:
    """A method on a model: questions answered, of how many, the alpha chosen so far, what discovery warned of."""

    unit: Unit
    answered: int
    of: int
    alpha: float | None
    warnings: tuple[str, ...]


def status(folder: str | Path) -> tuple[Plan, list[Progress]]:
    """Each unit of the plan that was last run in the folder."""
    plan, runs = opened(folder)
    return plan, [_progress(plan, runs, unit) for unit in grid.units(plan)]


def _progress(plan: Plan, runs: StoredRuns, unit: Unit) -> Progress:
    cells = list(grid.sweep(plan, unit))
    answered = [runs.count(cell) for cell in cells]
    sizes = [len(runs.questions.items(cell.task)) for cell in cells]
    alpha = best_alpha(Results(plan, runs), *unit) if answered == sizes and plan.method(unit.method).steers else None
    late = list(grid.at_best(plan, unit, plan.alphas[0] if alpha is None else alpha))
    sizes += [len(runs.questions.items(cell.task)) for cell in late]
    answered += [runs.count(cell) for cell in late] if alpha is not None else []
    fits = [runs.store.fit(*unit, attribute) for attribute in grid.attributes(plan, plan.method(unit.method))]
    notes = dict.fromkeys(note for fit in fits if fit for note in fit.notes)
    return Progress(unit, sum(answered), sum(sizes), alpha, tuple(notes))


@dataclass(frozen=True)
class Forecast:
    """What a plan asks of a model, and the seconds that one worker will need for it, if they were measured."""

    model: str
    methods: int
    questions: int
    pictures: int
    seconds: float | None


def forecast(plan: Plan, measure: bool = True) -> Iterator[Forecast]:
    """Model by model. Measuring takes some seconds: it encodes a few pictures and asks a batch of each task."""
    questions = Questions(plan)
    for model in plan.models:
        units = [unit for unit in grid.units(plan) if unit.model == model.name]
        asked: dict[str, int] = dict.fromkeys(plan.tasks, 0)
        for unit in units:
            for cell in (*grid.sweep(plan, unit), *grid.at_best(plan, unit, plan.alphas[0])):
                asked[cell.task] += len(questions.items(cell.task))
        shown = {picture for task in plan.tasks for item in questions.items(task) for picture in item.images}
        seconds = _measured(plan, model.name, questions, asked, len(shown)) if measure else None
        yield Forecast(model.name, len(units), sum(asked.values()), len(shown), seconds)


def _measured(plan: Plan, name: str, questions: Questions, asked: dict[str, int], pictures: int) -> float:
    from ggss.models import load_vlm
    from ggss.probes.steered_model import Gallery

    model = plan.model(name)
    gallery: Any = Gallery(load_vlm(name, dtype=model.dtype, device_map=model.device_map))
    seconds = 0.0
    for task, count in asked.items():
        items = questions.items(task)
        batch = [items[number] for number in grid.batches(items, plan.batch_size)[0]]
        sources = list(dict.fromkeys(picture for item in batch for picture in item.images))
        gallery.see(sources[:1])  # the first call of anything is slow
        start = time.perf_counter()
        seen = sources[1 : 1 + COMPANY]
        gallery.see(seen)
        if seen and task == plan.tasks[0]:
            seconds += (time.perf_counter() - start) / len(seen) * pictures
        gallery.see(sources)
        gallery.read(batch[:1], questions.max_new_tokens(task), show=False)
        start = time.perf_counter()
        gallery.read(batch, questions.max_new_tokens(task), batch_size=len(batch), show=False)
        seconds += (time.perf_counter() - start) / len(batch) * count
    return seconds
