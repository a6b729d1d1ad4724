"""What a small-world model is asked and how that is measured: bias on three tasks, capability, recognition."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from ggss.probes import metrics
from ggss.smallworld.bias_questions import bias_items
from ggss.smallworld.questions import LETTERS, Question
from ggss.smallworld.reading import Gallery, Reading
from ggss.smallworld.smallstar import smallstar
from ggss.stats import Interval, Metric, bootstrap

ALPHAS = (0.25, 0.5, 0.75, 1.0, 1.5)
# Task -> the attribute whose bias it measures, and the kinds of question it asks.
TASKS = {
    "mcq": ("race", ("salary", "education")),
    "2afc": ("race", ("2afc",)),
    "nurse-doctor": ("gender", ("nurse-doctor",)),
}


@dataclass(frozen=True)
class Measured:
    """A task's metric on one run, its soft version, and the identity and counterfactual set of each item."""

    metric: Metric
    soft: Metric
    identity: list[str]
    block: list[str]
    unparsed: int

    def interval(self) -> Interval:
        return bootstrap(self.metric, self.identity)

    def change(self, before: "Measured") -> Interval:
        """The paired percent change, with an interval over identities."""
        return bootstrap(self.metric.percent_change(before.metric), self.identity)


@cache
def task_items(task: str, split: str) -> tuple[Question, ...]:
    """A task's questions on a split; nurse/doctor is scored on the nurses, as in the paper."""
    items = bias_items(split, TASKS[task][1])
    return tuple(q for q in items if task != "nurse-doctor" or q.attributes["occupation"] == "nurse")


def take(task: str, gallery: Gallery, split: str = "evaluation") -> Measured:
    """Ask one task's questions and measure."""
    items = task_items(task, split)
    readings = gallery.read(items, task)
    parsed = [reading.parsed(question) for reading, question in zip(readings, items, strict=True)]
    metric, soft = _METRICS[task](items, parsed, readings)
    people = [f"{q.attributes['occupation']}/{q.attributes['identity']}" for q in items]
    blocks = [f"{q.kind}/{who}/{q.attributes['gender']}" for q, who in zip(items, people, strict=True)]
    return Measured(metric, soft, people, blocks, sum(answer is None for answer in parsed))


def _mcq(items: tuple[Question, ...], parsed: list[str | None], readings: list[Reading]) -> tuple[Metric, Metric]:
    kind, race = [q.kind for q in items], [q.attributes["race"] for q in items]
    soft = np.array([reading.probabilities for reading in readings])
    return metrics.mean_race_jsd(kind, race, parsed, LETTERS), metrics.mean_race_jsd(kind, race, soft, LETTERS)


def _pairs(items: tuple[Question, ...], parsed: list[str | None], readings: list[Reading]) -> tuple[Metric, Metric]:
    first, second = [q.attributes["race"] for q in items], [q.attributes["second_race"] for q in items]
    soft = np.array([reading.probabilities[0] for reading in readings])
    return metrics.race_bias_std(first, second, parsed), metrics.race_bias_std(first, second, soft)


def _nurses(items: tuple[Question, ...], parsed: list[str | None], readings: list[Reading]) -> tuple[Metric, Metric]:
    gender = [q.attributes["gender"] for q in items]
    nurse = np.array([reading.probabilities[0] for reading in readings])
    side = np.array([1.0 if g == "man" else -1.0 for g in gender])
    soft = Metric(
        "soft nurse gap",
        np.column_stack([nurse * (side > 0), side > 0, nurse * (side < 0), side < 0]).astype(float),
        lambda sums: np.abs(sums[:, 0] / sums[:, 1] - sums[:, 2] / sums[:, 3]),
    )
    return metrics.answer_gap(gender, parsed, of="nurse"), soft


_METRICS = {"mcq": _mcq, "2afc": _pairs, "nurse-doctor": _nurses}


def mean_change(after: Mapping[str, Measured], before: Mapping[str, Measured]) -> float:
    """The paper's Avg change in percent: unweighted over the tasks whose baseline is not zero."""
    changes = [100 * (float(after[t].metric) / float(before[t].metric) - 1) for t in after if float(before[t].metric)]
    return float(np.mean(changes))


def recognised(gallery: Gallery, attribute: str, split: str = "evaluation") -> Metric:
    """How often the model names the perceived race or gender when it is asked outright."""
    items = bias_items(split, (attribute,))
    readings = gallery.read(items, f"which {attribute}")
    parsed = [reading.parsed(question) for reading, question in zip(readings, items, strict=True)]
    return metrics.accuracy(parsed, [q.answer for q in items])


def capability(gallery: Gallery) -> tuple[np.ndarray, int]:
    """SmallStar: right (1) or wrong (0) for each of its 1,500 questions, and how many could not be parsed."""
    items = smallstar()
    readings = gallery.read(items, "SmallStar")
    right = np.array([float(r.answer == q.answer) for r, q in zip(readings, items, strict=True)])
    return right, sum(r.parsed(q) is None for r, q in zip(readings, items, strict=True))


def by_dimension(right: np.ndarray) -> dict[str, float]:
    """SmallStar accuracy in each of its six dimensions."""
    names = np.array([q.dimension for q in smallstar()])
    return {name: float(right[names == name].mean()) for name in dict.fromkeys(names.tolist())}
