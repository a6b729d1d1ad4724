"""What a study found: the answers of every cell of its plan, as runs and comparisons with the unsteered model.

results = Results.load("my-study")
found = results.comparison("small-world/qwen3-vl", "ggss", "mcq", alpha=1.0)
found.change(), found.p
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from ggss.analysis.comparison import Comparison, compare
from ggss.analysis.crossfit import HeldOut, cross_fit
from ggss.analysis.measured import Measured
from ggss.analysis.run import Run
from ggss.analysis.selection import Sweep, best_alpha
from ggss.analysis.statistics import Statistics
from ggss.methods.registry import UNSTEERED
from ggss.steering.gates import Gates
from ggss.study import grid
from ggss.study.grid import Cell
from ggss.study.plan import Plan

Fitted = tuple[str, str, str]
"""A model, a method's label and an attribute."""


class Results:
    """All complete runs of a plan; `runs` may read each one when it is first needed.

    By model, method and attribute, gates: how far a gate opens on the discovery tokens; cosines: of the largest angle
    between the subspaces of a discovery with a prompt and of one without.
    """

    def __init__(
        self,
        plan: Plan,
        runs: Mapping[Cell, Run],
        gates: Mapping[Fitted, Gates] | None = None,
        cosines: Mapping[Fitted, float] | None = None,
    ) -> None:
        self.plan = plan
        self.gates = gates or {}
        self.cosines = cosines or {}
        self._runs = runs
        self._baselines: dict[Cell, Measured] = {}
        self._comparisons: dict[Cell, Comparison | None] = {}

    @classmethod
    def load(cls, folder: str | Path) -> "Results":
        """The results in a study's folder, whether it is finished or not."""
        from ggss.study.stored_runs import stored

        return stored(folder)

    @property
    def models(self) -> list[str]:
        return [model.name for model in self.plan.models]

    @property
    def methods(self) -> list[str]:
        """Labels, in the plan's order."""
        return [method.label for method in self.plan.methods]

    @property
    def alphas(self) -> list[float]:
        return [float(alpha) for alpha in self.plan.alphas]

    @property
    def tasks(self) -> list[str]:
        """The bias tasks, by which alpha is chosen."""
        return list(self.plan.bias_tasks)

    @property
    def statistics(self) -> Statistics:
        return self.plan.statistics.settings

    def run(
        self, model: str, method: str, task: str, alpha: float | None = None, attribute: str | None = None
    ) -> Run | None:
        """One cell, or None if it is not in the plan, was not run or is not complete yet.

        attribute: which steering; the task's own unless given. For `none` and `prompt`, which steer nothing, alpha
        and attribute are ignored.
        """
        if method not in self.methods or task not in self.plan.tasks:
            return None
        return self._runs.get(grid.cell(self.plan, model, method, task, alpha, attribute))

    def comparison(
        self, model: str, method: str, task: str, alpha: float | None = None, attribute: str | None = None
    ) -> Comparison | None:
        """One cell compared with the unsteered model; None if one of the two is missing. The result is cached."""
        if method not in self.methods or task not in self.plan.tasks:
            return None
        cell = grid.cell(self.plan, model, method, task, alpha, attribute)
        if cell not in self._comparisons:
            self._comparisons[cell] = self._compared(cell)
        return self._comparisons[cell]

    def _compared(self, cell: Cell) -> Comparison | None:
        unsteered = grid.cell(self.plan, cell.model, UNSTEERED, cell.task, None, None)
        before, after = self._runs.get(unsteered), self._runs.get(cell)
        if before is None or after is None:
            return None
        found = compare(before, after, self.statistics)
        # Of a bias task only the published metric is kept: all runs of a large study fit in memory then. The
        # unsteered run is kept once for all methods, with its resamples.
        if not found.has_right_answers:
            found = found.published()
        before = self._baselines.setdefault(unsteered, found.before)
        return Comparison(before, found.after)

    def everything(
        self, model: str, method: str, task: str, alpha: float | None, attribute: str | None = None
    ) -> Comparison | None:
        """A bias task with all its metrics beside the unsteered model; None if a run is missing. Not kept."""
        before, after = self.run(model, UNSTEERED, task), self.run(model, method, task, alpha, attribute)
        return compare(before, after, self.statistics) if before and after else None

    def strengths(self, method: str) -> tuple[float, ...]:
        """The strengths at which the plan runs a method; only 0 for a method that does not steer."""
        if method == UNSTEERED or method not in self.methods:
            return ()
        entry = self.plan.method(method)
        if not entry.steers:
            return (0.0,)
        return tuple(float(alpha) for alpha in entry.alphas or self.alphas)

    def sweep(self, model: str, method: str) -> Sweep:
        """A method's bias tasks at every strength."""
        return {alpha: self.bias(model, method, alpha) for alpha in self.strengths(method)}

    def bias(self, model: str, method: str, alpha: float | None) -> dict[str, Comparison]:
        """The bias tasks that a method was run on at a strength."""
        found = {task: self.comparison(model, method, task, alpha) for task in self.tasks}
        return {task: one for task, one in found.items() if one is not None}

    def best_alpha(self, model: str, method: str) -> float | None:
        """best-avg-alpha; None for the unsteered method, or if nothing can be compared."""
        return best_alpha(self.sweep(model, method))

    def everyone(self, model: str) -> set[str]:
        """All identities that the bias tasks show."""
        unsteered = self.bias(model, UNSTEERED, None)
        return {cluster for one in unsteered.values() for cluster in one.before.clusters}

    def held_out(self, model: str, method: str, folds: int = 2) -> list[HeldOut]:
        """For each fold, the strength chosen on all other identities, and the change of bias in the fold."""
        return cross_fit(self.sweep(model, method), self.everyone(model), folds)

    def __iter__(self) -> Iterator[Run]:
        """All runs, in the plan's order."""
        for cell in grid.all_cells(self.plan):
            if (run := self._runs.get(cell)) is not None:
                yield run

    @cached_property
    def hash(self) -> str:
        """sha256 of all answers. Not of probabilities: their last digits differ between processors."""
        digest = hashlib.sha256()
        for run in self:
            source = run.source
            digest.update(
                json.dumps([source.model, source.method, source.attribute, source.alpha, run.task]).encode()
            )
            for item, answer in zip(run.items, run.answers, strict=True):
                digest.update(json.dumps([item.key, answer]).encode())
        return digest.hexdigest()
