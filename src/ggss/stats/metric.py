"""Metrics as functions of sums over items, and their intervals: the jackknife's and Wilson's.

**Metrics.** Every bias and capability metric here is some function of totals: how often each option was chosen by
each race, how often each race won. Let item i contribute the row terms[i]; then a resample that holds item i w[i]
times has the sums w @ terms. All resamples together have W @ terms, so ten thousand resamples are one matrix product.
Leaving item i out leaves total - terms[i], and swapping the labels of two runs adds the difference of their rows.

**The jackknife** corrects a metric for its small-sample bias, and gives an interval that is valid for few clusters.
Leaving out one unit (item or cluster) at a time shows how the metric depends on the sample's size. Extrapolating to
an infinite sample removes bias of order 1/n, which is nearly all the bias of a plug-in divergence or spread. The
pseudo-value of a unit is n times the metric of all units minus (n - 1) times the metric without the unit. Their mean
is the corrected metric; its interval is Student's t with n - 1 degrees of freedom. Eight clusters are enough, where
bootstrap intervals are too narrow. It assumes a smooth metric: not a median, and a gap with its sign.

**The largest of several.** The gap between three groups is the largest of the differences c_j between two of them. It
is not smooth where two of them are equally large, and in a sample the largest is too large, because it was chosen. A
metric with `contrasts` has the lower end and the estimate of Chernozhukov, Lee and Rosen (2013, intersection bounds),
and as upper end the highest of all contrasts' own, below which the one that is truly the largest is:

    high = max_j high_j
    low  = max_j low_j                  at the level 2 F(q) - 1, over the contrasts that may be the largest
    estimate = max_j c_j - q' s_j       the same at the median

q is the quantile of max_j (c_j - its true value) / s_j, the errors s_j and their dependence being those of the
pseudo-values, and F Student's t. A contrast may be the largest unless it is smaller than the one that is the largest
in the sample by a test of half the size (2.5 %), lest several that are equal are taken for one. Where that one is far
above all others this is its own interval. Where all are equal the upper end is too far off to be missed, so that
about 97.5 % of intervals hold the truth (docs/validity.md).

**Wilson's score interval.** Near the end of its range a share's interval is not symmetric, and Student's would leave
the range, or have no width where all answers are right. A metric with `bounds` gets Wilson's score interval instead.
It is the set of shares p with |estimate - p| <= q sqrt(p (1 - p) / m), where m is the number of independent answers
that would vary as much as the jackknife says these do: m = estimate (1 - estimate) / its squared standard error. The
quantile q is the normal one where units are all or nothing, because then the share alone decides how much they vary,
and goes towards Student's t the more answers a unit is the mean of. Where all units are alike, others may still be
unlike them: at most z^2 / (n + z^2) of all units, which is Wilson's bound for none of n, and these may have any value
in the range.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from ggss.errors import InputError

Array = NDArray[np.float64]

TINY = 1e-9  # a baseline this small is rounding, not bias
DRAWS = 4000  # of the errors of several contrasts


@dataclass(frozen=True)
class Interval:
    """An estimate between `low` and `high`, from a sample of `units` items or clusters.

    Args:
        estimate: the value in the sample.
        low: the interval's lower end.
        high: its upper end.
        level: 0.95 for a 95 % interval.
        method: percentile, bca, jackknife, wilson (a jackknife within bounds), fieller, newcombe, or largest
            (of several contrasts).
        units: what was resampled: items or clusters.
        undefined: the share of resamples in which the metric had no value (a group without a readable answer, a
            baseline of zero).
        draws: the resamples' values, for combining intervals; the jackknife has none.

    Examples:
        >>> ggss.stats.Interval(0.2, 0.1, 0.3, level=0.95, method="jackknife", units=8)
        Interval(estimate=0.2, low=0.1, high=0.3, level=0.95, method='jackknife', units=8, undefined=0.0)
    """

    estimate: float
    low: float
    high: float
    level: float
    method: str
    units: int
    undefined: float = 0.0
    draws: Array = field(default_factory=lambda: np.empty(0), repr=False, compare=False)


def check_share(value: float, what: str) -> None:
    """Raise InputError unless a level, size or power lies between 0 and 1."""
    if not 0 < value < 1:
        raise InputError(f"{what} lies between 0 and 1, such as 0.95 or 0.05; got {value}")


@dataclass(frozen=True, eq=False)
class Metric:
    """A number measured on n items.

    Args:
        name: its name in messages.
        terms: [n, k], what each item adds to the sums.
        value: maps sums [R, k] to numbers [R], NaN where the number is undefined.
        unparsed: how many of the `asked` items had an answer that could not be parsed.
        root: the value is the square root of something smooth, as a standard deviation is: near zero only its square
            is well behaved.
        groups: [n], the group of each item, for a metric that compares groups.
        evidence: [n, m], what an item adds to its group, whichever that is; the terms are the product of groups and
            evidence, so that a test may shuffle the labels.
        asked: how many items were asked: n, unless items are combined in clusters.
        bounds: the smallest and the largest possible value, such as (0, 1) for a share; intervals stay within.
        contrasts: from sums [R, k] to [R, m], if the value is the largest of m; each is there with both signs.

    Raises:
        InputError: for terms of another shape, or not finite.

    Examples:
        >>> terms = np.array([[1.0, 1], [0, 1], [1, 1]])  # yes or not, and one for each answer
        >>> share = ggss.stats.Metric("share of yes", terms, lambda sums: sums[:, 0] / sums[:, 1])
        >>> round(float(share), 3)
        0.667
    """

    name: str
    terms: Array = field(repr=False)
    value: Callable[[Array], Array] = field(repr=False)
    unparsed: int = 0
    root: bool = False
    groups: NDArray[np.intp] | None = field(default=None, repr=False)
    evidence: Array | None = field(default=None, repr=False)
    asked: int = 0
    bounds: tuple[float, float] | None = None
    contrasts: Callable[[Array], Array] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.terms.ndim != 2 or not len(self.terms):
            raise InputError(
                f"{self.name}: terms must be [items, sums] with at least one item, got {self.terms.shape}"
            )
        if not np.isfinite(self.terms).all():
            raise InputError(f"{self.name}: {int((~np.isfinite(self.terms)).sum())} terms are NaN or infinite")
        object.__setattr__(self, "asked", self.asked or len(self.terms))

    def __len__(self) -> int:
        return len(self.terms)

    def __float__(self) -> float:
        return float(self.value(self.terms.sum(0, keepdims=True))[0])

    def without_each(self) -> Array:
        """The metric with each item left out in turn, [n]."""
        return self.value(self.terms.sum(0) - self.terms)

    @property
    def degenerate(self) -> bool:
        """Whether most answers could not be parsed: then the number says nothing about bias and is not averaged."""
        return 2 * self.unparsed > self.asked

    def by(self, clusters: ArrayLike | None) -> "Metric":
        """The same metric with clusters (identities, biographies) as items; None: the metric itself."""
        if clusters is None:
            return self
        codes, count = cluster_codes(clusters, len(self))
        terms = np.zeros((count, self.terms.shape[1]))
        np.add.at(terms, codes, self.terms)
        return replace(self, terms=terms, groups=None, evidence=None)

    def minus(self, baseline: "Metric") -> "Metric":
        """This metric minus that of the unsteered run on the same items in the same order."""
        difference = self._against(baseline, "difference", lambda steered, unsteered: steered - unsteered)
        if self.bounds is None or baseline.bounds is None:
            return difference
        return replace(difference, bounds=(self.bounds[0] - baseline.bounds[1], self.bounds[1] - baseline.bounds[0]))

    def percent_change(self, baseline: "Metric") -> "Metric":
        """Change in percent of the unsteered run on the same items; undefined (NaN) where that is zero."""

        def percent(steered: Array, unsteered: Array) -> Array:
            undefined = np.full_like(steered, np.nan)
            return 100 * np.divide(steered - unsteered, unsteered, out=undefined, where=np.abs(unsteered) > TINY)

        return self._against(baseline, "change in %", percent)

    def _against(self, baseline: "Metric", what: str, combine: Callable[[Array, Array], Array]) -> "Metric":
        check_paired(self, baseline)
        k, value, baseline_value = self.terms.shape[1], self.value, baseline.value
        return Metric(
            f"{self.name}, {what}",
            np.hstack([self.terms, baseline.terms]),
            lambda sums: combine(value(sums[:, :k]), baseline_value(sums[:, k:])),
            max(self.unparsed, baseline.unparsed),
        )


def mean(values: ArrayLike, name: str = "mean", bounds: tuple[float, float] | None = None) -> Metric:
    """The mean of plain numbers, one per item.

    Args:
        values: the numbers.
        name: the metric's name in messages.
        bounds: the smallest and the largest possible number, if they are known.

    Returns:
        A metric, to be resampled and compared.

    Raises:
        InputError: if there is not one number per item, or some are not finite.

    Examples:
        >>> after, before = ggss.stats.mean([1, 2, 3]), ggss.stats.mean([2, 4, 6])
        >>> float(after), float(after.percent_change(before))
        (2.0, -50.0)
    """
    column = np.asarray(values, dtype=float)
    if column.ndim != 1:
        raise InputError(f"{name}: one number per item is needed, got an array of shape {column.shape}")
    terms = np.column_stack([column, np.ones(len(column))])
    return Metric(name, terms, lambda sums: ratio(sums[:, 0], sums[:, 1]), bounds=bounds)


def mean_of(metrics: Sequence[Metric], name: str = "mean") -> Metric:
    """The unweighted mean of several metrics of the same items."""
    ends = np.cumsum([metric.terms.shape[1] for metric in metrics])

    def value(sums: Array) -> Array:
        parts = np.split(sums, ends[:-1], axis=1)
        return np.mean([metric.value(part) for metric, part in zip(metrics, parts, strict=True)], axis=0)

    return Metric(name, np.hstack([metric.terms for metric in metrics]), value)


def as_metric(values: Metric | ArrayLike) -> Metric:
    """A metric unchanged; plain numbers as their mean."""
    return values if isinstance(values, Metric) else mean(values)


def grouped(
    name: str,
    groups: NDArray[np.intp],
    evidence: Array,
    value: Callable[[Array], Array],
    unparsed: int = 0,
    root: bool = False,
    contrasts: Callable[[Array], Array] | None = None,
) -> Metric:
    """A metric of sums per group; `value` receives them as [R, groups, m], and so do the contrasts."""
    count, m = int(groups.max()) + 1, evidence.shape[1]
    terms = np.zeros((len(groups), count, m))
    terms[np.arange(len(groups)), groups] = evidence
    flat = terms.reshape(len(groups), -1)

    metric = Metric(name, flat, lambda sums: value(sums.reshape(-1, count, m)), unparsed, root, groups, evidence)
    if contrasts is None:
        return metric
    return replace(metric, contrasts=lambda sums: contrasts(sums.reshape(-1, count, m)))


def ratio(part: Array, total: Array) -> Array:
    """part / total, NaN where the total is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total == 0, np.nan, part / total)


def cluster_codes(clusters: ArrayLike, items: int) -> tuple[NDArray[np.intp], int]:
    """The number of each item's cluster, and the number of clusters.

    InputError for fewer than two, and for labels of several kinds.
    """
    labels = np.asarray(clusters)
    if labels.shape != (items,):
        raise InputError(f"{items} items need {items} cluster labels, got shape {labels.shape}")
    try:
        names, codes = np.unique(labels, return_inverse=True)
    except TypeError:
        kinds = ", ".join(sorted({type(label).__name__ for label in labels.tolist()}))
        raise InputError(f"cluster labels are all text or all numbers, got {kinds}") from None
    if len(names) < 2:
        raise InputError(f"all {items} items are in one cluster, {str(names[0])!r}: at least two are needed")
    return codes, len(names)


def check_paired(metric: Metric, other: Metric) -> None:
    """Raise InputError if two runs cannot be of the same items."""
    if len(metric) != len(other):
        raise InputError(
            f"a paired comparison needs the same items: {metric.name} has {len(metric)}, {other.name} {len(other)}"
        )
    if metric.groups is not None and other.groups is not None and not np.array_equal(metric.groups, other.groups):
        item = int(np.flatnonzero(metric.groups != other.groups)[0])
        raise InputError(
            f"{metric.name}: item {item} is of another group in the other run; put both in the same order"
        )


def jackknife(metric: Metric | ArrayLike, clusters: ArrayLike | None = None, *, level: float = 0.95) -> Interval:
    """The bias-corrected estimate of a metric and a Student interval about it.

    The estimate of a divergence near zero may be negative; set to zero, the mean of many would be too high again.
    NaN if some unit cannot be left out (a group's only readable answers): then the width cannot be estimated.
    A metric with bounds has Wilson's interval instead, which stays within them (`score_interval`); where all units
    have the same value, it says how far others may be from it. One with contrasts has that of the largest of them.

    Args:
        metric: a metric, or one number per item.
        clusters: each item's identity; None: items are independent.
        level: of the interval.

    Returns:
        The interval; its estimate is the corrected one.

    Raises:
        InputError: for fewer than two items or clusters.

    Examples:
        >>> interval = ggss.stats.jackknife([1, 0, 1, 1], clusters=["ann", "ann", "bob", "cat"])
        >>> interval.units, interval.method
        (3, 'jackknife')
    """
    check_share(level, "a confidence level")
    sample = as_metric(metric).by(clusters)
    if sample.contrasts is not None:
        return of_largest(sample, sample.contrasts, level)[0]
    pseudo = pseudovalues(sample)
    n, estimate = len(pseudo), pseudo.mean()
    quantile, error = scipy.stats.t.ppf((1 + level) / 2, n - 1), pseudo.std(ddof=1) / np.sqrt(n)
    low, middle, high = unsquare(estimate + quantile * error * np.array([-1, 0, 1]), sample.root).tolist()
    method = "jackknife"
    if sample.bounds is not None and np.isfinite(error):
        method = "wilson"
        low, middle, high = score_interval(middle, error, n, level, sample.bounds)
    return Interval(middle, low, high, level, method, n, float(np.mean(~np.isfinite(pseudo))))


def of_largest(sample: Metric, contrasts: Callable[[Array], Array], level: float) -> tuple[Interval, Array]:
    """The interval of the largest of several contrasts, and the pseudo-values of the one that is it in the sample."""
    n = _several(len(sample))
    total = sample.terms.sum(0, keepdims=True)
    pseudo = n * contrasts(total) - (n - 1) * contrasts(total - sample.terms)  # [n, m]
    centre, error = pseudo.mean(0), pseudo.std(0, ddof=1) / np.sqrt(n)
    if not np.isfinite(error).all():
        nowhere = float("nan")
        undefined = float(np.mean(~np.isfinite(pseudo).all(1)))
        return Interval(nowhere, nowhere, nowhere, level, "largest", n, undefined), np.full(n, np.nan)
    best = int(centre.argmax())
    apart = (pseudo[:, [best]] - pseudo).std(0, ddof=1) / np.sqrt(n)
    clearly = scipy.stats.t.ppf(1 - (1 - level) / 4, n - 1)  # smaller by a test of half the size
    near = np.flatnonzero(centre[best] - centre <= clearly * apart + TINY)
    excess, middle = _excess(pseudo[:, near], error[near], level)
    bounds = None if sample.bounds is None else (-sample.bounds[1], sample.bounds[1])
    high = max(_end(c, s, n, level, bounds)[1] for c, s in zip(centre, error, strict=True))
    low = max(_end(c, s, n, excess, bounds)[0] for c, s in zip(centre[near], error[near], strict=True))
    low = max(low, 0.0)  # as each contrast is there with both signs
    estimate = min(max(float((centre[near] - middle * error[near]).max()), low), high)
    return Interval(estimate, low, high, level, "largest", n), pseudo[:, best]


def _excess(pseudo: Array, error: Array, level: float) -> tuple[float, float]:
    """By how much the largest of some estimates is too large: the level that allows for it, and its median.

    The median is in standard errors. Errors are drawn with the covariance of the pseudo-values [n, m].
    """
    n, varies = len(pseudo), error > TINY
    if pseudo.shape[1] == 1 or not varies.any():
        return level, 0.0
    rng = np.random.default_rng(0)
    apart = (pseudo[:, varies] - pseudo[:, varies].mean(0)) / (np.sqrt(n * (n - 1)) * error[varies])
    scale = np.sqrt((n - 1) / rng.chisquare(n - 1, DRAWS))
    largest = (rng.standard_normal((DRAWS, n)) @ apart).max(1) * scale
    q, middle = np.quantile(largest, [(1 + level) / 2, 0.5])
    return max(float(2 * scipy.stats.t.cdf(q, n - 1) - 1), level), float(middle)


def _end(value: float, error: float, n: int, level: float, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """The ends of a contrast's own interval."""
    if bounds is not None:
        low, _, high = score_interval(value, error, n, level, bounds)
        return low, high
    half = float(scipy.special.stdtrit(n - 1, (1 + level) / 2)) * error
    return float(value - half), float(value + half)


def pseudovalues(sample: Metric) -> Array:
    """The jackknife's pseudo-value of each item; of a root metric, those of its square."""
    n = _several(len(sample))
    value, without = np.array(float(sample)), sample.without_each()
    if sample.root:
        value, without = value**2, without**2
    return n * value - (n - 1) * without


def _several(units: int) -> int:
    if units < 2:
        raise InputError("the jackknife needs at least two items or clusters, got 1")
    return units


def score_interval(
    estimate: float, error: float, units: int, level: float, bounds: tuple[float, float], unseen: float = 1.0
) -> tuple[float, float, float]:
    """Wilson's interval (low, estimate, high) of a value within bounds, from its standard error over n units.

        p = the value's place between the bounds          phi = error^2 / (p (1 - p) / n), over the width squared
        w = q^2 phi / n                                   ends = (p + w / 2 -+ sqrt(w (p (1 - p) + w / 4))) / (1 + w)
        q = z + (1 - phi (n - 1) / n) (t - z)

    phi (`dispersion`) compares the units with units that are all or nothing. For these it is n / (n - 1), whatever
    they show: nothing is estimated but p, and the quantile q is the normal one, z. The more a unit's answers vary
    among themselves, the smaller is phi, and the more it is an estimate: q moves towards Student's t. Where all units
    have one value nothing shows how much they vary, and phi is taken as `unseen`; 1: Wilson's bound for none of n.
    """
    least, width = bounds[0], bounds[1] - bounds[0]
    share = min(max((estimate - least) / width, 0.0), 1.0)
    phi = dispersion(share, units * (error / width) ** 2)
    all_or_nothing = min((phi or unseen) * (units - 1) / units, 1.0) if phi or unseen < 1 else 1.0
    # The quantiles of scipy.stats, without its checks: an equivalence test asks for dozens of intervals.
    z, t = scipy.special.ndtri((1 + level) / 2), scipy.special.stdtrit(units - 1, (1 + level) / 2)
    w = (z + (1 - all_or_nothing) * (t - z)) ** 2 * (phi or unseen) / units
    if phi:
        middle, half = share + w / 2, np.sqrt(w * (share * (1 - share) + w / 4))
        low, high = (middle - half) / (1 + w), (middle + half) / (1 + w)
    else:  # others may have any value, but no more of them than w / (1 + w)
        low, high = share / (1 + w), (share + w) / (1 + w)
    low, centre, high = (least + width * min(max(float(end), 0.0), 1.0) for end in (low, share, high))
    return min(low, centre), centre, max(high, centre)


def dispersion(share: float, variance: float) -> float:
    """The variance of units within 0 and 1, of which `share` is the mean, over that of units that are all or nothing.

    0 where nothing varies, also where rounding leaves a variance of about 1e-34.
    """
    most = share * (1 - share)
    return variance / most if variance > 1e-20 and most > 0 else 0.0


def unsquare(values: Array, root: bool) -> Array:
    return np.sqrt(np.maximum(values, 0)) if root else values
