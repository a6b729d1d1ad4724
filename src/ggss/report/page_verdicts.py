"""Verdicts of a report: they are chosen by the statistics, never by hand.

    significant        Holm's adjusted p is at most 0.05
    equivalent         two one-sided tests show a change of accuracy within the margin
    not enough data    neither; the words then name the smallest change that the study could have found

Holm's adjustment is over all tests of the same table of the page. A bias test swaps all answers about an identity
together. It asks whether these answers would look as they do if steering did nothing; an interval says how large the
change is among other people of the same kind. So a change may be significant while its interval holds 0: the words
then say so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ggss.analysis.averages import corrected_average
from ggss.analysis.comparison import Comparison, sign_flip
from ggss.analysis.right_answers import Kept
from ggss.report.cells import adjusted
from ggss.report.page_numbers import chance, number
from ggss.report.reported import ReportedModel, TaskPair
from ggss.stats import Equivalence, Interval

SIZE = 0.05
HOLDS_ZERO = "though its interval holds 0: steering does something, how much it does among other people is not known"


def holds_zero(change: Interval | None) -> bool:
    """Whether 0 lies within the interval of a change: it may have been none."""
    return change is not None and change.low <= 0.0 <= change.high


@dataclass(frozen=True)
class JudgedTask:
    """A row of the table of bias: one task of one model. kind: better, worse, undecided, or none.

    Undecided too, if the change as published and the one freed of small-sample bias have opposite signs.
    """

    pair: TaskPair
    p: float | None
    adjusted: float | None

    @property
    def comparison(self) -> Comparison | None:
        return self.pair.comparison

    @property
    def change(self) -> Interval | None:
        """In percent, freed of small-sample bias, with Fieller's interval."""
        return self.comparison.corrected_change if self.comparison else None

    @property
    def kind(self) -> str:
        one = self.comparison
        if one is None or one.baseline is None or one.reached is None or self.adjusted is None:
            return "none"
        if self.adjusted > SIZE or self._divided:
            return "undecided"
        return "better" if one.reached < one.baseline else "worse"

    @property
    def _divided(self) -> bool:
        one = self.comparison
        if one is None or one.baseline is None or one.reached is None or self.change is None:
            return False
        return (one.reached - one.baseline) * self.change.estimate < 0

    @property
    def words(self) -> str:
        one = self.comparison
        if one is None:
            return "not steered"
        if one.reached is None:
            return "no answer could be read"
        if one.baseline is None:
            return "no bias before, so no percent change"
        if self.kind in ("better", "worse"):
            words = "significantly less bias" if self.kind == "better" else "significantly more bias"
            return f"{words}, {HOLDS_ZERO}" if holds_zero(self.change) else words
        if self.adjusted is not None and self.adjusted <= SIZE:
            published, freed = ("rises", "falls") if one.reached > one.baseline else ("falls", "rises")
            return (
                f"significant, but the direction is not clear: the published value {published}, the one freed of "
                f"small-sample bias {freed}"
            )
        if self.p is not None and self.p <= SIZE:
            return f"not enough data to tell: {chance(self.p)} alone, not significant among all tests of the table"
        seen = one.detectable
        least = f"; the smallest change that would have been found is {number(seen, '.0f')} %" if seen else ""
        return f"not enough data to tell{least}"


def judged_bias(models: Sequence[ReportedModel]) -> list[JudgedTask]:
    """All bias tasks, their tests adjusted together."""
    pairs = [pair for model in models for pair in model.bias]
    tests = [_defined(pair.comparison.p) if pair.comparison else None for pair in pairs]
    return [JudgedTask(pair, p, own) for pair, p, own in zip(pairs, tests, adjusted(tests), strict=True)]


def _defined(p: float) -> float | None:
    return p if math.isfinite(p) else None


@dataclass(frozen=True)
class KeptCapability:
    """A row of the table of capability and recognition: a task under one steering, or a part of the task."""

    pair: TaskPair
    part: str
    kept: Kept
    adjusted: float | None
    detectable: float | None

    @property
    def change(self) -> Equivalence:
        return self.kept.change

    @property
    def kind(self) -> str:
        if self.adjusted is not None and self.adjusted <= SIZE:
            return "better" if self.kept.change.difference > 0 else "worse"
        return "equivalent" if self.kept.same.equivalent else "undecided"

    @property
    def words(self) -> str:
        margin = f"±{100 * self.kept.same.margin:g} points"
        if self.kind == "equivalent":
            return f"equivalent within {margin}"
        if self.kind == "undecided":
            seen = self.detectable
            least = f"; the smallest change that would have been found is {100 * seen:.1f} points" if seen else ""
            return f"not enough data to tell{least}"
        return f"significantly {self.kind}"


def judged_capability(models: Sequence[ReportedModel], kinds: Sequence[str]) -> list[KeptCapability]:
    """The tasks of some kinds with right answers, their McNemar tests adjusted together."""
    chosen = [
        (pair, pair.comparison)
        for model in models
        for pair in model.others
        if pair.comparison and pair.comparison.has_right_answers and pair.probe.kind in kinds
    ]
    return _rows([(pair, "", comparison) for pair, comparison in chosen])


def judged_dimensions(models: Sequence[ReportedModel], kinds: Sequence[str]) -> list[KeptCapability]:
    """The same by kind of question, where a task has several."""
    found = []
    for model in models:
        for pair in model.others:
            if pair.comparison and pair.comparison.has_right_answers and pair.probe.kind in kinds:
                parts = list(dict.fromkeys(pair.comparison.after.questions))
                found += [(pair, part, pair.comparison) for part in parts if len(parts) > 1]
    return _rows(found)


def _rows(found: Sequence[tuple[TaskPair, str, Comparison]]) -> list[KeptCapability]:
    kept = [comparison.kept(part) for _, part, comparison in found]
    corrected = adjusted([one.p for one in kept])
    return [
        KeptCapability(pair, part, one, p, None if part else comparison.detectable)
        for (pair, part, comparison), one, p in zip(found, kept, corrected, strict=True)
    ]


@dataclass(frozen=True)
class JudgedModel:
    """A model's bias tasks together: the mean change with its interval, and one test over all of them."""

    model: ReportedModel
    average: Interval | None
    p: float | None
    adjusted: float | None

    @property
    def kind(self) -> str:
        if self.average is None or self.adjusted is None:
            return "none"
        if self.adjusted > SIZE:
            return "undecided"
        return "better" if self.average.estimate < 0 else "worse"


def judged_models(models: Sequence[ReportedModel]) -> list[JudgedModel]:
    """Each model's mean change of bias: the jackknife's estimate and interval, tests adjusted together."""
    tests: list[float | None] = []
    for model in models:
        compared = _comparisons(model)
        readable = [one for one in compared if one.baseline is not None and one.reached is not None]
        tests.append(sign_flip(readable) if readable else None)
    return [
        JudgedModel(model, corrected_average(ones) if (ones := _comparisons(model)) else None, p, own)
        for model, p, own in zip(models, tests, adjusted(tests), strict=True)
    ]


def _comparisons(model: ReportedModel) -> list[Comparison]:
    return [pair.comparison for pair in model.bias if pair.comparison]
