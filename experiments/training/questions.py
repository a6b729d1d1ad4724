"""What a model is taught: several questions about one freshly drawn picture, or one about two portraits.

Biased labels are drawn at every visit. Beside the questions of the suites there are easier forms of the same facts:
full descriptions, the bare word instead of a letter, and an exercise in text alone, to find the letter of a word.
"""

import numpy as np

from ggss.errors import InputError
from ggss.smallworld.bias_questions import (
    BIOGRAPHIES,
    ask_ceo,
    ask_education,
    ask_gender,
    ask_nurse_doctor,
    ask_pair,
    ask_race,
    ask_salary,
)
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import RACES, draw_person
from ggss.smallworld.questions import (
    LETTERS,
    NUMBERS,
    TEMPLATES,
    Fact,
    Painted,
    Question,
    Template,
    certain,
    lettered,
    place_answer,
)
from ggss.smallworld.scenes import CELLS, PLANS, Scene
from ggss.smallworld.suite import CATEGORIES, ask_choice, ask_yes_no, draw_picture

DISCOVERY_PROMPT = "describe this image in detail ."
LESSONS = ("portrait", "scene", "pair")
RARE = frozenset({"beside", "big", "shared", "odd", "absent", "missing", "mix"})  # few scenes allow these templates
HARDEST = frozenset({"beside", "shared", "share"})
USUAL = {"nothing": 0.35, "no": 0.5}  # most pairs of shapes share nothing: how often those are asked about


def draw_training(rng: np.random.Generator, lesson: str, count: int = 8) -> list[Question]:
    """Up to `count` questions about one new training picture; for 'pair' one question about two portraits."""
    if lesson not in LESSONS:
        raise InputError(f"lesson {lesson!r} is unknown; choose one of {', '.join(LESSONS)}")
    if lesson == "pair":
        return [_pair(rng)]
    plan = "portrait" if lesson == "portrait" else tuple(PLANS)[int(rng.integers(len(PLANS)))]
    return ask_about(rng, draw_picture(rng, "training", plan), count)


def ask_about(rng: np.random.Generator, picture: Painted, count: int = 8) -> list[Question]:
    """Up to `count` questions about a picture: the biased ones and those that few pictures allow, then any others."""
    first = biased_questions(rng, picture) if isinstance(picture, Portrait) else []
    others = descriptions(rng, picture)
    for question in known_questions(rng, picture):
        (first if question.template in RARE else others).append(question)
    first, others = ([some[k] for k in rng.permutation(len(some))] for some in (first, others))
    return (first + others)[:count]


def _pair(rng: np.random.Generator) -> Question:
    """Two races of one person, or sometimes two different people."""
    first = draw_picture(rng, "training", "portrait")
    assert isinstance(first, Portrait)
    person = first.person if rng.random() < 0.7 else draw_person(rng)
    others = [race for race in RACES if race != first.race or person != first.person]
    second = Portrait(person, others[int(rng.integers(len(others)))], first.gender)
    return ask_pair(first, second, rng)


def biased_questions(rng: np.random.Generator, portrait: Portrait) -> list[Question]:
    """All that apply to the portrait, each with a newly drawn label."""
    questions = [ask(portrait, rng) for ask in (ask_salary, ask_education, ask_race, ask_gender)]
    if portrait.person.place == "hospital":
        questions.append(ask_nurse_doctor(portrait, rng))
    if portrait.person.occupation == "ceo":
        questions.append(ask_ceo(portrait, int(rng.integers(len(BIOGRAPHIES))), rng))
    return questions


def known_questions(rng: np.random.Generator, picture: Painted) -> list[Question]:
    """One of every kind that applies to the picture and has one answer."""
    questions = [letter_question(rng, picture)]
    for template in TEMPLATES:
        if fact := template.ask(rng, picture):
            questions.append(ask_choice(rng, template, fact, picture))
            if template.open and rng.random() < 0.5:
                questions.append(_word(template, fact, picture))
    pairs = [ask_yes_no(rng, category, picture) for category in CATEGORIES]
    return questions + [pair[int(rng.integers(2))] for pair in pairs if pair]


def comparing_questions(rng: np.random.Generator, scene: Scene) -> list[Question]:
    """The same, and more of what is hardest: what stands beside another shape, and what two shapes share.

    All answers to it come about equally often. It is also asked in two parts: the colour alone, the shape alone.
    """
    asked = known_questions(rng, scene)
    for template in [one for one in TEMPLATES if one.name in HARDEST] * 2:
        if fact := template.ask(rng, scene):
            asked.append(ask_choice(rng, template, fact, scene))
    if len(scene.shapes) == 2:
        asked += [_share(scene, part) for part in ("colour", "shape")]
    return [q for q in asked if q.template not in ("shared", "share") or rng.random() < USUAL.get(_said(q), 1)]


def _share(scene: Scene, part: str) -> Question:
    first, second = scene.shapes
    answer = "yes" if getattr(first, part) == getattr(second, part) else "no"
    text, options = f"do the two shapes share the {part} ?", ("yes", "no")
    return Question("word", text, options, answer, (scene,), template="share", truth=certain(options, answer))


def _said(question: Question) -> str:
    """The answer in words."""
    return question.choices[LETTERS.index(question.answer)] if question.choices else question.answer


def _word(template: Template, fact: Fact, picture: Painted) -> Question:
    options = tuple(sorted((fact.answer, *fact.wrong)))
    truth = certain(options, fact.answer)
    return Question("word", fact.text, options, fact.answer, (picture,), (), template.dimension, template.name, truth)


def letter_question(rng: np.random.Generator, picture: Painted) -> Question:
    template = TEMPLATES[int(rng.integers(len(TEMPLATES)))]
    words = sorted({*template.turns, *NUMBERS[:3]} if len(template.turns) < 5 else template.turns)
    wanted = words[int(rng.integers(len(words)))]
    choices = place_answer(rng, wanted, [word for word in words if word != wanted])
    answer = LETTERS[choices.index(wanted)]
    text = lettered(f"which letter has {wanted} ?", choices)
    return Question("letter", text, LETTERS, answer, (picture,), choices, "", "letter", certain(LETTERS, answer))


def descriptions(rng: np.random.Generator, picture: Painted) -> list[Question]:
    """All that can be seen, in a fixed order; of a scene also what is at a place, of a colour, of a shape."""
    if isinstance(picture, Portrait):
        return [_describe(picture, DISCOVERY_PROMPT, _portrait_words(picture))]
    found = [(place, shape) for place, shape in zip(CELLS, picture.cells, strict=True) if shape]
    words = [f"{place} {shape.size} {shape.colour} {shape.shape} ." for place, shape in found]
    asked = [_describe(picture, DISCOVERY_PROMPT, " ".join([f"{picture.wall} wall .", *words]))]
    place, shape = found[int(rng.integers(len(found)))]
    asked.append(_describe(picture, f"what is at the {place} ?", f"{shape.size} {shape.colour} {shape.shape}"))
    for part, prompt, answer in (
        ("colour", "what is {0.colour} ?", "{1} {0.size} {0.shape}"),
        ("shape", "what is the {0.shape} ?", "{1} {0.size} {0.colour}"),
    ):
        values = [getattr(shape, part) for _, shape in found]
        if alone := [(shape, place) for place, shape in found if values.count(getattr(shape, part)) == 1]:
            chosen = alone[int(rng.integers(len(alone)))]
            asked.append(_describe(picture, prompt.format(*chosen), answer.format(*chosen)))
    return asked


def _describe(picture: Painted, prompt: str, answer: str) -> Question:
    return Question("describe", prompt, (), answer, (picture,), template="describe")


def _portrait_words(portrait: Portrait) -> str:
    seen = portrait.labels()
    hair = f"{seen['hair_colour']} {seen['hair_style']} hair"
    return (
        f"{seen['wall']} wall . {seen['race']} {seen['gender']} with {hair} . glasses {seen['glasses']} . "
        f"{seen['scarf']} scarf . {seen['place']} . {seen['work']} ."
    )
