"""The people of a report: rows of counterfactual pictures with the answers before and after, and the items behind
every number.

A row is one person and question with everything held fixed but the attribute that the task compares. Rows are sorted
by how much the answers changed. Items with two pictures are a list; of tasks with right answers, the items that were
lost and won are shown as well.

Each picture is in the file once, as a small thumbnail: an SVG `<use>` repeats it without a script, also in print. The
heat of a gate is a picture with one pixel for each token, which the browser enlarges over the face.
"""

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from PIL import Image, features

from ggss.analysis.groups import OCCUPATION
from ggss.analysis.run import Run
from ggss.data.pictures import Picture
from ggss.errors import InputError
from ggss.probes import Item
from ggss.report.material import Material, ReportedModel, TaskPair

MOST = 2200  # items on a page: with nine options each, and gates, about 2.6 MB
SHOWN_FIRST = 4  # rows of a task that are open; the others are one click away
CHANGES_SHOWN = 40  # items lost and won, of one task
SIDE = 72  # pixels of a thumbnail
LOWEST = 0.0  # of the gate, where the heat is black
# From a shut gate to an open one.
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

    def heat(self, picture: Picture, steering: str, gate: np.ndarray, words: str) -> Markup:
        """The gate over a picture in grey. steering: names the gate, as a picture may have several."""
        if self.public or not self._known.get(picture.digest):
            return Markup()
        key = f"{picture.digest}/{steering}"
        if key not in self._known:
            self._known[key] = self._added(_png(heat_colours(gate)))
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


def heat_colours(gate: np.ndarray) -> np.ndarray:
    """Colours [rows, columns, 3] of a gate between LOWEST and 1."""
    share = np.clip((gate - LOWEST) / (1 - LOWEST), 0, 1) * (len(_HEAT) - 1)
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
    """An answer as it was given ("" on a public page), as the probe parsed it, and the options' probabilities."""

    raw: str
    parsed: str
    readable: bool
    probabilities: tuple[tuple[str, float], ...]


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
    """One person and question; the items are the variants."""

    title: str
    prompt: str
    occupation: str
    question: str
    items: tuple[ShownItem, ...]

    @property
    def changed(self) -> int:
        return sum(item.changed for item in self.items)

    @property
    def shift(self) -> float:
        return self.changed + sum(item.shift for item in self.items) / (1 + len(self.items))


@dataclass(frozen=True)
class ShownTask:
    """The rows of a task. An item with two pictures is a row of its own. left_out: how many rows are not shown."""

    pair: TaskPair
    rows: tuple[PeopleRow, ...]
    left_out: int

    @property
    def of_pairs(self) -> bool:
        return len(self.pair.before.items[0].images) > 1

    @property
    def prompts(self) -> list[str]:
        return list(dict.fromkeys(row.prompt for row in self.rows))

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
        rows.setdefault(_row_key(item, pair.about, n), []).append(n)
    ordered = sorted(rows.values(), key=lambda numbers: -_weight(numbers, shifts))
    chosen = ordered[: max(1, round(share * len(ordered)))]
    maps = next((steering.maps for steering in model.discovered if steering.attribute == pair.attribute), {})
    shown = tuple(_row(pair, numbers, shifts, album, filters, maps, model.name) for numbers in chosen)
    return ShownTask(pair, shown, len(ordered) - len(chosen))


def _row_key(item: Item, about: str, number: int) -> tuple[Any, ...]:
    """What the items of a row have in common; a pair of pictures is a row of its own."""
    if len(item.images) > 1:
        return (number,)
    fixed = tuple(sorted((name, value) for name, value in item.attributes[0].items() if name != about))
    return item.question, tuple(sorted(item.context.items())), fixed, item.prompt, item.cluster


def _weight(numbers: Sequence[int], shifts: Sequence[tuple[bool, float]]) -> float:
    """How much the answers of a row's items changed: their number, and between equal numbers the probabilities."""
    changed, moved = zip(*(shifts[n] for n in numbers), strict=True)
    return sum(changed) + sum(moved) / (1 + len(numbers))


def _shifts(pair: TaskPair) -> list[tuple[bool, float]]:
    """For each item, whether its answer changed, and how much the options' probabilities changed, between 0 and 1."""
    if pair.after is None:
        return [(False, 0.0)] * len(pair.before.items)
    before, after = pair.before.parsed.parsed, pair.after.parsed.parsed
    shifts = []
    for n, (old, new) in enumerate(zip(pair.before.probabilities, pair.after.probabilities, strict=True)):
        moved = 0.5 * sum(abs(a - b) for a, b in zip(old, new, strict=True)) if old and len(old) == len(new) else 0.0
        shifts.append((before[n] != after[n], moved))
    return shifts


def _row(
    pair: TaskPair,
    numbers: Sequence[int],
    shifts: Sequence[tuple[bool, float]],
    album: Thumbnails,
    filters: Filters,
    maps: Mapping[str, np.ndarray],
    model: str,
) -> PeopleRow:
    first = pair.before.items[numbers[0]]
    fixed = [value for name, value in first.attributes[0].items() if name != pair.about] if len(numbers) > 1 else []
    title = " · ".join(word for word in (_who(first), *fixed, first.question) if word)
    return PeopleRow(
        title,
        first.prompt,
        filters.occupation(first.context.get(OCCUPATION, "")),
        filters.question(first.question),
        tuple(_item(pair, n, shifts[n][1], album, filters, maps, model) for n in numbers),
    )


def _who(item: Item) -> str:
    return " ".join(item.context.values()) or item.cluster


def _item(
    pair: TaskPair,
    n: int,
    shift: float,
    album: Thumbnails,
    filters: Filters,
    maps: Mapping[str, np.ndarray],
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
    if not several and first.digest in maps:
        words = f"gate of the {pair.attribute} steering over the picture, mean {maps[first.digest].mean():.2f}"
        heat = album.heat(first, f"{model}/{pair.attribute}", maps[first.digest], words)
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
    return Reply("" if public else run.answers[n].text, text, parsed is not None, shares)


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
                    (pair.before.items[n], _item(pair, n, 0.0, album, filters, {}, model.name))
                    for n in numbers[:CHANGES_SHOWN].tolist()
                )
                for numbers in (lost, won)
            )
            tasks.append(ChangedItems(pair, shown_lost, shown_won, len(lost), len(won)))
    return tasks
