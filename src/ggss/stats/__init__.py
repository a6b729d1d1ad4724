"""Uncertainty: intervals, paired tests, equivalence. Needs numpy and scipy only.

Everything takes a `Metric`, or plain numbers (one per item, measured by their mean). docs/validity.md shows the true
coverage of each interval and the true size of each test at the sample sizes of the published protocol. Modules use
`import scipy`, which imports its submodules when they are first used: together they take most of a second.
"""

from ggss.stats.metric import Interval, Metric, jackknife, mean
from ggss.stats.paired import (
    Equivalence,
    difference,
    fieller,
    mcnemar,
    minimum_detectable_change,
    prediction_powered,
    share_change,
    tost,
)
from ggss.stats.resampling import Permutation, bootstrap, holm, label_null, signflip

__all__ = [
    "Equivalence",
    "Interval",
    "Metric",
    "Permutation",
    "bootstrap",
    "difference",
    "fieller",
    "holm",
    "jackknife",
    "label_null",
    "mcnemar",
    "mean",
    "minimum_detectable_change",
    "prediction_powered",
    "share_change",
    "signflip",
    "tost",
]
