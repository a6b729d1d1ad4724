"""The people of a report: rows of counterfactual pictures with the answers before and after, and the items behind
every number.

A row is one person and question with everything held fixed but the attribute that the task compares; of questions
about two pictures, a pair in its two orders. The ten most telling rows of a task come first: those in which most
changed, those in which least did although the answer depended on the attribute, and those that were close. Of tasks
with right answers, the items that were lost and won are shown as well.

Each picture is in the file once, as a small thumbnail: an SVG `<use>` repeats it without a script, also in print. The
heat of a gate is a picture with one pixel for each token, which the browser enlarges over the face.
"""

import base64
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from PIL import Image, features

from ggss.analysis.groups import OCCUPATION
from ggss.analysis.run import Run
from ggss.data.pictures import Picture
from ggss.errors import InputError
from ggss.models.reading import Answer
from ggss.probes import Item
from ggss.probes.writing import Text, marked, overlap, words_of
from ggss.report.material import Discovered, Material, ReportedModel, TaskPair

MOST = 12_000  # items on a page: compressed, about 1 MB
LARGEST, SMALLEST, CLOSE = 4, 3, 3  # rows of a task that are shown first; the others are one click away
CHANGES_SHOWN = 40  # items lost and won, of one task
SIDE = 72  # pixels of a thumbnail
# From a gate at its floor to an open one.
_HEAT = np.array([(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], dtype=float)


@dataclass
class Thumbnails:
    """The thumbnails of a page, collected as they are shown. public: none are shown. lost: how many did not load."""

    public: bool = False
    lost: int = 0
    _known: dict[str, str] = field(default_factory=dict)
    _symbols: list[Markup] = field(default_factory=list)

    def face(self, picture: Picture, words: str) -> Markup:
        """The picture; empty if the report is public, or if the picture cannot be loaded."""
        if self.public:
            return Markup()
        if picture.digest not in self._known:
            try:
                self._known[picture.digest] = self._added(_thumbnail(picture.image()))
            except InputError:
                self._known[picture.digest] = ""
                self.lost += 1
        return _use(words, self._known[picture.digest])

    def heat(self, picture: Picture, steering: str, gate: np.ndarray, floor: float, words: str) -> Markup:
        """The gate over a picture in grey. steering: names the gate, as a picture may have several."""
        if self.public or not self._known.get(picture.digest):
            return Markup()
        key = f"{picture.digest}/{steering}"
        if key not in self._known:
            self._known[key] = self._added(_png(heat_colours(gate, floor)))
        return _use(words, self._known[picture.digest], self._known[key])

    @property
    def symbols(self) -> Markup:
        """The definitions of all pictures, which the page has once."""
        return Markup().join(self._symbols)

    def _added(self, address: str) -> str:
        name = f"p{len(self._symbols)}"
        self._symbols.append(
            Markup(
                f'<symbol id="{name}" viewBox="0 0 1 1" preserveAspectRatio="none"><image href="{address}" width="1" '
                'height="1" preserveAspectRatio="none"/></symbol>'
            )
        )
        return name


def heat_colours(gate: np.ndarray, floor: float) -> np.ndarray:
    """Colours [rows, columns, 3] of a gate between its floor and 1."""
    share = np.clip((gate - floor) / (1 - floor), 0, 1) * (len(_HEAT) - 1)
    below = np.minimum(share.astype(int), len(_HEAT) - 2)
    part = (share - below)[..., None]
    return np.rint(_HEAT[below] * (1 - part) + _HEAT[below + 1] * part).astype(np.uint8)


def _use(words: str, face: str, heat: str = "") -> Markup:
    if not face:
        return Markup()
    over = Markup(f'<use href="#{heat}" class="heat"/>') if heat else Markup()
    grey = Markup(' class="grey"') if heat else Markup()
    return Markup(
        f'<svg class="face" role="img" aria-label="{escape(words)}"><use href="#{face}"{grey}/>{over}</svg>'
    )


def _thumbnail(image: Image.Image) -> str:
    """The middle square of a picture, scaled down, as a data URL."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.convert("RGB").crop((left, top, left + side, top + side))
    small = square.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    kind = "webp" if features.check("webp") else "jpeg"
    small.save(data, kind, quality=62)
    return _address(kind, data.getvalue())


def _png(colours: np.ndarray) -> str:
    data = io.BytesIO()
    Image.fromarray(colours).save(data, "png", optimize=True)
    return _address("png", data.getvalue())


def _address(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


@dataclass
class Filters:
    """Short names for the groups, occupations and questions that rows are filtered by, in order of appearance."""

    groups: dict[tuple[str, str], str] = field(default_factory=dict)
    occupations: dict[str, str] = field(default_factory=dict)
    questions: dict[str, str] = field(default_factory=dict)

    def group(self, attribute: str, value: str) -> str:
        return self.groups.setdefault((attribute, value), f"g{len(self.groups)}")

    def occupation(self, name: str) -> str:
        return self.occupations.setdefault(name, f"o{len(self.occupations)}") if name else ""

    def question(self, name: str) -> str:
        return self.questions.setdefault(name, f"q{len(self.questions)}") if name else ""


@dataclass(frozen=True)
class Reply:
    """An answer as it was given ("" on a public page), as the probe parsed it, and the options' probabilities.

    written: whether it is a text that is shown beside those of the other variants. pieces: then the text in pieces,
    and which of them are marked.
    """

    raw: str
    parsed: str
    readable: bool
    probabilities: tuple[tuple[str, float], ...]
    written: bool = False
    pieces: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True)
class ShownItem:
    """One item: a variant of a row, or a pair."""

    key: str
    label: str
    groups: str
    pictures: tuple[Markup, ...]
    heat: Markup
    before: Reply
    after: Reply | None
    shift: float

    @property
    def changed(self) -> bool:
        return self.after is not None and self.after.parsed != self.before.parsed


@dataclass(frozen=True)
class PeopleRow:
    """One person and question; the items are the variants, or the two orders of a pair."""

    title: str
    prompt: str
    occupation: str
    question: str
    about: str
    items: tuple[ShownItem, ...]

    @property
    def changed(self) -> int:
        return sum(item.changed for item in self.items)

    @property
    def written(self) -> bool:
        """Whether the answers are texts, which are shown side by side."""
        return any(item.before.written for item in self.items)

    @property
    def depended(self) -> bool:
        """Whether the answer depended on the attribute: the variants were not all answered alike."""
        return len({item.before.parsed for item in self.items}) > 1

    @property
    def depends(self) -> bool | None:
        """The same after steering; None without a steered run."""
        answers = [item.after.parsed for item in self.items if item.after]
        return len(set(answers)) > 1 if answers else None

    @property
    def words(self) -> str:
        """What became of it, in words."""
        if len(self.items) < 2:
            return ""
        if self.depends is None:
            return f"depends on {self.about}" if self.depended else f"does not depend on {self.about}"
        words = {
            (True, False): "no longer depends on",
            (True, True): "still depends on",
            (False, True): "now depends on",
            (False, False): "does not depend on",
        }
        return f"{words[self.depended, self.depends]} {self.about}"

    @property
    def kind(self) -> str:
        """The kind of verdict whose colour the words have."""
        if self.depends is None or self.depended == self.depends or len(self.items) < 2:
            return "none"
        return "better" if self.depended else "worse"


@dataclass(frozen=True)
class ShownTask:
    """The rows of a task. telling: by heading, those that are shown first; rest: the others, by how much changed.

    left_out: how many rows are not shown.
    """

    pair: TaskPair
    telling: tuple[tuple[str, tuple[PeopleRow, ...]], ...]
    rest: tuple[PeopleRow, ...]
    left_out: int

    @property
    def rows(self) -> tuple[PeopleRow, ...]:
        return (*(row for _, rows in self.telling for row in rows), *self.rest)

    @property
    def items(self) -> int:
        return sum(len(row.items) for row in self.rows)


def shown_tasks(material: Material, album: Thumbnails, filters: Filters, most: int = MOST) -> list[ShownTask]:
    """Every task about people, of every model. most: the number of items that all of them may show."""
    pairs = [(model, pair) for model in material.models for pair in model.pairs if pair.about]
    limit = _allowed([len(pair.before.items) for _, pair in pairs], most)
    return [
        _shown_task(model, pair, album, filters, min(1.0, limit / len(pair.before.items))) for model, pair in pairs
    ]


def _allowed(sizes: Sequence[int], most: int) -> float:
    """The number of items that a task may show, so that all together show `most`. Smaller tasks are shown in full."""
    room = float(most)
    for place, size in enumerate(ordered := sorted(sizes)):
        if size * (len(ordered) - place) > room:
            return room / (len(ordered) - place)
        room -= size
    return math.inf


def _shown_task(model: ReportedModel, pair: TaskPair, album: Thumbnails, filters: Filters, share: float) -> ShownTask:
    shifts = _shifts(pair)
    rows: dict[tuple[Any, ...], list[int]] = {}
    for n, item in enumerate(pair.before.items):
        rows.setdefault(_row_key(item, pair.about), []).append(n)
    ordered = sorted(rows.values(), key=lambda numbers: -_weight(numbers, shifts))
    telling = _telling(pair, ordered)
    first = [numbers for _, chosen in telling for numbers in chosen]
    others = [numbers for numbers in ordered if numbers not in first]
    rest = others[: max(0, round(share * len(ordered)) - len(first))]
    steering = next((steering for steering in model.discovered if steering.attribute == pair.attribute), None)

    def shown(chosen: Sequence[Sequence[int]]) -> tuple[PeopleRow, ...]:
        return tuple(_row(pair, numbers, shifts, album, filters, steering, model.name) for numbers in chosen)

    by_heading = tuple((heading, shown(chosen)) for heading, chosen in telling)
    return ShownTask(pair, by_heading, shown(rest), len(others) - len(rest))


def _telling(pair: TaskPair, ordered: Sequence[list[int]]) -> list[tuple[str, list[list[int]]]]:
    """By heading, the rows that are shown first. ordered: all rows, by how much changed."""
    if pair.after is None:
        return [("The most different answers", list(ordered[: LARGEST + SMALLEST + CLOSE]))]
    before, after = pair.before.parsed.parsed, pair.after
    largest = list(ordered[: LARGEST if any(after.probabilities) else LARGEST + CLOSE])
    left = [numbers for numbers in ordered if numbers not in largest]
    depended = [numbers for numbers in left if len({before[n] for n in numbers}) > 1]
    smallest = depended[::-1][:SMALLEST]
    left = [numbers for numbers in left if numbers not in smallest]
    scored = [numbers for numbers in left if all(after.probabilities[n] for n in numbers)]
    close = sorted(scored, key=lambda numbers: min(_margin(after.probabilities[n]) for n in numbers))[:CLOSE]
    telling = [
        ("Largest change", largest),
        (f"Smallest change although the answer depended on {pair.about}", smallest),
        ("Close: after steering, two answers are almost equally likely", close),
    ]
    return [(heading, rows) for heading, rows in telling if rows]


def _margin(probabilities: Sequence[float]) -> float:
    """How much likelier the likeliest option is than the next."""
    first, second = sorted((*probabilities, 0.0), reverse=True)[:2]
    return first - second


def _row_key(item: Item, about: str) -> tuple[Any, ...]:
    """What the items of a row have in common: all but the attribute; of a pair, all but the order."""
    fixed = [tuple(sorted((name, value) for name, value in of.items() if name != about)) for of in item.attributes]
    if len(item.images) > 1:
        values = tuple(sorted(of.get(about, "") for of in item.attributes))
        return item.question, tuple(sorted(item.context.items())), (tuple(sorted(fixed)), values), item.cluster
    return item.question, tuple(sorted(item.context.items())), fixed[0], item.prompt, item.cluster


def _weight(numbers: Sequence[int], shifts: Sequence[tuple[bool, float]]) -> float:
    """How much the answers of a row's items changed: their number, and between equal numbers the probabilities."""
    changed, moved = zip(*(shifts[n] for n in numbers), strict=True)
    return sum(changed) + sum(moved) / (1 + len(numbers))


def _shifts(pair: TaskPair) -> list[tuple[bool, float]]:
    """For each item, whether its answer changed, and how much the options' probabilities changed, between 0 and 1.

    Of texts: how much their words changed. Without a steered run: against the first variant of the row.
    """
    others = pair.after or _first_variants(pair)
    before, after = pair.before.parsed.parsed, others.parsed.parsed
    pairs = zip(pair.before.answers, others.answers, strict=True)
    return [(before[n] != after[n], _moved(old, new)) for n, (old, new) in enumerate(pairs)]


def _moved(before: Answer, after: Answer) -> float:
    """How much an answer moved, between 0 and 1: in its options' probabilities, or without them in its words."""
    if before.probabilities and len(before.probabilities) == len(after.probabilities):
        pairs = zip(before.probabilities, after.probabilities, strict=True)
        return 0.5 * sum(abs(old - new) for old, new in pairs)
    old, new = words_of(before.text), words_of(after.text)
    return 1 - overlap(old, new) if old and new else float(old != new)


def _first_variants(pair: TaskPair) -> Run:
    """A run that answers each item as the first variant of its row was answered."""
    first: dict[tuple[Any, ...], int] = {}
    places = [first.setdefault(_row_key(item, pair.about), n) for n, item in enumerate(pair.before.items)]
    return replace(pair.before, answers=tuple(pair.before.answers[n] for n in places))


def _row(
    pair: TaskPair,
    numbers: Sequence[int],
    shifts: Sequence[tuple[bool, float]],
    album: Thumbnails,
    filters: Filters,
    steering: Discovered | None,
    model: str,
) -> PeopleRow:
    first = pair.before.items[numbers[0]]
    fixed = (
        [value for name, value in first.attributes[0].items() if name != pair.about] if len(first.images) < 2 else []
    )
    title = " · ".join(word for word in (_who(first), *fixed, first.question) if word)
    return PeopleRow(
        title,
        first.prompt,
        filters.occupation(first.context.get(OCCUPATION, "")),
        filters.question(first.question),
        pair.about,
        _side_by_side([_item(pair, n, shifts[n][1], album, filters, steering, model) for n in numbers]),
    )


def _side_by_side(items: Sequence[ShownItem]) -> tuple[ShownItem, ...]:
    """The variants of a row; texts with the words marked in which they differ from the other variants' texts."""
    before = _marked([item.before for item in items])
    after = _marked([item.after for item in items if item.after])
    return tuple(
        replace(item, before=old, after=new)
        for item, old, new in zip(items, before, after or [None] * len(items), strict=True)
    )


def _marked(replies: Sequence[Reply]) -> list[Reply]:
    """The replies with the pieces of those that are texts."""
    texts = [reply.raw if reply.written else "" for reply in replies]
    pairs = zip(replies, marked(texts), strict=True)
    return [replace(reply, pieces=tuple(pieces)) if reply.written else reply for reply, pieces in pairs]


def _who(item: Item) -> str:
    return " ".join(item.context.values()) or item.cluster


def _item(
    pair: TaskPair,
    n: int,
    shift: float,
    album: Thumbnails,
    filters: Filters,
    steering: Discovered | None,
    model: str,
) -> ShownItem:
    item = pair.before.items[n]
    several = len(item.images) > 1
    label = " or ".join(
        " ".join(of.values()) if several else of.get(pair.about, " ".join(of.values())) for of in item.attributes
    )
    groups = dict.fromkeys(filters.group(name, value) for of in item.attributes for name, value in of.items())
    faces = tuple(
        album.face(picture, f"{_who(item)}, {' '.join(of.values())}")
        for picture, of in zip(item.images, item.attributes, strict=True)
    )
    heat, first = Markup(), item.images[0]
    if not several and steering and first.digest in steering.maps:
        gate = steering.maps[first.digest]
        words = f"gate of the {pair.attribute} steering over the picture, mean {gate.mean():.2f}"
        heat = album.heat(first, f"{model}/{pair.attribute}", gate, steering.floor, words)
    return ShownItem(
        item.key,
        label,
        " ".join(groups),
        faces,
        heat,
        reply(pair.before, n, album.public),
        reply(pair.after, n, album.public) if pair.after else None,
        shift,
    )


def reply(run: Run, n: int, public: bool = False) -> Reply:
    """The run's answer to its n-th item."""
    item, parsed = run.items[n], run.parsed.parsed[n]
    text = "unreadable" if parsed is None else item.options.get(str(parsed), str(parsed))
    shares = tuple(zip(item.options.values(), run.probabilities[n], strict=True)) if run.probabilities[n] else ()
    raw, written = ("", False) if public else (run.answers[n].text, isinstance(parsed, Text))
    return Reply(raw, text, parsed is not None, shares, written)


@dataclass(frozen=True)
class ChangedItems:
    """The items of a task with right answers that were lost (right before, wrong after) or won.

    of_lost and of_won: how many there are in all; `lost` and `won` are those that are shown.
    """

    pair: TaskPair
    lost: tuple[tuple[Item, ShownItem], ...]
    won: tuple[tuple[Item, ShownItem], ...]
    of_lost: int
    of_won: int


def changed_items(models: Iterable[ReportedModel], album: Thumbnails, filters: Filters) -> list[ChangedItems]:
    tasks = []
    for model in models:
        for pair in model.others:
            if pair.comparison is None or not pair.comparison.has_right_answers:
                continue
            after, before = pair.comparison.rights()
            lost, won = np.flatnonzero(after < before), np.flatnonzero(after > before)
            shown_lost, shown_won = (
                tuple(
                    (pair.before.items[n], _item(pair, n, 0.0, album, filters, None, model.name))
                    for n in numbers[:CHANGES_SHOWN].tolist()
                )
                for numbers in (lost, won)
            )
            tasks.append(ChangedItems(pair, shown_lost, shown_won, len(lost), len(won)))
    return tasks
