"""The bootstrap: percentile intervals as in the paper, or BCa.

The items, or the clusters when given, are treated as an independent sample of all possible ones. Items of one
identity are not independent: give `clusters`, or the interval is valid for these identities only. Greedy answers
do not vary, so this sampling is the only uncertainty.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ggss import ranges
from ggss.errors import InputError
from ggss.stats.interval import Interval, check_share
from ggss.stats.metric import Array, Metric, as_metric

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
        >>> found = ggss.stats.bootstrap([0, 1, 1, 0, 1, 1], clusters=["ann", "ann", "bob", "bob", "cat", "cat"])
        >>> round(found.estimate, 3), found.low, found.high
        (0.667, 0.5, 1.0)
    """
    if method not in ("percentile", "bca"):
        raise InputError(f"bootstrap method {method!r} is unknown: use 'percentile' or 'bca'")
    check_share(level, "a confidence level")
    ranges.SEED.check("a seed", seed)
    sample = as_metric(metric).by(clusters)
    draws = np.concatenate(list(_resampled(sample, resamples, np.random.default_rng(seed))))
    kept = draws[np.isfinite(draws)]
    undefined = 1 - len(kept) / resamples
    estimate = float(sample)
    low = high = float("nan")
    if undefined <= 0.5 and np.isfinite(estimate):
        tails = np.array([(1 - level) / 2, (1 + level) / 2])
        if method == "bca":
            tails = _bca_tails(sample, estimate, kept, tails)
        low, high = (float(bound) for bound in np.quantile(kept, tails))
    return Interval(estimate, low, high, level, method, len(sample), undefined, draws)


def batches(rows: int, width: int) -> list[int]:
    """How many rows to work on at a time so that rows x width stays within memory."""
    if rows < 1:
        raise InputError(f"at least one resample is needed, got {rows}")
    size = max(1, min(rows, _CELLS // width))
    return [min(size, rows - done) for done in range(0, rows, size)]


def _resampled(metric: Metric, resamples: int, rng: np.random.Generator) -> Iterator[Array]:
    # Items with equal terms are interchangeable, and there are few different ones.
    kinds, kind = np.unique(metric.terms, axis=0, return_inverse=True)
    n, width = len(metric), len(kinds)
    for size in batches(resamples, n):
        drawn = kind.ravel()[rng.integers(n, size=(size, n))] + np.arange(size)[:, None] * width
        weights = np.bincount(drawn.ravel(), minlength=size * width).reshape(size, width)
        yield metric.value(weights @ kinds)


def _bca_tails(metric: Metric, estimate: float, draws: Array, tails: Array) -> Array:
    """Efron's tails: shifted by the draws' median bias, stretched by the jackknife's skewness."""
    below = (np.mean(draws < estimate) + np.mean(draws <= estimate)) / 2
    bias = scipy.stats.norm.ppf(np.clip(below, 0.5 / len(draws), 1 - 0.5 / len(draws)))
    left_out = metric.without_each()
    left_out = left_out[np.isfinite(left_out)]
    pull = left_out.mean() - left_out if len(left_out) else left_out
    spread = np.sum(pull**2)
    skew = np.sum(pull**3) / (6 * spread**1.5) if spread > 0 else 0.0
    z = bias + scipy.stats.norm.ppf(tails)
    return scipy.stats.norm.cdf(bias + z / (1 - skew * z))
