"""SmallMME: the small world's MME, yes-or-no questions in pairs about one picture. A capability.

Metrics: accuracy over questions, accuracy+ over pictures (both answers right), and MME's totals over the perception
and the reasoning categories. The picture is the cluster; its share of a metric stands in the row of its first
question.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ggss.probes import parsers
from ggss.probes.base import Item, Probe, register
from ggss.probes.mme_scores import mme, on_questions
from ggss.stats.metric import Metric

if TYPE_CHECKING:
    from ggss.smallworld.questions import Question

REASONING = frozenset({"work", "nature", "sum", "comparison"})


def items(questions: "Sequence[Question]") -> list[Item]:
    """Two questions in a row are about the same picture."""
    return [
        Item(
            key=f"{(picture := f'{question.dimension}/{number // 2:03d}')}/{question.answer}",
            prompt=question.text,
            images=question.images,
            attributes=tuple({} for _ in question.images),
            cluster=picture,
            question=question.dimension,
            options={option: option for option in question.options},
            expected=question.answer,
        )
        for number, question in enumerate(questions)
    ]


def parse(answer: str, item: Item) -> str | None:
    return parsers.yes_or_no(answer)


def measure(
    items: Sequence[Item], parsed: Sequence[Any], probabilities: Sequence[Sequence[float]] | None
) -> Mapping[str, Metric]:
    categories, pictures = [item.question for item in items], [item.cluster for item in items]
    found = mme(categories, pictures, parsed, [str(item.expected) for item in items], REASONING)
    return {name: on_questions(metric, categories, pictures) for name, metric in found.items()}


register(
    Probe(
        "smallmme",
        "the small world's MME, yes or no: accuracy, accuracy+, perception and reasoning",
        "",
        items,
        parse,
        measure,
    )
)
