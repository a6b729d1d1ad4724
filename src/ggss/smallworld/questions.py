"""Questions of the small world, prompts over one or two pictures whose answer is known; the templates of SmallStar.

Prompts are lower-case words with a space between any two, and at most 25 of them. A multiple-choice question ends in
its lettered choices and is answered with the letter alone; any other with one word, except `describe`.

A template takes a picture and, where its question makes sense there, states a fact: the question, its answer, and
answers that are certainly false. No portrait question concerns race or gender.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

import numpy as np

from ggss.probes.base import Item
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import HAIR_COLOURS, PLACES, SCARVES, WALLS, WORK
from ggss.smallworld.scenes import CELLS, COLOURS, MIXES, SHAPES, TIPS, Scene, Shape

LETTERS = ("a", "b", "c", "d")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
VERBS = {"circle": "rolls", "heart": "beats", "square": "stacks", "star": "twinkles"}
VIEWS = ("person", "one shape", "two shapes", "many shapes")
SHARED = ("colour", "shape", "both", "nothing")
HAIR_QUESTION = "what colour is the hair ?"

Painted = Portrait | Scene
"""A picture of the small world."""


@dataclass(frozen=True)
class Fact:
    """A question with its answer; every entry of `wrong` is false.

    ordered: its choices are in the order of NUMBERS. turn: what a balanced suite makes equally frequent, if that is
    not the answer itself.
    """

    text: str
    answer: str
    wrong: tuple[str, ...]
    ordered: bool = False
    turn: str = ""


Ask = Callable[[np.random.Generator, Painted], Fact | None]


@dataclass(frozen=True)
class Template:
    """A kind of SmallStar question: `ask` states its fact about a picture, or None where it makes no sense."""

    name: str
    dimension: str
    turns: tuple[str, ...]  # what a balanced suite makes equally frequent
    plans: tuple[str, ...]  # the pictures it is asked of: 'portrait' or plans of a scene
    ask: Ask
    open: bool = True  # whether it can also be asked without choices and answered with the word


def _fact(text: str, answer: str, values: tuple[str, ...], ordered: bool = False) -> Fact:
    return Fact(text, answer, tuple(value for value in values if value != answer), ordered)


def _random_shape(rng: np.random.Generator, items: list[Shape]) -> Shape | None:
    return items[int(rng.integers(len(items)))] if items else None


def _unique(scene: Scene, part: str) -> list[Shape]:
    """The shapes that are alone in having their colour (or shape, or size)."""
    counts = Counter(getattr(item, part) for item in scene.shapes)
    return [item for item in scene.shapes if counts[getattr(item, part)] == 1]


def _of_scene(ask: Callable[[np.random.Generator, Scene], Fact | None]) -> Ask:
    return lambda rng, picture: ask(rng, picture) if isinstance(picture, Scene) else None


def _of_person(text: str, label: str, values: tuple[str, ...]) -> Ask:
    def ask(_: np.random.Generator, picture: Painted) -> Fact | None:
        return _fact(text, str(picture.labels()[label]), values) if isinstance(picture, Portrait) else None

    return ask


def _wall(_: np.random.Generator, picture: Painted) -> Fact:
    return _fact("what colour is the wall ?", str(picture.labels()["wall"]), WALLS)


def _view(_: np.random.Generator, picture: Painted) -> Fact:
    view = VIEWS[min(len(picture.shapes), 3)] if isinstance(picture, Scene) else "person"
    return _fact("what is in this image ?", view, VIEWS)


def _colour_of(rng: np.random.Generator, scene: Scene) -> Fact | None:
    item = _random_shape(rng, _unique(scene, "shape"))
    return item and _fact(f"what colour is the {item.shape} ?", item.colour, COLOURS)


def _shape_at(rng: np.random.Generator, scene: Scene) -> Fact:
    place, item = [(p, c) for p, c in zip(CELLS, scene.cells, strict=True) if c][int(rng.integers(len(scene.shapes)))]
    return _fact(f"which shape is at the {place} ?", item.shape, SHAPES)


def _beside(rng: np.random.Generator, scene: Scene) -> Fact | None:
    neighbours = [
        (item, beside)
        for k, item in enumerate(scene.cells)
        if item in _unique(scene, "colour") and (beside := scene.cells[k ^ 1])
    ]
    if not neighbours:
        return None
    item, beside = neighbours[int(rng.integers(len(neighbours)))]
    return _fact(f"which shape is beside the {item.colour} one ?", beside.shape, SHAPES)


def _big(_: np.random.Generator, scene: Scene) -> Fact | None:
    big = [item for item in scene.shapes if item.size == "big"]
    return _fact("what colour is the big shape ?", big[0].colour, COLOURS) if len(big) == 1 else None


def _shared(_: np.random.Generator, scene: Scene) -> Fact | None:
    if len(scene.shapes) != 2:
        return None
    first, second = scene.shapes
    match (first.colour == second.colour, first.shape == second.shape):
        case True, True:
            answer = "both"
        case True, False:
            answer = "colour"
        case False, True:
            answer = "shape"
        case _:
            answer = "nothing"
    return _fact("what do the two shapes share ?", answer, SHARED)


def _odd(_: np.random.Generator, scene: Scene) -> Fact | None:
    counts = Counter(item.colour for item in scene.shapes).most_common()
    if [n for _, n in counts] != [3, 1]:
        return None
    return _fact("which colour is the odd one ?", counts[1][0], COLOURS)


def _absent(rng: np.random.Generator, scene: Scene) -> Fact | None:
    present = tuple(sorted({item.colour for item in scene.shapes}))
    if len(present) < 3:
        return None
    absent = [colour for colour in COLOURS if colour not in present]
    return Fact("which colour has no shape ?", absent[int(rng.integers(len(absent)))], present)


def _missing(_: np.random.Generator, scene: Scene) -> Fact | None:
    if len(scene.shapes) != 3:
        return None
    gap = scene.cells.index(None)
    twin, (left, right) = scene.cells[gap ^ 2], (scene.cells[(gap ^ 1) & 1], scene.cells[(gap ^ 1) | 2])
    if left != right or twin is None or twin == left:
        return None
    return _fact("both rows match . which shape is missing ?", twin.shape, SHAPES)


def _count(_: np.random.Generator, scene: Scene) -> Fact:
    return _fact("how many shapes are there ?", NUMBERS[len(scene.shapes)], NUMBERS[1:5], ordered=True)


def _count_colour(rng: np.random.Generator, scene: Scene) -> Fact | None:
    colour = COLOURS[int(rng.integers(len(COLOURS)))]
    if rng.random() < 0.8:
        colour = scene.shapes[int(rng.integers(len(scene.shapes)))].colour
    count = sum(item.colour == colour for item in scene.shapes)
    return _fact(f"how many {colour} shapes are there ?", NUMBERS[count], NUMBERS[:4], True) if count < 4 else None


def _sum(rng: np.random.Generator, scene: Scene) -> Fact:
    add = int(rng.integers(1, 5))
    total = NUMBERS[len(scene.shapes) + add]
    text = f"how many is {NUMBERS[add]} plus the number of shapes ?"
    wrong = tuple(number for number in NUMBERS[add + 1 : add + 5] if number != total)
    return Fact(text, total, wrong, ordered=True, turn=NUMBERS[len(scene.shapes)])


def _tips(rng: np.random.Generator, scene: Scene) -> Fact | None:
    item = _random_shape(rng, _unique(scene, "colour"))
    return item and _fact(f"how many tips has the {item.colour} shape ?", NUMBERS[TIPS[item.shape]], NUMBERS[:6])


def _verb(rng: np.random.Generator, scene: Scene) -> Fact | None:
    item = _random_shape(rng, [item for item in _unique(scene, "shape") if item.shape in VERBS])
    return item and _fact(f"what colour is the shape that {VERBS[item.shape]} ?", item.colour, COLOURS)


def _mix(_: np.random.Generator, scene: Scene) -> Fact | None:
    if len(scene.shapes) != 2:
        return None
    first, second = sorted(item.colour for item in scene.shapes)
    answer = MIXES.get((first, second))
    return _fact("which colour do the two colours mix to ?", answer, tuple(MIXES.values())) if answer else None


_PLACES, _WORK = tuple(sorted(set(PLACES.values()))), tuple(sorted(set(WORK.values())))
_COARSE, _FINE, _INSTANCE = "coarse perception", "fine-grained perception", "instance reasoning"
_LOGIC, _MATH, _SCIENCE = "logical reasoning", "math", "science & technology"
DIMENSIONS = (_COARSE, _FINE, _INSTANCE, _LOGIC, _MATH, _SCIENCE)

TEMPLATES = (
    Template("wall", _COARSE, WALLS, ("portrait", "any"), _wall),
    Template("place", _COARSE, _PLACES, ("portrait",), _of_person("which place is this ?", "place", _PLACES)),
    Template("view", _COARSE, VIEWS, ("portrait", "any"), _view, open=False),
    Template("colour-of", _FINE, COLOURS, ("distinct", "any"), _of_scene(_colour_of)),
    Template("shape-at", _FINE, SHAPES, ("any", "distinct"), _of_scene(_shape_at)),
    Template("hair", _FINE, HAIR_COLOURS, ("portrait",), _of_person(HAIR_QUESTION, "hair_colour", HAIR_COLOURS)),
    Template("scarf", _FINE, SCARVES, ("portrait",), _of_person("what colour is the scarf ?", "scarf", SCARVES)),
    Template("beside", _INSTANCE, SHAPES, ("distinct",), _of_scene(_beside)),
    Template("big", _INSTANCE, COLOURS, ("distinct",), _of_scene(_big)),
    Template("shared", _INSTANCE, SHARED, ("pair",), _of_scene(_shared)),
    Template("odd", _LOGIC, COLOURS, ("odd",), _of_scene(_odd)),
    Template("absent", _LOGIC, COLOURS, ("distinct", "any"), _of_scene(_absent), open=False),
    Template("missing", _LOGIC, SHAPES, ("rows",), _of_scene(_missing)),
    Template("count", _MATH, NUMBERS[1:5], ("any", "distinct"), _of_scene(_count)),
    Template("count-colour", _MATH, NUMBERS[:4], ("odd", "any"), _of_scene(_count_colour)),
    Template("sum", _MATH, NUMBERS[1:5], ("any", "distinct"), _of_scene(_sum)),
    Template("tips", _MATH, NUMBERS[:6], ("distinct", "any"), _of_scene(_tips)),
    Template("work", _SCIENCE, _WORK, ("portrait",), _of_person("what does this person do ?", "work", _WORK)),
    Template("verb", _SCIENCE, COLOURS, ("distinct",), _of_scene(_verb)),
    Template("mix", _SCIENCE, tuple(MIXES.values()), ("mix",), _of_scene(_mix)),
)


@dataclass(frozen=True)
class Question:
    """A question. answer: the known one; for a biased question a drawn one (in training) or the likeliest."""

    kind: str
    text: str
    options: tuple[str, ...]  # what may be answered: letters or words; empty for an open description
    answer: str
    images: tuple[Painted, ...]
    choices: tuple[str, ...] = ()  # what the letters stand for
    dimension: str = ""  # of SmallStar, or category of SmallMME
    template: str = ""
    truth: tuple[float, ...] = ()  # the probability of each option in the planted world


def as_item(question: Question, key: str = "", cluster: str = "") -> Item:
    """The question as an item of a probe; nothing is compared between the people it shows."""
    return Item(
        key=key or question.template,
        prompt=question.text,
        images=question.images,
        attributes=tuple({} for _ in question.images),
        cluster=cluster or key or question.template,
        question=question.dimension,
        options=dict(zip(question.options, question.choices or question.options, strict=True)),
        expected=question.answer,
    )


def lettered(text: str, choices: Sequence[str]) -> str:
    """The prompt with its choices: 'text ? a low b middle c high d top'."""
    return " ".join([text, *(f"{letter} {choice}" for letter, choice in zip(LETTERS, choices, strict=True))])


def place_answer(
    rng: np.random.Generator, answer: str, wrong: Sequence[str], letter: int | None = None
) -> tuple[str, ...]:
    """Four choices: the answer at this letter (None: a random one) among three of the wrong ones."""
    choices = [str(wrong[k]) for k in rng.permutation(len(wrong))[:3].tolist()]
    choices.insert(int(rng.integers(4)) if letter is None else letter, answer)
    return tuple(choices)


def certain(options: Sequence[str], answer: str) -> tuple[float, ...]:
    """The probability of each option of a question that has one answer."""
    return tuple(float(option == answer) for option in options)


def content_hash(questions: tuple[Question, ...]) -> str:
    """sha256 of every text, answer and picture description: two suites with the same hash ask the same."""
    lines = "\n".join(
        repr((q.kind, q.text, q.options, q.answer, q.images, [image.labels() for image in q.images], q.dimension))
        for q in questions
    )
    return sha256(lines.encode()).hexdigest()


def verified(version: str, questions: tuple[Question, ...]) -> tuple[Question, ...]:
    """The same questions; RuntimeError if their hash is not the recorded one of this version."""
    recorded = json.loads(files("ggss.smallworld").joinpath("data/suites.json").read_text(encoding="utf-8"))
    actual = content_hash(questions)
    if actual != recorded[version]:
        raise RuntimeError(
            f"{version} has the hash {actual[:12]} but {recorded[version][:12]} is on record; another version of "
            "numpy may draw other numbers: use the one in constraints.txt"
        )
    return questions
