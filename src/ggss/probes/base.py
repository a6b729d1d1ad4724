"""What a probe is, and the table of them.

A probe is one file: how its items are made, how an answer is parsed, what is measured, how its numbers are shown. A
**task** is a probe asked about one attribute. Its name is the probe's name, if it is the attribute of the wording, or
else the probe's name and the attribute: `mcq`, `mcq-age`, `recognition-gender`.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ggss.data.picture import Picture
from ggss.errors import InputError, problems
from ggss.plugins import Registry
from ggss.probes import columns
from ggss.stats.metric import Metric

Kind = Literal["bias", "recognition", "multiple-choice", "yes-or-no"]
# Beginnings of names: the metric of the options' probabilities instead of answers; and of a gap with its sign, whose
# interval is better, because an absolute value is not smooth at zero.
SOFT, SIGNED = "soft_", "signed_"


@dataclass(frozen=True)
class Item:
    """One prompt over one or more pictures.

    `key` names the item in every run, which is how runs are paired. `attributes` has one entry per picture, what is
    varied in it; `context` is what is held fixed. Items of one `cluster` (identity, biography) are not independent
    and are resampled together. `options` are the answers whose probabilities are scored, with the text each stands
    for; `expected` is the right one, if any is. `about` is the attribute whose values are compared, "" where none is.
    `worth` is what each option counts in a mean (the middle of a salary band), if that is a number.
    """

    key: str
    prompt: str
    images: tuple[Picture, ...] = field(repr=False)
    attributes: tuple[Mapping[str, str], ...]
    cluster: str
    question: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    expected: str | None = None
    about: str = ""
    context: Mapping[str, str] = field(default_factory=dict)
    worth: Mapping[str, float] = field(default_factory=dict)


def _own_key(item: Item) -> str:
    return item.key


@dataclass(frozen=True)
class Answers:
    """Items and their parsed answers, None where one could not be parsed, and the options' probabilities."""

    items: Sequence[Item]
    parsed: Sequence[Any]
    probabilities: Sequence[Sequence[float]] | None = None

    @property
    def about(self) -> str:
        """The attribute whose values are compared."""
        return self.items[0].about

    def values(self, picture: int = 0) -> list[str]:
        """Each item's value of that attribute, as one of its pictures shows it."""
        return [item.attributes[picture][self.about] for item in self.items]

    @property
    def questions(self) -> list[str]:
        return [item.question for item in self.items]

    @property
    def expected(self) -> list[str]:
        return [str(item.expected) for item in self.items]


@dataclass(frozen=True)
class Display:
    """How a metric is shown: its column's name, what it measures, the factor and digits it is printed with.

    `{about}` in the two texts stands for the attribute. biased_upwards: the metric is too high in small samples, as
    divergences and spreads are, so that a corrected value is shown, too.
    """

    label: str
    meaning: str = ""
    scale: float = 1.0
    digits: int = 3
    unit: str = ""
    better: Literal["lower", "higher", ""] = ""
    biased_upwards: bool = False

    def number(self, value: float) -> str:
        return f"{self.scale * value:,.{self.digits}f}"


ACCURACY = Display("accuracy", "share of answers that are right", 100, 1, " %", "higher")


@dataclass(frozen=True)
class Probe:
    """A row of the table.

    items: makes the items. A probe about people gets (prompts by question, pictures, attribute). A probe whose
        questions are in a file gets the file's path, or None for the default place.
    parse: from a raw answer and its item to the parsed answer, None if it is not clear.
    metrics: from the answers, and the answers of the unsteered run on the same items or None, to named metrics, the
        published one first. A name may begin with SOFT or SIGNED.
    displays: by metric name, in which `{about}` stands for the attribute; the published one first.
    occupations: those whose pictures are asked about; those that the suite holds out unless given.
    unit: names what counts as one item in a test over items: each item unless given. All questions about a picture
        may be one, or both orders of a pair.
    from_file: its questions are read from a benchmark's file.
    """

    name: str
    title: str
    summary: str
    kind: Kind
    items: Callable[..., Sequence[Item]]
    parse: Callable[[str, Item], Any]
    metrics: Callable[[Answers, Answers | None], Mapping[str, Metric]]
    displays: Mapping[str, Display]
    pictures: int = 1
    max_new_tokens: int = 2048
    occupations: tuple[str, ...] = ()
    unit: Callable[[Item], str] = _own_key
    from_file: bool = False

    def display(self, metric: str, about: str = "") -> Display:
        """How one of its metrics is shown."""
        for name, shown in self.displays.items():
            if name.format(about=about) == metric:
                return replace(
                    shown, label=shown.label.format(about=about), meaning=shown.meaning.format(about=about)
                )
        return Display(metric)

    def answers(
        self, items: Sequence[Item], said: Sequence[str], probabilities: Sequence[Sequence[float]] | None = None
    ) -> Answers:
        """Raw answers, one per item in the items' order, read by the probe's parser."""
        self.check(items)
        for what, given in (("answers", said), ("rows of option probabilities", probabilities)):
            if given is not None and len(given) != len(items):
                raise InputError(f"{self.name}: {len(items)} items, but {len(given)} {what}")
        if probabilities is not None:
            columns.check_shares(self.name, [item.options for item in items], probabilities)
        return Answers(items, [self.parse(one, item) for one, item in zip(said, items, strict=True)], probabilities)

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
        if self.kind in ("bias", "recognition") and not item.about:
            found.append("does not say which attribute it is about")
        if item.about and not all(of_picture.get(item.about) for of_picture in item.attributes):
            found.append(f"does not say the {item.about} shown")
        if self.kind != "bias" and item.expected is None:
            found.append("has no right answer")
        if len(item.options) == 1:
            found.append(f"has only one option, {next(iter(item.options))!r}")
        if item.options and item.expected is not None and item.expected not in item.options:
            found.append(f"expects {item.expected!r}, which is none of its options {', '.join(item.options)}")
        return found


def _malformed(probe: Probe) -> str:
    if not isinstance(probe, Probe):
        return f"it is a {type(probe).__name__}, not a ggss.probes.Probe"
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", probe.name):
        return "its name is malformed, use lower-case words joined by hyphens"
    if not probe.summary or not probe.title or not probe.displays:
        return "it needs a title, a summary and a display for its metric"
    if probe.pictures < 1 or probe.max_new_tokens < 1:
        return "it needs at least one picture and one new token"
    return ""


PROBES: Registry[Probe] = Registry("probe", "ggss.probes", _malformed)


def register(probe: Probe) -> Probe:
    """Add a probe to the table; docs/adding.md has one.

    Args:
        probe: its name, items, parser, metrics and displays.

    Returns:
        The probe.

    Raises:
        InputError: if its name is taken or it is malformed.

    Examples:
        >>> try:
        ...     ggss.probes.register(ggss.probes.get("mcq"))
        ... except ggss.InputError as error:
        ...     "mcq" in str(error)
        True
    """
    return PROBES.add(getattr(probe, "name", ""), probe)


def names() -> list[str]:
    """All probe names, in the order of the table.

    Returns:
        Those of ggss and of every plug-in.

    Examples:
        >>> "mcq" in ggss.probes.names()
        True
    """
    return PROBES.names()


def get(task: str) -> Probe:
    """The probe of a task.

    Args:
        task: a probe's name, or a probe and an attribute.

    Returns:
        The table's row.

    Raises:
        InputError: if there is none, with the nearest name.

    Examples:
        >>> ggss.probes.get("mcq-age").name
        'mcq'
    """
    return PROBES.get(parted(task)[0])


def parted(task: str) -> tuple[str, str]:
    """A task's probe, and the attribute in its name, "" if none: `mcq-age` -> ("mcq", "age")."""
    if task in PROBES:
        return task, ""
    candidates = [name for name in PROBES.names() if task.startswith(f"{name}-")]
    if not candidates:
        PROBES.get(task)  # raises, naming the probes there are
    name = max(candidates, key=len)
    return name, task[len(name) + 1 :]


def task_label(task: str, about: str) -> str:
    """What a task's published metric is called in a table."""
    name, asked = parted(task)
    first = next(iter(PROBES.get(name).displays.values())).label
    label = first.format(about=about)
    return f"{label} ({about})" if asked and label == first else label
