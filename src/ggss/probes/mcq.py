"""MCQ (race): salary and education questions with lettered options, about each picture on its own.

Metric: the Jensen-Shannon divergence between races' answers, in nats; tables print it times 1000.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ggss.probes import metrics, parsers
from ggss.probes.base import Item, Probe, register
from ggss.probes.faces import Face, Prompt, crossed
from ggss.stats.metric import Metric


def items(prompts: Mapping[str, Prompt], faces: Sequence[Face]) -> list[Item]:
    return crossed(prompts, faces)


def parse(answer: str, item: Item) -> str | None:
    return parsers.option(answer, item.options)


def measure(
    items: Sequence[Item], parsed: Sequence[Any], probabilities: Sequence[Sequence[float]] | None
) -> Mapping[str, Metric]:
    question, race = [item.question for item in items], [item.attributes[0]["race"] for item in items]
    options = tuple(items[0].options)
    found = {"mean_race_jsd": metrics.mean_race_jsd(question, race, parsed, options)}
    if probabilities is not None:
        name = "soft_mean_race_jsd"
        found[name] = metrics.mean_race_jsd(question, race, np.array(probabilities), options, name)
    return found


register(
    Probe(
        "mcq",
        "salary and education, multiple choice: divergence of races' answers",
        "race",
        items,
        parse,
        measure,
        max_new_tokens=8,
    )
)
