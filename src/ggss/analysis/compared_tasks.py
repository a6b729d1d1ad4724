"""Several comparisons judged together: bias and capability, and Holm's correction over all their tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ggss.analysis.averages import average_change
from ggss.analysis.comparison import Comparison, sign_flip
from ggss.analysis.measured import Measured
from ggss.stats import Interval, holm

COMBINED = "combined"


@dataclass(frozen=True)
class ComparedTasks:
    """Two runs compared on all their tasks.

    bias: tasks that compare groups. capability: tasks with right answers. average: the mean change of bias. combined:
    the sign-flip test over all bias tasks that can be read, None where there are fewer than two. p_holm: by task,
    Holm's correction over every test of a difference.
    """

    bias: tuple[Comparison, ...]
    capability: tuple[Comparison, ...]
    average: Interval | None
    combined: float | None
    p_holm: Mapping[str, float]

    @classmethod
    def of(cls, comparisons: Mapping[str, Comparison]) -> "ComparedTasks":
        bias = tuple(one for one in comparisons.values() if not one.has_right_answers)
        capability = tuple(one for one in comparisons.values() if one.has_right_answers)
        readable = [one for one in bias if one.baseline is not None and one.reached is not None]
        combined = sign_flip(readable) if len(readable) > 1 else None
        tests = {one.task: one.p for one in bias} | {one.task: one.kept().p for one in capability}
        tests = {task: p for task, p in tests.items() if np.isfinite(p)}
        if combined is not None:
            tests[COMBINED] = combined
        adjusted = dict(zip(tests, holm(list(tests.values())).tolist(), strict=True)) if tests else {}
        return cls(bias, capability, average_change(bias) if bias else None, combined, adjusted)

    @property
    def combined_holm(self) -> float | None:
        return self.p_holm.get(COMBINED)

    @property
    def before(self) -> "Side":
        return Side.of([one.before for one in (*self.bias, *self.capability)])

    @property
    def after(self) -> "Side":
        return Side.of([one.after for one in (*self.bias, *self.capability)])


@dataclass(frozen=True)
class Side:
    """What is on one side of a comparison; steerer: a content hash, "" without one."""

    model: str
    steered: bool
    method: str
    attribute: str
    alpha: float
    steerer: str
    suites: tuple[str, ...]
    tasks: int
    items: int
    said: str

    @classmethod
    def of(cls, runs: Sequence[Measured]) -> "Side":
        source, items = runs[0].source, sum(len(run.clusters) for run in runs)
        suites = tuple(dict.fromkeys(run.source.suite for run in runs))
        steerer = f", steerer {source.steerer[:12]}" if source.steerer else ""
        asked = f"{items} items, {len(runs)} task{'s' if len(runs) > 1 else ''} of {' and '.join(suites)}"
        said = f"{source.said}{steerer}; {asked}"
        plain = (source.model, source.steered, source.method, source.attribute, source.alpha, source.steerer)
        return cls(*plain, suites, len(runs), items, said)
