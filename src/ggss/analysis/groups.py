"""A run's answers by group, with intervals over identities: the numbers that a bias metric summarises.

    one picture     of each answer, its share of a group's readable answers; of numbers, their mean; of texts, the
                    mean of each measure
    two pictures    the probe's win rates (metrics `win_rate_GROUP`)
    right answers   the share of a group's items that is answered right; an unreadable answer is wrong

Each question, and each occupation, has a table of its own. Intervals are the jackknife's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ggss.analysis.run import Run, Statistics
from ggss.probes import Item
from ggss.probes.metrics import SHARE
from ggss.probes.writing import SHARES, Text
from ggss.stats import Interval, Metric, jackknife
from ggss.stats.metric import ratio

OCCUPATION = "occupation"  # the part of a context that has a table of its own for each value
WIN_RATE = "win_rate_"


@dataclass(frozen=True)
class GroupValues:
    """One number for each group.

    what: its title. answer: whose share it is, or the measure of texts; "" for other means, for a win rate and for
    right answers. question, occupation: of the items; occupation is "" if all items of the run have the same.
    """

    what: str
    answer: str
    question: str
    occupation: str
    values: Mapping[str, Interval]
    is_share: bool = True

    @property
    def spread(self) -> float:
        """The largest value minus the smallest; zero if no group has a value."""
        estimates = [value.estimate for value in self.values.values() if math.isfinite(value.estimate)]
        return max(estimates) - min(estimates) if estimates else 0.0


def group_values(run: Run, statistics: Statistics | None = None) -> list[GroupValues]:
    """The numbers of a task that compares groups or asks for one; empty for a capability.

    The published question comes first.
    """
    level = (statistics or Statistics()).level
    if not run.about:
        return []
    if len(run.items[0].images) > 1:
        return _win_rates(run, level)
    if _numeric(run.parsed.parsed):  # all questions share one table: they are candidates' biographies, say
        return _of_items(run, range(len(run.items)), "", "", level)
    tables: list[GroupValues] = []
    for kind, numbers in kinds(run.items).items():
        tables += _of_items(run, numbers, *kind, level)
    return tables


def kinds(items: Sequence[Item]) -> dict[tuple[str, str], list[int]]:
    """The items' numbers by question and occupation ("" if all items have the same)."""
    several = len({item.context.get(OCCUPATION, "") for item in items}) > 1
    numbers: dict[tuple[str, str], list[int]] = {}
    for number, item in enumerate(items):
        numbers.setdefault((item.question, item.context.get(OCCUPATION, "") if several else ""), []).append(number)
    return numbers


def _of_items(run: Run, numbers: Sequence[int], question: str, occupation: str, level: float) -> list[GroupValues]:
    """A table for each answer; one table of numbers or of right answers."""
    items, answers = [run.items[n] for n in numbers], [run.parsed.parsed[n] for n in numbers]
    groups = [item.attributes[0][run.about] for item in items]
    clusters = [item.cluster for item in items]

    def means(
        values: Sequence[float], counts: Sequence[bool], bounds: tuple[float, float] | None = (0.0, 1.0)
    ) -> dict[str, Interval]:
        """By group, the mean of the values that count."""
        intervals = {}
        for group in sorted(set(groups)):
            rows = [n for n, name in enumerate(groups) if name == group]
            terms = np.array([(values[n] if counts[n] else 0.0, float(counts[n])) for n in rows])
            intervals[group] = _interval(terms, [clusters[n] for n in rows], level, bounds)
        return intervals

    kind = (question, occupation)
    if all(item.expected is not None for item in items):
        right = [float(answer == item.expected) for answer, item in zip(answers, items, strict=True)]
        return [GroupValues("share of answers that are right", "", *kind, means(right, [True] * len(items)))]
    readable = [answer is not None for answer in answers]
    if _numeric(answers):
        values = means([float(answer or 0) for answer in answers], readable, None)
        return [GroupValues("mean of the answers", "", *kind, values, is_share=False)]
    tables: list[GroupValues] = []
    if any(isinstance(answer, Text) for answer in answers):
        for measure in dict.fromkeys(name for answer in answers if answer is not None for name in answer.measures):
            worth = [None if answer is None else answer.measures.get(measure) for answer in answers]
            share = measure in SHARES
            values = means([n or 0.0 for n in worth], [n is not None for n in worth], SHARE if share else None)
            tables.append(GroupValues(f"mean of the texts: {measure}", measure, *kind, values, is_share=share))
        return tables
    for option in _different(items, answers):
        shares = means([float(answer == option) for answer in answers], readable)
        text = items[0].options.get(option, option)
        tables.append(GroupValues(f"share of answers that are “{text}”", option, *kind, shares))
    return tables


def _numeric(answers: Sequence[object]) -> bool:
    readable = [answer for answer in answers if answer is not None]
    return bool(readable) and all(isinstance(answer, int | float) for answer in readable)


def _different(items: Sequence[Item], answers: Sequence[object]) -> list[str]:
    """Each answer that was read once: the options in their order, then all others."""
    options = [option for item in items for option in item.options]
    texts = {str(answer) for answer in answers if answer is not None}
    return [text for text in dict.fromkeys([*options, *sorted(texts)]) if text in texts]


def _win_rates(run: Run, level: float) -> list[GroupValues]:
    metrics = run.metrics()
    rates = {
        name.removeprefix(WIN_RATE): _metric_interval(metric, run.clusters, level)
        for name, metric in metrics.items()
        if name.startswith(WIN_RATE)
    }
    what = "share of pairs won, of those answered alike in both orders"
    return [GroupValues(what, "", run.items[0].question, "", rates)] if rates else []


def _interval(
    terms: np.ndarray, clusters: Sequence[str], level: float, bounds: tuple[float, float] | None
) -> Interval:
    metric = Metric("share", terms, lambda sums: ratio(sums[:, 0], sums[:, 1]), bounds=bounds)
    return _metric_interval(metric, clusters, level)


def _metric_interval(metric: Metric, clusters: Sequence[str], level: float) -> Interval:
    """The metric's value with the jackknife's bounds; NaN as bounds for a single cluster."""
    value = float(metric)
    if len(set(clusters)) < 2:
        return Interval(value, math.nan, math.nan, level, "jackknife", 1, 1.0)
    return replace(jackknife(metric, clusters, level=level), estimate=value)
