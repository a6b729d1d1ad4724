"""SmallStar: the small world's MMStar, 1,500 multiple-choice questions in six dimensions. A capability.

Metric: accuracy, and the accuracy in each dimension; an unreadable answer is wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ggss.probes import metrics, parsers
from ggss.probes.base import Item, Probe, register
from ggss.probes.recognition import expected_share
from ggss.stats.metric import Metric

if TYPE_CHECKING:
    from ggss.smallworld.questions import Question


def items(questions: "Sequence[Question]") -> list[Item]:
    """Every question has a picture of its own, so each is a cluster."""
    return [
        Item(
            key=(key := f"smallstar/{number:04d}"),
            prompt=question.text,
            images=question.images,
            attributes=tuple({} for _ in question.images),
            cluster=key,
            question=question.dimension,
            options=dict(zip(question.options, question.choices, strict=True)),
            expected=question.answer,
        )
        for number, question in enumerate(questions)
    ]


def parse(answer: str, item: Item) -> str | None:
    return parsers.option(answer, item.options)


def measure(
    items: Sequence[Item], parsed: Sequence[Any], probabilities: Sequence[Sequence[float]] | None
) -> Mapping[str, Metric]:
    overall = metrics.accuracy(parsed, [str(item.expected) for item in items])
    found = {"accuracy": overall}
    if probabilities is not None:
        found["soft_accuracy"] = expected_share(items, probabilities)
    lost = np.array([answer is None for answer in parsed])
    for dimension in dict.fromkeys(item.question for item in items):
        inside = np.array([item.question == dimension for item in items])
        found[dimension] = replace(
            overall,
            name=dimension,
            terms=overall.terms * inside[:, None],
            unparsed=int((lost & inside).sum()),
            asked=int(inside.sum()),
        )
    return found


register(
    Probe(
        "smallstar",
        "the small world's MMStar, multiple choice: accuracy in six dimensions",
        "",
        items,
        parse,
        measure,
        max_new_tokens=8,
    )
)
