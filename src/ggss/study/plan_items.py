"""All that a plan asks: the items of its suite and of its benchmark files, up to the plan's limit."""

from functools import cache, cached_property

from ggss.data.picture import Picture
from ggss.errors import InputError
from ggss.probes import Item, suites
from ggss.probes.suites import Suite
from ggss.study.plan import Plan


class PlanItems:
    """The tasks of a plan. Items come in a fixed order and are made when they are first needed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._limited: dict[str, tuple[Item, ...]] = {}

    def problems(self) -> list[str]:
        """Why tasks cannot be asked: the suite does not have them, or pictures or files are not there."""
        found, tasks = [], self.plan.tasks
        try:
            _ = self._suite
        except InputError as error:
            found.append(f"suite: {error}")
            tasks = [task for task in tasks if task in self.plan.benchmarks]
        for task in tasks:
            try:
                self.items(task)
            except InputError as error:
                found.append(f"task {task}: {error}")
        return found

    def items(self, task: str) -> tuple[Item, ...]:
        if task not in self._limited:
            self._limited[task] = self.suite(task).items(task, self.plan.limit)
        return self._limited[task]

    def pictures(self) -> list[Picture]:
        """Every picture that some task shows, once."""
        shown = (picture for task in self.plan.tasks for item in self.items(task) for picture in item.images)
        return list({picture.digest: picture for picture in shown}.values())

    def hash(self, task: str) -> str:
        """sha256 over everything the task asks, without the plan's limit: it does not change the items."""
        return self.suite(task).hash(task)

    def max_new_tokens(self, task: str) -> int:
        return self.suite(task).max_new_tokens(task)

    def suite(self, task: str) -> Suite:
        """The suite that asks a task."""
        file = self.plan.benchmarks.get(task)
        return self._suite if file is None else _benchmark(task, file.path, file.suffix)

    @cached_property
    def _suite(self) -> Suite:
        return suites.load(self.plan.suite.name, **self.plan.suite.options)


@cache
def _benchmark(task: str, path: str | None, suffix: str) -> Suite:
    return suites.benchmark(task, path, suffix)
