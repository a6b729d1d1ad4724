"""What a study found: the answers of every cell of its plan, as runs that can be measured.

results = Results.load("my-study")
run = results.run("small-world/qwen3-vl", "ggss", "mcq", alpha=1.0)
float(run.metric), run.degenerate
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ggss.steering.gates import Gates
from ggss.study import grid
from ggss.study.grid import Cell
from ggss.study.plan import Plan

if TYPE_CHECKING:
    from ggss.probes import Item
    from ggss.stats import Metric


@dataclass(frozen=True)
class Run:
    """One task's items with a model's raw answers to them, one each, in the items' order.

    method: its label in the plan. attribute: what was steered, "" if nothing was; then alpha is 0. probabilities: of
    each item's options, in their order, or () where it has none.
    """

    model: str
    method: str
    attribute: str
    alpha: float
    task: str
    items: tuple["Item", ...] = field(repr=False)
    answers: tuple[str, ...] = field(repr=False)
    probabilities: tuple[tuple[float, ...], ...] = field(repr=False)

    @cached_property
    def metrics(self) -> Mapping[str, "Metric"]:
        """All of the probe's metrics by name, the published one first."""
        from ggss import probes

        scored = self.probabilities if all(self.probabilities) else None
        return probes.get(self.task).score(self.items, self.answers, scored)

    @property
    def metric(self) -> "Metric":
        """The published metric."""
        return next(iter(self.metrics.values()))

    @property
    def clusters(self) -> list[str]:
        """Each item's cluster: what is resampled together."""
        return [item.cluster for item in self.items]

    @property
    def degenerate(self) -> bool:
        """Most answers could not be parsed: the run is marked, never averaged in."""
        return self.metric.degenerate


class Results:
    """Every whole run that there is under a plan; `runs` may read them only as they are asked for.

    gates: by model, method and attribute, how a gate lies on the discovery tokens.
    """

    def __init__(
        self, plan: Plan, runs: Mapping[Cell, Run], gates: Mapping[tuple[str, str, str], Gates] | None = None
    ) -> None:
        self.plan = plan
        self._runs = runs
        self.gates = gates or {}

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
        """The bias tasks: what alpha is chosen by."""
        return list(self.plan.bias_tasks)

    def run(
        self, model: str, method: str, task: str, alpha: float | None = None, attribute: str | None = None
    ) -> Run | None:
        """One cell, or None if it was not run or is not whole yet.

        attribute: which steering; the task's own unless given. For `none` and `prompt`, which steer nothing, alpha
        and attribute are ignored.
        """
        return self._runs.get(grid.cell(self.plan, model, method, task, alpha, attribute))

    def __iter__(self) -> Iterator[Run]:
        """All runs, in the plan's order."""
        for cell in grid.all_cells(self.plan):
            if (run := self._runs.get(cell)) is not None:
                yield run

    @cached_property
    def hash(self) -> str:
        """sha256 of all answers and probabilities: equal studies have equal hashes."""
        digest = hashlib.sha256()
        for run in self:
            digest.update(json.dumps([run.model, run.method, run.attribute, run.alpha, run.task]).encode())
            for row in rows(run):
                digest.update(json.dumps(row).encode())
        return digest.hexdigest()


def rows(run: Run) -> Iterator[tuple[str, str, Sequence[float]]]:
    """Key, answer and probabilities of each item."""
    for item, answer, probabilities in zip(run.items, run.answers, run.probabilities, strict=True):
        yield item.key, answer, probabilities
