"""Probes, their items and answers, the registry of probes, and the checks of what is measured.

A probe says how its items are made, how an answer is parsed, what is measured, and how the numbers are shown. A
**task** is a probe asked about one attribute. Its name is the probe's name for the attribute of the wording, and else
the probe's name and the attribute: `mcq`, `mcq-age`, `recognition-gender`. Probes whose questions come from a file of
the user's have tasks with the name of a question instead: `gap-hire`.

The checks list every problem of a set of items before anything is measured.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ggss.data.pictures import Picture
from ggss.errors import InputError, no_such, problems
from ggss.plugins import Registry
from ggss.stats.metric import Array, Metric

Kind = Literal["bias", "recognition", "multiple-choice", "yes-or-no"]
Labels = Sequence[str] | NDArray[Any]
Parsed = Sequence[str | None]
Parser = Literal["careful", "release"]

CHOICES = ("first", "second")
# Prefixes of metrics' names. soft: computed from the options' probabilities instead of the answers. signed: a gap
# with its sign, whose interval is better, because an absolute value is not smooth at zero.
SOFT, SIGNED = "soft_", "signed_"
# Ends of metrics' names, after an attribute: for whom the answer depends on it (`metrics.flip_rates`).
FLIP_RATE, PAIR_FLIP_RATE = "_flip_rate", "_pair_flip_rate"
# The same, after two attributes: how far the answers about their cells are apart (`metrics.intersection_gaps`).
CELLS, GAP_BETWEEN_CELLS, UNEXPLAINED = "_x_", "_gap", "_unexplained"
CAREFUL: Parser = "careful"
PARSERS: tuple[Parser, ...] = (CAREFUL, "release")


@dataclass(frozen=True)
class Item:
    """One prompt over one or more pictures.

    `key` names the item in every run; runs are paired by it. `attributes` has one entry per picture: what is varied.
    `context` is what is held fixed. Items of one `cluster` (identity, biography) are not independent: they are
    resampled together. `options` are the answers whose probabilities are scored, with the text each stands for;
    `expected` is the right one, if any is. `about` is the attribute whose values are compared, "" if there is none.
    `worth` is the number that each option counts as in a mean (the middle of a salary band), if it has one.
    `lexicons` are the entries of those by which a text is measured, besides our own. `shapes` are how some families
    of models are asked: with a system turn, or with all pictures first.
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
    lexicons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shapes: Mapping[str, Callable[[str], str]] = field(default_factory=dict, repr=False)

    def prompt_for(self, family: str) -> str:
        """The prompt as a model of this family is asked it."""
        shape = self.shapes.get(family)
        return self.prompt if shape is None else shape(self.prompt)


def counterfactual_set(item: Item) -> str:
    """The question and the person: items with the same label differ only in the attributes that are varied."""
    return "/".join([item.question, *item.context.values()])


def _key(item: Item) -> str:
    return item.key


@dataclass(frozen=True)
class Answers:
    """Items and their parsed answers, None where one could not be parsed, and the options' probabilities.

    parser: the rule by which they are read. That of the authors' code also says what counts where none is readable.
    """

    items: Sequence[Item]
    parsed: Sequence[Any]
    probabilities: Sequence[Sequence[float]] | None = None
    parser: Parser = CAREFUL

    @property
    def about(self) -> str:
        """The attribute whose values are compared."""
        return self.items[0].about

    def values(self, picture: int = 0) -> list[str]:
        """Each item's value of that attribute in one of its pictures."""
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
    divergences and spreads are, so a corrected value is shown, too. shuffled: its chance level is shown, what it is
    with the pictures of each person shuffled (`Measured.null`). compared: a comparison shows it beside the published
    metric.
    """

    label: str
    meaning: str = ""
    scale: float = 1.0
    digits: int = 3
    unit: str = ""
    better: Literal["lower", "higher", ""] = ""
    biased_upwards: bool = False
    shuffled: bool = False
    compared: bool = False

    def of(self, about: str) -> "Display":
        """The display with the attribute in its texts."""
        return replace(self, label=self.label.format(about=about), meaning=self.meaning.format(about=about))

    def number(self, value: float) -> str:
        return f"{self.scale * value:z,.{self.digits}f}"  # z: zero has no sign


# Every bias task has these, of each attribute of its pictures; and those below, of two attributes.
_OF_ATTRIBUTE = {
    PAIR_FLIP_RATE: Display(
        "pairs that differ by {about}",
        "share of the pairs of pictures of a person, alike but for {about}, whose answers differ",
        100,
        1,
        " %",
        "lower",
    ),
    FLIP_RATE: Display(
        "depends on {about}",
        "share of people and questions whose answer changes if only the {about} shown does",
        100,
        1,
        " %",
        "lower",
    ),
}
_OF_CELLS = {
    GAP_BETWEEN_CELLS: Display(
        "gap of {about}",
        "largest total variation between the answers about two cells of {about}",
        better="lower",
        biased_upwards=True,
        shuffled=True,
        compared=True,
    ),
    UNEXPLAINED: Display(
        "unexplained gap of {about}",
        "largest difference of a cell of {about} from what the two attributes alone predict",
        better="lower",
        biased_upwards=True,
        shuffled=True,
        compared=True,
    ),
}
ACCURACY = Display("accuracy", "share of answers that are right", 100, 1, " %", "higher")


@dataclass(frozen=True)
class Probe:
    """A probe, as the registry holds it.

    items: makes the items. A probe about people gets (prompts by question, pictures, attribute). A probe whose
        questions are in a file gets the file's path, or None for the default place.
    parse: from a raw answer and its item to the parsed answer, None if it is not clear.
    metrics: from the answers, and the answers of the unsteered run on the same items or None, to named metrics, the
        published one first. A name may begin with SOFT or SIGNED.
    displays: by metric name, in which `{about}` stands for the attribute; the published one first.
    occupations: those whose pictures are asked about; by default those that the suite holds out.
    unit: a label of what counts as one item in a test over items; by default each item. All questions about a picture
        may be one unit, or both orders of a pair.
    from_file: whether its questions are read from a benchmark's file.
    parse_as_released: `parse` by the rule of the authors' code or the paper, where that rule differs.
    named_tasks: whether the rest of a task's name may be a name that the user gave, and no attribute: `gap-hire`.
    labelled: whether the right answers of its items are human labels, which two runs have of different items.
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
    unit: Callable[[Item], str] = _key
    from_file: bool = False
    parse_as_released: Callable[[str, Item], Any] | None = None
    named_tasks: bool = False
    labelled: bool = False

    def parser(self, name: Parser = CAREFUL) -> Callable[[str, Item], Any]:
        """The parser of that name, `careful` or `release`; a probe with only one parser has it under both names."""
        if name not in PARSERS:
            raise no_such(f"answers are read by one of the parsers {', '.join(PARSERS)}, not {name!r}", name, PARSERS)
        return self.parse_as_released or self.parse if name == "release" else self.parse

    def display(self, metric: str, about: str = "") -> Display:
        """How one of its metrics is shown."""
        for name, display in self.displays.items():
            if name.format(about=about) == metric:
                return display.of(about)
        for end, display in (_OF_CELLS if CELLS in metric else _OF_ATTRIBUTE).items():
            if metric.endswith(end):
                return display.of(metric.removesuffix(end).replace(CELLS, " x "))
        return Display(metric)

    def answers(
        self,
        items: Sequence[Item],
        texts: Sequence[str],
        probabilities: Sequence[Sequence[float]] | None = None,
        parser: Parser = CAREFUL,
    ) -> Answers:
        """Raw answers, one per item in the items' order, read by one of the probe's parsers."""
        parse = self.parser(parser)
        self.check(items)
        for what, rows in (("answers", texts), ("rows of option probabilities", probabilities)):
            if rows is not None and len(rows) != len(items):
                raise InputError(f"{self.name}: {len(items)} items, but {len(rows)} {what}")
        if probabilities is not None:
            check_shares(self.name, [item.options for item in items], probabilities)
        parsed = [parse(text, item) for text, item in zip(texts, items, strict=True)]
        return Answers(items, parsed, probabilities, parser)

    def check(self, items: Sequence[Item]) -> None:
        """InputError, with every problem, if items are wrong or incomplete."""
        if not items:
            raise InputError(f"{self.name}: there are no items to ask")
        errors = [
            f"key {key!r} is used {times} times"
            for key, times in Counter(item.key for item in items).items()
            if times > 1
        ]
        for item in items:
            errors += [f"{item.key!r} {error}" for error in self._errors_of(item)]
        if errors:
            raise problems(f"{self.name}: wrong or incomplete items", errors)

    def _errors_of(self, item: Item) -> list[str]:
        errors = [f"has no {name}" for name in ("key", "prompt", "cluster") if not getattr(item, name)]
        if len(item.images) != self.pictures:
            errors.append(f"has {len(item.images)} pictures instead of {self.pictures}")
        if len(item.attributes) != len(item.images):
            errors.append(f"has attributes of {len(item.attributes)} pictures instead of {len(item.images)}")
        if self.kind in ("bias", "recognition") and not item.about:
            errors.append("does not say which attribute it is about")
        if item.about and not all(attributes.get(item.about) for attributes in item.attributes):
            errors.append(f"does not say the {item.about} shown")
        if self.kind != "bias" and item.expected is None:
            errors.append("has no right answer")
        if len(item.options) == 1:
            errors.append(f"has only one option, {next(iter(item.options))!r}")
        if item.options and item.expected is not None and item.expected not in item.options:
            errors.append(f"expects {item.expected!r}, which is none of its options {', '.join(item.options)}")
        return errors


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
register, names = PROBES.register, PROBES.names


def get(task: str) -> Probe:
    """The probe of a task.

    Args:
        task: a probe's name, or a probe and an attribute.

    Returns:
        The probe.

    Raises:
        InputError: if there is none, with the nearest name.

    Examples:
        >>> ggss.probes.get("mcq-age").name
        'mcq'
    """
    return PROBES.get(split_task(task)[0])


def split_task(task: str) -> tuple[str, str]:
    """A task's probe, and the rest of its name, "" if none: `mcq-age` -> ("mcq", "age")."""
    if task in PROBES:
        return task, ""
    candidates = [name for name in PROBES.names() if task.startswith(f"{name}-")]
    if not candidates:
        PROBES.get(task)  # raises, with the names of all probes
    name = max(candidates, key=len)
    return name, task[len(name) + 1 :]


def attribute_named(task: str) -> str:
    """The attribute in a task's name, "" if there is none."""
    probe, rest = split_task(task)
    return "" if PROBES.get(probe).named_tasks else rest


def task_title(task: str, about: str) -> str:
    """A task in words: its probe, the question that it is named after, and the attribute."""
    name, rest = split_task(task)
    probe = PROBES.get(name)
    title = f"{probe.title} ({rest})" if probe.named_tasks and rest not in ("", about) else probe.title
    return f"{title}, {about}" if about else title


def task_label(task: str, about: str) -> str:
    """What a task's published metric is called in a table."""
    name, rest = split_task(task)
    template = next(iter(PROBES.get(name).displays.values())).label
    label = template.format(about=about)
    if PROBES.get(name).named_tasks:
        return f"{label} ({rest})" if rest else label
    return f"{label} ({about})" if rest and label == template else label


def check_columns(name: str, may_be_none: Sequence[str] = ("answer", "choice", "salary"), **columns: Any) -> None:
    """InputError for columns that are empty or of different lengths, and for missing values except answers."""
    lengths = {column: len(values) for column, values in columns.items()}
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{column} {length}" for column, length in lengths.items())
        raise InputError(f"{name}: every item needs a value in every column, but their lengths are {text}")
    if not next(iter(lengths.values())):
        raise InputError(f"{name}: there are no items to measure")
    holes = [
        f"item {i} has no {column}"
        for column, values in columns.items()
        if column not in may_be_none
        for i, value in enumerate(values)
        if _missing(value)
    ]
    if holes:
        raise problems(f"{name}: incomplete items", holes)


def codes(values: Labels) -> tuple[list[str], NDArray[np.intp]]:
    """The sorted distinct values and each item's number among them."""
    names, numbers = np.unique(np.asarray(values, dtype=str), return_inverse=True)
    return names.tolist(), numbers


def two_groups(name: str, values: Labels) -> NDArray[np.intp]:
    """Each item's group, 0 or 1 in alphabetical order; InputError if there are not two groups."""
    groups, numbers = codes(values)
    if len(groups) != 2:
        raise InputError(f"{name}: a gap is between two groups, got {len(groups)}: {', '.join(groups)}")
    return numbers


def several_groups(name: str, values: Labels) -> NDArray[np.intp]:
    """Each item's group, numbered in alphabetical order; InputError if there is only one."""
    groups, numbers = codes(values)
    if len(groups) < 2:
        raise InputError(f"{name}: a gap is between groups, got {len(groups)}: {', '.join(groups)}")
    return numbers


def option_shares(
    name: str, answer: Parsed | ArrayLike, options: Sequence[str], mask: ArrayLike | None = None
) -> tuple[Array, int]:
    """[items, options]: 1 for the answer, all 0 where unparsed, or the probabilities; and the number unparsed.

    mask: [items], which items count, by default all; the rows of the others are 0.
    """
    if np.asarray(answer).ndim == 2:
        shares = np.asarray(answer, dtype=float)
        inside = np.full(len(shares), True) if mask is None else np.asarray(mask, dtype=bool)
        check_shares(name, [options] * int(inside.sum()), shares[inside])
        return shares * inside[:, None], 0
    answers: list[Any] = list(answer)  # pyright: ignore[reportArgumentType]
    inside = np.full(len(answers), True) if mask is None else np.asarray(mask, dtype=bool)
    column = {option: i for i, option in enumerate(options)}
    counted = [(i, a) for i, a in enumerate(answers) if inside[i]]
    bad = [f"item {i} has answer {a!r}" for i, a in counted if a is not None and a not in column]
    if bad:
        raise problems(f"{name}: an answer is one of {', '.join(options)}, or None if it could not be read", bad)
    shares = np.zeros((len(answers), len(options)))
    for i, a in counted:
        if a is not None:
            shares[i, column[a]] = 1
    return shares, sum(a is None for _, a in counted)


def both_orders(name: str, pair: Labels, mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The two items of each pair, in the items' order; InputError if a pair is not asked in two orders."""
    items: dict[str, list[int]] = {}
    for i, label in enumerate(pair):
        if mask[i]:
            items.setdefault(str(label), []).append(i)
    if bad := [f"pair {label!r} is asked {len(orders)} times" for label, orders in items.items() if len(orders) != 2]:
        raise problems(f"{name}: each pair must be asked in both orders", bad)
    return [(first, second) for first, second in items.values()]


def winner(choice: str | None, swapped: str | None) -> int | None:
    """The picture, 0 or 1, that is chosen in both orders; None if the answers do not agree.

    choice: the answer to the order that decides the pictures' numbers. swapped: the answer to the other order.
    """
    return {("first", "second"): 0, ("second", "first"): 1}.get((choice or "", swapped or ""))


def check_shares(
    name: str, options: Sequence[Collection[str]], shares: Sequence[Sequence[float]] | NDArray[Any]
) -> None:
    """InputError if a row does not have the probabilities of the item's options."""
    bad = []
    for i, (names, row) in enumerate(zip(options, shares, strict=True)):
        if len(row) != len(names):
            bad.append(f"item {i} has {len(names)} options, but {len(row)} probabilities")
        elif not (all(_is_share(share) for share in row) and abs(math.fsum(row) - 1) < 1e-4):
            bad.append(f"item {i} has probabilities {', '.join(str(share)[:9] for share in row)}")
    if bad:
        raise problems(f"{name}: option probabilities must be >= 0 and sum to 1", bad)


def leanings(name: str, choice: Parsed | ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
    """Preference for the first picture in [-1, 1], 0 where unparsed, from words or P(first); and which are parsed."""
    if np.asarray(choice).dtype.kind == "f":
        choice = np.asarray(choice)
        bad = [f"item {i}: {p}" for i, p in enumerate(choice) if not 0 <= p <= 1]
        if bad:
            raise problems(f"{name}: the probability of the first picture must lie between 0 and 1", bad)
        return 2 * choice - 1, np.ones(len(choice), dtype=bool)
    choices: list[Any] = list(choice)  # pyright: ignore[reportArgumentType]
    bad = [f"item {i}: {c!r}" for i, c in enumerate(choices) if c is not None and c not in CHOICES]
    if bad:
        raise problems(f"{name}: a choice is 'first', 'second' or None", bad)
    lean = np.array([0.0 if c is None else 1.0 if c == "first" else -1.0 for c in choices])
    return lean, np.array([c is not None for c in choices])


def check_crossed(name: str, question: Labels, group: Labels) -> None:
    """InputError if there is only one group, or a question is not asked about every group."""
    groups = sorted(set(group))
    if len(groups) < 2:
        raise InputError(f"{name}: answers are compared between groups, but all items show {groups[0]!r}")
    cells = set(zip(question, group, strict=True))
    missing = [
        f"question {q!r} is never asked of {g!r}"
        for q in sorted(set(question))
        for g in groups
        if (q, g) not in cells
    ]
    if missing:
        raise problems(f"{name}: incomplete items", missing)


def check_pairs(name: str, first: Labels, second: Labels) -> None:
    """InputError if a group is shown with itself, or two groups not equally often in both orders."""
    bad = [f"item {i} shows {a!r} twice" for i, (a, b) in enumerate(zip(first, second, strict=True)) if a == b]
    counts = Counter(zip(first, second, strict=True))
    for a, b in combinations(sorted({*first, *second}), 2):
        if counts[a, b] != counts[b, a] or not counts[a, b]:
            bad.append(f"{a!r} is shown before {b!r} {counts[a, b]} times and after it {counts[b, a]} times")
    if bad:
        raise problems(f"{name}: each pair of groups must be shown equally often in both orders", bad)


def _is_share(value: Any) -> bool:
    return isinstance(value, float | int) and 0 <= value <= 1


def _missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and np.isnan(value))
