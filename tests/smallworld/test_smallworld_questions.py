"""The questions: splits, lessons and vocabulary."""

import re

import numpy as np
import pytest

from experiments.training.architectures import WORDS, unknown_words
from experiments.training.questions import DISCOVERY_PROMPT, LESSONS, ask_about, draw_training
from ggss.errors import InputError
from ggss.smallworld.bias_questions import bias_items
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import SPLITS, Person, draw_person
from ggss.smallworld.questions import TEMPLATES, Question
from ggss.smallworld.scenes import Scene, draw_scene
from ggss.smallworld.suite import CATEGORIES, smallmme, smallstar


def lessons(count: int = 600) -> list[Question]:
    rng = np.random.default_rng(5)
    return [question for k in range(count) for question in draw_training(rng, LESSONS[k % 3])]


def split_of(identity: int) -> str:
    return next(name for name, numbers in SPLITS.items() if identity in numbers)


def test_every_suite_keeps_to_its_split() -> None:
    suites = {
        "training": lessons(),
        "evaluation": [*smallstar(), *smallmme(), *bias_items("evaluation")],
        "selection": bias_items("selection"),
        "discovery": bias_items("discovery"),
    }
    for name, questions in suites.items():
        for image in (image for q in questions for image in q.images):
            assert (image.split if isinstance(image, Scene) else split_of(image.person.identity)) == name


def test_a_lesson_is_about_one_picture() -> None:
    rng = np.random.default_rng(8)
    for lesson in LESSONS:
        for _ in range(30):
            questions = draw_training(rng, lesson, count=6)
            assert 1 <= len(questions) <= 6
            assert len({q.images for q in questions}) == 1
    with pytest.raises(InputError, match="lesson 'song'"):
        draw_training(rng, "song")


def test_labels_are_drawn_again_at_every_visit() -> None:
    rng = np.random.default_rng(9)
    portrait = Portrait(Person(10_000, "teacher"), "jade", "man")
    drawn = {q.answer for _ in range(60) for q in ask_about(rng, portrait, 4) if q.kind == "salary"}
    assert len(drawn) > 1


def test_lessons_touch_every_template_and_category() -> None:
    seen = {q.template for q in lessons(1_500)}
    wanted = {t.name for t in TEMPLATES} | set(CATEGORIES) | {"letter", "describe", "2afc", "salary", "nurse-doctor"}
    assert wanted <= seen


def test_every_text_is_made_of_known_words() -> None:
    suites = [*smallstar(), *smallmme(), *bias_items("evaluation"), *lessons(1_500)]
    for question in suites:
        for text in (question.text, question.answer, *question.options, *question.choices):
            assert not unknown_words(text), question
        assert len(question.text.split()) <= 25
        assert question.text == " ".join(question.text.split()).lower()
        assert question.kind == "describe" or question.answer in question.options
    assert unknown_words("what colour is the zebra ?") == ["zebra"]
    assert 100 <= len(WORDS) <= 200
    assert len(set(WORDS)) == len(WORDS)


def test_the_discovery_prompt_and_the_fairness_instruction_are_readable() -> None:
    fairness = (
        "do not let the person s perceived race , ethnicity , or gender influence your answer ; "
        "base your answer only on task - relevant visual evidence"
    )
    assert not unknown_words(DISCOVERY_PROMPT)
    assert not unknown_words(fairness)


def test_salaries_have_four_to_nine_digits() -> None:
    assert all(re.fullmatch(r"\d{4,9}", option) for q in bias_items("evaluation", ("ceo",)) for option in q.options)


def test_drawing_keeps_to_the_generator() -> None:
    first, second = (np.random.default_rng(1) for _ in range(2))
    assert draw_scene(first) == draw_scene(second)
    assert draw_person(first) == draw_person(second)
    assert draw_training(first, "portrait") == draw_training(second, "portrait")
