"""What a probe is, and the table of them. A probe is one file: its items and prompts, its parser, its metrics."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ggss.errors import InputError, problems
from ggss.stats.metric import Metric


@dataclass(frozen=True)
class Item:
    """One prompt over one or more pictures.

    `key` names the item in every run, which is how runs are paired. `attributes` has one entry per picture.
    Items of one `cluster` (identity, biography) are not independent and are resampled together. `options` are the
    answers whose probabilities are scored, with the text each stands for; `expected` is the right one, if any is.
    """

    key: str
    prompt: str
    images: tuple[Any, ...] = field(repr=False)
    attributes: tuple[Mapping[str, str], ...]
    cluster: str
    question: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    expected: str | None = None


@dataclass(frozen=True)
class Probe:
    """A row of the table.

    items: from a suite's material to the items, prompts included.
    parse: from a raw answer and its item to what was answered, None where that cannot be told.
    metrics: from items, parsed answers and option probabilities (None if not scored) to named metrics, the
        published one first.
    attribute: whose bias is measured, "" for a capability.
    """

    name: str
    summary: str
    attribute: str
    items: Callable[..., Sequence[Item]]
    parse: Callable[[str, Item], Any]
    metrics: Callable[[Sequence[Item], Sequence[Any], Sequence[Sequence[float]] | None], Mapping[str, Metric]]
    pictures: int = 1
    max_new_tokens: int = 2048

    def score(
        self,
        items: Sequence[Item],
        answers: Sequence[str],
        probabilities: Sequence[Sequence[float]] | None = None,
    ) -> Mapping[str, Metric]:
        """The probe's metrics of one run: raw answers, one per item, in the items' order."""
        self.check(items)
        for what, given in (("answers", answers), ("rows of option probabilities", probabilities)):
            if given is not None and len(given) != len(items):
                raise InputError(f"{self.name}: {len(items)} items, but {len(given)} {what}")
        parsed = [self.parse(answer, item) for answer, item in zip(answers, items, strict=True)]
        return self.metrics(items, parsed, probabilities)

    def check(self, items: Sequence[Item]) -> None:
        """Refuse wrong or incomplete items, naming every problem."""
        if not items:
            raise InputError(f"{self.name}: there are no items to ask")
        found = [
            f"key {key!r} is used {times} times"
            for key, times in Counter(item.key for item in items).items()
            if times > 1
        ]
        for item in items:
            found += [f"{item.key!r} {what}" for what in self._problems_of(item)]
        if found:
            raise problems(f"{self.name}: wrong or incomplete items", found)

    def _problems_of(self, item: Item) -> list[str]:
        found = [f"has no {what}" for what in ("key", "prompt", "cluster") if not getattr(item, what)]
        if len(item.images) != self.pictures:
            found.append(f"has {len(item.images)} pictures instead of {self.pictures}")
        if len(item.attributes) != len(item.images):
            found.append(f"has attributes of {len(item.attributes)} pictures instead of {len(item.images)}")
        if self.attribute and not all(of_picture.get(self.attribute) for of_picture in item.attributes):
            found.append(f"does not say the {self.attribute} shown")
        if len(item.options) == 1:
            found.append(f"has only one option, {next(iter(item.options))!r}")
        if item.options and item.expected is not None and item.expected not in item.options:
            found.append(f"expects {item.expected!r}, which is none of its options {', '.join(item.options)}")
        return found


_PROBES: dict[str, Probe] = {}


def register(probe: Probe) -> Probe:
    """Add a probe; a second one of the same name, or a malformed one, is refused."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", probe.name):
        raise ValueError(f"probe name {probe.name!r} is malformed: use lower-case words joined by hyphens")
    if not probe.summary:
        raise ValueError(f"probe {probe.name!r} needs a summary")
    if probe.pictures < 1 or probe.max_new_tokens < 1:
        raise ValueError(f"probe {probe.name!r} needs at least one picture and one new token")
    if probe.name in _PROBES:
        raise ValueError(f"probe {probe.name!r} is registered already")
    _PROBES[probe.name] = probe
    return probe


def names() -> list[str]:
    """All probe names, in the order of the table."""
    return list(_PROBES)


def get(name: str) -> Probe:
    if name not in _PROBES:
        raise InputError(f"no probe {name!r}; there are {', '.join(_PROBES) or 'none'}")
    return _PROBES[name]
