"""The people of a report: rows of counterfactual pictures with the answers before and after, and the items behind
every number.

A row is one person and question with everything held fixed but the attribute that the task compares. Rows come in
order of how much the answers changed. Items with two pictures are a list; of tasks with right answers those that were
lost and won are shown as well.

The pictures of a report: each is in the file once, as a small thumbnail, and shown wherever it is needed.

An SVG `<use>` repeats a picture without a script, also in print. A gate's heat is a picture with one pixel for each
token, which the browser enlarges over the face.
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

SIDE = 72  # pixels of a thumbnail
LOWEST = 0.0  # of the gate, where the heat is black
# From a shut gate to an open one.
_HEAT = np.array([(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], dtype=float)


@dataclass
class Thumbnails:
    """Collects the pictures as they are shown. public: none are."""

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

    def heat(self, picture: Picture, whose: str, gate: np.ndarray, words: str) -> Markup:
        """The gate over a picture in grey. whose: what makes the gate another one on the same picture."""
        if self.public or not self._known.get(picture.digest):
            return Markup()
        key = f"{picture.digest}/{whose}"
        if key not in self._known:
            self._known[key] = self._added(_png(heat_colours(gate)))
        return _use(words, self._known[picture.digest], self._known[key])

    @property
    def symbols(self) -> Markup:
        """All pictures, to stand once in the page."""
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
    """The middle square, small."""
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


MOST = 2200  # items on a page: with nine options each, and gates, about 2.6 MB
SHOWN_FIRST = 4  # rows of a task that are open; the others are one click away
CHANGES_SHOWN = 40  # items lost and won, of one task


@dataclass
class Filters:
    """Short names for what rows are filtered by, in the order in which they are seen."""

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
    """An answer: as it was given ("" on a public page), as the probe read it, and the options' probabilities."""

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
    """The rows of a task; of a task with two pictures each row has one item. left_out: rows that are not shown."""

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
    """Every task about people, of every model."""
    pairs = [(model, pair) for model in material.models for pair in model.pairs if pair.about]
    each = _allowed([len(pair.before.items) for _, pair in pairs], most)
    return [
        _shown_task(model, pair, album, filters, min(1.0, each / len(pair.before.items))) for model, pair in pairs
    ]


def _allowed(sizes: Sequence[int], most: int) -> float:
    """How many items a task may show, so that all together show `most`: small tasks are whole, large ones equal."""
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
    ordered = sorted(rows.values(), key=lambda own: -_weight(own, shifts))
    kept = ordered[: max(1, round(share * len(ordered)))]
    maps = next((one.maps for one in model.discovered if one.attribute == pair.attribute), {})
    made = tuple(_row(pair, own, shifts, album, filters, maps, model.name) for own in kept)
    return ShownTask(pair, made, len(ordered) - len(kept))


def _row_key(item: Item, about: str, number: int) -> tuple[Any, ...]:
    """What is held fixed; a pair of pictures is a row of its own."""
    if len(item.images) > 1:
        return (number,)
    fixed = tuple(sorted((name, value) for name, value in item.attributes[0].items() if name != about))
    return item.question, tuple(sorted(item.context.items())), fixed, item.prompt, item.cluster


def _weight(own: Sequence[int], shifts: Sequence[tuple[bool, float]]) -> float:
    return sum(changed for changed, _ in (shifts[n] for n in own)) + sum(shifts[n][1] for n in own) / (1 + len(own))


def _shifts(pair: TaskPair) -> list[tuple[bool, float]]:
    """Of each item: whether its answer changed, and by how much the options' probabilities did, between 0 and 1."""
    if pair.after is None:
        return [(False, 0.0)] * len(pair.before.items)
    said, now = pair.before.parsed.parsed, pair.after.parsed.parsed
    found = []
    for n, (old, new) in enumerate(zip(pair.before.probabilities, pair.after.probabilities, strict=True)):
        moved = 0.5 * sum(abs(a - b) for a, b in zip(old, new, strict=True)) if old and len(old) == len(new) else 0.0
        found.append((said[n] != now[n], moved))
    return found


def _row(
    pair: TaskPair,
    own: Sequence[int],
    shifts: Sequence[tuple[bool, float]],
    album: Thumbnails,
    filters: Filters,
    maps: Mapping[str, np.ndarray],
    model: str,
) -> PeopleRow:
    first = pair.before.items[own[0]]
    fixed = [value for name, value in first.attributes[0].items() if name != pair.about] if len(own) > 1 else []
    title = " · ".join(word for word in (_who(first), *fixed, first.question) if word)
    return PeopleRow(
        title,
        first.prompt,
        filters.occupation(first.context.get(OCCUPATION, "")),
        filters.question(first.question),
        tuple(_item(pair, n, shifts[n][1], album, filters, maps, model) for n in own),
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
    groups = dict.fromkeys(filters.group(*one) for of in item.attributes for one in of.items())
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
    """The items of a task with right answers that were lost (right before, wrong after) or won."""

    pair: TaskPair
    lost: tuple[tuple[Item, ShownItem], ...]
    won: tuple[tuple[Item, ShownItem], ...]
    of_lost: int
    of_won: int


def changed_items(models: Iterable[ReportedModel], album: Thumbnails, filters: Filters) -> list[ChangedItems]:
    found = []
    for model in models:
        for pair in model.others:
            if pair.comparison is None or not pair.comparison.has_right_answers:
                continue
            after, before = pair.comparison.rights()
            lost, won = np.flatnonzero(after < before), np.flatnonzero(after > before)
            shown = [
                tuple(
                    (pair.before.items[n], _item(pair, n, 0.0, album, filters, {}, model.name))
                    for n in numbers[:CHANGES_SHOWN].tolist()
                )
                for numbers in (lost, won)
            ]
            found.append(ChangedItems(pair, shown[0], shown[1], len(lost), len(won)))
    return found
