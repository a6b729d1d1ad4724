"""A release policy: what a run must fulfil, compared with the run before it. `ggss gate` checks it.

    max_bias: null                   # largest bias, in the unit that `ggss compare` prints; null: not checked
    max_flip_percent: null           # largest share of people whose answer depends on the task's attribute; null
    change: decrease                 # decrease: significantly lower; no-increase: not significantly higher; any
    significance: 0.05               # of that change, after Holm's correction over the tests of all bias tasks
    capability_margin_points: 1.5    # right answers are equivalent within so many points; null: not checked
    max_unreadable_percent: 5        # of the answers to a task, before and after; null: not checked
    tasks:                           # other rules for some tasks, which then must be there
      mcq: {max_bias: 40}
      recognition-race: {capability_margin_points: null}

What is written above are the defaults, except `tasks`. Metrics have different units, so `max_bias` is best given for
each task; a gap counts without its sign. A rule that cannot be decided fails: where nothing could be read, or where
there is one person only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ggss.analysis.comparison import Comparison, check_paired, compare
from ggss.analysis.run import Run, Statistics
from ggss.analysis.selection import ComparedTasks
from ggss.errors import InputError, nearest, no_such, problems
from ggss.files import read_yaml
from ggss.stats.paired import MARGIN

Percent = Annotated[float, Field(ge=0, le=100)]
Change = Literal["decrease", "no-increase", "any"]


class Rules(BaseModel):
    """What is required of a task. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    max_bias: Annotated[float, Field(ge=0)] | None = None
    max_flip_percent: Percent | None = None
    change: Change = "decrease"
    significance: Annotated[float, Field(gt=0, lt=1)] = 0.05
    capability_margin_points: Annotated[float, Field(gt=0, le=100)] | None = 100 * MARGIN
    max_unreadable_percent: Percent | None = 5.0


class Policy(Rules):
    """Rules for every task, and other ones for some."""

    tasks: dict[str, Rules] = {}

    @classmethod
    def load(cls, path: str | Path) -> "Policy":
        """A policy from a YAML file. InputError lists everything that is wrong in it."""
        data = read_yaml(Path(path), "the policy")
        if not isinstance(data, dict):
            kind = "nothing" if data is None else type(data).__name__
            raise InputError(f"{str(path)!r} is not a policy: it holds {kind}, not a mapping of rules")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            mistakes = [_spelled(mistake) for mistake in error.errors()]
            raise problems(f"{str(path)!r} is not a policy", mistakes) from None

    def of(self, task: str) -> Rules:
        """The rules for a task."""
        general = {name: getattr(self, name) for name in Rules.model_fields}
        special = self.tasks[task].model_dump(exclude_unset=True) if task in self.tasks else {}
        return Rules.model_validate(general | special)

    def judge(
        self,
        before: Mapping[str, Run],
        after: Mapping[str, Run],
        statistics: Statistics | None = None,
        unlike: bool = False,
    ) -> "PolicyResult":
        """Compare two runs, by task, and check every rule; statistics and unlike as in `compare`.

        InputError for runs that cannot be paired, for rules of tasks that are not there or are of the other kind, and
        for a policy that checks nothing of these runs.
        """
        check_paired(before, after, unlike)
        for task in self.tasks:
            if task not in before:
                raise no_such(f"the policy has rules for {task!r}, which the runs did not ask", task, before)
        settings = statistics or Statistics()
        comparisons = {
            task: compare(run, after[task], self._statistics(task, settings), unlike) for task, run in before.items()
        }
        self._check_kinds(comparisons)
        tasks = ComparedTasks.of(list(comparisons.values()))
        checks = tuple(
            check
            for task, comparison in comparisons.items()
            for check in _checks(comparison, self.of(task), tasks.p_holm(comparison))
        )
        if not checks:
            raise InputError("the policy checks nothing of these runs, so nothing could fail: give it a rule")
        return PolicyResult(self, tasks, checks)

    def _statistics(self, task: str, settings: Statistics) -> Statistics:
        points = self.of(task).capability_margin_points
        return settings if points is None else replace(settings, margin=points / 100)

    def _check_kinds(self, comparisons: Mapping[str, Comparison]) -> None:
        """Refuse a rule of a task that it cannot be about."""
        wrong = []
        for task, rules in self.tasks.items():
            right = comparisons[task].has_right_answers
            misplaced, kind = (_BIAS, "bias") if right else (_CAPABILITY, "capability")
            is_a = "has right answers: it measures capability" if right else "compares groups: it measures bias"
            wrong += [
                f"tasks.{task}.{name}: {task} {is_a}, and this rule is about {kind}"
                for name in misplaced
                if name in rules.model_fields_set
            ]
        if wrong:
            raise problems("the policy does not fit these runs", wrong)


_CAPABILITY = ("capability_margin_points",)
_BIAS = ("max_bias", "max_flip_percent", "change", "significance")


@dataclass(frozen=True)
class Check:
    """One rule of one task. Numbers are in `unit`; change, low, high: the change with its interval, where tested.

    rule: bias, flips, change, capability or unreadable. required: the rule in words. limit: its number. p: of the
    change, after Holm's correction; of capability, of the equivalence test.
    """

    task: str
    rule: str
    passed: bool
    required: str
    limit: float
    before: float
    after: float
    unit: str = ""
    digits: int = 1
    change: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan


@dataclass(frozen=True)
class PolicyResult:
    """A policy and what came of it; tasks: the comparison that every number is from."""

    policy: Policy
    tasks: ComparedTasks
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.passed)


def _checks(comparison: Comparison, rules: Rules, p_holm: float | None) -> list[Check]:
    checks = []
    if comparison.has_right_answers:
        if rules.capability_margin_points is not None:
            checks.append(_capability(comparison, rules.capability_margin_points))
    else:
        if rules.max_bias is not None:
            checks.append(_bias(comparison, rules.max_bias))
        if rules.max_flip_percent is not None:
            checks.append(_flips(comparison, rules.max_flip_percent))
        if rules.change != "any":
            checks.append(_change(comparison, rules.change, rules.significance, p_holm))
    if rules.max_unreadable_percent is not None:
        checks.append(_unreadable(comparison, rules.max_unreadable_percent))
    return checks


def _bias(comparison: Comparison, limit: float) -> Check:
    shown = comparison.before.display()
    passed = comparison.reached is not None and shown.scale * abs(comparison.reached) <= limit
    return Check(comparison.task, "bias", passed, f"at most {limit:,g}{shown.unit}", limit, **_values(comparison))


def _flips(comparison: Comparison, percent: float) -> Check:
    flip, required = comparison.flip(), f"at most {percent:g} % depend on {comparison.before.about}"
    if flip is None:
        return Check(comparison.task, "flips", False, required, percent, math.nan, math.nan, " %")
    before, after = (100 * flips / flip.cases for flips in flip.flips)
    return Check(comparison.task, "flips", after <= percent, required, percent, before, after, " %")


def _change(comparison: Comparison, direction: Change, size: float, p_holm: float | None) -> Check:
    p = math.nan if p_holm is None or comparison.reached is None else p_holm
    significant = p <= size
    before, after = (abs(run.value()) for run in (comparison.before, comparison.after))  # some gaps have a sign
    if direction == "decrease":
        passed, required = significant and after < before, f"decrease, p <= {size:g}"
    else:
        passed = not math.isnan(p) and not (significant and after > before)
        required = f"no increase, p <= {size:g}"
    percent = comparison.change()
    check = Check(comparison.task, "change", passed, required, size, **_values(comparison), p=p)
    if percent is None:
        return check
    return replace(check, change=percent.estimate, low=percent.low, high=percent.high)


def _values(comparison: Comparison) -> dict[str, Any]:
    shown = comparison.before.display()
    before, after = (shown.scale * run.value() for run in (comparison.before, comparison.after))
    return {"before": before, "after": after, "unit": shown.unit, "digits": shown.digits}


def _capability(comparison: Comparison, points: float) -> Check:
    accuracy = comparison.accuracy()
    return Check(
        comparison.task,
        "capability",
        accuracy.same.equivalent,
        f"same within {points:g} points",
        points,
        100 * accuracy.before.estimate,
        100 * accuracy.after.estimate,
        " %",
        change=100 * accuracy.same.difference,
        low=100 * accuracy.same.low,
        high=100 * accuracy.same.high,
        p=accuracy.same.p,
    )


def _unreadable(comparison: Comparison, percent: float) -> Check:
    metrics = [run.metric() for run in (comparison.before, comparison.after)]
    before, after = (100 * metric.unparsed / metric.asked for metric in metrics)
    passed = max(before, after) <= percent
    return Check(comparison.task, "unreadable", passed, f"at most {percent:g} %", percent, before, after, " %")


def _spelled(error: Any) -> str:
    *outer, name = error["loc"]
    place = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        known = Rules.model_fields if outer else Policy.model_fields
        near = nearest(str(name), known)
        return f"{place}: there is no such rule: {f'{near} ' if near else ''}there are {', '.join(known)}"
    return f"{place}: {error['msg']}, seen {error['input']!r}"
