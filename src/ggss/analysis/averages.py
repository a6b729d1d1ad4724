"""Avg: the mean change of bias over tasks; an identity is resampled in all its tasks together."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ggss.analysis.comparison import Comparison, percent
from ggss.analysis.measured import Measured, percentile
from ggss.stats import Interval, Metric, bootstrap, jackknife
from ggss.stats.metric import Array, mean_of


def average_change(comparisons: Sequence[Comparison]) -> Interval | None:
    """The unweighted mean change in percent over the tasks that have one.

    Args:
        comparisons: one for each task.

    Returns:
        Avg with its interval over identities; None if no task has a change.

    Examples:
        >>> ggss.analysis.average_change([found]).estimate == found.change().estimate
        True
    """
    found = average_draws(comparisons)
    if found is None:
        return None
    estimate, draws = found
    return percentile(estimate, draws, len(_everyone(comparisons)), comparisons[0].statistics.level)


def corrected_average(comparisons: Sequence[Comparison]) -> Interval | None:
    """Avg freed of its small-sample bias, with an interval over identities (jackknife); None if no task has a change.

    Leaving out an identity leaves it out of all tasks.
    """
    everyone = _everyone(comparisons)
    ratios = []
    for one in comparisons:
        if one.baseline is not None and one.reached is not None:
            after, before = _of_everyone(one.after, everyone), _of_everyone(one.before, everyone)
            ratios.append(after.percent_change(before))
    if not ratios or len(everyone) < 2:
        return None
    return jackknife(mean_of(ratios), level=comparisons[0].statistics.level)


def across(models: Sequence[Sequence[Comparison]]) -> tuple[Interval, Interval] | None:
    """The mean and the worst of several models' averages, the same identities resampled in all of them."""
    found = [average_draws(comparisons) for comparisons in models]
    if not found or any(one is None for one in found):
        return None
    estimates, drawn = zip(*(one for one in found if one), strict=True)
    units, level = len(_everyone(models[0])), models[0][0].statistics.level
    mean = percentile(float(np.mean(estimates)), np.mean(drawn, axis=0), units, level)
    return mean, percentile(max(estimates), np.max(drawn, axis=0), units, level)


def average_draws(comparisons: Sequence[Comparison]) -> tuple[float, Array] | None:
    """The mean change and its resamples."""
    everyone = _everyone(comparisons)
    changes, drawn = [], []
    for one in comparisons:
        if one.baseline is not None and one.reached is not None and np.isfinite(one.reached):
            changes.append(100 * (one.reached / one.baseline - 1))
            key = ("average", *everyone)  # the unsteered run is compared with many: its resamples are kept
            if key not in one.before._draws:
                one.before._draws[key] = _joint(one.before, everyone)
            drawn.append(_changes(one, _joint(one.after, everyone), one.before._draws[key]))
    return (float(np.mean(changes)), np.mean(drawn, axis=0)) if changes else None


def _changes(one: Comparison, after: Array, before: Array) -> Array:
    """Resampled changes in percent: of a gap in percent of the fixed one, as in `Comparison.change`."""
    gap = one.before.signed()
    return percent(after, before) if gap is None else 100 * (after - before) / float(gap)


def _everyone(comparisons: Sequence[Comparison]) -> list[str]:
    return sorted({cluster for one in comparisons for cluster in one.before.clusters})


def _joint(run: Measured, everyone: Sequence[str]) -> Array:
    """Resamples of the published metric (a gap with its sign), a row for every identity, zero for those not shown."""
    statistics = run.statistics
    seed = statistics.seed_of("average")
    return bootstrap(_of_everyone(run, everyone), resamples=statistics.resamples, seed=seed).draws


def _of_everyone(run: Measured, everyone: Sequence[str]) -> Metric:
    place = {person: k for k, person in enumerate(everyone)}
    metric = run.signed() or run.metric()
    terms = np.zeros((len(everyone), metric.terms.shape[1]))
    np.add.at(terms, [place[cluster] for cluster in run.clusters], metric.terms)
    return replace(metric, terms=terms, groups=None, evidence=None)
