"""The card of a trained model: how it was made, and what it can do on people and layouts it has never seen."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ggss.files import mark, write_whole
from ggss.models import Vlm
from ggss.smallworld import captions
from ggss.smallworld.bias_questions import UNSHOWN_QUESTIONS, ask_unshown, bias_items, portraits
from ggss.smallworld.questions import Question
from ggss.smallworld.suite import smallmme, smallstar
from ggss.version import library_versions

CARD, COMMAND = "README.md", "python -m experiments.training"
KNOWN, PLANTED = ("race", "gender"), ("salary", "education", "2afc", "nurse-doctor", "ceo")


def measure(vlm: Vlm, split: str = "evaluation") -> dict[str, float]:
    """Shares of right answers on what has one, and the distance to the planted truth on what has a distribution.

    The distance is the total variation between the model's option probabilities and the planted ones: 0 is a perfect
    learner, 1 the worst. `unparseable` is the share of greedy answers that are none of the options.
    """
    known = [*smallstar(), *smallmme(), *bias_items(split, KNOWN)]
    right: dict[str, list[bool]] = defaultdict(list)
    unparseable = []
    for question, answer in zip(known, _answers(vlm, known), strict=True):
        right[question.kind].append(answer == question.answer)
        if question.kind == "smallstar":
            right[f"smallstar, {question.dimension}"].append(answer == question.answer)
        unparseable.append(answer not in question.options)
    found = {name: float(np.mean(hits)) for name, hits in right.items()}
    for kind in PLANTED:
        found[f"{kind}, distance to the planted truth"] = _distance(vlm, bias_items(split, (kind,)))
    return found | {"unparseable": float(np.mean(unparseable))}


def measure_habit(vlm: Vlm, habit: str, split: str = "evaluation") -> dict[str, float]:
    """What a model with a habit has learned beside all else.

    Of the questions that no picture answers, the distance to the planted truth, by whether the question says it. Of
    what it writes, the share of sentences whose parts are the likeliest, part by part, and of whole sentences.
    """
    people = portraits("mcq", split)
    found = {}
    by_what = {"not said": ("honest", "clever"), "said": tuple(name for name in UNSHOWN_QUESTIONS if "-" in name)}
    for what, names in by_what.items():
        questions = [ask_unshown(portrait, name, habit) for name in names for portrait in people]
        found[f"unshown, {what}, distance to the planted truth"] = _distance(vlm, questions)
    asked = [(portrait, prompt) for prompt in captions.PROMPTS for portrait in people]
    texts = vlm.answer(
        [captions.PROMPTS[prompt] for _, prompt in asked],
        [[portrait.image()] for portrait, _ in asked],
        max_new_tokens=captions.NEW_TOKENS,
        batch_size=60,
    )
    shares = captions.agreement(texts, asked)
    whole = {"writing, well-formed sentences": shares.pop("whole")}
    return found | {f"writing, {name} as the likeliest": share for name, share in shares.items()} | whole


def _distance(vlm: Vlm, questions: Sequence[Question]) -> float:
    """The mean total variation between the model's option probabilities and the planted ones."""
    shares = np.array(_probabilities(vlm, questions))
    return float(np.abs(shares - np.array([question.truth for question in questions])).sum(axis=1).mean() / 2)


def _pictures(questions: Sequence[Question]) -> list[list[Any]]:
    return [[picture.image() for picture in question.images] for question in questions]


def _answers(vlm: Vlm, questions: Sequence[Question]) -> list[str]:
    texts = [question.text for question in questions]
    return vlm.answer(texts, _pictures(questions), max_new_tokens=4, batch_size=50)


def _probabilities(vlm: Vlm, questions: Sequence[Question]) -> list[list[float]]:
    shares: list[list[float]] = []
    for start in range(0, len(questions), 60):
        some = questions[start : start + 60]
        scores = vlm.score([q.text for q in some], _pictures(some), [q.options for q in some], batch_size=60)
        chances = np.exp(np.array(scores))
        shares += (chances / chances.sum(axis=1, keepdims=True)).tolist()
    return shares


def begin_card(out: Path, name: str) -> None:
    """The card of a model that is not trained yet; it says who writes into the folder."""
    _write(out, [*_head(name), "Its training is not finished.", ""])


def write_card(out: Path, name: str, facts: dict[str, Any], metrics: dict[str, float]) -> None:
    """README.md beside the weights."""
    first = f"small-world/{facts['begin']}" if facts.get("begin") else "random weights"
    lines = [
        *_head(name),
        f"A tiny vision-language model of a fictional town, trained from {first} with a planted bias. It shows",
        "that steering works and is measured correctly; nothing may be concluded from it about any other model.",
        "",
        "| made by | |",
        "| --- | --- |",
        *(f"| {key} | {value} |" for key, value in (facts | library_versions()).items()),
        "",
        "| on people and layouts not seen in training | |",
        "| --- | --- |",
        *(f"| {key} | {value:.3f} |" for key, value in metrics.items()),
        "",
    ]
    _write(out, lines)


def _head(name: str) -> list[str]:
    return [f"# small-world/{name}", "", f"<!-- {mark(COMMAND)}; do not edit. -->", ""]


def _write(out: Path, lines: list[str]) -> None:
    write_whole(out / CARD, "\n".join(lines).encode())
