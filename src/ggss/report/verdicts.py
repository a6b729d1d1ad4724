"""Verdicts and the summary of a report. Their words follow from the statistics alone.

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
from dataclasses import dataclass, replace

from ggss.analysis.comparison import AccuracyChange, Comparison, sign_flip
from ggss.analysis.selection import corrected_average
from ggss.report import cells
from ggss.report.cells import adjusted, bounds, chance, displayed_text, number, span
from ggss.report.material import Material, ReportedModel, TaskPair
from ggss.stats import Equivalence, Interval

SIZE = 0.05
HOLDS_ZERO = "though its interval holds 0: steering has an effect, but its size among other people is not known"


def holds_zero(change: Interval | None) -> bool:
    """Whether 0 lies within the interval of a change."""
    return change is not None and change.low <= 0.0 <= change.high


@dataclass(frozen=True)
class JudgedTask:
    """A row of the table of bias: a task of a model.

    kind: better, worse, undecided, or none. It is undecided too if the published change and the bias-corrected one
    have opposite signs.
    """

    pair: TaskPair
    p: float | None
    adjusted: float | None

    @property
    def comparison(self) -> Comparison | None:
        return self.pair.comparison

    @property
    def change(self) -> Interval | None:
        """In percent, bias-corrected, with Fieller's interval."""
        return self.comparison.corrected_change if self.comparison else None

    @property
    def kind(self) -> str:
        comparison = self.comparison
        if comparison is None or comparison.baseline is None or comparison.reached is None or self.adjusted is None:
            return "none"
        if self.adjusted > SIZE or self._divided:
            return "undecided"
        return "better" if comparison.reached < comparison.baseline else "worse"

    @property
    def _divided(self) -> bool:
        comparison = self.comparison
        if comparison is None or comparison.baseline is None or comparison.reached is None or self.change is None:
            return False
        return (comparison.reached - comparison.baseline) * self.change.estimate < 0

    @property
    def words(self) -> str:
        comparison = self.comparison
        if comparison is None:
            return "not steered"
        if comparison.reached is None:
            return "no answer could be read"
        if comparison.baseline is None:
            return "no bias before, so no percent change"
        if self.kind in ("better", "worse"):
            words = "significantly less bias" if self.kind == "better" else "significantly more bias"
            return f"{words}, {HOLDS_ZERO}" if holds_zero(self.change) else words
        if self.adjusted is not None and self.adjusted <= SIZE:
            published, corrected = (
                ("rises", "falls") if comparison.reached > comparison.baseline else ("falls", "rises")
            )
            return (
                f"significant, but the direction is not clear: the published value {published}, the "
                f"bias-corrected one {corrected}"
            )
        if self.p is not None and self.p <= SIZE:
            return f"not enough data to tell: {chance(self.p)} alone, not significant among all tests of the table"
        detectable = comparison.detectable
        return _not_enough_data(f"{number(detectable, '.0f')} %" if detectable else "")


def _not_enough_data(detectable: str) -> str:
    """detectable: the smallest change that would have been found; "" if it is not known."""
    least = f"; the smallest change that would have been found is {detectable}" if detectable else ""
    return f"not enough data to tell{least}"


def judged_bias(models: Sequence[ReportedModel]) -> list[JudgedTask]:
    """All bias tasks, their tests adjusted together."""
    pairs = [pair for model in models for pair in model.bias]
    tests = [_defined(pair.comparison.p) if pair.comparison else None for pair in pairs]
    return [JudgedTask(*row) for row in zip(pairs, tests, adjusted(tests), strict=True)]


def _defined(p: float) -> float | None:
    return p if math.isfinite(p) else None


@dataclass(frozen=True)
class KeptCapability:
    """A row of the table of capability and recognition: a task under one steering, or a part of the task."""

    pair: TaskPair
    part: str
    kept: AccuracyChange
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
            return _not_enough_data(f"{100 * self.detectable:.1f} points" if self.detectable else "")
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
    cases = []
    for model in models:
        for pair in model.others:
            if pair.comparison and pair.comparison.has_right_answers and pair.probe.kind in kinds:
                parts = list(dict.fromkeys(pair.comparison.after.questions))
                cases += [(pair, part, pair.comparison) for part in parts if len(parts) > 1]
    return _rows(cases)


def _rows(cases: Sequence[tuple[TaskPair, str, Comparison]]) -> list[KeptCapability]:
    results = [comparison.accuracy(part) for _, part, comparison in cases]
    corrected = adjusted([result.p for result in results])
    return [
        KeptCapability(pair, part, result, p, None if part else comparison.detectable)
        for (pair, part, comparison), result, p in zip(cases, results, corrected, strict=True)
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
    averages: list[Interval | None] = []
    tests: list[float | None] = []
    for model in models:
        compared = [pair.comparison for pair in model.bias if pair.comparison]
        readable = [task for task in compared if task.baseline is not None and task.reached is not None]
        averages.append(corrected_average(compared) if compared else None)
        tests.append(sign_flip(readable) if readable else None)
    return [JudgedModel(*row) for row in zip(models, averages, tests, adjusted(tests), strict=True)]


@dataclass(frozen=True)
class Sentence:
    """A sentence of the summary, and the cases that it counts.

    kind: better, worse, undecided or none. to_changed: the page links it to the people whose answers changed.
    """

    heading: str
    words: str
    kind: str
    cases: tuple[str, ...] = ()
    to_changed: bool = False


@dataclass(frozen=True)
class SummaryWords:
    """The summary: what was measured, and a sentence on each question that a reader has."""

    measured: str
    sentences: tuple[Sentence, ...]


def summary(material: Material, bias: Sequence[JudgedTask], capability: Sequence[KeptCapability]) -> SummaryWords:
    """What was measured, the change of bias, what it cost, what is inconclusive; and the controls, if any."""
    controls = [model for model in material.models if model.control]
    subjects = [model for model in material.models if not model.control] or controls
    subject_bias = [row for row in bias if _of(row.pair, subjects)]
    subject_capability = [row for row in capability if _of(row.pair, subjects)]
    sentences = [
        _bias_sentence(judged_models(subjects), subject_bias, material),
        _cost_sentence(subject_capability),
        _inconclusive_sentence(subject_bias, subject_capability),
        *_recognition_sentence(subject_capability),
        *_changed_sentence(subjects),
    ]
    if controls != subjects and any(model.method for model in controls):
        sentences.append(_control_sentence(judged_models(controls), [r for r in capability if _of(r.pair, controls)]))
    return SummaryWords(_measured_sentence(material), tuple(sentences))


def _of(pair: TaskPair, models: Sequence[ReportedModel]) -> bool:
    return any(pair.model == model.name for model in models)


def _measured_sentence(material: Material) -> str:
    pairs = material.pairs
    people = {item.cluster for pair in pairs if pair.about for item in pair.before.items}
    pictures = {picture.digest for pair in pairs for item in pair.before.items for picture in item.images}
    questions = {(pair.task, item.key) for pair in pairs for item in pair.before.items}
    tasks = list(dict.fromkeys(pair.task_title for pair in pairs))
    models = ", ".join(model.title for model in material.models)
    before = ", before and after steering" if any(pair.after for pair in pairs) else ""
    return (
        f"{_count(len(material.models), 'model')} ({models}) answered {_count(len(questions), 'question')} of "
        f"{_count(len(tasks), 'task')} ({'; '.join(tasks)}){before}, about "
        f"{_count(len(people), 'identity', 'identities')} in {_count(len(pictures), 'picture')}."
    )


def _count(n: int, noun: str, plural: str = "") -> str:
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def _sentence(heading: str, lead: str, cases: Sequence[str], kind: str) -> Sentence:
    """One case is part of the sentence; several are listed."""
    return Sentence(
        heading, f"{lead}: {cases[0]}." if len(cases) == 1 else f"{lead}:", kind, tuple(cases[1:] and cases)
    )


def _bias_sentence(models: Sequence[JudgedModel], tasks: Sequence[JudgedTask], material: Material) -> Sentence:
    """The models' means; tasks whose bias rose are named, because a mean does not show them."""
    steered = [model for model in models if model.average is not None]
    if not steered:
        return _unsteered_sentence(material)
    fell, rose = (sum(model.kind == kind for model in steered) for kind in ("better", "worse"))
    lead = f"Measured bias fell significantly on {fell} of {_count(len(steered), 'steered model')}"
    lead += f" and rose significantly on {rose}" if rose else ""
    worse = [row for row in tasks if row.kind == "worse"]
    sure = fell == len(steered) and not worse and not any(holds_zero(model.average) for model in steered)
    kind = "worse" if rose else "better" if sure else "undecided"
    cases = [_change_words(model) for model in steered]
    if worse:
        lead += ", on average over tasks; by some tasks it rose"
        which = "; ".join(f"{row.pair.title} on {cells.model_title(row.pair.model)}" for row in worse)
        cases.append(f"significantly more bias in single tasks: {which}")
    return _sentence("Bias", lead, cases, kind)


def _change_words(judged: JudgedModel) -> str:
    assert judged.average is not None
    verdict = {
        "better": f"significant, {chance(judged.adjusted)}",
        "worse": f"significant, {chance(judged.adjusted)}",
        "undecided": f"not enough data to tell it from no change, {chance(judged.adjusted)}",
        "none": "no test is defined",
    }[judged.kind]
    if judged.kind in ("better", "worse") and holds_zero(judged.average):
        verdict += f", {HOLDS_ZERO}"
    tasks = _count(sum(pair.comparison is not None for pair in judged.model.bias), "task")
    way = f"{cells.method_title(judged.model.method)} at α = {judged.model.alpha:g}"
    change = span(judged.average, "+.0f", unit=" %")
    return f"{judged.model.title} under {way}: {change} on average over {tasks}, {verdict}"


def _unsteered_sentence(material: Material) -> Sentence:
    cases = [
        f"{pair.title} on {model.title}: {displayed_text(pair.measured.corrected(), pair.measured.display())}"
        f"{pair.measured.display().unit}"
        for model in material.models
        for pair in model.bias
    ]
    if not cases:
        return Sentence("Bias", "No bias task was run.", "none")
    return _sentence("Bias", "Nothing is compared with a steered model; the bias-corrected values are", cases, "none")


def _cost_sentence(rows: Sequence[KeptCapability]) -> Sentence:
    rows = [row for row in rows if row.pair.probe.kind != "recognition"]
    if not rows:
        return Sentence(
            "Cost", "Capability was not measured before and after: what steering cost is not known.", "undecided"
        )
    kinds = [row.kind for row in rows]
    lead = f"Capability was shown to be equivalent in {kinds.count('equivalent')} of {_count(len(kinds), 'case')}"
    lead += f" and fell significantly in {kinds.count('worse')}" if "worse" in kinds else ""
    kind = "worse" if "worse" in kinds else "undecided" if "undecided" in kinds else "better"
    return _sentence("Cost", lead, [f"{_case(row)}: {_points(row)}, {_short(row)}" for row in rows], kind)


def _inconclusive_sentence(bias: Sequence[JudgedTask], capability: Sequence[KeptCapability]) -> Sentence:
    cases = [
        f"{row.pair.title} on {cells.model_title(row.pair.model)}: {row.words}"
        for row in bias
        if row.comparison and row.kind in ("undecided", "none")
    ]
    cases += [
        f"{_case(row)}: {row.words}"
        for row in capability
        if row.kind == "undecided" and row.pair.probe.kind != "recognition"
    ]
    if not bias and not capability:
        return Sentence("Inconclusive", "No task of bias or capability was run.", "undecided")
    if not any(row.comparison for row in bias) and not capability:
        return Sentence("Inconclusive", "Whether steering would change this: no steered run was given.", "undecided")
    if not cases:
        return Sentence("Inconclusive", "Every change was significant, or shown to be equivalent to none.", "better")
    return _sentence("Inconclusive", "There is not enough data to tell a change from none", cases, "undecided")


def _recognition_sentence(rows: Sequence[KeptCapability]) -> list[Sentence]:
    """How often models still recognise the attribute that is steered; no sentence if that was not asked."""
    named = [row for row in rows if row.pair.probe.kind == "recognition" and row.pair.attribute == row.pair.about]
    if not named:
        return []
    fell = sum(row.kind == "worse" for row in named)
    lead = f"Asked for the steered attribute itself, models name it right significantly less often in {fell} of "
    cases = [
        f"{row.pair.about} on {cells.model_title(row.pair.model)}: {100 * row.kept.after.estimate:.0f} % right "
        f"instead of {100 * row.kept.before.estimate:.0f} %, {_points(row)}"
        for row in named
    ]
    return [_sentence("Recognition", f"{lead}{_count(len(named), 'case')}", cases, "none")]


def _changed_sentence(models: Sequence[ReportedModel]) -> list[Sentence]:
    """How many answers about people changed, by task."""
    cases = []
    for model in models:
        for pair in model.bias:
            if pair.after is None:
                continue
            later = dict(zip((item.key for item in pair.after.items), pair.after.parsed.parsed, strict=True))
            answers = zip(pair.before.items, pair.before.parsed.parsed, strict=True)
            changed = sum(later.get(item.key) != before for item, before in answers)
            cases.append(f"{pair.title} on {model.title}: {changed:,} of {_count(len(later), 'answer')}")
    if not cases:
        return []
    sentence = _sentence("Whose answers changed", "Steering changed the answer", cases, "none")
    return [replace(sentence, to_changed=True)]


def _control_sentence(models: Sequence[JudgedModel], capability: Sequence[KeptCapability]) -> Sentence:
    cases = [_change_words(model) for model in models if model.average is not None]
    cases += [
        f"{_case(row)}: {_points(row)}, {row.words}" for row in capability if row.pair.probe.kind != "recognition"
    ]
    lead = "In a control the attribute cannot be removed alone, so steering should fail or cost capability"
    return _sentence("Control", lead, cases, "none")


def _short(row: KeptCapability) -> str:
    return "not enough data to tell" if row.kind == "undecided" else row.words


def _case(row: KeptCapability) -> str:
    return f"{row.pair.task_title} on {cells.model_title(row.pair.model)} under {row.pair.attribute} steering"


def _points(row: KeptCapability) -> str:
    change = row.kept.change
    return f"{number(100 * change.difference, '+.1f')} points {bounds(change.low, change.high, '+.1f', 100)}"
