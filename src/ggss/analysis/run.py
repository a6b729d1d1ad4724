"""A run: one task's items with a model's answers to them, and where they came from.

It is the same whether it was asked live (`asking`), read from JSON lines (`records`) or from a study's store.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ggss import probes
from ggss.analysis.measured import Measured
from ggss.analysis.statistics import Statistics
from ggss.methods.registry import UNSTEERED
from ggss.probes import Answers, Item, Probe
from ggss.stats import Metric


@dataclass(frozen=True)
class Source:
    """Where answers came from: the model, how it was steered, and the suite that asked.

    method: its label in a study's plan, or its name. attribute: what was steered, "" if nothing was; then alpha is 0.
    fingerprint, steerer and suite_hash are content hashes.
    """

    model: str
    method: str = UNSTEERED
    attribute: str = ""
    alpha: float = 0.0
    suite: str = ""
    suite_hash: str = ""
    fingerprint: str = ""
    steerer: str = ""
    seed: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """`answers` are raw, one per item in the items' order; `probabilities` are of each item's options, or ()."""

    task: str
    items: tuple[Item, ...] = field(repr=False)
    answers: tuple[str, ...] = field(repr=False)
    probabilities: tuple[tuple[float, ...], ...] = field(repr=False)
    source: Source

    @property
    def probe(self) -> Probe:
        return probes.get(self.task)

    @property
    def about(self) -> str:
        """The attribute whose values the task compares, "" for a capability."""
        return self.items[0].about

    @cached_property
    def parsed(self) -> Answers:
        """The answers as the probe reads them."""
        scored = self.probabilities if all(self.probabilities) else None
        return self.probe.answers(self.items, self.answers, scored)

    def metrics(self, baseline: "Run | None" = None) -> Mapping[str, Metric]:
        """All of the probe's metrics by name, the published one first.

        baseline: the unsteered run on the same items; some metrics depend on it (a salary's cap does).
        """
        return self.probe.metrics(self.parsed, baseline.parsed if baseline else None)

    @property
    def metric(self) -> Metric:
        """The published metric of the run on its own."""
        return next(iter(self.metrics().values()))

    @property
    def clusters(self) -> list[str]:
        """Each item's cluster: what is resampled together."""
        return [item.cluster for item in self.items]

    def measured(self, statistics: Statistics | None = None, baseline: "Run | None" = None) -> Measured:
        """The run in numbers, with intervals."""
        return Measured(
            self.task,
            self.about,
            self.source,
            self.metrics(baseline),
            tuple(self.clusters),
            tuple(item.question for item in self.items),
            statistics or Statistics(),
        )
