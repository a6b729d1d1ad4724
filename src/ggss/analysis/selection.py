"""best-avg-alpha: one strength for each method and model, the one with the lowest mean change of bias.

    change of a task = 100 (steered / unsteered - 1)          Avg = unweighted mean over the tasks that have one

A task whose unsteered bias is zero has no percent change and does not count, for any method. A run in which nothing
can be read has no value, so it does not count either; how many answers could be read does not enter the choice, as
published. But the average over the other tasks would favour a strength that broke the model, so only the strengths
with the most tasks are compared. Of equally good strengths the smallest is chosen.
"""

import math
from collections.abc import Mapping

from ggss.analysis.comparison import Comparison
from ggss.stats.metric import TINY

Sweep = Mapping[float, Mapping[str, Comparison]]
"""By strength and task, a method's runs compared with the unsteered ones."""

Values = Mapping[str, float | None]  # by task; None where a run is missing or has no value


def changes(values: Values, baselines: Values) -> dict[str, float]:
    """The change in percent of every task that has one: a value and an unsteered bias other than zero."""
    unsteered = counted(baselines)
    return {
        task: 100 * (value / unsteered[task] - 1)
        for task, value in values.items()
        if task in unsteered and value is not None and math.isfinite(value)
    }


def counted(baselines: Values) -> dict[str, float]:
    """The tasks that can count: those with an unsteered bias other than zero."""
    return {
        task: value
        for task, value in baselines.items()
        if value is not None and math.isfinite(value) and abs(value) > TINY
    }


def average_change(values: Values, baselines: Values) -> float | None:
    """Avg, in percent; None if no task has a change."""
    found = changes(values, baselines)
    return math.fsum(found.values()) / len(found) if found else None


def choose(values: Mapping[float, Values], baselines: Values) -> float | None:
    """The strength with the lowest average among those with the most tasks; None if there is none."""
    ranked = []
    for alpha, of_alpha in values.items():
        average = average_change(of_alpha, baselines)
        if average is not None:
            ranked.append((-len(changes(of_alpha, baselines)), round(average, 9), alpha))
    return min(ranked)[2] if ranked else None


def values(comparisons: Mapping[str, Comparison]) -> dict[str, float | None]:
    """By task, the bias reached; None where nothing could be read."""
    return {task: one.reached for task, one in comparisons.items()}


def baselines(comparisons: Mapping[str, Comparison]) -> dict[str, float | None]:
    """By task, the bias before."""
    return {task: one.baseline for task, one in comparisons.items()}


def best_alpha(sweep: Sweep) -> float | None:
    """The strength with the lowest mean change of bias: best-avg-alpha.

    Args:
        sweep: by strength and task, a method's runs compared with the unsteered ones.

    Returns:
        The strength; None if nothing in the sweep can be compared.

    Examples:
        >>> ggss.analysis.best_alpha({0.5: {"mcq": found}, 1.0: {"mcq": found}})  # of equally good ones the smallest
        0.5
    """
    unsteered: dict[str, float | None] = {}
    for comparisons in sweep.values():
        unsteered |= baselines(comparisons)
    return choose({alpha: values(comparisons) for alpha, comparisons in sweep.items()}, unsteered)
