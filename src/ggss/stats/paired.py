"""Two runs on the same items: changes with their intervals, McNemar's test, equivalence, the smallest visible change.

And scores of a judge paired with human labels of some items: `prediction_powered`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from ggss.errors import InputError
from ggss.stats.metric import (
    Array,
    Interval,
    Metric,
    as_metric,
    check_paired,
    check_share,
    cluster_codes,
    dispersion,
    grouped,
    jackknife,
    of_largest,
    pseudovalues,
    ratio,
    score_interval,
    unsquare,
)

MARGIN = 0.015  # a change of 1.5 accuracy points either way counts as none


def mcnemar(b: int, c: int) -> float:
    """The exact two-sided p-value when b questions went from wrong to right and c from right to wrong.

    Under the null hypothesis both directions are equally likely; assumes independent questions. A large p-value is
    not evidence of no change: use `tost` for that.

    Args:
        b: questions gained.
        c: questions lost.

    Returns:
        The p-value.

    Raises:
        InputError: for a number that is negative, a fraction, or not finite.

    Examples:
        >>> round(ggss.stats.mcnemar(1, 9), 4)
        0.0215
    """
    if not all(math.isfinite(count) and count >= 0 and count == int(count) for count in (b, c)):
        raise InputError(f"McNemar's test needs two counts of questions, got {b} and {c}")
    return min(1.0, 2 * float(scipy.stats.binom.cdf(min(b, c), b + c, 0.5)))


@dataclass(frozen=True)
class Equivalence:
    """Steered minus unsteered score, its interval at level 1 - 2 size, and the equivalence test's p-value.

    Args:
        difference: steered minus unsteered, as a share.
        low: the interval's lower end.
        high: its upper end.
        p: of the equivalence test.
        margin: a change within it counts as none.
        size: of the test.

    Examples:
        >>> ggss.stats.Equivalence(-0.001, -0.004, 0.002, p=0.0004, margin=0.015, size=0.05).equivalent
        True
    """

    difference: float
    low: float
    high: float
    p: float
    margin: float
    size: float

    @property
    def equivalent(self) -> bool:
        """Whether the change was shown to lie within the margin. False means not shown, not that the runs differ."""
        return self.p <= self.size


def tost(
    steered: ArrayLike,
    unsteered: ArrayLike,
    margin: float = MARGIN,
    clusters: ArrayLike | None = None,
    *,
    size: float = 0.05,
) -> Equivalence:
    """Two one-sided paired tests: is the change in the mean within +- margin?

    Right-or-wrong answers to independent questions use Tango's score statistic, which stays valid when almost no
    answer changed (a Wald test would take twenty unchanged answers as proof). Questions that share a picture
    (`clusters`), and scores between 0 and 1, use the interval of `share_change`: the p-value is the largest size at
    which it reaches beyond the margin. Other numbers use Student's t on the cluster totals: at least about 20
    clusters are needed.

    Args:
        steered: a score for each question, 1 for right and 0 for wrong.
        unsteered: the same before, in the same order.
        margin: a change within it counts as none; 0.015 is 1.5 points.
        clusters: each question's picture or identity; None: questions are independent.
        size: of the test, below 0.5.

    Returns:
        The change, its interval, and whether it was shown to lie within the margin.

    Raises:
        InputError: for lists of unequal length, scores that are NaN, a margin that is no share, or too large a size.

    Examples:
        >>> same = [1, 0] * 200
        >>> ggss.stats.tost(same, same).equivalent  # 400 questions, no answer changed
        True
        >>> ggss.stats.tost(same[:20], same[:20]).equivalent  # twenty are not enough to show it
        False
    """
    after, before = np.asarray(steered, dtype=float), np.asarray(unsteered, dtype=float)
    if after.shape != before.shape or after.ndim != 1 or len(after) < 2:
        raise InputError(
            f"two runs of the same questions are needed, at least two; got {after.shape} and {before.shape}"
        )
    if not (np.isfinite(after).all() and np.isfinite(before).all()):
        raise InputError("scores contain NaN: count an unreadable answer as wrong (0)")
    if not 0 < margin < 1:
        raise InputError(f"the margin is a share such as 0.015 for 1.5 points, got {margin}")
    if not 0 < size < 0.5:
        raise InputError(f"the size of an equivalence test lies between 0 and 0.5, such as 0.05; got {size}")
    right_or_wrong = bool(np.isin(after, (0, 1)).all() and np.isin(before, (0, 1)).all())
    if right_or_wrong and clusters is None:
        gained, lost = int(np.sum(after > before)), int(np.sum(after < before))
        return _score_tost(gained, lost, len(after), margin, size)
    if not (after - before).any():
        count = len(after) if clusters is None else cluster_codes(clusters, len(after))[1]
        return _score_tost(0, 0, count, margin, size)
    both = np.concatenate([after, before])
    if both.min() >= 0 and both.max() <= 1:
        return _share_tost(after, before, clusters, margin, size)
    return _student_tost(after - before, clusters, margin, size)


def share_change(
    after: Metric | ArrayLike, before: Metric | ArrayLike, clusters: ArrayLike | None = None, *, level: float = 0.95
) -> Interval:
    """The change between two shares of the same items, with an interval that is right where they are near 0 or 1.

    Newcombe's method for paired shares (1998, method 10), with the jackknife's intervals of the two shares in place
    of the binomial ones, so that it holds for clusters too:

        low  = d - sqrt((a - la)^2 - 2 r (a - la) (ub - b) + (ub - b)^2)
        high = d + sqrt((ua - a)^2 - 2 r (ua - a) (b - lb) + (b - lb)^2)

    a in [la, ua] is the share after, b in [lb, ub] the share before, d = a - b. r is the correlation of their
    pseudo-values, whose covariance is made smaller, towards 0, by Newcombe's correction for continuity:

        covariance - phi^3 / (2 n)          phi: the dispersion of the n units, geometric mean of before and after

    Where nothing varies in one of the two, its units are taken to be as much all or nothing as those of the other.
    Where units are all or nothing phi is 1 and the correction is the published one. Without it a few people whose
    answers stay as they were would prove that nothing changes. Units that average many answers need hardly any; the
    power of phi was chosen by simulation (docs/validity.md).

    Args:
        after: a share, or one number between 0 and 1 per item.
        before: the same before, on the same items in the same order.
        clusters: each item's identity; None: items are independent.
        level: of the interval.

    Returns:
        The change, between -1 and 1.

    Raises:
        InputError: if the two are not of the same items, or there are fewer than two.

    Examples:
        >>> change = ggss.stats.share_change([0, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1])
        >>> change.estimate, -1 == change.low < change.high < 0
        (-1.0, True)
    """
    check_share(level, "a confidence level")
    return _share_interval(*_share_units(after, before, clusters), level)


def _share_units(
    after: Metric | ArrayLike, before: Metric | ArrayLike, clusters: ArrayLike | None
) -> tuple[Array, Array]:
    """The pseudo-values of both shares, after and before."""
    new, old = as_metric(after), as_metric(before)
    check_paired(new, old)
    return pseudovalues(new.by(clusters)), pseudovalues(old.by(clusters))


def _share_interval(x: Array, y: Array, level: float) -> Interval:
    """`share_change` of the pseudo-values after and before."""
    n, phis = len(x), [dispersion(float(units.mean()), float(units.var(ddof=1))) for units in (x, y)]
    (low_a, a, high_a), (low_b, b, high_b) = (
        score_interval(units.mean(), units.std(ddof=1) / math.sqrt(n), n, level, (0.0, 1.0), min(other, 1.0) or 1.0)
        for units, other in ((x, phis[1]), (y, phis[0]))
    )
    r = _corrected_correlation(x, y, math.sqrt(phis[0] * phis[1]) * (n - 1) / n)
    ends = a - b - _newcombe(a - low_a, high_b - b, r), a - b + _newcombe(high_a - a, b - low_b, r)
    low, high = np.clip(ends, -1, 1).tolist()  # unlike max and min, it keeps NaN
    return Interval(a - b, low, high, level, "newcombe", n, float(np.mean(~np.isfinite(x + y))))


def _corrected_correlation(x: Array, y: Array, phi: float) -> float:
    """The correlation of units, after Newcombe's correction for continuity; 0 where one of them does not vary."""
    spread = math.sqrt(x.var() * y.var())
    if not phi:
        return 0.0
    covariance = float(np.mean((x - x.mean()) * (y - y.mean())))
    return (max(covariance - phi**3 / (2 * len(x)), 0.0) if covariance > 0 else covariance) / spread


def fieller(
    steered: Metric | ArrayLike,
    unsteered: Metric | ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    level: float = 0.95,
) -> Interval:
    """The percent change between bias-corrected metrics of two runs on the same items, with Fieller's interval.

    It contains every change for which steered - (1 + change) unsteered does not differ significantly from zero. If
    the unsteered metric itself does not, no percentage is excluded and the bounds are infinite. If it is zero, or the
    correction has changed its sign, as it may that of a small divergence or spread, nothing can be said in percent of
    it: the estimate is NaN, and the bounds are infinite.

    Args:
        steered: the metric after, or one number per item.
        unsteered: the same before, on the same items in the same order.
        clusters: each item's identity; None: items are independent.
        level: of the interval.

    Returns:
        The change in percent.

    Raises:
        InputError: if the two are not of the same items, or there are fewer than two.

    Examples:
        >>> interval = ggss.stats.fieller([1, 2, 1, 2], [4, 4, 3, 5])
        >>> round(interval.estimate, 1), interval.low < interval.estimate < interval.high
        (-62.5, True)
    """
    check_share(level, "a confidence level")
    after, before = as_metric(steered), as_metric(unsteered)
    check_paired(after, before)
    (top, above, a), (bottom, below, b) = (_ends(metric.by(clusters), level) for metric in (after, before))
    n, undefined = len(a), float(np.mean(~np.isfinite(a + b)))
    dependence = _correlation(a, b)
    no_baseline = bottom * float(before) <= 0
    ratios = np.array([np.nan if no_baseline else top / bottom, -np.inf, np.inf])
    if not no_baseline and not max(below) >= abs(bottom):
        # An end r solves (bottom^2 - vb) r^2 - 2 (top bottom - vab) r + (top^2 - va) = 0.
        for end, sign, da, db in ((1, -1, above[0], below[1]), (2, 1, above[1], below[0])):
            square, cross = bottom**2 - db**2, top * bottom - dependence * da * db
            ratios[end] = (cross + sign * np.sqrt(max(cross**2 - square * (top**2 - da**2), 0.0))) / square
    estimate, low, high = (100 * (unsquare(ratios, after.root) - 1)).tolist()
    return Interval(estimate, low, high, level, "fieller", n, undefined)


def difference(
    after: Metric | ArrayLike, before: Metric | ArrayLike, clusters: ArrayLike | None = None, *, level: float = 0.95
) -> Interval:
    """The difference of two metrics on the same items: the jackknife's of `Metric.minus`, for contrasts, too.

    Of the largest of several it is made of the two intervals, as Newcombe's is of the two shares' (`share_change`),
    each end with the other's opposite, and with the correlation of the two largest contrasts.

    Args:
        after: a metric, or one number per item.
        before: the same before, on the same items in the same order.
        clusters: each item's identity; None: items are independent.
        level: of the interval.

    Returns:
        The interval; its estimate is the corrected one.

    Raises:
        InputError: if the two are not of the same items, or there are fewer than two.

    Examples:
        >>> change = ggss.stats.difference([1, 2, 1, 2], [4, 4, 3, 5])
        >>> round(change.estimate, 2), change.high < 0
        (-2.5, True)
    """
    new, old = as_metric(after), as_metric(before)
    if new.contrasts is None or old.contrasts is None:
        return jackknife(new.minus(old), clusters, level=level)
    check_share(level, "a confidence level")
    check_paired(new, old)
    (top, above, a), (bottom, below, b) = (_ends(metric.by(clusters), level) for metric in (new, old))
    r, estimate = _correlation(a, b), top - bottom
    low, high = estimate - _newcombe(above[0], below[1], r), estimate + _newcombe(above[1], below[0], r)
    return Interval(estimate, low, high, level, "newcombe", len(a), float(np.mean(~np.isfinite(a + b))))


def _newcombe(one: float, other: float, r: float) -> float:
    """How far the end of a difference is from it, of how far the two ends are from theirs, with correlation r."""
    return float(np.sqrt(max(one**2 - 2 * r * one * other + other**2, 0.0)))


def _correlation(x: Array, y: Array) -> float:
    """0 where one of them does not vary."""
    spread = np.sqrt(x.var() * y.var())
    return float(np.mean((x - x.mean()) * (y - y.mean())) / spread) if spread > 0 else 0.0


def _ends(sample: Metric, level: float) -> tuple[float, tuple[float, float], Array]:
    """The corrected value, how far below and above it its interval reaches, and pseudo-values; of a root, its square.

    Of the largest of several the pseudo-values are those of the contrast that is the largest.
    """
    if sample.contrasts is not None:
        interval, pseudo = of_largest(sample, sample.contrasts, level)
        return interval.estimate, (interval.estimate - interval.low, interval.high - interval.estimate), pseudo
    pseudo = pseudovalues(sample)
    n = len(pseudo)
    half = float(scipy.stats.t.ppf((1 + level) / 2, n - 1) * pseudo.std(ddof=1) / np.sqrt(n))
    return float(pseudo.mean()), (half, half), pseudo


def minimum_detectable_change(items: int, sd: float, *, size: float = 0.05, power: float = 0.8) -> float:
    """The smallest true mean change a two-sided paired test would find with the given power.

    Normal approximation, independent items. For another metric pass the standard deviation of its bootstrap draws as
    `sd` with items = 1.

    Args:
        items: how many.
        sd: the standard deviation of the change per item; for right-or-wrong answers about the square root of the
            share of answers that changed.
        size: of the test.
        power: the probability with which it would be found.

    Returns:
        The change, in the unit of `sd`.

    Raises:
        InputError: without items, for a negative sd, and for a size or power that is no share.

    Examples:
        >>> round(ggss.stats.minimum_detectable_change(1500, sd=0.2), 4)  # 1.4 points
        0.0145
    """
    if items < 1 or not np.isfinite(sd) or sd < 0:
        raise InputError(f"at least one item and a standard deviation >= 0 are needed, got {items} and {sd}")
    check_share(size, "the size of a test")
    check_share(power, "power")
    return float((scipy.stats.norm.ppf(1 - size / 2) + scipy.stats.norm.ppf(power)) * sd / np.sqrt(items))


def _score(difference: float, gained: int, lost: int, n: int) -> float:
    """Tango's (1998) score statistic of the hypothesis that the paired difference has this value."""
    a = 2 * n
    b = -gained - lost + (2 * n - gained + lost) * difference
    c = -lost * difference * (1 - difference)
    loss = (np.sqrt(b**2 - 4 * a * c) - b) / (2 * a)
    return (gained - lost - n * difference) / np.sqrt(n * (2 * loss + difference * (1 - difference)))


def _score_tost(gained: int, lost: int, n: int, margin: float, size: float) -> Equivalence:
    def score(difference: float) -> float:
        return float(_score(difference, gained, lost, n))

    above, below = scipy.stats.norm.sf(score(-margin)), scipy.stats.norm.cdf(score(margin))
    z, edge = float(scipy.stats.norm.ppf(1 - size)), 1 - 1e-9
    # The statistic falls as the hypothesised difference grows, so it has the value +-z once: there is the bound.
    low = scipy.optimize.root_scalar(lambda d: score(d) - z, bracket=(-edge, edge)).root if score(-edge) > z else -1.0
    high = scipy.optimize.root_scalar(lambda d: score(d) + z, bracket=(-edge, edge)).root if score(edge) < -z else 1.0
    return Equivalence((gained - lost) / n, float(low), float(high), float(max(above, below)), margin, size)


def _share_tost(after: Array, before: Array, clusters: ArrayLike | None, margin: float, size: float) -> Equivalence:
    """By the interval of `share_change`: p is the largest size at which it reaches beyond the margin.

    Of few units the interval of a smaller size may be the shorter one, so that it is not enough to find one size at
    which its further end is the margin.
    """
    units = _share_units(after, before, clusters)
    change, least, most = _share_interval(*units, 1 - 2 * size), 1e-12, 0.5 - 1e-9
    difference = change.estimate

    def beyond(size: float) -> float:
        """How far the interval reaches beyond the margin; if the change itself does, how far it reaches into it."""
        other = _share_interval(*units, 1 - 2 * size)
        if abs(difference) < margin:
            return max(other.high, -other.low) - margin
        return margin - (other.low if difference > 0 else -other.high)

    sizes = np.array(sorted({*np.geomspace(most, least, 40), size}, reverse=True))
    far = next((k for k, smaller in enumerate(sizes) if beyond(smaller) > 0), None)
    if far is None:  # at no size
        p = least
    elif far == 0:  # at every size
        p = sizes[0]
    else:
        p = scipy.optimize.brentq(beyond, sizes[far], sizes[far - 1])
    p = float(p if abs(difference) < margin else 1 - p)
    return Equivalence(difference, change.low, change.high, p, margin, size)


def _student_tost(change: Array, clusters: ArrayLike | None, margin: float, size: float) -> Equivalence:
    n = len(change)
    codes, count = (np.arange(n), n) if clusters is None else cluster_codes(clusters, n)
    difference = float(change.mean())
    residuals = np.bincount(codes, weights=change - difference)
    error = np.sqrt(count / (count - 1) * np.sum(residuals**2)) / n
    half = scipy.stats.t.ppf(1 - size, count - 1) * error
    room = 0.0 if math.isclose(abs(difference), margin) else margin - abs(difference)
    with np.errstate(divide="ignore"):
        step = room / error if room else 0.0  # to the nearer end of the margin, whose p-value is the larger
    p = float(scipy.stats.t.sf(step, count - 1))
    return Equivalence(difference, float(difference - half), float(difference + half), p, margin, size)


def prediction_powered(
    scores: Sequence[float | None],
    labels: Sequence[float | None],
    groups: NDArray[np.intp],
    value: Callable[[Array], Array],
    name: str = "prediction-powered",
    contrasts: Callable[[Array], Array] | None = None,
) -> Metric:
    """A metric of groups' means, from a judge's scores of all items and human labels of a random sample of them.

    Prediction-powered inference, tuned (PPI++, Angelopoulos, Duchi and Zrnic, 2023). Of a group with n labelled items
    and N others:

        mean = mean label + lambda (mean score of the others - mean score of the labelled)
        lambda = cov(label, score) / ((1 + n / N) var(score)), over the labelled of all groups, between 0 and 1

    It is right whatever the judge is: one that says nothing about the labels gets lambda 0, and then only the labels
    count. `jackknife` gives its interval, over identities. As lambda is at most 1, scores on a smaller scale than the
    labels' are used less than they could be: bring them to the labels' scale.

    Args:
        scores: the judge's, one per item; None where one could not be read. Such an item does not count.
        labels: the human ones; None where there is none.
        groups: each item's group, numbered from 0.
        value: from the groups' means [R, groups] to the metric [R].
        name: of the metric.
        contrasts: from the groups' means to those of which the metric is the largest (`Metric.contrasts`), if it is.

    Returns:
        A metric, to be resampled and compared.

    Raises:
        InputError: if a group has fewer than two labels, or the lists are empty or of unequal length.

    Examples:
        >>> scores, labels = [1, 2, 3, 2, 4, 5], [1, 3, None, 2, 5, None]
        >>> groups = np.array([0, 0, 0, 1, 1, 1])
        >>> round(float(ggss.stats.prediction_powered(scores, labels, groups, lambda m: m[:, 1] - m[:, 0])), 2)
        1.77
    """
    if not 0 < len(scores) == len(labels) == len(groups):
        raise InputError(
            f"{name}: each item needs a score, a label (or None) and a group, "
            f"got {len(scores)}, {len(labels)} and {len(groups)} of them"
        )
    read = np.array([score is not None for score in scores])
    labelled = read & np.array([label is not None for label in labels])
    few = np.bincount(groups[labelled], minlength=int(groups.max()) + 1).min() < 2
    if few:
        raise InputError(f"{name}: each group needs two labels or more; label some items of each")
    f = np.array([score or 0.0 for score in scores])
    y = np.array([label or 0.0 for label in labels]) * labelled
    others = read & ~labelled
    columns = [f * others, others, y, f * labelled, labelled, f * y, f * f * labelled]

    def means(sums: Array) -> Array:
        score, count, label, known, n, product, square = np.moveaxis(sums, 2, 0)  # [R, groups] each
        covariance = (product - ratio(known * label, n)).sum(1)
        variance = (square - ratio(known * known, n)).sum(1)
        variance = np.where(variance > 1e-9 * square.sum(1), variance, 0)  # else it is rounding
        scale = (1 + ratio(n.sum(1), count.sum(1))) * variance
        tuned = np.nan_to_num(np.clip(ratio(covariance, scale), 0, 1))
        shift = np.where(count > 0, ratio(score, count) - ratio(known, n), 0)
        return ratio(label, n) + tuned[:, None] * shift

    evidence = np.column_stack(columns).astype(float)
    several = None if contrasts is None else lambda sums: contrasts(means(sums))
    metric = grouped(name, groups, evidence, lambda sums: value(means(sums)), contrasts=several)
    return replace(metric, unparsed=int((~read).sum()))
