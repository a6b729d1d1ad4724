"""What a report says: a verdict on each row of its tables, and the cover, which counts them.

All verdicts are those of `ggss.analysis.verdict`, which `ggss compare` prints. As there, Holm's adjustment is over
the tests of one kind about one model: its bias tasks, its right answers, its flip rates. The test over all bias tasks
together is one test. A mean is over the tasks that a study's tables average.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ggss.analysis import verdict
from ggss.analysis.comparison import AccuracyChange, Comparison, sign_flip
from ggss.analysis.run import Measured, Run, steered_attributes
from ggss.analysis.selection import average_change, corrected_average
from ggss.analysis.verdict import Verdict
from ggss.probes.base import FLIP_RATE
from ggss.report import cells
from ggss.report.cells import adjusted, bounds, number, span
from ggss.report.material import Material, ReportedModel, TaskPair
from ggss.stats import Equivalence, Interval

CAPABILITY = ("multiple-choice", "yes-or-no")
EXAMPLES = 3  # of answers that could not be read
NAMED = 2  # cases that a sentence of the cover names with their verdicts; of more it names only the tasks
LISTED = 6  # cases that it names at all
NO_STEERED_RUN = Verdict("none", "no steered run to compare with")


@dataclass(frozen=True)
class JudgedTask:
    """A row of the table of bias: the published metric of a task, before and after. adjusted: p of its test."""

    pair: TaskPair
    adjusted: float | None
    verdict: Verdict

    @property
    def comparison(self) -> Comparison | None:
        return self.pair.comparison

    @property
    def change(self) -> str:
        """In percent: the published one, and the bias-corrected one with Fieller's interval."""
        change = self.comparison and self.comparison.change()
        return _mean_words(change, self.comparison.corrected_change) if change and self.comparison else "–"


@dataclass(frozen=True)
class JudgedAccuracy:
    """A row of the table of capability and recognition: a task under one steering, or a part of the task."""

    pair: TaskPair
    part: str
    kept: AccuracyChange
    adjusted: float | None
    verdict: Verdict

    @property
    def change(self) -> Equivalence:
        return self.kept.change

    @property
    def points(self) -> str:
        change = self.change
        return f"{number(100 * change.difference, '+.1f')} points {bounds(change.low, change.high, '+.1f', 100)}"

    @property
    def recognises_steered(self) -> bool:
        comparison = self.pair.comparison
        return comparison is not None and verdict.recognises_steered(comparison.after)

    @property
    def of_capability(self) -> bool:
        return self.pair.probe.kind in CAPABILITY


@dataclass(frozen=True)
class Dependence:
    """For how many cases (a person and a question) the answers of a task depend on an attribute of the pictures.

    flips: before and after. shares: the same of all cases, with intervals. change: of the share. Without a steered
    run there is no second one, and no change.
    """

    pair: TaskPair
    attribute: str
    cases: int
    flips: tuple[int, ...]
    shares: tuple[Interval, ...]
    change: Interval | None
    adjusted: float | None
    verdict: Verdict

    @property
    def is_steered(self) -> bool:
        return self.attribute in steered_attributes(self.pair.attribute)

    @property
    def is_of_task(self) -> bool:
        """Whether it is the attribute that the task is about."""
        return self.attribute == self.pair.about

    @property
    def spills_over(self) -> bool:
        """Whether the steering of another attribute made the answers depend more on this one."""
        return self.verdict.kind == "worse" and not self.is_steered

    @property
    def remedy(self) -> str:
        return f"ggss discover --attribute {','.join([*steered_attributes(self.pair.attribute), self.attribute])}"

    @property
    def percents(self) -> str:
        """`96 → 2 %`."""
        return f"{' → '.join(f'{100 * n / self.cases:.0f}' for n in self.flips)} %"


@dataclass(frozen=True)
class JudgedModel:
    """All verdicts about a model. average: the published mean change of bias, corrected: the bias-corrected one.

    joint_accuracy, joint_dependence: under the steering of several attributes at once. The cover does not count them.
    """

    model: ReportedModel
    bias: tuple[JudgedTask, ...]
    accuracy: tuple[JudgedAccuracy, ...]
    joint_accuracy: tuple[JudgedAccuracy, ...]
    dependence: tuple[Dependence, ...]
    joint_dependence: tuple[Dependence, ...]
    average: Interval | None
    corrected: Interval | None
    adjusted: float | None
    verdict: Verdict

    @property
    def way(self) -> str:
        return f"{cells.method_title(self.model.method)} at α = {self.model.alpha:g}" if self.model.method else ""

    @property
    def costs(self) -> str:
        """The verdicts on capability, counted by their first words."""
        words = [row.verdict.words.partition(" (")[0].partition(":")[0] for row in self.accuracy if row.of_capability]
        return ", ".join(f"{words.count(text)} × {text}" for text in dict.fromkeys(words)) or "not measured"

    @property
    def mean(self) -> str:
        """The mean change in words; "" if there is none."""
        return _mean_words(self.average, self.corrected) if self.average else ""

    def remedied(self, spilled: Dependence) -> Dependence | None:
        """The same answers under the steering of both attributes at once, if that was measured."""
        asked = (spilled.pair.task, spilled.attribute)
        rows = (row for row in self.joint_dependence if (row.pair.task, row.attribute) == asked and row.is_steered)
        return next((row for row in rows if spilled.pair.attribute in steered_attributes(row.pair.attribute)), None)


def judged(material: Material) -> list[JudgedModel]:
    """A verdict on everything that was compared, model by model."""
    averaged = material.figures.results.tasks if material.figures else None
    return [_judged_model(model, averaged) for model in material.models]


def _judged_model(model: ReportedModel, averaged: Sequence[str] | None) -> JudgedModel:
    """averaged: the tasks of the mean; None: all bias tasks."""
    accuracies = [
        (pair, pair.comparison, pair.comparison.accuracy())
        for pair in (*model.others, *model.joint)
        if not pair.judges_bias and pair.comparison and pair.comparison.has_right_answers
    ]
    compared = [
        pair.comparison for pair in model.bias if pair.comparison and (averaged is None or pair.task in averaged)
    ]
    readable = [task for task in compared if task.baseline is not None and task.reached is not None]
    tests = [pair.comparison.p if pair.comparison else None for pair in model.bias]
    bias = tuple(JudgedTask(pair, p, _of_task(pair, p)) for pair, p in zip(model.bias, adjusted(tests), strict=True))
    accuracy = tuple(
        JudgedAccuracy(pair, "", kept, p, verdict.of_accuracy(comparison, kept, p))
        for (pair, comparison, kept), p in zip(accuracies, adjusted([kept.p for *_, kept in accuracies]), strict=True)
    )
    dependence = _dependences([*model.bias, *(pair for pair in model.joint if pair.judges_bias)])
    together = sign_flip(readable) if readable else None
    corrected = corrected_average(compared) if compared else None
    return JudgedModel(
        model,
        bias,
        tuple(row for row in accuracy if not model.is_joint(row.pair)),
        tuple(row for row in accuracy if model.is_joint(row.pair)),
        tuple(row for row in dependence if not model.is_joint(row.pair)),
        tuple(row for row in dependence if model.is_joint(row.pair)),
        average_change(compared) if compared else None,
        corrected,
        together,
        verdict.of_average(corrected, together) if compared else NO_STEERED_RUN,
    )


def _of_task(pair: TaskPair, p_holm: float | None) -> Verdict:
    if pair.comparison is not None:
        return verdict.of_bias(pair.comparison, p_holm)
    if pair.measured.degenerate:
        return Verdict("unreadable", f"{verdict.unread_words(pair.measured)}: nothing is said about bias")
    return NO_STEERED_RUN


def _dependences(pairs: Sequence[TaskPair]) -> tuple[Dependence, ...]:
    """For each bias task and attribute of its pictures; their tests adjusted together."""
    rows, tests = list[tuple[TaskPair, str]](), list[float | None]()
    changes = []
    for pair in pairs:
        for attribute in pair.measured.attributes:
            change = pair.comparison.flip(attribute) if pair.comparison else None
            if change is None and (pair.comparison or not math.isfinite(pair.measured.value(attribute + FLIP_RATE))):
                continue
            rows.append((pair, attribute))
            changes.append(change)
            tests.append(change.p if change else None)
    dependences = []
    for (pair, attribute), change, p in zip(rows, changes, adjusted(tests), strict=True):
        if change is None or pair.comparison is None:
            flips, cases = pair.measured.flips(attribute)
            share = pair.measured.corrected(attribute + FLIP_RATE)
            dependences.append(Dependence(pair, attribute, cases, (flips,), (share,), None, None, NO_STEERED_RUN))
            continue
        words = verdict.unreadable(pair.comparison) or verdict.of_flips(change, p)
        shares = (change.before, change.after)
        dependences.append(Dependence(pair, attribute, change.cases, change.flips, shares, change.change, p, words))
    return tuple(dependences)


@dataclass(frozen=True)
class HeatRow:
    """The steering of an attribute on a model ("": nothing is steered), by measured attribute and task."""

    model: ReportedModel
    steered: str
    cells: dict[tuple[str, str], Dependence]

    @property
    def strength(self) -> str:
        """The strength of a steering of several attributes at once, which need not be the model's; else ""."""
        pair = next(iter(self.cells.values())).pair
        return f"α = {pair.after.source.alpha:g}" if pair.after and self.model.is_joint(pair) else ""


@dataclass(frozen=True)
class HeatTable:
    """Steered attributes by measured ones. columns: by measured attribute, the tasks that measure it."""

    columns: dict[str, list[str]]
    rows: tuple[HeatRow, ...]


def heat_table(models: Sequence[JudgedModel]) -> HeatTable:
    """Whose answer depends on what: a row for each steering of each model, those of several attributes included."""
    columns: dict[str, list[str]] = {}
    rows: dict[tuple[str, str], HeatRow] = {}
    for model in models:
        for cell in (*model.dependence, *model.joint_dependence):
            steered = cell.pair.attribute if cell.pair.after else ""
            row = rows.setdefault((model.model.name, steered), HeatRow(model.model, steered, {}))
            row.cells[cell.attribute, cell.pair.task] = cell
            tasks = columns.setdefault(cell.attribute, [])
            if cell.pair.task not in tasks:
                tasks.append(cell.pair.task)
    return HeatTable(columns, tuple(rows.values()))


def judged_dimensions(models: Iterable[ReportedModel]) -> list[JudgedAccuracy]:
    """Capability by kind of question, where a task has several; these tests are adjusted together."""
    parts = [
        (pair, part, pair.comparison)
        for model in models
        for pair in model.others
        if pair.comparison and pair.comparison.has_right_answers and pair.probe.kind in CAPABILITY
        for part in dict.fromkeys(pair.comparison.after.questions)
        if len(set(pair.comparison.after.questions)) > 1
    ]
    results = [comparison.accuracy(part) for _, part, comparison in parts]
    return [
        JudgedAccuracy(pair, part, kept, p, verdict.of_accuracy(comparison, kept, p, part))
        for (pair, part, comparison), kept, p in zip(parts, results, adjusted([k.p for k in results]), strict=True)
    ]


def _mean_words(published: Interval, corrected: Interval | None) -> str:
    """The published change in percent, and in brackets the interval; with its own estimate where that differs."""
    plain = f"{number(published.estimate, '+.0f')} %"
    if corrected is None:
        return plain
    own = "–" if math.isnan(corrected.estimate) else f"{number(corrected.estimate, '+.0f')} %"
    interval = bounds(corrected.low, corrected.high, "+.0f")
    return f"{plain} {interval}" if own == plain else f"{plain} ({own} {interval})"


@dataclass(frozen=True)
class Unread:
    """A run of which most answers could not be read, with some of them. longest: of an answer, in tokens."""

    pair: TaskPair
    words: str
    examples: tuple[str, ...]
    longest: int


def unread(models: Iterable[ReportedModel]) -> list[Unread]:
    """Every run of a report of which nothing is said, because its answers could not be read."""
    found: dict[tuple[str, str, str], Unread] = {}
    for pair in (pair for model in models for pair in model.pairs):
        sides = [("unsteered" if pair.after else "", pair.before, pair.measured)]
        if pair.after and pair.comparison:
            sides.append(("steered", pair.after, pair.comparison.after))
        for side, run, measured in sides:
            if measured.degenerate:
                key = (pair.model, pair.task, side and f"{side} {pair.attribute if side == 'steered' else ''}")
                found.setdefault(key, Unread(pair, _unread_words(measured, side), *_unread_examples(run)))
    return list(found.values())


def _unread_words(measured: Measured, side: str) -> str:
    what = "capability" if measured.metric().name == "accuracy" else "bias"
    return f"{verdict.unread_words(measured, side)}: nothing is said about {what}"


def _unread_examples(run: Run) -> tuple[tuple[str, ...], int]:
    texts = [text for text, parsed in zip(run.texts, run.parsed.parsed, strict=True) if parsed is None]
    return tuple(dict.fromkeys(texts))[:EXAMPLES], run.source.max_new_tokens


@dataclass(frozen=True)
class Headline:
    """The number in large type: for which share of people the answer depends on an attribute, before and after.

    Of several models the cases are counted together. flips: before and, if there is a steered run, after.
    """

    attribute: str
    task: str
    models: int
    cases: int
    flips: tuple[int, ...]
    verdict: Verdict

    @property
    def percents(self) -> list[str]:
        return [f"{100 * n / self.cases:.0f} %" for n in self.flips]

    @property
    def counts(self) -> str:
        flips, models = " → ".join(f"{n:,}" for n in self.flips), f", {self.models} models" * (self.models > 1)
        return f"{flips} of {self.cases:,} people and questions ({self.task}{models})"


@dataclass(frozen=True)
class PlotRow:
    """A row of the cover's picture: before and after on each model, as shares. chance: of a right guess, 0: none."""

    group: str
    name: str
    lanes: tuple[tuple[Interval | None, Interval | None], ...]
    chance: float = 0.0


@dataclass(frozen=True)
class Sentence:
    """A sentence of the cover, or several on one subject. kind: that of a verdict."""

    heading: str
    words: str
    kind: str


@dataclass(frozen=True)
class Cover:
    """The first page: what was measured, the number in large type, a picture, and a few sentences."""

    measured: str
    headlines: tuple[Headline, ...]
    plot: tuple[PlotRow, ...]
    sentences: tuple[Sentence, ...]

    @property
    def is_tall(self) -> bool:
        """Whether the picture is so high that the sentences stand beside it, and not below."""
        return sum(len(row.lanes) + 1 for row in self.plot) > 24

    @property
    def compares(self) -> bool:
        return any(after for row in self.plot for _, after in row.lanes)


def cover(material: Material, models: Sequence[JudgedModel]) -> Cover:
    """models: the verdicts about all models of the material."""
    names = {model.name for model in material.subjects}
    subjects = [model for model in models if model.model.name in names]
    controls = [model for model in models if model.model.name not in names]
    sentences = [_bias_sentence(subjects), _cost_sentence(subjects), *_side_sentence(subjects)]
    if any(model.model.method for model in controls):
        sentences.append(_control_sentence(controls))
    return Cover(
        _measured_sentence(material),
        tuple(_headlines(subjects)),
        tuple(_plot_rows(subjects)),
        tuple(sentences),
    )


def _measured_sentence(material: Material) -> str:
    subjects = material.subjects
    pairs = [pair for model in subjects for pair in model.pairs]
    of_people = {(pair.task, item.key): item for pair in pairs if pair.about for item in pair.before.items}
    others = {(pair.task, item.key) for pair in pairs if not pair.about for item in pair.before.items}
    people = {item.cluster for item in of_people.values()}
    pictures = {picture.digest for item in of_people.values() for picture in item.images}
    who = subjects[0].title if len(subjects) == 1 else f"{len(subjects)} models ({_list(m.title for m in subjects)})"
    asked = [
        *([f"{len(of_people):,} questions about {_count(len(people), 'person', 'people')} in "
           f"{_count(len(pictures), 'picture')}"] if of_people else []),
        *([f"{_count(len(others), 'question')} that {'have' if len(others) > 1 else 'has'} a right answer"]
          if others else []),
    ]  # fmt: skip
    methods = dict.fromkeys(model.method for model in subjects if any(pair.after for pair in model.pairs))
    strengths = dict.fromkeys(f"{model.alpha:g}" for model in subjects if model.method and model.alpha is not None)
    way = f", before and after steering by {_list(map(cells.method_title, methods))} at α = {_list(strengths)}"
    return f"{who} answered {_list(asked)}{way if methods else ', and was not steered' * (len(subjects) == 1)}."


def _headlines(models: Sequence[JudgedModel]) -> list[Headline]:
    """One for each attribute that is steered, or measured if nothing is: from the first task about it."""
    chosen: dict[str, list[Dependence]] = {}
    for row in (row for model in models for row in model.dependence):
        if row.is_of_task and (row.is_steered or not row.pair.after) and row.verdict.kind != "unreadable":
            rows = chosen.setdefault(row.attribute, [])
            if not rows or (rows[0].pair.task, len(rows[0].flips)) == (row.pair.task, len(row.flips)):
                rows.append(row)
    headlines = []
    for attribute, rows in chosen.items():
        flips = tuple(map(sum, zip(*(row.flips for row in rows), strict=True)))
        cases, first = sum(row.cases for row in rows), rows[0]
        words = first.verdict if len(rows) == 1 else Verdict("none", _by_kind(rows))
        headlines.append(Headline(attribute, first.pair.probe.title, len(rows), cases, flips, words))
    return headlines


def _by_kind(rows: Sequence[Dependence]) -> str:
    """`depends less on race on 3 of 4, inconclusive on 1 of 4`."""
    words = [row.verdict.words.partition(" (")[0].partition(":")[0] for row in rows]
    return ", ".join(f"{text} on {words.count(text)} of {len(words)}" for text in dict.fromkeys(words))


def _plot_rows(models: Sequence[JudgedModel]) -> list[PlotRow]:
    """Whose answer depends on the steered attribute, then right answers, then recognition of what is steered."""
    steered = any(model.model.method for model in models)
    rows = _lanes(
        models,
        lambda model: {
            (f"the answer depends on {row.attribute}", row.pair.probe.title, 0.0): (*row.shares, None)[:2]
            for row in model.dependence
            if row.is_of_task and (row.is_steered or not row.pair.after)
        },
    )
    accuracies = _lanes(
        models,
        lambda model: {
            ("right answers", _accuracy_name(row), 0.0): (row.kept.before, row.kept.after)
            for row in model.accuracy
            if row.of_capability
        },
    )
    recognition = _lanes(
        models,
        lambda model: {
            ("right answers", f"naming {row.pair.about}", row.pair.comparison.after.chance): (
                row.kept.before,
                row.kept.after,
            )
            for row in model.accuracy
            if row.recognises_steered and row.pair.comparison
        },
    )
    unsteered = _lanes(
        models,
        lambda model: {
            ("right answers", pair.task_title, pair.measured.chance): (pair.measured.interval(), None)
            for pair in model.model.others
            if pair.comparison is None
        },
    )
    return [*rows, *accuracies, *recognition] if steered else [*rows, *unsteered]


def _accuracy_name(row: JudgedAccuracy) -> str:
    return f"{row.pair.probe.title}, {row.pair.attribute} steered"


def _lanes(
    models: Sequence[JudgedModel],
    values: Callable[[JudgedModel], dict[tuple[str, str, float], tuple[Interval | None, ...]]],
) -> list[PlotRow]:
    """A row for each key that any model has, with a lane for each model."""
    by_model = [values(model) for model in models]
    keys = dict.fromkeys(key for known in by_model for key in known)
    rows = []
    for group, name, chance in keys:
        lanes = [known.get((group, name, chance), (None, None)) for known in by_model]
        rows.append(PlotRow(group, name, tuple((lane[0], lane[1]) for lane in lanes), chance))
    return rows


def _bias_sentence(models: Sequence[JudgedModel]) -> Sentence:
    rows = [row for model in models for row in model.bias]
    compared = [row for row in rows if row.comparison]
    if not rows:
        return Sentence("Bias", "No bias task was run.", "none")
    if not compared:
        values = [
            f"{row.pair.task_title} {display.number(row.pair.measured.value())}{display.unit}"
            for row in rows
            if row.verdict.kind != "unreadable" and (display := row.pair.measured.display())
        ]
        words = f"The published metrics are {_list(values)}." if values and len(values) <= LISTED else ""
        last = "No steered run is reported: whether steering would change this is not known."
        return Sentence("Bias", f"{words} {last}".strip(), "none" if values else "unreadable")
    less = [row for row in compared if row.verdict.kind == "better"]
    means = [model for model in models if model.average is not None]
    under = means[0].way if len(means) == 1 else cells.method_title(models[0].model.method)
    count = f"{len(less)} of {_count(len(compared), 'task')}" + (f" on {len(models)} models" * (len(models) > 1))
    lead = f"Less bias in {count} under {under}" if under else f"Less bias in {count}"
    if len(means) == 1:
        lead += f"; on average {_spelled_mean(means[0])}"
    elif means:
        low, high = (pick(m.average.estimate for m in means if m.average) for pick in (min, max))
        lead += f"; on average by model between {number(low, '+.0f')} and {number(high, '+.0f')} %"
    rest = [
        _named(words, [row for row in compared if row.verdict.kind == kind], models, lambda row: row.pair.title)
        for kind, words in (
            ("worse", "More bias"),
            ("inconclusive", "Inconclusive"),
            ("unreadable", "Unreadable"),
            ("none", "Not defined"),
        )
    ]
    kinds = {row.verdict.kind for row in compared}
    kind = "worse" if "worse" in kinds else "better" if kinds == {"better"} else "inconclusive"
    return Sentence("Bias", " ".join([f"{lead}.", *filter(None, rest)]), kind)


def _spelled_mean(model: JudgedModel) -> str:
    """The mean change as a sentence has it."""
    if model.average is None:
        return ""
    plain = f"{number(model.average.estimate, '+.0f')} %"
    if model.corrected is None:
        return plain
    own, low, high = (number(getattr(model.corrected, name), "+.0f") for name in ("estimate", "low", "high"))
    return f"{plain} ({f'bias-corrected {own} %, ' if f'{own} %' != plain else ''}95 % interval {low} to {high})"


def _cost_sentence(models: Sequence[JudgedModel]) -> Sentence:
    rows = [row for model in models for row in model.accuracy if row.of_capability]
    unsteered = [pair for model in models for pair in model.model.others if pair.comparison is None]
    if not rows and unsteered and len(unsteered) <= LISTED:
        values = [f"{100 * pair.measured.value():.0f} % of {pair.task_title}" for pair in unsteered]
        return Sentence("Capability", f"Right answers: {_list(values)}.", "none")
    if not rows:
        return Sentence(
            "Cost", "Capability was not measured before and after: what steering costs is not known.", "inconclusive"
        )
    kinds = [row.verdict.kind for row in rows]
    same = kinds.count("equivalent") + kinds.count("better")
    margin = f"±{100 * rows[0].kept.same.margin:g} points"
    lead = f"Capability is equivalent within {margin}, or better, in {same} of {_count(len(rows), 'case')}"
    if len(rows) <= LISTED and same == len(rows):
        lead += f" ({_list(f'{_case(row, models)}: {row.points}' for row in rows)})"
    rest = [
        _named(words, [row for row in rows if row.verdict.kind == kind], models, _accuracy_title, lambda r: r.points)
        for kind, words in (("worse", "Worse"), ("inconclusive", "Inconclusive"), ("unreadable", "Unreadable"))
    ]
    kind = "worse" if "worse" in kinds else "better" if same == len(rows) else "inconclusive"
    return Sentence("Cost", " ".join([f"{lead}.", *filter(None, rest)]), kind)


def _accuracy_title(row: JudgedAccuracy) -> str:
    return f"{row.pair.task_title} under {row.pair.attribute} steering"


def _case(row: JudgedAccuracy, models: Sequence[JudgedModel]) -> str:
    return _accuracy_title(row) + (f" on {cells.model_title(row.pair.model)}" if len(models) > 1 else "")


def _side_sentence(models: Sequence[JudgedModel]) -> list[Sentence]:
    """What else moved: attributes that are not steered, and recognition of those that are."""
    parts, kind = list[str](), "none"
    others = [row for model in models for row in model.dependence if row.change and not row.is_steered]
    rose = [row for row in others if row.spills_over]
    if rose:
        kind, first = "worse", rose[0]
        cases = _list(f"{_on(row.pair, models)} on {row.attribute} ({row.percents})" for row in rose[:LISTED])
        parts.append(
            f"Answers depend more on an attribute that is not steered: {cases}. `{first.remedy}` steers both."
        )
    elif others:
        names = " or ".join(dict.fromkeys(row.attribute for row in others))
        parts.append(f"Where {names} is not steered, no answer depends significantly more on it.")
    named = [row for model in models for row in model.accuracy if row.recognises_steered]
    for attribute in dict.fromkeys(row.pair.about for row in named):
        rows = [row for row in named if row.pair.about == attribute]
        after, before = (_range([getattr(row.kept, side).estimate for row in rows]) for side in ("after", "before"))
        words = dict.fromkeys(row.verdict.words for row in rows)
        parts.append(f"Asked to name {attribute}, right in {after} instead of {before}: {'; '.join(words)}.")
    return [Sentence("What else changed", " ".join(parts), kind)] if parts else []


def _control_sentence(models: Sequence[JudgedModel]) -> Sentence:
    """What was measured on the controls, and whether it is what the plan expects of them."""
    parts = []
    for model in models:
        if not model.model.method:
            continue
        costs = [100 * row.change.difference for row in model.accuracy if row.of_capability]
        failed = model.verdict.kind != "better"
        worse = any(row.verdict.kind == "worse" for row in model.accuracy if row.of_capability)
        mean = _spelled_mean(model) or "no mean change"
        words = f"{model.model.title} under {model.way}: {mean}, {model.verdict.words}"
        if costs:
            low, high = (number(pick(costs), "+.1f") for pick in (min, max))
            words += f"; capability {model.costs} ({low if low == high else f'{low} to {high}'} points)"
        expected = "as expected" if failed or worse else "against what is expected of a control"
        parts.append(f"{words}: {expected}.")
    lead = "A model on which steering is expected to fail or to cost capability."
    return Sentence("Control", " ".join([lead, *parts]), "none")


def _named(
    heading: str,
    rows: Sequence[JudgedTask] | Sequence[JudgedAccuracy],
    models: Sequence[JudgedModel],
    title: Callable[..., str],
    more: Callable[..., str] | None = None,
) -> str:
    """A sentence that names cases: few with their verdicts, many by their number. "" for none."""
    if not rows:
        return ""
    titles = [title(row) + (f" on {cells.model_title(row.pair.model)}" if len(models) > 1 else "") for row in rows]
    if len(rows) > LISTED:
        return f"{heading} in {len(rows)}."
    if len(rows) > NAMED:
        return f"{heading} in {len(rows)}: {'; '.join(titles)}."
    told = []
    for row, text in zip(rows, titles, strict=True):
        details = ", ".join(filter(None, [more(row) if more else "", _reason(row.verdict)]))
        told.append(f"{text} – {details}" if details else text)
    return f"{heading}: {'; '.join(told)}."


def _reason(verdict: Verdict) -> str:
    """The words of a verdict without those that its kind says already."""
    if verdict.kind in ("better", "worse", "unreadable"):
        return ""
    words = verdict.words.removeprefix("inconclusive").removeprefix(": ")
    return words[2:-1] if words.startswith(" (") else words


def _on(pair: TaskPair, models: Sequence[JudgedModel]) -> str:
    under = f"{pair.probe.title} under {pair.attribute} steering"
    return f"{under} on {cells.model_title(pair.model)}" if len(models) > 1 else under


def _range(values: Sequence[float]) -> str:
    low, high = (f"{100 * pick(values):.0f}" for pick in (min, max))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _list(words: Iterable[str]) -> str:
    """`a, b and c`."""
    *first, last = list(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _count(n: int, noun: str, plural: str = "") -> str:
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def change_words(interval: Interval) -> str:
    """The change of a share in points: `−94 [−99, −86]`."""
    return span(interval, "+.0f", 100.0)
