"""What a report is about: models, and their tasks before and after steering. `page_material` makes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ggss.analysis.comparison import Comparison
from ggss.analysis.group_values import GroupValues, group_values
from ggss.analysis.measured import Measured
from ggss.analysis.run import Run
from ggss.analysis.statistics import Statistics
from ggss.probes import Probe
from ggss.probes.base import task_label
from ggss.report import names
from ggss.report.figures import Figures
from ggss.report.page_discovery import Discovered
from ggss.steering.gates import Gates


@dataclass(frozen=True)
class TaskPair:
    """A task before and after the steering of an attribute. Of one run alone `after` and `comparison` are None."""

    key: str
    model: str
    attribute: str
    before: Run
    after: Run | None
    comparison: Comparison | None
    statistics: Statistics

    @property
    def task(self) -> str:
        return self.before.task

    @property
    def probe(self) -> Probe:
        return self.before.probe

    @property
    def about(self) -> str:
        return self.before.about

    @property
    def task_title(self) -> str:
        return f"{self.probe.title}, {self.about}" if self.about else self.probe.title

    @property
    def title(self) -> str:
        """With the steering, where it is of another attribute than the task is about."""
        other = self.about and self.after and self.attribute != self.about
        return f"{self.task_title}, under {self.attribute} steering" if other else self.task_title

    @property
    def label(self) -> str:
        return task_label(self.task, self.about)

    @property
    def judges_bias(self) -> bool:
        return self.probe.kind == "bias"

    @cached_property
    def measured(self) -> Measured:
        """The task before, in numbers."""
        return self.comparison.before if self.comparison else self.before.measured(self.statistics)

    @cached_property
    def groups_before(self) -> list[GroupValues]:
        return group_values(self.before, self.statistics)

    @cached_property
    def groups_after(self) -> list[GroupValues]:
        return group_values(self.after, self.statistics) if self.after else []


@dataclass(frozen=True)
class ReportedModel:
    """A model, the method it is shown under ("" if it was not steered), its strength, and its tasks."""

    name: str
    method: str
    alpha: float | None
    pairs: tuple[TaskPair, ...]
    control: bool = False
    discovered: tuple[Discovered, ...] = ()

    @property
    def title(self) -> str:
        return names.model(self.name)

    @property
    def bias(self) -> list[TaskPair]:
        return [pair for pair in self.pairs if pair.judges_bias]

    @property
    def others(self) -> list[TaskPair]:
        """Capability and recognition."""
        return [pair for pair in self.pairs if not pair.judges_bias]


@dataclass(frozen=True)
class Material:
    """All that a report says comes from here. made_from: files or folders; missing: what a study has not run yet.

    ended: all that is missing could not be run.
    """

    name: str
    description: str
    models: tuple[ReportedModel, ...]
    statistics: Statistics
    made_from: str
    figures: Figures | None = None
    missing: tuple[str, ...] = ()
    notes: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    gates: Mapping[tuple[str, str, str], Gates] = field(default_factory=dict)
    plan: Mapping[str, Any] | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    ended: bool = False

    @property
    def pairs(self) -> list[TaskPair]:
        return [pair for model in self.models for pair in model.pairs]

    def model(self, name: str) -> ReportedModel:
        return next(model for model in self.models if model.name == name)
