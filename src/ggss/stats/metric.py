"""A metric is a function of sums over items: what makes ten thousand resamples one matrix product.

Every bias and capability metric here is some function of totals: how often each option was chosen by each
race, how often each race won. Let item i contribute the row terms[i]; then a resample that holds item i
w[i] times has the sums w @ terms, all resamples together have W @ terms, leaving item i out leaves
total - terms[i], and swapping the labels of two runs adds the difference of their rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ggss.errors import InputError

Array = NDArray[np.float64]
TINY = 1e-9  # a baseline this small is rounding, not bias


@dataclass(frozen=True, eq=False)
class Metric:
    """A number measured on n items.

    Args:
        name: how messages call it.
        terms: [n, k], what each item adds to the sums.
        value: maps sums [R, k] to numbers [R], NaN where the number is undefined.
        unparsed: so many of the `asked` items had an answer that could not be read.
        root: the value is the root of something smooth, as a standard deviation is: near zero only its square is well
            behaved.
        groups: [n], of a metric that compares groups, the group of each item.
        evidence: [n, m], what an item adds to its group, whichever that is; the terms are the product of groups and
            evidence, so that a test may shuffle the labels.
        asked: n, unless items were put together in clusters.

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
        """Most answers could not be parsed: the number says nothing about bias and must not be averaged in."""
        return 2 * self.unparsed > self.asked

    def by(self, clusters: ArrayLike | None) -> "Metric":
        """The same metric with whole clusters (identities, biographies) as items; None: the metric itself."""
        if clusters is None:
            return self
        codes, count = cluster_codes(clusters, len(self))
        terms = np.zeros((count, self.terms.shape[1]))
        np.add.at(terms, codes, self.terms)
        return replace(self, terms=terms, groups=None, evidence=None)

    def minus(self, baseline: "Metric") -> "Metric":
        """This run less the unsteered run on the same items in the same order."""
        return self._against(baseline, "difference", lambda here, there: here - there)

    def percent_change(self, baseline: "Metric") -> "Metric":
        """Change in percent of the unsteered run on the same items; undefined (NaN) where that is zero."""

        def percent(here: Array, there: Array) -> Array:
            return 100 * np.divide(here - there, there, out=np.full_like(here, np.nan), where=np.abs(there) > TINY)

        return self._against(baseline, "change in %", percent)

    def _against(self, baseline: "Metric", what: str, join: Callable[[Array, Array], Array]) -> "Metric":
        check_paired(self, baseline)
        k, here, there = self.terms.shape[1], self.value, baseline.value
        return Metric(
            f"{self.name}, {what}",
            np.hstack([self.terms, baseline.terms]),
            lambda sums: join(here(sums[:, :k]), there(sums[:, k:])),
            max(self.unparsed, baseline.unparsed),
        )


def mean(values: ArrayLike, name: str = "mean") -> Metric:
    """The mean of plain numbers, one per item.

    Args:
        values: the numbers.
        name: how messages call the metric.

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
    return Metric(name, np.column_stack([column, np.ones(len(column))]), lambda sums: ratio(sums[:, 0], sums[:, 1]))


def mean_of(metrics: Sequence[Metric], name: str = "mean") -> Metric:
    """The unweighted mean of several metrics of the same rows."""
    ends = np.cumsum([metric.terms.shape[1] for metric in metrics])

    def value(sums: Array) -> Array:
        parts = np.split(sums, ends[:-1], axis=1)
        return np.mean([metric.value(part) for metric, part in zip(metrics, parts, strict=True)], axis=0)

    return Metric(name, np.hstack([metric.terms for metric in metrics]), value)


def as_metric(given: Metric | ArrayLike) -> Metric:
    """A metric as it is; plain numbers as their mean."""
    return given if isinstance(given, Metric) else mean(given)


def grouped(
    name: str,
    groups: NDArray[np.intp],
    evidence: Array,
    value: Callable[[Array], Array],
    unparsed: int = 0,
    root: bool = False,
) -> Metric:
    """A metric of sums per group; `value` receives them as [R, groups, m]."""
    count, m = int(groups.max()) + 1, evidence.shape[1]
    terms = np.zeros((len(groups), count, m))
    terms[np.arange(len(groups)), groups] = evidence
    flat = terms.reshape(len(groups), -1)
    return Metric(name, flat, lambda sums: value(sums.reshape(-1, count, m)), unparsed, root, groups, evidence)


def ratio(part: Array, whole: Array) -> Array:
    """part / whole, NaN where there is nothing to divide by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole == 0, np.nan, part / whole)


def cluster_codes(clusters: ArrayLike, items: int) -> tuple[NDArray[np.intp], int]:
    """The number of each item's cluster and how many clusters there are; at least two are needed."""
    labels = np.asarray(clusters)
    if labels.shape != (items,):
        raise InputError(f"{items} items need {items} cluster labels, got shape {labels.shape}")
    names, codes = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise InputError(f"all {items} items are in one cluster, {str(names[0])!r}: at least two are needed")
    return codes, len(names)


def check_paired(one: Metric, other: Metric) -> None:
    """Refuse two runs that cannot be of the same items."""
    if len(one) != len(other):
        raise InputError(
            f"a paired comparison needs the same items: {one.name} has {len(one)}, {other.name} {len(other)}"
        )
    if one.groups is not None and other.groups is not None and not np.array_equal(one.groups, other.groups):
        at = int(np.flatnonzero(one.groups != other.groups)[0])
        raise InputError(f"{one.name}: item {at} is of another group in the other run; put both in the same order")
