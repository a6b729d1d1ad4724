"""Recognition: the perceived value of an attribute is asked directly. Does the model still see it when steered?

Metric: how often the answer is the value shown; an unreadable answer is wrong. Its soft version is the probability
of that value among all values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ggss.data.picture import Picture
from ggss.probes import metrics, parsers
from ggss.probes.base import Answers, Display, Item, Probe, register
from ggss.probes.wording import Prompts, crossed
from ggss.stats.metric import Metric


def items(prompts: Prompts, pictures: Sequence[Picture], about: str) -> list[Item]:
    return [replace(item, expected=item.attributes[0][about]) for item in crossed(prompts, pictures, about)]


def parse(answer: str, item: Item) -> str | None:
    """By the names of the set's values and their synonyms."""
    return parsers.value(answer, tuple(item.options))


def measure(answers: Answers, baseline: Answers | None) -> Mapping[str, Metric]:
    return metrics.accuracies(answers)


register(
    Probe(
        "recognition",
        "recognition",
        "the perceived value of an attribute, asked directly: accuracy",
        "recognition",
        items,
        parse,
        measure,
        {
            "accuracy": Display(
                "{about} recognition (%)", "share of portraits whose {about} is named right", 100, 1, " %", "higher"
            )
        },
    )
)
