"""The playground: one person in all values of an attribute, and what a model says of each, unsteered and steered.

A row is one person and one question; along it nothing changes but the attribute. `row_questions` makes the rows from
the items of a suite, so the playground asks what `ggss probe` asks, about the same people. Own questions and own
pictures are items, too. `Playground.ask` answers any of them, and `Playground.html` shows the result. The page
around it is in `ggss.play.page`.

Pictures are encoded once. Every answer, at any strength, comes from cached features, so that a change of the strength
runs the text model only. Uploads are kept in memory while they are shown, never on disk.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from PIL import Image

from ggss import errors, escaping
from ggss.activations import SITE
from ggss.data.pictures import BytesPicture, Picture, labels
from ggss.errors import InputError, no_such
from ggss.models import Vlm
from ggss.models.features import FeatureCache
from ggss.probes import Item, get, parsers
from ggss.probes.metrics import mean_total_variation
from ggss.probes.steered_model import SteeredModel
from ggss.probes.suites import Suite
from ggss.report.material import gate_map
from ggss.smallworld.painter import Portrait
from ggss.steering.steerer import Steerer

LARGEST = 20 * 2**20  # bytes of an upload
MOST_PICTURES = 2  # of one question
STRONGEST = 1.5  # of the slider
ROOM = 512 * 2**20  # bytes of features: an open page may see many pictures
FACES = 500  # pictures whose HTML is kept
SIDE, HEAT_SIDE = 256, 96  # pixels of a picture and of the heat over it
TOKENS = 64
QUESTIONS = 2  # of each task: there are ten biographies of a CEO
YES, NO, UNKNOWN = "yes", "no", "not known"
# Okabe and Ito's colours, which most colour-blind people can tell apart; one for each option.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7a5195", "#8c8c8c")


@dataclass(frozen=True)
class RowQuestion:
    """A question of a task, with a row of items for each person. about: the attribute that changes along a row."""

    task: str
    name: str
    about: str
    rows: tuple[tuple[Item, ...], ...]
    max_new_tokens: int = TOKENS

    @property
    def title(self) -> str:
        named = self.task if self.name in self.task else f"{self.name} ({self.task})"
        return f"{named}, by {self.about}"


def row_questions(suite: Suite, max_new_tokens: int | None = None) -> list[RowQuestion]:
    """The questions of a suite's tasks about one person, each with a row for every person that the task is about.

    max_new_tokens: of the answers; None: as the suite says.
    """
    questions = []
    for task in suite.tasks:
        probe = get(task)
        if probe.pictures != 1 or probe.kind not in ("bias", "recognition"):
            continue
        by_name: dict[str, dict[tuple[str, ...], list[Item]]] = {}
        for item in suite.items(task):
            by_name.setdefault(item.question, {}).setdefault(_held_fixed(item), []).append(item)
        for name, rows in list(by_name.items())[:QUESTIONS]:
            about = next(iter(rows.values()))[0].about
            # One after the other they are different people, and not one person with other values of the rest.
            items = tuple(sorted((tuple(row) for row in rows.values()), key=lambda row: _others(row[0])))
            questions.append(RowQuestion(task, name, about, items, max_new_tokens or suite.max_new_tokens(task)))
    return questions


def pair_question(suite: Suite) -> Item | None:
    """The suite's first question about two pictures that differ in nothing but the attribute; None if it has none."""
    for task in suite.tasks:
        if get(task).pictures == 2 and get(task).kind == "bias":
            for item in suite.items(task):
                first, second = item.attributes
                if [name for name in first if first[name] != second[name]] == [item.about]:
                    return item
    return None


def _held_fixed(item: Item) -> tuple[str, ...]:
    """The person, and the values of the other attributes."""
    return (*item.context.values(), *_others(item))


def _others(item: Item) -> tuple[str, ...]:
    return tuple(value for name, value in item.attributes[0].items() if name != item.about)


@dataclass(frozen=True)
class ShownAnswer:
    """An answer as it was given, and as it was read: None if it is not clear. probabilities: of each option."""

    text: str
    answer: str | None
    probabilities: Mapping[str, float]

    @property
    def probability(self) -> float | None:
        """Of the answer that was read; None if the question has no options."""
        return self.probabilities.get(self.answer or "")


@dataclass(frozen=True)
class Version:
    """One version of a person (or a pair of pictures) with the replies, and the gate over each picture, if any.

    after: None until it is answered, and without a steerer.
    """

    label: str
    pictures: tuple[Picture, ...]
    before: ShownAnswer
    after: ShownAnswer | None = None
    gates: tuple[np.ndarray | None, ...] = ()


@dataclass(frozen=True)
class VariantRow:
    """The versions of a person with the replies to one question.

    about: what changes along the row, "" for one version. steering: what steers the second replies, "" if none does.
    """

    person: str
    prompt: str
    about: str
    versions: tuple[Version, ...]
    steering: str = ""

    @property
    def before(self) -> list[ShownAnswer]:
        return [version.before for version in self.versions]

    @property
    def after(self) -> list[ShownAnswer]:
        """Empty until all are there."""
        replies = [version.after for version in self.versions if version.after is not None]
        return replies if len(replies) == len(self.versions) else []

    @property
    def options(self) -> list[str]:
        return list(self.versions[0].before.probabilities)

    @property
    def verdicts(self) -> dict[str, str]:
        """Whether the answer depends on the attribute, before and after; empty if nothing changes along the row."""
        sides = {"before": self.before, "after": self.after} if self.about else {}
        return {when: depends(replies) for when, replies in sides.items() if replies}

    @property
    def numbers(self) -> str:
        """The answers behind the verdicts, counted; of one version, whether its answer has changed."""
        if not self.about:
            return _change(self.before[0], self.after[0]) if self.after else ""
        sides = [(when, replies) for when, replies in (("before", self.before), ("after", self.after)) if replies]
        parts = [f"{when.capitalize()}: {self._counted(replies)}." for when, replies in sides]
        if self.options and len(self.versions) > 1:
            shares = ", ".join(f"{100 * _difference(replies):.0f} % {when}" for when, replies in sides)
            parts.append(f"The probabilities of two versions differ by {shares} (mean total variation).")
        return " ".join(parts)

    def _counted(self, replies: Sequence[ShownAnswer]) -> str:
        """The different answers, in the options' order, and how many there are."""
        readable = [reply.answer for reply in replies if reply.answer is not None]
        place = {option: number for number, option in enumerate(self.options)}
        answers = sorted(dict.fromkeys(readable), key=lambda answer: place.get(answer, len(place)))
        counts = []
        if len(answers) == 1:
            counts.append(f"all {len(readable)} the same")
        elif answers:
            counts.append(f"{len(answers)} different answers")
        if len(readable) < len(replies):
            counts.append(f"{len(replies) - len(readable)} of {len(replies)} not clear")
        return f"{', '.join(answers)} ({', '.join(counts)})" if answers else ", ".join(counts)


def depends(replies: Sequence[ShownAnswer]) -> str:
    """Whether the answers are not all alike, as `ggss probe` counts it: yes, no, or not known if none can be read.

    An answer that cannot be read differs from those that can (`ggss.probes.metrics.flip_rates`).
    """
    answers = {reply.answer for reply in replies}
    if answers == {None}:
        return UNKNOWN
    return YES if len(answers) > 1 else NO


def _difference(replies: Sequence[ShownAnswer]) -> float:
    return mean_total_variation([list(reply.probabilities.values()) for reply in replies])


def _change(before: ShownAnswer, after: ShownAnswer) -> str:
    if before.answer is None or after.answer is None:
        return "An answer could not be read."
    return "The answer stays." if before.answer == after.answer else "The answer changes."


class Playground:
    """A model, steerers by name, and questions with rows of pictures.

    Raises InputError if a steerer was made for another model, unless forced.
    """

    def __init__(
        self,
        vlm: Vlm,
        steerers: Mapping[str, Steerer],
        questions: Sequence[RowQuestion] = (),
        force: bool = False,
    ) -> None:
        for steerer in steerers.values():
            steerer.check(vlm, force=force)
        self.vlm, self.steerers, self.questions = vlm, dict(steerers), list(questions)
        self._model = SteeredModel(FeatureCache(vlm, ROOM))
        self._unsteered: dict[object, list[ShownAnswer]] = {}
        self._faces: dict[str, Markup] = {}

    def upload(self, data: bytes) -> BytesPicture:
        """A picture from the bytes of a file. InputError if it is too large, or does not decode."""
        if len(data) > LARGEST:
            raise InputError(f"the picture has {len(data) / 2**20:.0f} MiB, at most {LARGEST / 2**20:.0f} are read")
        picture = BytesPicture.of(data)
        picture.image()
        return picture

    def steerers_for(self, about: str) -> list[str]:
        """The names of the steerers that remove an attribute; without one, the first steerer."""
        names = [name for name, steerer in self.steerers.items() if about in (steerer.attribute, name)]
        return names or list(self.steerers)[:1]

    def ask(
        self,
        items: Sequence[Item],
        steerers: Sequence[str] = (),
        alpha: float = 1.0,
        task: str = "",
        max_new_tokens: int = TOKENS,
    ) -> Iterator[VariantRow]:
        """Yields the row of these items with the unsteered answers alone, unless they are known, then with both.

        Without a steerer there is only the first. task: whose parser reads the answers; "" is for own questions.
        """
        errors.TOKENS.check("the longest answer, in tokens,", max_new_tokens)
        steered = self._steered(steerers, alpha)
        parse = get(task).parse if task else read_answer
        key = (
            task,
            max_new_tokens,
            *((item.prompt, *(p.digest for p in item.images), *item.options) for item in items),
        )
        known = key in self._unsteered
        if not known:
            self._unsteered = {key: _replies(self._model, items, max_new_tokens, parse)}  # of the last row only
        steering = f"{' + '.join(steerers)} at strength {alpha:g}" if steered else ""
        row = _row(items, self._unsteered[key], steering)
        if not known or steered is None:
            yield row
        if steered is not None:
            replies = _replies(steered, items, max_new_tokens, parse)
            gates = iter(self.gates([picture for item in items for picture in item.images], steerers))
            versions = [
                replace(version, after=reply, gates=tuple(next(gates) for _ in version.pictures))
                for version, reply in zip(row.versions, replies, strict=True)
            ]
            yield replace(row, versions=tuple(versions))

    def gates(self, pictures: Sequence[Picture], steerers: Sequence[str]) -> list[np.ndarray | None]:
        """Of each picture the gate [rows, columns] of the first of these steerers that has one; else None."""
        gated = [self._steerer(name) for name in steerers if SITE in self._steerer(name).operators]
        if not gated or not self._model.cache.from_features:
            return [None] * len(pictures)
        return [
            next((gate for steerer in gated if (gate := gate_map(steerer, self.vlm, features)) is not None), None)
            for features in self._model.cache.features(pictures)
        ]

    def html(self, row: VariantRow) -> str:
        """The row as HTML, with its pictures and its style inside."""
        return _template().render(
            row=row,
            face=self._face,
            heat=_heat,
            least=_least([gate for version in row.versions for gate in version.gates if gate is not None]),
            scale=["rgb({},{},{})".format(*colour) for colour in _heat_colours(np.linspace(0, 1, 9)).tolist()],
            colours={option: COLOURS[n % len(COLOURS)] for n, option in enumerate(row.options)},
        )

    def faces(self, pictures: Sequence[Picture]) -> str:
        """Pictures alone, as HTML: those that a question will be asked about."""
        return f'<div class="ggss-faces">{Markup().join(self._face(picture) for picture in pictures)}</div>'

    def _face(self, picture: Picture) -> Markup:
        if picture.digest not in self._faces:
            if len(self._faces) >= FACES:
                self._faces.clear()
            image = picture.paint_large() if isinstance(picture, Portrait) else picture.image()
            words = " ".join(labels(picture).values()) or "a picture"
            self._faces[picture.digest] = Markup(escaping.picture(image, words, SIDE))
        return self._faces[picture.digest]

    def _steerer(self, name: str) -> Steerer:
        if name not in self.steerers:
            raise no_such(f"no steerer {name!r} in this playground", name, self.steerers)
        return self.steerers[name]

    def _steered(self, names: Sequence[str], alpha: float) -> SteeredModel | None:
        """The model under the named steerers, all at one strength; None without any."""
        errors.Range(0.0, STRONGEST).check("alpha", alpha)
        model = self._model
        for name in names:
            model = model.steered(self._steerer(name), alpha, force=True)  # checked when it was made
        return model if names else None


def own_question(question: str, options: str, pictures: Sequence[Picture]) -> Item:
    """An item from what a person has typed. options: comma separated, each may say what it stands for: `a=low`."""
    if not question.strip():
        raise InputError("there is no question: write one")
    if not 1 <= len(pictures) <= MOST_PICTURES:
        raise InputError(f"a question is about one or {MOST_PICTURES} pictures, seen {len(pictures)}")
    named: dict[str, str] = {}
    for option in filter(None, (part.strip() for part in options.split(","))):
        name, _, meaning = (part.strip() for part in option.partition("="))
        named[name or meaning] = meaning or name
    if len(set(named.values())) < len(named):
        raise InputError(f"two of the options {options!r} stand for the same: give each a meaning of its own")
    if len(named) == 1:
        raise InputError(f"there is only one option, {next(iter(named))!r}: give two or more, or none")
    return Item("", question, tuple(pictures), tuple(dict(p.attributes) for p in pictures), "", options=named)


def typed_options(item: Item) -> str:
    """The options of an item as `own_question` reads them."""
    return ", ".join(name if name == meaning else f"{name}={meaning}" for name, meaning in item.options.items())


def own_row(item: Item, row: Sequence[Item]) -> list[Item]:
    """The question of one item, asked about the pictures of a row instead of those of that row."""
    return [replace(version, prompt=item.prompt, options=item.options, question="") for version in row]


def read_answer(answer: str, item: Item) -> str | None:
    """The option that the answer to an own question asserts, None if none is clear; without options the words."""
    if not item.options:
        return escaping.one_line(answer).strip() or None
    return parsers.chosen(answer, item.options)


def _replies(model: SteeredModel, items: Sequence[Item], max_new_tokens: int, parse: Any) -> list[ShownAnswer]:
    replies = []
    for item, read in zip(items, model.read(items, max_new_tokens, show=False), strict=True):
        parsed = parse(read.text, item)
        answer = None if parsed is None else item.options.get(str(parsed), str(parsed))
        shares = zip(item.options.values(), read.probabilities, strict=True) if read.probabilities else ()
        replies.append(ShownAnswer(read.text, answer, dict(shares)))
    return replies


def _row(items: Sequence[Item], replies: Sequence[ShownAnswer], steering: str) -> VariantRow:
    first = items[0]
    person = " · ".join(_held_fixed(first)) if first.about else ""
    pairs = zip(items, replies, strict=True)
    versions = tuple(Version(_label(item), item.images, reply) for item, reply in pairs)
    return VariantRow(person, first.prompt, first.about, versions, steering)


def _label(item: Item) -> str:
    """The value of the attribute; of an own question, what its pictures show."""
    if item.about:
        return item.attributes[0][item.about]
    return " or ".join(" ".join(labels(picture).values()) or "your picture" for picture in item.images)


def _least(gates: Sequence[np.ndarray]) -> float | None:
    """The smallest of all gates, rounded down to a tenth: where the heat of a row is black. None without gates."""
    return float(np.floor(10 * min(float(gate.min()) for gate in gates) + 1e-6)) / 10 if gates else None


def _heat(gate: np.ndarray, least: float) -> Markup:
    """The gate as a picture to lay over another one, from black (least) to bright (1)."""
    smooth = Image.fromarray(gate.astype(np.float32)).resize((HEAT_SIDE, HEAT_SIDE), Image.Resampling.BICUBIC)
    colours = _heat_colours((np.asarray(smooth) - least) / max(1 - least, 0.1))
    return Markup(escaping.picture(Image.fromarray(colours), f"gate, mean {gate.mean():.2f}", HEAT_SIDE))


def _heat_colours(shares: np.ndarray) -> np.ndarray:
    """Colours [..., 3] from black to bright, for shares between 0 and 1."""
    from matplotlib import colormaps

    return np.rint(255 * colormaps["inferno"](np.clip(shares, 0, 1))[..., :3]).astype(np.uint8)


@cache
def _template() -> Any:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters |= {"text": lambda value: Markup(escaping.text(value)), "visible": escaping.visible}
    return environment.from_string((files("ggss.play") / "row.html").read_text(encoding="utf-8"))
