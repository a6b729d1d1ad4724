"""Bootstrap intervals, and tests by relabelling.

**The bootstrap** gives percentile intervals as in the paper, or BCa. The items, or the clusters if there are any, are
treated as an independent sample of all possible ones. Items of one identity are not independent: pass `clusters`, or
the interval is valid for these identities only. Greedy answers do not vary, so this sampling is the only uncertainty.

**Tests by relabelling** exchange which run an answer came from (`signflip`), or which group an item shows
(`label_null`). Neither needs the metric to be unbiased: the same bias is in every relabelling. `holm` adjusts
p-values of several tests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from ggss import errors
from ggss.errors import InputError, problems
from ggss.stats.metric import TINY, Array, Interval, Metric, as_metric, check_paired, check_share, cluster_codes

Task = Metric | ArrayLike

_CELLS = 250_000  # items drawn at once: 2 MB


def bootstrap(
    metric: Metric | ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    method: Literal["percentile", "bca"] = "percentile",
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """A bootstrap interval of a metric, or of the mean of plain numbers.

    For a paired change resample the change itself: `bootstrap(steered.percent_change(unsteered))`.

    `percentile` assumes that the metric is unbiased on a symmetric scale. Divergences and spreads are not: in
    small samples they are too high, in resamples even higher, and the whole interval may be above the true
    value. `bca` corrects for a little bias and skewness, not for that much: use `jackknife` there. With fewer than
    about 20 clusters both are too narrow. If more than half of the resamples are undefined, low and high are NaN.

    Args:
        metric: a metric, or one number per item.
        clusters: each item's identity; None: items are independent.
        method: percentile or bca.
        level: of the interval.
        resamples: how many.
        seed: of the resamples.

    Returns:
        The interval, with the resamples' values.

    Raises:
        InputError: for an unknown method, a level that is no share, or a single cluster.

    Examples:
        >>> interval = ggss.stats.bootstrap([0, 1, 1, 0, 1, 1], clusters=["ann", "ann", "bob", "bob", "cat", "cat"])
        >>> round(interval.estimate, 3), interval.low, interval.high
        (0.667, 0.5, 1.0)
    """
    if method not in ("percentile", "bca"):
        raise InputError(f"bootstrap method {method!r} is unknown: use 'percentile' or 'bca'")
    check_share(level, "a confidence level")
    errors.SEED.check("a seed", seed)
    sample = as_metric(metric).by(clusters)
    draws = np.concatenate(list(_resampled(sample, resamples, np.random.default_rng(seed))))
    defined = draws[np.isfinite(draws)]
    undefined = 1 - len(defined) / resamples
    estimate = float(sample)
    low = high = float("nan")
    if undefined <= 0.5 and np.isfinite(estimate):
        tails = np.array([(1 - level) / 2, (1 + level) / 2])
        if method == "bca":
            tails = _bca_tails(sample, estimate, defined, tails)
        low, high = (float(bound) for bound in np.quantile(defined, tails))
    return Interval(estimate, low, high, level, method, len(sample), undefined, draws)


def batches(rows: int, width: int) -> list[int]:
    """How many rows to work on at a time so that rows x width stays within memory."""
    if rows < 1:
        raise InputError(f"at least one resample is needed, got {rows}")
    size = max(1, min(rows, _CELLS // width))
    return [min(size, rows - done) for done in range(0, rows, size)]


def _resampled(metric: Metric, resamples: int, rng: np.random.Generator) -> Iterator[Array]:
    # Items with equal terms are interchangeable, and there are few different ones.
    distinct, index = np.unique(metric.terms, axis=0, return_inverse=True)
    n, width = len(metric), len(distinct)
    for size in batches(resamples, n):
        cells = index.ravel()[rng.integers(n, size=(size, n))] + np.arange(size)[:, None] * width
        weights = np.bincount(cells.ravel(), minlength=size * width).reshape(size, width)
        yield metric.value(weights @ distinct)


def _bca_tails(metric: Metric, estimate: float, draws: Array, tails: Array) -> Array:
    """Efron's tails: shifted by the draws' median bias, stretched by the jackknife's skewness."""
    below = (np.mean(draws < estimate) + np.mean(draws <= estimate)) / 2
    bias = scipy.stats.norm.ppf(np.clip(below, 0.5 / len(draws), 1 - 0.5 / len(draws)))
    left_out = metric.without_each()
    left_out = left_out[np.isfinite(left_out)]
    influence = left_out.mean() - left_out if len(left_out) else left_out
    spread = np.sum(influence**2)
    skew = np.sum(influence**3) / (6 * spread**1.5) if spread > 0 else 0.0
    z = bias + scipy.stats.norm.ppf(tails)
    return scipy.stats.norm.cdf(bias + z / (1 - skew * z))


@dataclass(frozen=True)
class Permutation:
    """An observed statistic, its p-value, and the relabelled statistics (`draws`) that it was compared with.

    Args:
        statistic: as observed.
        p: the share of relabelled statistics that are at least as large.
        draws: the relabelled statistics.

    Examples:
        >>> round(ggss.stats.Permutation(0.5, 0.2, draws=np.array([0.1, 0.2, 0.3])).quantile(0.5), 2)
        0.2
    """

    statistic: float
    p: float
    draws: Array = field(repr=False, compare=False)

    def quantile(self, q: float = 0.95) -> float:
        """The point that relabelled statistics exceed with probability 1 - q; NaN where none is defined."""
        defined = self.draws[np.isfinite(self.draws)]
        return float(np.quantile(defined, q)) if len(defined) else float("nan")


def signflip(
    steered: Task | Sequence[Metric],
    unsteered: Task | Sequence[Metric],
    baselines: Sequence[float] | None = None,
    clusters: ArrayLike | Sequence[ArrayLike] | None = None,
    *,
    draws: int = 10_000,
    seed: int = 0,
) -> Permutation:
    """The paired permutation test between two runs on the same items, two-sided, p = (1 + hits) / (1 + draws).

    The null hypothesis: for every item (or cluster) it makes no difference which run its answers came from. Each draw
    swaps the two runs' answers for a random half of them. With clusters all items of one identity swap together,
    which is valid whatever their dependence; swapping items alone is valid only if the runs' differences on one
    identity are independent, and rejects too often when they are not.

    Several tasks, given as lists of metrics (and of cluster labels), are combined by the sum of differences, each
    divided by its unsteered value (`baselines`, with sign: a negative gap gets smaller when it rises); tasks whose
    baseline is zero are left out. The same cluster label in two tasks is the same identity and swaps together.
    The p-value cannot fall below 2 / 2**clusters: 0.008 for eight identities.

    Args:
        steered: a metric or one number per item; or a list of metrics, one for each task.
        unsteered: the same for the other run.
        baselines: each task's unsteered value; needed for several tasks.
        clusters: each item's identity; of several tasks, a list for each.
        draws: how often answers are swapped.
        seed: of the swaps.

    Returns:
        The difference steered - unsteered, its p-value and the draws.

    Raises:
        InputError: if the runs cannot be paired, or no task has a baseline.

    Examples:
        >>> test = ggss.stats.signflip([0.1, 0.2, 0.1, 0.2], [0.5, 0.6, 0.4, 0.7])
        >>> round(test.statistic, 2), bool(0.1 < test.p < 0.2)  # four pairs cannot give less than 2 / 2**4
        (-0.4, True)
    """
    errors.SEED.check("a seed", seed)
    after, before = _tasks(steered), _tasks(unsteered)
    if len(after) != len(before):
        raise InputError(f"{len(after)} tasks cannot be paired with {len(before)}")
    for a, b in zip(after, before, strict=True):
        _check_swappable(a, b)
    scales = _scales(after, baselines)
    units, count = _swap_units(after, clusters)
    used = [t for t, scale in enumerate(scales) if abs(scale) > TINY]
    if not used:
        raise InputError("every task has a baseline of zero, so no normalised difference exists to test")
    differences_by_unit = [np.zeros((count, task.terms.shape[1])) for task in after]
    for t in used:
        np.add.at(differences_by_unit[t], units[t], after[t].terms - before[t].terms)

    def differences(unswapped: Array) -> Array:
        """The combined statistic of each draw. unswapped [draws, units]: units with 1 stay, those with 0 swap."""
        total = np.zeros(len(unswapped))
        for t in used:
            a, b, moved = after[t], before[t], unswapped @ differences_by_unit[t]
            total += (a.value(b.terms.sum(0) + moved) - b.value(a.terms.sum(0) - moved)) / scales[t]
        return total

    rng = np.random.default_rng(seed)
    observed = float(differences(np.ones((1, count)))[0])
    swapped = [differences(_coins(rng, size, count)) for size in batches(draws, count)]
    return _permutation(observed, np.concatenate(swapped))


def label_null(metric: Metric, blocks: ArrayLike, *, draws: int = 10_000, seed: int = 0) -> Permutation:
    """Test of a group metric (the race JSD, a gap) against group labels that are shuffled within blocks.

    A block is one counterfactual set: the same identity, context and question, once for each group. The null
    hypothesis is that within it the answer does not depend on the group; p is the share of shuffles at least as
    large. A divergence below `quantile(0.95)` does not differ significantly from zero.

    Args:
        metric: a group metric of a run.
        blocks: each item's counterfactual set.
        draws: how often labels are shuffled.
        seed: of the shuffles.

    Returns:
        The metric, its p-value and the draws.

    Raises:
        InputError: if the metric compares no groups, or no block shows two of them.

    Examples:
        >>> test = ggss.stats.label_null(before.metric, [f"{i.cluster} {i.question}" for i in before.items])
        >>> test.statistic == float(before.metric), bool(0 < test.p <= 1)
        (True, True)
    """
    errors.SEED.check("a seed", seed)
    if metric.groups is None or metric.evidence is None:
        raise InputError(f"{metric.name} compares no groups, so there are no labels to shuffle")
    codes, _ = cluster_codes(blocks, len(metric))
    order = np.argsort(codes, kind="stable")
    codes, groups, evidence = codes[order], metric.groups[order], metric.evidence[order]
    count = int(groups.max()) + 1
    if len(np.unique(codes * count + groups)) == len(np.unique(codes)):
        raise InputError(f"{metric.name}: every block shows one group only, so there is nothing to shuffle within it")
    rng = np.random.default_rng(seed)
    statistics = []
    for size in batches(draws, len(metric) * 2):
        # Sorting block number plus a random fraction shuffles inside every block of every draw at once.
        shuffled = groups[np.argsort(codes + rng.random((size, len(codes))), axis=1)]
        sums = [(shuffled == group).astype(float) @ evidence for group in range(count)]
        statistics.append(metric.value(np.stack(sums, axis=1).reshape(size, -1)))
    return _permutation(float(metric), np.concatenate(statistics))


def holm(p: ArrayLike) -> Array:
    """Holm's adjusted p-values for a table of tests: compare each with 0.05. Valid under any dependence.

    Args:
        p: the p-values, in any shape.

    Returns:
        The adjusted p-values, in the same shape.

    Raises:
        InputError: for something that is no p-value.

    Examples:
        >>> ggss.stats.holm([0.01, 0.04, 0.03]).round(2).tolist()
        [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=float)
    if not values.size or not ((values >= 0) & (values <= 1)).all():
        raise InputError(f"p-values between 0 and 1 are needed, got {values.tolist()}: leave undefined tests out")
    flat = values.ravel()
    order = np.argsort(flat)
    stepped = np.maximum.accumulate(flat[order] * np.arange(len(flat), 0, -1))
    adjusted = np.empty_like(flat)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted.reshape(values.shape)


def _coins(rng: np.random.Generator, rows: int, width: int) -> Array:
    """Random zeros and ones [rows, width], one for each random bit."""
    packed = np.frombuffer(rng.bytes(rows * -(-width // 8)), dtype=np.uint8).reshape(rows, -1)
    return np.unpackbits(packed, axis=1, count=width).astype(float)


def _permutation(observed: float, draws: Array) -> Permutation:
    """The two-sided test of an observed statistic against relabelled ones."""
    if not np.isfinite(observed):
        return Permutation(observed, float("nan"), draws)
    slack = 1e-9 * abs(observed) + 1e-15  # a relabelling equal to the data must count despite rounding
    # A relabelling in which the metric has no value counts as at least as large.
    hits = np.count_nonzero(~(np.abs(draws) < abs(observed) - slack))
    return Permutation(observed, (1 + hits) / (1 + len(draws)), draws)


def _is_list_of_metrics(values: object) -> TypeGuard[Sequence[Metric]]:
    return isinstance(values, list | tuple) and bool(values) and isinstance(values[0], Metric)


def _tasks(values: Task | Sequence[Metric]) -> list[Metric]:
    return list(values) if _is_list_of_metrics(values) else [as_metric(values)]  # pyright: ignore[reportArgumentType]


def _check_swappable(metric: Metric, other: Metric) -> None:
    check_paired(metric, other)
    if metric.terms.shape != other.terms.shape:
        raise InputError(f"{metric.name} and {other.name} are not the same metric, so no answers can be swapped")


def _scales(tasks: list[Metric], baselines: Sequence[float] | None) -> list[float]:
    if baselines is None:
        if len(tasks) > 1:
            raise InputError(
                f"{len(tasks)} tasks are on different scales: give each one's unsteered value as `baselines`"
            )
        return [1.0]
    if len(baselines) != len(tasks):
        raise InputError(f"{len(tasks)} tasks need {len(tasks)} baselines, got {len(baselines)}")
    bad = [f"{task.name}: {value}" for task, value in zip(tasks, baselines, strict=True) if not np.isfinite(value)]
    if bad:
        raise problems("baselines must be numbers", bad)
    return [float(value) for value in baselines]


def _swap_units(
    tasks: list[Metric], clusters: ArrayLike | Sequence[ArrayLike] | None
) -> tuple[list[NDArray[np.intp]], int]:
    """The swap unit of every item of each task, numbered across tasks, and the number of units."""
    ends = np.cumsum([len(task) for task in tasks])
    if clusters is None:
        return np.split(np.arange(ends[-1]), ends[:-1]), int(ends[-1])
    single = len(tasks) == 1 and np.asarray(clusters).ndim == 1
    labels = [np.asarray(task_labels) for task_labels in ([clusters] if single else clusters)]  # pyright: ignore
    wrong = [
        f"{task.name}: {len(task)} items, cluster labels of shape {task_labels.shape}"
        for task, task_labels in zip(tasks, labels, strict=False)
        if task_labels.shape != (len(task),)
    ]
    if len(labels) != len(tasks) or wrong:
        raise problems(f"{len(tasks)} tasks need one cluster label per item each, got {len(labels)} lists", wrong)
    codes, count = cluster_codes(np.concatenate(labels), int(ends[-1]))
    return np.split(codes, ends[:-1]), count
