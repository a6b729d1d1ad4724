"""Results as the tables read them: each run once, reduced to one row for each identity.

Intervals, tests and folds need no more than that, and all runs of a large study fit in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ggss.stats import Metric
from ggss.study.results import Results, Run


@dataclass(frozen=True)
class Digest(Run):
    """A run without its items: its published metric has one row for each of its `people`."""

    reduced: Metric | None = field(default=None, repr=False)
    people: tuple[str, ...] = ()

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        assert self.reduced is not None
        return {self.reduced.name: self.reduced}

    @property
    def clusters(self) -> list[str]:
        return list(self.people)

    @classmethod
    def of(cls, run: Run) -> "Digest":
        people = tuple(sorted(set(run.clusters)))
        reduced = run.metric.by(run.clusters)
        return cls(run.model, run.method, run.attribute, run.alpha, run.task, (), (), (), reduced, people)


class Digests(Results):
    """The same results; `run` gives digests, `whole` the runs as they are. What the plan lacks was not run."""

    def __init__(self, results: Results) -> None:
        self.plan, self.gates = results.plan, results.gates
        self._results = results
        self._known: dict[tuple[object, ...], Digest | None] = {}

    def run(
        self, model: str, method: str, task: str, alpha: float | None = None, attribute: str | None = None
    ) -> Digest | None:
        key = (model, method, task, alpha, attribute)
        if key not in self._known:
            run = self.whole(model, method, task, alpha, attribute)
            self._known[key] = run and Digest.of(run)
        return self._known[key]

    def whole(
        self, model: str, method: str, task: str, alpha: float | None = None, attribute: str | None = None
    ) -> Run | None:
        if method not in self.methods or task not in self.plan.tasks:
            return None
        return self._results.run(model, method, task, alpha, attribute)
