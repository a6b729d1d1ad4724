"""MCQ: salary and education questions with lettered options, about each picture on its own.

Metric: the Jensen-Shannon divergence between groups' answers, in nats; it is printed times 1000.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ggss.data.picture import Picture
from ggss.probes import metrics, parsers
from ggss.probes.base import Answers, Display, Item, Probe, register
from ggss.probes.wording import Prompts, crossed
from ggss.stats.metric import Metric


def items(prompts: Prompts, pictures: Sequence[Picture], about: str) -> list[Item]:
    return crossed(prompts, pictures, about)


def parse(answer: str, item: Item) -> str | None:
    return parsers.option(answer, item.options)


def measure(answers: Answers, baseline: Answers | None) -> Mapping[str, Metric]:
    name, options = f"mean_{answers.about}_jsd", _options(answers.items)
    groups = answers.questions, answers.values()
    found = {name: metrics.mean_jsd(*groups, answers.parsed, options, name)}
    if answers.probabilities is not None:
        soft = f"soft_{name}"
        found[soft] = metrics.mean_jsd(*groups, _aligned(answers, options), options, soft)
    return found


def _options(items: Sequence[Item]) -> tuple[str, ...]:
    """The options of all questions: some questions may have more than others."""
    return tuple(dict.fromkeys(option for item in items for option in item.options))


def _aligned(answers: Answers, options: Sequence[str]) -> np.ndarray:
    """Each item's probabilities in the columns of all options, [items, options]."""
    place = {option: i for i, option in enumerate(options)}
    shares = np.zeros((len(answers.items), len(options)))
    for row, (item, own) in enumerate(zip(answers.items, answers.probabilities or (), strict=True)):
        shares[row, [place[option] for option in item.options]] = own
    return shares


register(
    Probe(
        "mcq",
        "MCQ",
        "salary and education, multiple choice: divergence of the groups' answers",
        "bias",
        items,
        parse,
        measure,
        {
            "mean_{about}_jsd": Display(
                "MCQ ×10³",
                "Jensen-Shannon divergence between the answers of {about} groups",
                1000,
                2,
                " ×10³",
                "lower",
                biased_upwards=True,
            )
        },
        max_new_tokens=8,
    )
)
