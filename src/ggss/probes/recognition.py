"""Recognition: the perceived race or gender asked outright. Steering should not blind the model to people.

Metric: how often the answer is the value shown; an unreadable answer is wrong. Its soft version is the probability
of that value among all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ggss.probes import metrics, parsers
from ggss.probes.base import Item, Probe, register
from ggss.probes.faces import Face, Prompt, crossed
from ggss.stats.metric import Metric, mean


def race(answer: str, item: Item) -> str | None:
    return parsers.race(answer, tuple(item.options))


def gender(answer: str, item: Item) -> str | None:
    """By the words of the set's own values: one set says man and woman, another male and female."""
    return parsers.named(answer, {value: _words(value) for value in item.options})


def _words(value: str) -> Sequence[str]:
    return next((words for words in parsers.GENDER_WORDS.values() if value.lower() in words), (value,))


def measure(
    items: Sequence[Item], parsed: Sequence[Any], probabilities: Sequence[Sequence[float]] | None
) -> Mapping[str, Metric]:
    found = {"accuracy": metrics.accuracy(parsed, [str(item.expected) for item in items])}
    if probabilities is not None:
        found["soft_accuracy"] = expected_share(items, probabilities)
    return found


def expected_share(items: Sequence[Item], probabilities: Sequence[Sequence[float]]) -> Metric:
    """The mean probability of the right option."""
    return mean(
        [own[list(item.options).index(str(item.expected))] for item, own in zip(items, probabilities, strict=True)],
        "soft_accuracy",
    )


def _recognition(attribute: str, parse: Callable[[str, Item], str | None]) -> Probe:
    def items(prompts: Mapping[str, Prompt], faces: Sequence[Face]) -> list[Item]:
        return [replace(item, expected=item.attributes[0][attribute]) for item in crossed(prompts, faces)]

    summary = f"the perceived {attribute}, asked outright: accuracy"
    return Probe(f"recognition-{attribute}", summary, attribute, items, parse, measure)


register(_recognition("race", race))
register(_recognition("gender", gender))
