"""Several comparisons judged together: bias and capability, and Holm's correction over all their tests."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ggss.analysis.averages import average_change
from ggss.analysis.comparison import Comparison, sign_flip
from ggss.analysis.run import Source
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
        readable = [one for one in bias if one.baseline is not None and not one.degenerate]
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
    def before_said(self) -> str:
        return _said((*self.bias, *self.capability)[0].before.source)

    @property
    def after_said(self) -> str:
        return _said((*self.bias, *self.capability)[0].after.source)


def _said(source: Source) -> str:
    """The model and steering of a run, in words."""
    if not source.attribute and not source.alpha:
        return f"{source.model}, {source.method if source.method != 'none' else 'unsteered'}"
    return f"{source.model}, {source.method} of {source.attribute} at alpha {source.alpha:g}"
