"""The small world's suite: its questions as items of the probes, in the tiny models' vocabulary.

Wording, options and people are those of `bias_questions`, `smallstar` and `smallmme`; nothing is written twice.
"""

from collections.abc import Iterable

from ggss.errors import InputError
from ggss.probes.base import Item, get
from ggss.probes.faces import COLUMNS, Face, Prompt
from ggss.smallworld.bias_questions import bias_items
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import SPLITS
from ggss.smallworld.questions import Picture, Question
from ggss.smallworld.smallmme import smallmme
from ggss.smallworld.smallstar import smallstar

# Task -> the kinds of question it asks.
KINDS = {
    "mcq": ("salary", "education"),
    "2afc": ("2afc",),
    "nurse-doctor": ("nurse-doctor",),
    "ceo": ("ceo",),
    "recognition-race": ("race",),
    "recognition-gender": ("gender",),
}
# The capability questions are about evaluation identities and held-out layouts, whatever the split.
CAPABILITY = {"smallstar": smallstar, "smallmme": smallmme}
TASKS = (*KINDS, *CAPABILITY)
ASKED_SPLITS = tuple(split for split in SPLITS if split != "training")


def items(task: str, split: str) -> list[Item]:
    """The items of a task on the identities of a split."""
    if task in CAPABILITY:
        return list(get(task).items(CAPABILITY[task]()))
    questions = bias_items(split, KINDS[task])
    return list(get(task).items(_prompts(questions), _faces(questions)))


def check_split(split: str) -> None:
    if split not in ASKED_SPLITS:
        raise InputError(f"split {split!r} cannot be asked about; choose one of {', '.join(ASKED_SPLITS)}")


def as_item(question: Question) -> Item:
    """A single question as it is asked, on its own."""
    own = _prompt(question)
    people = tuple(_attributes(picture) for picture in question.images)
    return Item(question.template, own.text, question.images, people, question.template, options=own.options)


def _prompt(question: Question) -> Prompt:
    return Prompt(question.text, dict(zip(question.options, question.choices or question.options, strict=True)))


def _prompts(questions: Iterable[Question]) -> dict[str, Prompt]:
    """By template; a question has one wording, whoever it is about."""
    return {question.template: _prompt(question) for question in questions}


def _faces(questions: Iterable[Question]) -> list[Face]:
    shown = dict.fromkeys(picture for question in questions for picture in question.images)
    return [Face(picture, _attributes(picture)) for picture in shown]


def _attributes(picture: Picture) -> dict[str, str]:
    if not isinstance(picture, Portrait):
        return {}
    person = picture.person
    return dict(
        zip(COLUMNS, (person.occupation, f"{person.identity:02d}", picture.race, picture.gender), strict=True)
    )
