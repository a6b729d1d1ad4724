"""A run: one task's items with a model's answers to them, and all that decided these answers.

It is the same whether it was asked live (`asking`), read from JSON lines (`records`) or from a study's store.
`Run.measured` gives its metrics with intervals, bias-corrected values and soft versions (`Measured`). Intervals are
over identities (the clusters: people, biographies, pictures) or over items, as the paper has both.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ggss import errors, probes
from ggss.analysis.notebook import draw_run, run_frame, run_html
from ggss.errors import InputError
from ggss.methods.registry import UNSTEERED
from ggss.models.reading import Answer
from ggss.probes import Answers, Display, Item, Probe
from ggss.probes.base import (
    CAREFUL,
    FLIP_RATE,
    PAIR_FLIP_RATE,
    PARSERS,
    SIGNED,
    SOFT,
    Parser,
    check_shares,
    counterfactual_set,
)
from ggss.probes.metrics import flip_rates, intersection_gaps
from ggss.stats import Interval, Metric, Permutation, bootstrap, jackknife, label_null
from ggss.stats.metric import Array
from ggss.stats.paired import MARGIN


@dataclass(frozen=True)
class Statistics:
    """Settings of all intervals and tests.

    Args:
        resamples: how many a bootstrap draws.
        permutations: how many a test draws.
        seed: of both.
        level: of an interval.
        margin: a change of accuracy within it counts as no change.

    Raises:
        InputError: for a seed out of its range.

    Examples:
        >>> ggss.analysis.compare(before, after, ggss.analysis.Statistics(level=0.9)).change().level
        0.9
    """

    resamples: int = 10_000
    permutations: int = 10_000
    seed: int = 0
    level: float = 0.95
    margin: float = MARGIN

    def __post_init__(self) -> None:
        errors.SEED.check("the seed of the resamples", self.seed)

    def seed_of(self, *words: str) -> int:
        """A separate seed for each use, the same wherever that number is computed."""
        name = "/".join([str(self.seed), *words])
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])


Over = Literal["identities", "items"]
BOTH = " x "  # joins the attributes that one steerer steers together: `race x gender`


@dataclass(frozen=True)
class Measured:
    """The metrics of a run, from `Run.measured`. In its methods a metric named "" is the published one.

    Args:
        task: the task.
        about: the attribute whose values it compares.
        source: all that decided the answers.
        metrics: by name, the published one first.
        clusters: of each row of the metrics.
        units: of each row; rows of one unit are one item in a test over items.
        questions: of each row.
        statistics: resamples, seed and level.
        chance: of recognition, the accuracy of a guess between the values shown; 0 for other tasks.
        sets: the counterfactual set of each row: one question about one person.

    Examples:
        >>> measured = before.measured()
        >>> measured.value() == float(measured.metric()), measured.names[0]
        (True, 'mean_race_jsd')
    """

    task: str
    about: str
    source: "Source"
    metrics: Mapping[str, Metric] = field(repr=False)
    clusters: tuple[str, ...] = field(repr=False)
    units: tuple[str, ...] = field(repr=False)
    questions: tuple[str, ...] = field(repr=False)
    statistics: Statistics = field(repr=False)
    chance: float = 0.0
    sets: tuple[str, ...] = field(default=(), repr=False)
    _draws: dict[object, Array] = field(default_factory=dict, repr=False, compare=False)

    def metric(self, name: str = "") -> Metric:
        return self.metrics[name] if name else next(iter(self.metrics.values()))

    def value(self, name: str = "") -> float:
        return float(self.metric(name))

    @property
    def degenerate(self) -> bool:
        """Most answers could not be parsed: a warning. The value is used as long as it is defined."""
        return self.metric().degenerate

    @property
    def names(self) -> list[str]:
        """The metrics that have a row of their own; a soft version is shown in the row of its metric."""
        return [name for name in self.metrics if not name.startswith((SOFT, SIGNED))]

    def signed(self, name: str = "") -> Metric | None:
        """A gap with its sign; None for a metric that is no gap between two groups."""
        return self.metrics.get(SIGNED + (name or self.metric().name))

    @property
    def attributes(self) -> list[str]:
        """The attributes on which answers may depend, that of the task first; none without counterfactuals."""
        ends = [name for name in self.metrics if name.endswith(FLIP_RATE) and not name.endswith(PAIR_FLIP_RATE)]
        return [name.removesuffix(FLIP_RATE) for name in ends]

    def flips(self, attribute: str = "") -> tuple[int, int]:
        """For how many cases the answer depends on an attribute, by default that of the task; and of how many."""
        changed, cases = self.metric(f"{attribute or self.about}{FLIP_RATE}").terms.sum(0)
        return round(changed), round(cases)

    def groups(self, over: Over = "identities") -> tuple[str, ...]:
        """The label of each row; rows of one label are resampled or swapped together."""
        return self.clusters if over == "identities" else self.units

    def display(self, name: str = "") -> Display:
        """How a metric is shown."""
        return probes.get(self.task).display(name or self.metric().name, self.about)

    def interval(self, name: str = "", over: Over = "identities") -> Interval:
        """The paper's interval: a percentile bootstrap."""
        draws = self.draws(name, over)
        return percentile(self.value(name), draws, len(set(self.groups(over))), self.statistics.level)

    def corrected(self, name: str = "") -> Interval:
        """The bias-corrected value, with an interval over identities that is valid for few of them.

        By the jackknife; NaN for a single identity. Of a gap the signed form is corrected, and its absolute value
        returned.
        """
        level, signed = self.statistics.level, self.signed(name)
        if len(set(self.clusters)) < 2:
            return Interval(self.value(name), float("nan"), float("nan"), level, "jackknife", 1, 1.0)
        interval = jackknife(signed or self.metric(name), self.clusters, level=level)
        return interval if signed is None else _absolute(interval)

    def soft(self, name: str) -> float | None:
        """The metric computed from the options' probabilities instead of the answers; None if there are none."""
        soft = self.metrics.get(SOFT + name)
        return None if soft is None else float(soft)

    def null(self, name: str) -> Permutation:
        """A group metric under shuffled groups: what it is where answers do not depend on them (`label_null`)."""
        seed = self.statistics.seed_of("null", self.task, name)
        return label_null(self.metric(name), self.sets, draws=self.statistics.permutations, seed=seed)

    @property
    def compared(self) -> list[str]:
        """The metrics that a comparison shows beside the published one."""
        return [name for name in self.names[1:] if self.display(name).compared]

    @property
    def with_chance_level(self) -> list[str]:
        """The metrics that are shown with their chance level, which `null` computes."""
        return [name for name in self.names if self.display(name).shuffled and self.metric(name).groups is not None]

    def draws(self, name: str = "", over: Over = "identities", signed: bool = False) -> Array:
        """The metric's resamples, [resamples]. All runs of a task draw the same items, so resamples are paired."""
        key = (name, over, signed)
        if key not in self._draws:
            metric = self.signed(name) if signed else None
            seed = self.statistics.seed_of(self.task, *((over,) if over == "items" else ()))
            self._draws[key] = bootstrap(
                metric or self.metric(name), self.groups(over), resamples=self.statistics.resamples, seed=seed
            ).draws
        return self._draws[key]

    def published(self) -> "Measured":
        """The published metric (and its signed form) with the flip rates, which take little memory for many runs."""
        published = self.metric().name
        metrics = {
            name: metric
            for name, metric in self.metrics.items()
            if name in (published, SIGNED + published) or name.endswith(FLIP_RATE)
        }
        return replace(self, metrics=metrics, _draws={})

    def within(self, fold: Collection[str]) -> "Measured":
        """The metrics on the clusters of a fold. InputError if the run has none of them."""
        inside = np.array([cluster in fold for cluster in self.clusters])
        if not inside.any():
            raise InputError(f"{self.task}: the fold has none of its {len(set(self.clusters))} identities")
        return replace(
            self,
            metrics={name: _rows(metric, inside) for name, metric in self.metrics.items()},
            clusters=tuple(compress(self.clusters, inside)),
            units=tuple(compress(self.units, inside)),
            questions=tuple(compress(self.questions, inside)),
            sets=tuple(compress(self.sets, inside)),
            _draws={},
        )


def _rows(metric: Metric, inside: NDArray[np.bool_]) -> Metric:
    """The metric of some of its rows."""
    return replace(
        metric,
        terms=metric.terms[inside],
        groups=None if metric.groups is None else metric.groups[inside],
        evidence=None if metric.evidence is None else metric.evidence[inside],
    )


def _absolute(signed: Interval) -> Interval:
    """The interval of the absolute value."""
    ends = sorted((abs(signed.low), abs(signed.high)))
    low = 0.0 if signed.low <= 0 <= signed.high else ends[0]
    return replace(signed, estimate=abs(signed.estimate), low=low, high=ends[1])


def percentile(estimate: float, draws: Array, units: int, level: float = 0.95) -> Interval:
    """The interval that `bootstrap` computes from its resamples. Unlike that one, it does not hold them in memory."""
    defined = draws[np.isfinite(draws)]
    undefined = 1 - len(defined) / len(draws)
    low = high = float("nan")
    if undefined <= 0.5 and np.isfinite(estimate):
        low, high = (float(bound) for bound in np.quantile(defined, [(1 - level) / 2, (1 + level) / 2]))
    return Interval(estimate, low, high, level, "percentile", units, undefined)


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
    def endpoint(self) -> str:
        """The address of the server that was asked; "" for a model that was loaded."""
        return self.identity.get("endpoint", "")

    @property
    def label(self) -> str:
        """The model and its steering, in words."""
        if self.endpoint:
            request = self.identity.get("request", "")
            return f"{self.model} at {self.endpoint}, as it is served{f' with {request}' if request else ''}"
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


def steered_attributes(attribute: str) -> list[str]:
    """The attributes of `Source.attribute`: `race+gender` of two steerers, `race x gender` of one for both."""
    return [name for name in re.split(rf"\+|{BOTH}", attribute) if name]


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
        hardware: the machine that was asked, "" if it is not known. No result depends on it.

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
    hardware: str = field(default="", compare=False)

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
        if probabilities is None:  # the probe does not see those that there are
            read = [n for n, row in enumerate(self.probabilities) if row]
            check_shares(self.task, [self.items[n].options for n in read], [self.probabilities[n] for n in read])
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
        """All of the probe's metrics by name, the published one first; of a bias task what all of them have, too.

        Args:
            baseline: the unsteered run on the same items; some metrics depend on it (a salary's cap does).

        Returns:
            By name, metrics that can be resampled and compared.

        Examples:
            >>> next(iter(before.metrics()))
            'mean_race_jsd'
        """
        measured = self.probe.metrics(self.parsed, baseline.parsed if baseline else None)
        if self.probe.kind != "bias":
            return measured
        return {**measured, **flip_rates(self.parsed), **intersection_gaps(self.parsed)}

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
            1 / len(set(self.parsed.expected)) if self.probe.kind == "recognition" else 0.0,
            tuple(map(counterfactual_set, self.items)),
        )
