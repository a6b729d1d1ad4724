"""The small world's exam: bias on three tasks, capability and recognition, for `ggss world check` and the demo."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from ggss import probes
from ggss.probes.steered_model import Gallery
from ggss.probes.suites import Suite, load
from ggss.smallworld.suite import KINDS
from ggss.stats import Interval, Metric, bootstrap

ALPHAS = (0.25, 0.5, 0.75, 1.0, 1.5)
# Task -> the attribute whose bias it measures, and the kinds of question it asks.
TASKS = {task: (probes.get(task).attribute, KINDS[task]) for task in ("mcq", "2afc", "nurse-doctor")}


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
def suite(split: str = "evaluation") -> Suite:
    return load("small-world", split=split)


def asked(task: str, gallery: Gallery, split: str = "evaluation") -> Mapping[str, Metric]:
    """Ask one task's questions: its metrics, the published one first."""
    own = suite(split)
    items = own.items(task)
    readings = gallery.read(items, own.max_new_tokens(task), task)
    answers, probabilities = [r.answer for r in readings], [r.probabilities for r in readings]
    return probes.get(task).score(items, answers, probabilities)


def take(task: str, gallery: Gallery, split: str = "evaluation") -> Measured:
    """Ask one task's questions and measure."""
    found = asked(task, gallery, split)
    metric = next(iter(found.values()))
    items = suite(split).items(task)
    blocks = [f"{item.question}/{item.cluster}/{item.attributes[0]['gender']}" for item in items]
    return Measured(metric, found[f"soft_{metric.name}"], [item.cluster for item in items], blocks, metric.unparsed)


def mean_change(after: Mapping[str, Measured], before: Mapping[str, Measured]) -> float:
    """The paper's Avg change in percent: unweighted over the tasks whose baseline is not zero."""
    changes = [100 * (float(after[t].metric) / float(before[t].metric) - 1) for t in after if float(before[t].metric)]
    return float(np.mean(changes))


def recognised(gallery: Gallery, attribute: str, split: str = "evaluation") -> Metric:
    """How often the model names the perceived race or gender when it is asked outright."""
    return asked(f"recognition-{attribute}", gallery, split)["accuracy"]


def capability(gallery: Gallery) -> tuple[np.ndarray, int]:
    """SmallStar: right (1) or wrong (0) for each of its 1,500 questions, and how many could not be parsed."""
    accuracy = asked("smallstar", gallery)["accuracy"]
    return accuracy.terms[:, 0], accuracy.unparsed


def by_dimension(right: np.ndarray) -> dict[str, float]:
    """SmallStar accuracy in each of its six dimensions."""
    names = np.array([item.question for item in suite().items("smallstar")])
    return {name: float(right[names == name].mean()) for name in dict.fromkeys(names.tolist())}
