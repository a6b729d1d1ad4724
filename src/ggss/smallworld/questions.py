"""A question of the small world: a prompt over one or two pictures whose answer is known.

Prompts are lower-case words of `vocabulary.WORDS` with a space between any two, and at most 25 of them. A
multiple-choice question ends in its lettered choices and is answered with the letter alone; any other with one word,
except `describe`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

import numpy as np

from ggss.probes.base import Item
from ggss.smallworld.painter import Portrait
from ggss.smallworld.scenes import Scene

LETTERS = ("a", "b", "c", "d")

Painted = Portrait | Scene
"""A picture of the small world."""


@dataclass(frozen=True)
class Question:
    """`answer` is the known answer, or for a biased question a drawn one (in training) or the likeliest one."""

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
    """A question as it is asked, on its own; nothing is compared between the people it shows."""
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
    """Four choices: the answer at the given letter (or anywhere) among three of the wrong ones."""
    choices = [str(wrong[k]) for k in rng.permutation(len(wrong))[:3].tolist()]
    choices.insert(int(rng.integers(4)) if letter is None else letter, answer)
    return tuple(choices)


def certain(options: Sequence[str], answer: str) -> tuple[float, ...]:
    """The truth of a question that has one answer."""
    return tuple(float(option == answer) for option in options)


def content_hash(questions: tuple[Question, ...]) -> str:
    """Of every text, answer and picture description: two suites with the same hash ask the same."""
    lines = "\n".join(
        repr((q.kind, q.text, q.options, q.answer, q.images, [image.labels() for image in q.images], q.dimension))
        for q in questions
    )
    return sha256(lines.encode()).hexdigest()


def held_to(version: str, questions: tuple[Question, ...]) -> tuple[Question, ...]:
    """The same questions, if they are those that the version has always had; RuntimeError if they are not."""
    recorded = json.loads(files("ggss.smallworld").joinpath("data/suites.json").read_text(encoding="utf-8"))
    found = content_hash(questions)
    if found != recorded[version]:
        raise RuntimeError(
            f"{version} came out with hash {found[:12]} where {recorded[version][:12]} is on record; "
            "another numpy may draw other numbers: use the version in constraints.txt"
        )
    return questions
