"""All that a plan asks: the items of its suite and of its benchmark files, as many as it wants of each."""

from functools import cache
from typing import TYPE_CHECKING

from ggss.errors import problems
from ggss.probes import suites
from ggss.study import grid
from ggss.study.plan import Plan

if TYPE_CHECKING:
    from ggss.probes import Item
    from ggss.probes.suites import Suite


class Questions:
    """The tasks of a plan. Items come in a fixed order and are made when they are first asked for."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._limited: dict[str, tuple[Item, ...]] = {}
        self._suite = suites.load(plan.suite.name, **plan.suite.options)
        known = (*self._suite.tasks, *plan.benchmarks)
        found = [
            f"task {task!r} is none of its tasks {', '.join(self._suite.tasks)}"
            for task in plan.tasks
            if task not in known
        ]
        if found:
            raise problems(f"suite {plan.suite.name!r} (a benchmark's file is named under `benchmarks`)", found)

    def items(self, task: str) -> "tuple[Item, ...]":
        if task not in self._limited:
            self._limited[task] = grid.chosen(self._of(task).items(task), self.plan.limit)
        return self._limited[task]

    def hash(self, task: str) -> str:
        """sha256 over everything the task asks, limited or not: a limit changes which items, not what they are."""
        return self._of(task).hash(task)

    def max_new_tokens(self, task: str) -> int:
        return self._of(task).max_new_tokens(task)

    def _of(self, task: str) -> "Suite":
        if task in self.plan.benchmarks:
            return _benchmark(task, self.plan.benchmarks[task])
        return self._suite


@cache
def _benchmark(task: str, path: str | None) -> "Suite":
    from ggss.probes import mme as mme_files
    from ggss.probes import mmstar
    from ggss.probes.suites import Suite

    load = {"mmstar": mmstar.load, "mme": mme_files.load}[task]
    return Suite(task, (task,), lambda _: load(path))
