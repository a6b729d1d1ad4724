"""SmallStar and SmallMME: answerable from the picture, by an oracle of its own, and only from it."""

import re
from collections import Counter, defaultdict
from itertools import combinations

import numpy as np
import pytest

from experiments.training.questions import LESSONS, draw_training
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import GENDERS, PLACES, RACES, WORK
from ggss.smallworld.questions import DIMENSIONS, LETTERS, NUMBERS, TEMPLATES, Question, verified
from ggss.smallworld.scenes import COLOURS, MIXES, SHAPES, TIPS, Scene
from ggss.smallworld.suite import CATEGORIES, PERCEPTION, REASONING, SMALLSTAR_VERSION, smallmme, smallstar


def lessons(count: int = 600) -> list[Question]:
    rng = np.random.default_rng(5)
    return [question for k in range(count) for question in draw_training(rng, LESSONS[k % 3])]


def holds(question: str, choice: str, picture: Portrait | Scene) -> bool:
    """Whether a choice answers the question, worked out from the words alone."""
    if isinstance(picture, Portrait):
        traits, job = picture.person.traits, picture.person.occupation
        known = {
            "what colour is the wall ?": traits.wall,
            "which place is this ?": PLACES[job],
            "what is in this image ?": "person",
            "what colour is the hair ?": traits.hair_colour,
            "what colour is the scarf ?": traits.scarf,
            "what does this person do ?": WORK[job],
        }
        return known[question] == choice
    cells, shapes = picture.cells, [cell for cell in picture.cells if cell]
    count = len(shapes)

    def only(items: list) -> object:
        assert len(items) == 1, (question, picture)
        return items[0]

    def asked(pattern: str) -> str | None:
        found = re.fullmatch(pattern, question)
        return found and found[1]

    if question == "what colour is the wall ?":
        return picture.wall == choice
    if question == "what is in this image ?":
        return choice == {1: "one shape", 2: "two shapes"}.get(count, "many shapes")
    if verb := asked(r"what colour is the shape that (\w+) \?"):
        shape = {"rolls": "circle", "beats": "heart", "stacks": "square", "twinkles": "star"}[verb]
        return only([s.colour for s in shapes if s.shape == shape]) == choice
    if question == "what colour is the big shape ?":
        return only([s.colour for s in shapes if s.size == "big"]) == choice
    if shape := asked(r"what colour is the (\w+) \?"):
        return only([s.colour for s in shapes if s.shape == shape]) == choice
    if place := asked(r"which shape is at the (.+) \?"):
        cell = cells[2 * ("bottom" in place) + ("right" in place)]
        return cell is not None and cell.shape == choice
    if colour := asked(r"which shape is beside the (\w+) one \?"):
        k = only([k for k, cell in enumerate(cells) if cell and cell.colour == colour])
        beside = cells[{0: 1, 1: 0, 2: 3, 3: 2}[k]]  # pyright: ignore
        return beside is not None and beside.shape == choice
    if question == "what do the two shapes share ?":
        first, second = shapes
        same = {"colour": first.colour == second.colour, "shape": first.shape == second.shape}
        both, nothing = all(same.values()), not any(same.values())
        return {"both": both, "nothing": nothing}.get(choice, not both and same.get(choice, False))
    if question == "which colour is the odd one ?":
        return count == 4 and only([c for c, n in Counter(s.colour for s in shapes).items() if n == 1]) == choice
    if question == "which colour has no shape ?":
        return choice in COLOURS and choice not in {s.colour for s in shapes}
    if question == "both rows match . which shape is missing ?":
        fits = []
        for shape in set(shapes):
            filled = [cell or shape for cell in cells]
            fits += [shape.shape] if filled[:2] == filled[2:] else []
        return only(fits) == choice
    if question == "how many shapes are there ?":
        return NUMBERS.index(choice) == count
    if colour := asked(r"how many (\w+) shapes are there \?"):
        return NUMBERS.index(choice) == sum(s.colour == colour for s in shapes)
    if number := asked(r"how many is (\w+) plus the number of shapes \?"):
        return NUMBERS.index(choice) == NUMBERS.index(number) + count
    if colour := asked(r"how many tips has the (\w+) shape \?"):
        tips = {"circle": 0, "heart": 1, "moon": 2, "triangle": 3, "square": 4, "star": 5}
        return NUMBERS.index(choice) == tips[str(only([s.shape for s in shapes if s.colour == colour]))]
    if question == "which colour do the two colours mix to ?":
        mixed = {"purple": "red blue", "green": "blue yellow", "orange": "red yellow", "pink": "red white"}
        return set(mixed[choice].split()) == {s.colour for s in shapes}
    raise AssertionError(f"the oracle does not know {question!r}")


def claimed(question: str, picture: Portrait | Scene) -> bool:
    """Whether a yes-or-no question is to be answered with yes."""
    if isinstance(picture, Portrait):
        traits, job = picture.person.traits, picture.person.occupation
        word = question.split()[-2]
        return word in (traits.hair_colour, traits.hair_style, traits.glasses, PLACES[job], WORK[job])
    shapes = picture.shapes
    words = question.split()
    if found := re.fullmatch(r"are there more (\w+) shapes than (\w+) shapes \?", question):
        first, second = (sum(s.colour == colour for s in shapes) for colour in found.groups())
        return first > second
    if found := re.fullmatch(r"is (\w+) plus the number of shapes (\w+) \?", question):
        return NUMBERS.index(found[1]) + len(shapes) == NUMBERS.index(found[2])
    if question.startswith("is the number of shapes"):
        return words[-2] == NUMBERS[len(shapes)]
    if question.startswith("is there any shape that"):
        shape = {"rolls": "circle", "beats": "heart", "stacks": "square", "twinkles": "star"}[words[-2]]
        return shape in {s.shape for s in shapes}
    if question.startswith("is there any"):
        return words[-2] in {s.shape for s in shapes}
    cells = [k for k, cell in enumerate(picture.cells) if cell and cell.shape == words[2]]
    assert len(cells) == 1
    if "at" in words:
        return words[-2] in (("top", "bottom")[cells[0] // 2], ("left", "right")[cells[0] % 2])
    item = picture.cells[cells[0]]
    return item is not None and item.colour == words[-2]


def test_smallstar_has_250_questions_in_each_of_six_dimensions() -> None:
    assert Counter(q.dimension for q in smallstar()) == dict.fromkeys(DIMENSIONS, 250)
    assert len({(q.text, q.images) for q in smallstar()}) == 1_500


@pytest.mark.parametrize("questions", [smallstar, lambda: [q for q in lessons() if q.kind == "smallstar"]])
def test_exactly_the_answer_is_right(questions) -> None:
    for question in questions():
        asked = question.text.split(" a ")[0]
        right = [holds(asked, choice, question.images[0]) for choice in question.choices]
        assert [letter for letter, ok in zip(LETTERS, right, strict=True) if ok] == [question.answer], question
        assert len(set(question.choices)) == 4


def test_the_oracle_notices_a_wrong_answer() -> None:
    question = next(q for q in smallstar() if q.template == "colour-of")
    asked = question.text.split(" a ")[0]
    wrong = question.choices[(LETTERS.index(question.answer) + 1) % 4]
    assert not holds(asked, wrong, question.images[0])


def test_words_answer_the_open_form_alone() -> None:
    for question in (q for q in lessons() if q.kind == "word"):
        right = [option for option in question.options if holds(question.text, option, question.images[0])]
        assert right == [question.answer], question


def test_smallstar_cannot_be_answered_without_the_picture() -> None:
    """The best constant letter and the most frequent word among the choices stay near a quarter in every template."""
    letters, words = defaultdict(Counter), defaultdict(Counter)
    for q in smallstar():
        letters[q.template][q.answer] += 1
        words[q.template][q.choices[LETTERS.index(q.answer)]] += 1
    by_word = defaultdict(list)
    for q in smallstar():
        guess = max(q.choices, key=lambda choice: words[q.template][choice])
        by_word[q.template].append(guess == q.choices[LETTERS.index(q.answer)])
    for template in letters:
        total = letters[template].total()
        assert max(letters[template].values()) / total <= 0.4, template
        assert np.mean(by_word[template]) <= 0.4, template
    assert np.mean([hit for hits in by_word.values() for hit in hits]) < 0.32
    assert max(Counter(q.answer for q in smallstar()).values()) < 0.28 * 1_500


def test_the_words_of_a_question_do_not_give_its_answer_away() -> None:
    """Whoever knows how often each text has each answer, and sees no picture, still gets at most 40 %."""
    answers = defaultdict(Counter)
    for q in smallstar():
        answers[q.text][q.answer] += 1
    often = {text: counts for text, counts in answers.items() if counts.total() >= 12}
    assert often
    for text, counts in often.items():
        assert max(counts.values()) / counts.total() <= 0.42, text


def test_no_portrait_question_names_race_or_gender() -> None:
    taboo = {*RACES, *GENDERS, "race", "gender"}
    for question in (*smallstar(), *smallmme()):
        assert not taboo & set(question.text.split())


def test_portraits_and_scenes_both_appear() -> None:
    kinds = Counter(type(q.images[0]) for q in smallstar())
    assert kinds[Portrait] > 300
    assert kinds[Scene] > 800


def test_a_changed_suite_is_noticed() -> None:
    assert verified(SMALLSTAR_VERSION, smallstar()) == smallstar()
    with pytest.raises(RuntimeError, match="is on record"):
        verified(SMALLSTAR_VERSION, smallstar()[1:])


def test_templates_know_the_facts_of_the_scenes() -> None:
    assert tuple(TIPS) == SHAPES
    assert len({t.name for t in TEMPLATES}) == len(TEMPLATES)
    assert set(MIXES) <= set(combinations(COLOURS, 2))


def test_smallmme_asks_in_pairs_with_one_yes_and_one_no() -> None:
    questions = smallmme()
    assert set(CATEGORIES) == set(PERCEPTION) | set(REASONING)
    assert Counter(q.dimension for q in questions) == dict.fromkeys(CATEGORIES, 60)
    for first, second in zip(questions[::2], questions[1::2], strict=True):
        assert first.images == second.images
        assert first.dimension == second.dimension
        assert {first.answer, second.answer} == {"yes", "no"}


@pytest.mark.parametrize("questions", [smallmme, lambda: [q for q in lessons() if q.kind == "smallmme"]])
def test_yes_and_no_are_true(questions) -> None:
    for question in questions():
        assert claimed(question.text, question.images[0]) == (question.answer == "yes"), question


def test_smallmme_texts_do_not_give_the_answer_away() -> None:
    answers = defaultdict(Counter)
    for question in (q for q in lessons(3_000) if q.kind == "smallmme"):
        answers[question.text][question.answer] += 1
    for text, counts in answers.items():
        if counts.total() >= 60:
            assert 0.2 < counts["yes"] / counts.total() < 0.8, text
