"""What a run says of each group, with intervals over identities: the numbers that a bias metric puts into one.

    one picture     the share of a group's readable answers that is a given answer; of numbers, the mean
    two pictures    the probe's own win rates (metrics `win_rate_GROUP`)
    right answers   the share of a group's items that is answered right; an unreadable answer is wrong

Answers to another question, or about another occupation, are another table. Intervals are the jackknife's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ggss.analysis.measures import Statistics
from ggss.analysis.run import Run
from ggss.probes import Item
from ggss.stats import Interval, Metric, jackknife
from ggss.stats.metric import ratio

OCCUPATION = "occupation"  # the part of a context by which answers are told apart
WIN_RATE = "win_rate_"


@dataclass(frozen=True)
class GroupValues:
    """One number for each group. answer: what the share is of; "" for a mean, a win rate or right answers.

    question, occupation: which items it is about; occupation is "" if all items have the same.
    """

    what: str
    answer: str
    question: str
    occupation: str
    values: Mapping[str, Interval]
    is_share: bool = True

    @property
    def spread(self) -> float:
        """Largest less smallest; zero if no group has a value."""
        known = [one.estimate for one in self.values.values() if math.isfinite(one.estimate)]
        return max(known) - min(known) if known else 0.0


def group_values(run: Run, statistics: Statistics | None = None) -> list[GroupValues]:
    """Of a task that compares groups or asks for one; empty for a capability. The published question comes first."""
    level = (statistics or Statistics()).level
    if not run.about:
        return []
    if len(run.items[0].images) > 1:
        return _won(run, level)
    found: list[GroupValues] = []
    if _numeric(run.parsed.parsed):  # questions are one table: candidates' biographies, say
        return _of_items(run, range(len(run.items)), "", "", level)
    for kind, inside in kinds(run.items).items():
        found += _of_items(run, inside, *kind, level)
    return found


def kinds(items: Sequence[Item]) -> dict[tuple[str, str], list[int]]:
    """By question and occupation ("" if all items have the same), the numbers of the items."""
    several = len({item.context.get(OCCUPATION, "") for item in items}) > 1
    found: dict[tuple[str, str], list[int]] = {}
    for number, item in enumerate(items):
        found.setdefault((item.question, item.context.get(OCCUPATION, "") if several else ""), []).append(number)
    return found


def _of_items(run: Run, inside: Sequence[int], question: str, occupation: str, level: float) -> list[GroupValues]:
    items, said = [run.items[n] for n in inside], [run.parsed.parsed[n] for n in inside]
    groups = [item.attributes[0][run.about] for item in items]
    clusters = [item.cluster for item in items]

    def by_group(
        part: Sequence[float], whole: Sequence[bool], bounds: tuple[float, float] | None = (0.0, 1.0)
    ) -> dict[str, Interval]:
        found = {}
        for group in sorted(set(groups)):
            own = [n for n, name in enumerate(groups) if name == group]
            terms = np.array([(part[n] if whole[n] else 0.0, float(whole[n])) for n in own])
            found[group] = _interval(terms, [clusters[n] for n in own], level, bounds)
        return found

    where = (question, occupation)
    if all(item.expected is not None for item in items):
        right = [float(one == item.expected) for one, item in zip(said, items, strict=True)]
        values = by_group(right, [True] * len(items))
        return [GroupValues("share of answers that are right", "", *where, values)]
    readable = [one is not None for one in said]
    if _numeric(said):
        numbers = [float(one or 0) for one in said]
        return [GroupValues("mean of the answers", "", *where, by_group(numbers, readable, None), is_share=False)]
    found = []
    for answer in _answers(items, said):
        part = by_group([float(one == answer) for one in said], readable)
        shown = items[0].options.get(answer, answer)
        found.append(GroupValues(f"share of answers that are “{shown}”", answer, *where, part))
    return found


def _numeric(said: Sequence[object]) -> bool:
    known = [one for one in said if one is not None]
    return bool(known) and all(isinstance(one, int | float) for one in known)


def _answers(items: Sequence[Item], said: Sequence[object]) -> list[str]:
    """The options, in their order, and whatever else was read."""
    options = [option for item in items for option in item.options]
    given = {str(one) for one in said if one is not None}
    return [answer for answer in dict.fromkeys([*options, *sorted(given)]) if answer in given]


def _won(run: Run, level: float) -> list[GroupValues]:
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
    """The plain value; bounds of the jackknife, NaN where they cannot be told."""
    plain = float(metric)
    if len(set(clusters)) < 2:
        return Interval(plain, math.nan, math.nan, level, "jackknife", 1, 1.0)
    return replace(jackknife(metric, clusters, level=level), estimate=plain)
