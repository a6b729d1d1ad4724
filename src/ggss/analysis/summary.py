"""One run in numbers: each metric with its interval over clusters, beside it what guards against misreading it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ggss.stats import Interval, Metric, bootstrap, jackknife

SOFT = "soft_"
# Divergences and spreads come out too high in small samples; the jackknife takes that out.
BIASED_UPWARDS = ("mean_race_jsd", "race_bias_std", "salary_spread")


@dataclass(frozen=True)
class Row:
    """A metric of a task. `interval` is the paper's percentile bootstrap, over clusters."""

    task: str
    metric: str
    interval: Interval
    corrected: Interval | None
    soft: float | None
    unparsed: int
    asked: int
    degenerate: bool


def summarise(task: str, found: Mapping[str, Metric], clusters: Sequence[str], seed: int = 0) -> list[Row]:
    """A row for each of a task's metrics, soft versions beside what they are the soft version of."""
    rows = []
    for name, metric in found.items():
        if not name.startswith(SOFT):
            soft = found.get(SOFT + name)
            rows.append(
                Row(
                    task,
                    name,
                    bootstrap(metric, clusters, seed=seed),
                    jackknife(metric, clusters) if name in BIASED_UPWARDS else None,
                    None if soft is None else float(soft),
                    metric.unparsed,
                    metric.asked,
                    metric.degenerate,
                )
            )
    return rows
