"""A run: one task's items with a model's answers to them, and all that decided these answers.

It is the same whether it was asked live (`asking`), read from JSON lines (`records`) or from a study's store.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ggss import probes
from ggss.analysis.measures import Measured, Statistics
from ggss.analysis.notebook import draw_run, run_frame, run_html
from ggss.methods.registry import UNSTEERED
from ggss.models.reading import Answer
from ggss.probes import Answers, Item, Probe
from ggss.probes.base import CAREFUL, PARSERS, Parser
from ggss.stats import Metric


@dataclass(frozen=True)
class Source:
    """All that decides answers besides the items: the model, its steering, and how it was asked.

    Args:
        model: its name.
        method: its label in a study's plan, or its name.
        attribute: what was steered, "" if nothing was; then alpha is 0.
        alpha: the strength.
        suite: the suite's name.
        suite_hash: of all that the task asks.
        steerer: the steerer's content hash.
        max_new_tokens: the longest answer, 0 if it is not known.
        identity: by name, all of the model that decides its answers.
        versions: of the libraries.

    Examples:
        >>> after.source.label
        'small-world/llava-vicuna, ggss of race at alpha 1'
    """

    model: str
    method: str = UNSTEERED
    attribute: str = ""
    alpha: float = 0.0
    suite: str = ""
    suite_hash: str = ""
    steerer: str = ""
    max_new_tokens: int = 0
    identity: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def steered(self) -> bool:
        """Whether anything was done to the model or to its prompts."""
        return self.method != UNSTEERED

    @property
    def label(self) -> str:
        """The model and its steering, in words."""
        if not self.attribute and not self.alpha:
            return f"{self.model}, {self.method if self.steered else 'unsteered'}"
        return f"{self.model}, {self.method} of {self.attribute} at alpha {self.alpha:g}"

    def differences(self, other: "Source", *but: str) -> list[str]:
        """What differs between two sources, with both values of each. but: fields that may differ."""
        facts, others = self._facts(but), other._facts(but)
        return [
            f"{name}: {_short(facts.get(name))} and {_short(others.get(name))}"
            for name in dict.fromkeys([*facts, *others])
            if facts.get(name) != others.get(name)
        ]

    def _facts(self, but: Collection[str]) -> dict[str, Any]:
        """All facts by name, without the fields `but`."""
        facts = {name: value for name, value in vars(self).items() if name not in but}
        identity, versions = facts.pop("identity", {}), facts.pop("versions", {})
        facts |= {f"the model's {part}": value for part, value in identity.items()}
        return facts | {f"version of {library}": number for library, number in versions.items()}


def _short(value: object) -> str:
    """A value as text; a hash is cut after its first 12 digits."""
    text = f"{value:g}" if isinstance(value, float) else "not known" if value is None else str(value) or "none"
    return text[:12] if len(text) == 64 else text


@dataclass(frozen=True)
class Run:
    """One task's items with a model's answers.

    Args:
        task: a probe's name, or a probe and an attribute, such as `mcq-age`.
        items: what was asked.
        answers: one per item in the items' order, each a raw text with the probabilities of the item's options.
        source: where the answers come from.
        parser: the rule that reads them: `careful`, or `release`, that of the authors' code or the paper.

    Examples:
        >>> before.task, before.about, before.probe.title
        ('mcq', 'race', 'MCQ')
        >>> before.measured().value() == float(before.metric)
        True
    """

    task: str
    items: tuple[Item, ...] = field(repr=False)
    answers: tuple[Answer, ...] = field(repr=False)
    source: Source
    parser: Parser = CAREFUL

    @property
    def probe(self) -> Probe:
        return probes.get(self.task)

    @property
    def texts(self) -> tuple[str, ...]:
        """The raw text of each answer."""
        return tuple(answer.text for answer in self.answers)

    @property
    def probabilities(self) -> tuple[tuple[float, ...], ...]:
        """The probabilities of each item's options, () where they were not read."""
        return tuple(answer.probabilities for answer in self.answers)

    @property
    def about(self) -> str:
        """The attribute whose values the task compares, "" for a capability."""
        return self.items[0].about

    @cached_property
    def parsed(self) -> Answers:
        """The answers as the probe reads them."""
        probabilities = self.probabilities if all(self.probabilities) else None
        return self.probe.answers(self.items, self.texts, probabilities, self.parser)

    def read_by(self, parser: Parser) -> "Run":
        """The same answers, read by another rule. A run has the raw answers, so nothing is asked again.

        Args:
            parser: `careful`, or `release`, that of the authors' code or the paper.

        Returns:
            The run. A probe with only one rule uses it under both names.

        Raises:
            InputError: if there is no such rule.

        Examples:
            >>> before.read_by("release").parser
            'release'
        """
        self.probe.parser(parser)
        return replace(self, parser=parser)

    @property
    def read_differently(self) -> int:
        """How many answers the two rules read differently."""
        rules = [self.probe.parser(name) for name in PARSERS]
        pairs = zip(self.texts, self.items, strict=True)
        return sum(len({rule(text, item) for rule in rules}) > 1 for text, item in pairs)

    def metrics(self, baseline: "Run | None" = None) -> Mapping[str, Metric]:
        """All of the probe's metrics by name, the published one first.

        Args:
            baseline: the unsteered run on the same items; some metrics depend on it (a salary's cap does).

        Returns:
            By name, metrics that can be resampled and compared.

        Examples:
            >>> next(iter(before.metrics()))
            'mean_race_jsd'
        """
        return self.probe.metrics(self.parsed, baseline.parsed if baseline else None)

    def to_pandas(self) -> Any:
        """A data frame with a row for each item. InputError if pandas is not installed."""
        return run_frame(self)

    def plot(self, axis: Any = None) -> Any:
        """Draw the share of each answer by group, and return the matplotlib axis. axis: where to draw."""
        return draw_run(self, axis)

    def _repr_html_(self) -> str:
        return run_html(self)

    @property
    def metric(self) -> Metric:
        """The published metric, without a baseline."""
        return next(iter(self.metrics().values()))

    @property
    def clusters(self) -> list[str]:
        """Each item's cluster: what is resampled together."""
        return [item.cluster for item in self.items]

    def measured(self, statistics: Statistics | None = None, baseline: "Run | None" = None) -> Measured:
        """The run's metrics, with intervals.

        Args:
            statistics: resamples, seed and level.
            baseline: the unsteered run on the same items.

        Returns:
            All metrics, each with its intervals.

        Examples:
            >>> interval = before.measured().interval()
            >>> interval.low <= interval.estimate <= interval.high
            True
        """
        return Measured(
            self.task,
            self.about,
            self.source,
            self.metrics(baseline),
            tuple(self.clusters),
            tuple(map(self.probe.unit, self.items)),
            tuple(item.question for item in self.items),
            statistics or Statistics(),
        )
