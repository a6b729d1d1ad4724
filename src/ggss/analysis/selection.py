"""best-avg-alpha: one strength for each method and model, the one with the lowest mean change of bias.

    change of a task = 100 (steered / unsteered - 1)          Avg = unweighted mean over the tasks that have one

A task whose unsteered bias is zero has no percent change and takes no part, for any method. A degenerate run (most
answers unreadable) has no value, so it takes no part either; but an average over what is left flatters a strength
that broke the model, and so such a strength is chosen only if at every other one as many tasks broke. Of equal
strengths the gentlest wins.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ggss.stats.metric import TINY

if TYPE_CHECKING:
    from ggss.study.results import Results

UNSTEERED = "none"

Values = Mapping[str, float | None]  # by task; None where a run is missing or degenerate


def changes(values: Values, baselines: Values) -> dict[str, float]:
    """The change in percent of every task that has one: a readable value and a bias to begin with."""
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
    """The strength with the lowest average among those at which most tasks can be read; None if there is none."""
    ranked = []
    for alpha, of_alpha in values.items():
        average = average_change(of_alpha, baselines)
        if average is not None:
            ranked.append((-len(changes(of_alpha, baselines)), round(average, 9), alpha))
    return min(ranked)[2] if ranked else None


def strengths(results: "Results", method: str) -> tuple[float, ...]:
    """The strengths at which the plan has a method; an instruction has none, which is written 0."""
    if method == UNSTEERED or method not in results.methods:
        return ()
    entry = results.plan.method(method)
    if not entry.steers:
        return (0.0,)
    return tuple(float(alpha) for alpha in entry.alphas or results.alphas)


def task_values(results: "Results", model: str, method: str, alpha: float | None = None) -> dict[str, float | None]:
    """The published metric of each bias task, None where it was not run or most answers could not be read."""
    runs = {task: results.run(model, method, task, alpha) for task in results.tasks}
    return {task: None if run is None or run.degenerate else float(run.metric) for task, run in runs.items()}


def best_alpha(results: "Results", model: str, method: str) -> float | None:
    """The strength chosen for a method on a model; None for the unsteered one, or if nothing can be compared."""
    baselines = task_values(results, model, UNSTEERED)
    return choose(
        {alpha: task_values(results, model, method, alpha) for alpha in strengths(results, method)}, baselines
    )
