"""How often the intervals of Avg, the mean change over three tasks, hold the truth."""

from functools import partial

import numpy as np

from experiments.bench import studies
from experiments.bench.studies import Study
from ggss.stats import Interval, Metric, bootstrap, jackknife
from ggss.stats.metric import mean_of

STUDIES, RESAMPLES = 1000, 300
TASKS = (partial(studies.mcq, published=True), partial(studies.two_afc, published=True), studies.nurse_doctor)

# By name: identities, and for each task the planted strengths of the unsteered and the steered run.
SETTINGS = {
    "8 identities, much removed": (8, ((0.75, 0.3), (0.75, 0.3), (0.5, 0.15))),
    "24 identities, much removed": (24, ((0.75, 0.3), (0.75, 0.3), (0.5, 0.15))),
    "8 identities, nothing removed": (8, ((0.75, 0.75), (0.75, 0.75), (0.5, 0.5))),
    "8 identities, strong bias, one task unchanged": (8, ((1.5, 0.3), (0.75, 0.75), (0.5, 0.15))),
}

TEXT = """### Avg

Avg is the mean change over MCQ, 2AFC and Nurse/Doctor, an identity being in all three. Its interval is that of the
jackknife over identities of this mean: Fieller's is of one ratio, and here there are three. The paper's is the
percentile bootstrap of the same mean; the plug-in values that it resamples are too high. The jackknife's is about an
estimate that is freed of that, so that the published Avg may lie outside of it. Tables then print this estimate with
the interval, as in `-60 % (-70 [-79, -61])`."""


def simulated(name: str, count: int, resamples: int = RESAMPLES) -> tuple[float, list[Interval], list[Interval]]:
    """The truth in percent, and of each study the paper's interval and ours."""
    identities, effects = SETTINGS[name]
    rng = np.random.default_rng(list(SETTINGS).index(name))
    truth, percentile, own = 0.0, [], []
    for _ in range(count):
        three = [task(rng, identities, effect) for task, effect in zip(TASKS, effects, strict=True)]
        truth = float(np.mean([100 * (study.truth[1] / study.truth[0] - 1) for study in three]))
        average = mean_of([_change(study) for study in three])
        percentile.append(bootstrap(average, resamples=resamples, seed=0))
        own.append(jackknife(average))
    return truth, percentile, own


def _change(study: Study) -> Metric:
    after, before = (run.by(study.clusters) for run in (study.steered, study.unsteered))
    return after.percent_change(before)


def covered(found: list[Interval], truth: float) -> float:
    return float(np.mean([one.low <= truth <= one.high for one in found]))


def section(count: int = STUDIES) -> str:
    head = "| study | truth | published Avg | corrected | percentile | jackknife | published outside jackknife's |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- |"]
    for name in SETTINGS:
        truth, percentile, own = simulated(name, count)
        middles = [float(np.median([one.estimate for one in found])) for found in (percentile, own)]
        outside = np.mean([not o.low <= p.estimate <= o.high for p, o in zip(percentile, own, strict=True)])
        shares = [f"{100 * share:.1f} %" for share in (covered(percentile, truth), covered(own, truth), outside)]
        lines.append(f"| {name} | {truth:.1f} | {middles[0]:.1f} | {middles[1]:.1f} | {' | '.join(shares)} |")
    told = f"{count:,} studies a line, {RESAMPLES} resamples each; estimates are medians over studies."
    return "\n\n".join([TEXT, told, "\n".join(lines)])
