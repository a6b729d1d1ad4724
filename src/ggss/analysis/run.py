"""A run: one task's items with a model's answers to them, and where they came from.

It is the same whether it was asked live (`asking`), read from JSON lines (`records`) or from a study's store.

Runs and comparisons in a notebook: as HTML, as a plot, as a data frame.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ggss import escaping, probes
from ggss.analysis.measures import Measured, Statistics
from ggss.escaping import plot
from ggss.methods.registry import UNSTEERED
from ggss.models.reading import Answer
from ggss.probes import Answers, Item, Probe
from ggss.probes.base import CAREFUL, PARSERS, Parser
from ggss.stats import Metric

if TYPE_CHECKING:
    from ggss.analysis.comparison import Comparison
    from ggss.stats import Interval


@dataclass(frozen=True)
class Source:
    """All that decides answers, besides the item: the model, how it was steered, and how it was asked.

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
        """What differs between two sources, each with both values; `but`: fields that may differ."""
        one, two = self._facts(but), other._facts(but)
        return [
            f"{name}: {_short(one.get(name))} and {_short(two.get(name))}"
            for name in dict.fromkeys([*one, *two])
            if one.get(name) != two.get(name)
        ]

    def _facts(self, but: Collection[str]) -> dict[str, Any]:
        """All of it by name, without the fields `but`."""
        facts = {name: value for name, value in vars(self).items() if name not in but}
        of_model, versions = facts.pop("identity", {}), facts.pop("versions", {})
        facts |= {f"the model's {part}": value for part, value in of_model.items()}
        return facts | {f"version of {library}": number for library, number in versions.items()}


def _short(value: object) -> str:
    """A value as a sentence names it; of a hash its beginning."""
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
        parser: by which rule they are read: `careful`, or `release`, that of the authors' code or the paper.

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
        """The same answers, read by another rule. A run keeps them as they were given, so nothing is asked again.

        Args:
            parser: `careful`, or `release`, that of the authors' code or the paper.

        Returns:
            The run; a probe with only one rule has it by both names.

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
        """The published metric of the run on its own."""
        return next(iter(self.metrics().values()))

    @property
    def clusters(self) -> list[str]:
        """Each item's cluster: what is resampled together."""
        return [item.cluster for item in self.items]

    def measured(self, statistics: Statistics | None = None, baseline: "Run | None" = None) -> Measured:
        """The run in numbers, with intervals.

        Args:
            statistics: resamples, seed and level.
            baseline: the unsteered run on the same items.

        Returns:
            Its metrics, each with intervals.

        Examples:
            >>> one = before.measured().interval()
            >>> one.low <= one.estimate <= one.high
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


SHOWN = 5  # answers of a run
MOST = 6  # kinds of answers in a plot; the rest are one kind
UNREAD, OTHER = "(not read)", "(other)"


def run_html(run: "Run") -> str:
    """What was asked, how many answers could be read, the published metric, and the first answers."""
    parsed = run.parsed.parsed
    name, metric = next(iter(run.metrics().items()))
    parts = [
        escaping.line(run.source.label),
        escaping.line(f"{len(run.items):,} items, {sum(one is not None for one in parsed):,} of them read"),
        escaping.line(f"{name} = {float(metric):.4g}; `measured()` gives its interval"),
    ]
    rows = [
        (item.key, item.prompt, answer, UNREAD if read is None else read)
        for item, answer, read in list(zip(run.items, run.texts, parsed, strict=True))[:SHOWN]
    ]
    more = [escaping.line(f"and {len(run.items) - SHOWN:,} more")] if len(run.items) > SHOWN else []
    table = escaping.table(("item", "asked", "answered", "read as"), rows)
    return escaping.titled(f"{run.task}, one run", *parts, table, *more)


def run_frame(run: "Run") -> Any:
    """A row for each item."""
    rows = []
    for item, answer, read in zip(run.items, run.answers, run.parsed.parsed, strict=True):
        row: dict[str, Any] = {"item": item.key, "task": run.task, "question": item.question, "cluster": item.cluster}
        for number, attributes in enumerate(item.attributes, start=1):
            last = "" if len(item.attributes) == 1 else f"_{number}"
            row |= {f"{name}{last}": value for name, value in attributes.items()}
        row |= {f"context_{name}": value for name, value in item.context.items()}
        row |= {"prompt": item.prompt, "answer": answer.text, "parsed": read, "expected": item.expected}
        row |= {f"p({option})": share for option, share in zip(item.options, answer.probabilities, strict=False)}
        rows.append(row)
    source = run.source
    frame = escaping.pandas().DataFrame(rows)
    return frame.assign(model=source.model, method=source.method, steered=source.attribute, alpha=source.alpha)


def draw_run(run: "Run", axis: Any) -> Any:
    """The share of each answer in each group; of a task with right answers, of each kind of question."""
    groups: dict[str, Counter[str]] = {}
    for item, read in zip(run.items, run.parsed.parsed, strict=True):
        values = [str(own[run.about]) for own in item.attributes if run.about in own]
        group = " / ".join(values) if run.about and values else item.question or run.task
        if item.expected is not None:
            said = "right" if read == item.expected else "wrong"
        else:
            said = UNREAD if read is None else str(read)
        groups.setdefault(group, Counter())[said] += 1
    total: Counter[str] = sum(groups.values(), Counter())
    common = [said for said, _ in total.most_common(MOST)]
    asked = {option for item in run.items if item.expected is None for option in item.options}
    never = asked if len(asked) <= MOST and set(total) - {UNREAD} <= asked else set()
    kinds = [*sorted({*common, *never}), *([OTHER] if len(total) > MOST else [])]  # the same colours in every run
    axis = escaping.new_axis(axis)
    names = sorted(groups)
    bottom = [0.0] * len(names)
    for kind in kinds:
        counts = [_count(groups[name], kind, common) / groups[name].total() for name in names]
        axis.bar(range(len(names)), counts, bottom=bottom, label=plot(kind))
        bottom = [low + own for low, own in zip(bottom, counts, strict=True)]
    axis.set_xticks(range(len(names)), [plot(name) for name in names], rotation=30, ha="right")
    axis.set_ylabel("share of answers")
    axis.set_title(plot(f"{run.task}: {run.source.label}"))
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return axis


def _count(answers: "Counter[str]", kind: str, common: list[str]) -> int:
    return sum(count for said, count in answers.items() if said not in common) if kind == OTHER else answers[kind]


def comparison_html(found: "Comparison") -> str:
    rows = []
    for name in found.before.names:
        change = found.change(name)
        values = (_span(found.before.interval(name)), _span(found.value(name)))
        rows.append((name, *values, "-" if change is None else f"{_span(change, '+.1f')} %"))
    level = f"{found.statistics.level:.0%} intervals over {len(set(found.after.clusters)):,} clusters"
    parts = [
        escaping.line(f"before: {found.before.source.label}"),
        escaping.line(f"after: {found.after.source.label}"),
    ]
    parts.append(escaping.table(("metric", "before", "after", "change"), rows))
    warned = [escaping.line("Warning: most answers of one run could not be read")] if found.degenerate else []
    return escaping.titled(f"{found.task}, before and after", *parts, escaping.line(level), *warned)


def comparison_frame(found: "Comparison") -> Any:
    """A row for each metric; p, of the sign-flip test, is of the published one, which is the first."""
    rows = []
    for number, name in enumerate(found.before.names):
        spans = {
            "before": found.before.interval(name),
            "after": found.value(name),
            "change_percent": found.change(name),
        }
        row: dict[str, Any] = {"task": found.task, "metric": name}
        for what, span in spans.items():
            ends = (None,) * 3 if span is None else (span.estimate, span.low, span.high)
            row |= dict(zip((what, f"{what}_low", f"{what}_high"), ends, strict=True))
        rows.append(row | {"p": found.p if number == 0 else None})
    return escaping.pandas().DataFrame(rows)


def draw_comparison(found: "Comparison", axis: Any) -> Any:
    """The published metric before and after, with intervals."""
    axis = escaping.new_axis(axis)
    for place, (name, span) in enumerate((("before", found.before.interval()), ("after", found.value()))):
        axis.vlines(place, span.low, span.high, color="#8a86a0")
        axis.plot(place, span.estimate, "o", color="#c2452d" if name == "before" else "#2f7d4f", markersize=9)
    names = [plot(one.source.label).replace(", ", "\n") for one in (found.before, found.after)]
    axis.set_xticks([0, 1], [f"before\n{names[0]}", f"after\n{names[1]}"])
    axis.set_xlim(-0.5, 1.5)
    axis.set_ylabel(plot(next(iter(found.before.metrics))))
    change = found.change()
    axis.set_title(plot(found.task if change is None else f"{found.task}: {change.estimate:+.0f} %"))
    return axis


def _span(of: "Interval", spec: str = ".4g") -> str:
    return f"{of.estimate:{spec}} [{of.low:{spec}}, {of.high:{spec}}]"
