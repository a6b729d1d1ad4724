"""Technical documentation in Markdown: the headings of an authority's template, filled from what was measured.

    write(of_study("my-study"), Path("annex-iv.md"))

What ggss cannot know is marked "To be written by you". Numbers and verdicts are those of `ggss compare`: tests are
adjusted by Holm over those of one table, model and steering (`ggss.analysis.selection.ComparedTasks`).

`measured_tables` has these numbers as tables, for a bundle of runs too.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from ggss.analysis import verdict
from ggss.analysis.comparison import Comparison
from ggss.analysis.groups import GroupValues
from ggss.analysis.selection import ComparedTasks
from ggss.analysis.verdict import Verdict
from ggss.errors import no_such
from ggss.escaping import code, markdown
from ggss.files import write_whole
from ggss.probes.base import FLIP_RATE
from ggss.report import cells
from ggss.report.material import Material, ReportedModel, TaskPair
from ggss.report.rendering import Column, Entry, Figure, Row, Table, pipe_table
from ggss.stats import Interval
from ggss.steering.artefact import REMOVES
from ggss.version import __version__

ANNEX_IV = "annex-iv"
TEMPLATES: Mapping[str, str] = {ANNEX_IV: "annex-iv.md"}
NOT_COMPARED = "not compared"
_BEFORE_AND_AFTER = (
    Column("before"),
    Column("after"),
    Column("change"),
    Column("p, Holm"),
    Column("verdict"),
)
_TABLES = {
    "flips": (
        "For how many people and questions the answer depends on an attribute",
        "The share of people and questions for which the answer changes if the person's attribute does, with an "
        "interval over identities; its change in points.",
    ),
    "bias": (
        "Bias, by the published metric of each task",
        "Brackets: 95 % intervals of bias-corrected values, which stand in parentheses where they differ from the "
        "published value.",
    ),
    "capability": (
        "Right answers, in percent",
        "The change in points, with Tango's 95 % interval. Steering an attribute takes some of its recognition away "
        "on purpose.",
    ),
}


def write(material: Material, target: Path, template: str = ANNEX_IV) -> Path:
    """Write the documentation of a study or of runs."""
    write_whole(target, render(material, template).encode("utf-8", "backslashreplace"))
    return target


def check_template(name: str) -> None:
    """InputError if there is no template of this name."""
    if name not in TEMPLATES:
        raise no_such(f"--template {name!r} is none", name, TEMPLATES)


def render(material: Material, template: str = ANNEX_IV) -> str:
    """The documentation as Markdown."""
    check_template(template)
    judged = list(_judged(material))
    tables = [*_tables(judged), data_table(material), *filter(None, [group_table(material)])]
    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters |= {"text": markdown, "code": code, "pipes": pipe_table}
    text = (files("ggss.report") / "templates" / TEMPLATES[template]).read_text(encoding="utf-8")
    rendered = environment.from_string(text).render(
        version=__version__,
        material=material,
        models=[model.name for model in material.models],
        versions=", ".join(f"{name} {number}" for name, number in material.versions.items()),
        steerings=list(filter(None, map(_steering, material.models))),
        removes=" ".join(REMOVES.split()),
        provenance=[
            f"{name.capitalize()} of the pictures: {words}"
            for name, words in material.provenance.model_dump().items()
            if words
        ],
        discovery=_discovery(material),
        notes=[
            f"{model}, {cells.method_title(method)}: {note}"
            for (model, method), notes in material.notes.items()
            for note in notes
        ],
        tables=tables,
        has_capability=any(table.name == "capability" for table in tables),
        limits=[line for section in judged for line in section.limits()],
        metrics=_metrics(material),
    )
    return _one_blank_line(rendered)


def _one_blank_line(text: str) -> str:
    """The text with one empty line where a template leaves several."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.strip() or (lines and lines[-1]):
            lines.append(line.rstrip())
    return "\n".join(lines).strip() + "\n"


def _steering(model: ReportedModel) -> str:
    """What was done to a model; "" if nothing was."""
    if not any(pair.after for pair in model.pairs):
        source = model.pairs[0].before.source
        return f"Only the steered model was measured: {source.label}." if source.steered else ""
    attributes = " and ".join(dict.fromkeys(pair.attribute for pair in model.pairs if pair.after))
    strength = "" if model.alpha is None else f" at strength {model.alpha:g}"
    return f"{model.name} was measured before and after {cells.method_title(model.method)} of {attributes}{strength}."


def _discovery(material: Material) -> str:
    if material.figures is None:
        return ""
    steering = material.figures.plan.steering
    return "; ".join(f"{name}: pictures of {', '.join(of.discover_on)}" for name, of in steering.items())


def _metrics(material: Material) -> list[str]:
    """What the published metric of each task measures."""
    lines: dict[str, None] = {}
    for pair in material.pairs:
        lines[f"{pair.label}: {pair.measured.display().meaning}. Asked: {pair.probe.summary}."] = None
    return list(lines)


class _Section:
    """The tasks of a model under one steering, compared as `ggss compare` does; or only measured, if unsteered."""

    def __init__(self, model: ReportedModel, attribute: str, pairs: Sequence[TaskPair]) -> None:
        compared = [pair.comparison for pair in pairs if pair.comparison is not None]
        self.tasks = ComparedTasks.of(compared) if compared else None
        self.pairs = pairs
        strength = "" if model.alpha is None else f" at α = {model.alpha:g}"
        steered = f"{model.title}, {cells.method_title(model.method)} of {attribute}{strength}"
        self.title = steered if compared else pairs[0].before.source.label

    def flips(self) -> Iterator[tuple[Row, Verdict | None]]:
        if self.tasks is None:
            for pair in self.pairs:
                for attribute in pair.measured.attributes if pair.judges_bias else ():
                    share = (cells.figure(pair.measured.corrected(f"{attribute}{FLIP_RATE}"), ".0f", 100, "%"),)
                    yield self._row(f"{pair.task}: {attribute}", share), None
            return
        for flip, p in zip(self.tasks.flips, self.tasks.flips_holm, strict=True):
            shares = [(cells.figure(side, ".0f", 100, "%"),) for side in (flip.before, flip.after)]
            judged = verdict.of_flips(flip, p)
            change = (cells.figure(flip.change, "+.0f", 100),)
            yield self._row(f"{flip.task}: {flip.attribute}", *shares, change, _p(p), judged.words), judged

    def bias(self) -> Iterator[tuple[Row, Verdict | None]]:
        for pair in self.pairs:
            if not pair.judges_bias:
                continue
            before = cells.value(Comparison(pair.measured, pair.measured))
            if self.tasks is None or pair.comparison is None:
                yield self._row(pair.label, before), None
                continue
            p = self.tasks.p_holm(pair.comparison)
            judged, change = verdict.of_bias(pair.comparison, p), cells.changed(pair.comparison)
            after = cells.value(pair.comparison)
            percent = (change,) if change else "undefined"
            yield self._row(pair.label, before, after, percent, _p(p), judged.words), judged

    def capability(self) -> Iterator[tuple[Row, Verdict | None]]:
        for pair in self.pairs:
            if pair.judges_bias:
                continue
            if self.tasks is None or pair.comparison is None or not pair.comparison.has_right_answers:
                yield self._row(pair.label, cells.value(Comparison(pair.measured, pair.measured))), None
                continue
            accuracy, p = pair.comparison.accuracy(), self.tasks.p_holm(pair.comparison)
            judged = verdict.of_accuracy(pair.comparison, accuracy, p)
            shares = [(cells.figure(side, ".1f", 100, "%"),) for side in (accuracy.before, accuracy.after)]
            change = accuracy.change
            points = (Figure(100 * change.difference, (100 * change.low, 100 * change.high), "+.1f"),)
            yield self._row(pair.label, *shares, points, _p(p), judged.words), judged

    def limits(self) -> list[str]:
        """What became worse, could not be read, or could not be decided; and what was not compared at all."""
        if self.tasks is None:
            return [f"{self.title}: nothing is compared with a steered model."]
        rows = [*self.flips(), *self.bias(), *self.capability()]
        lines = [
            f"{self.title}, {row.label}: {judged.words}."
            for row, judged in rows
            if judged and judged.kind in ("worse", "unreadable", "intended")
        ]
        undecided = [row.label for row, judged in rows if judged and judged.kind == "inconclusive"]
        return lines + ([f"{self.title}, inconclusive: {'; '.join(undecided)}."] if undecided else [])

    def _row(self, label: str, *entries: Entry) -> Row:
        """A row of `_BEFORE_AND_AFTER`; what is not compared says so."""
        missing = len(_BEFORE_AND_AFTER) - len(entries)
        return Row(label, (*entries, *([""] * (missing - 1) + [NOT_COMPARED] if missing else [])), self.title)


def _judged(material: Material) -> Iterator[_Section]:
    """A section for each model under each steering."""
    for model in material.models:
        for attribute in dict.fromkeys(pair.attribute for pair in model.pairs):
            yield _Section(model, attribute, [pair for pair in model.pairs if pair.attribute == attribute])


def measured_tables(material: Material) -> list[Table]:
    """Whose answer depends on an attribute, bias, and right answers, with verdicts; none without rows."""
    return _tables(list(_judged(material)))


def _tables(sections: Sequence[_Section]) -> list[Table]:
    tables = []
    for name, (title, caption) in _TABLES.items():
        rows = tuple(row for section in sections for row, _ in getattr(section, name)())
        if rows:
            tables.append(Table(name, title, "Task", _BEFORE_AND_AFTER, rows, caption))
    return tables


def group_table(material: Material) -> Table | None:
    """Of each task about people, the answer in which its groups differed most before steering, group by group."""
    rows = []
    for pair in material.pairs:
        if not pair.groups_before:
            continue
        before = max(pair.groups_before, key=lambda values: values.spread)
        steered = {_key(values): values.values for values in pair.groups_after}
        after = steered.get(_key(before), {})
        absent = "nobody gets this answer" if pair.after else ""
        asked = ", ".join(word for word in (before.question, before.occupation) if word)
        title = f"{cells.model_title(pair.model)}, {pair.title}: {before.what}{f' ({asked})' if asked else ''}"
        rows += [
            Row(
                group,
                (_share(before, value), _share(before, after[group]) if group in after else absent),
                title,
            )
            for group, value in before.values.items()
        ]
    columns = (Column("before"), Column("after"))
    caption = "With 95 % intervals over identities. The report has every answer of every task."
    return Table("groups", "Where groups differed most", "Group", columns, tuple(rows), caption) if rows else None


def _key(values: GroupValues) -> tuple[str, ...]:
    return values.what, values.answer, values.question, values.occupation


def _share(values: GroupValues, interval: Interval) -> Entry:
    spec, scale, unit = (".1f", 100.0, "%") if values.is_share else (",.0f", 1.0, "")
    return (cells.figure(interval, spec, scale, unit),)


def data_table(material: Material) -> Table:
    """What each task asked about whom, a row for each."""
    rows: dict[str, Row] = {}
    for pair in material.pairs:
        items = pair.before.items
        values: dict[str, int] = {}
        for item in items:
            for shown in item.attributes if pair.about else ():
                values[shown[pair.about]] = values.get(shown[pair.about], 0) + 1
        pictures = {picture.digest for item in items for picture in item.images}
        counts = (len(items), len({item.cluster for item in items}), len(pictures))
        groups = ", ".join(f"{value} {count:,}" for value, count in sorted(values.items()))
        numbers = ((Figure(float(count), spec=",.0f"),) for count in counts)
        rows.setdefault(pair.task, Row(pair.label, (pair.before.source.suite or "not recorded", *numbers, groups)))
    columns = tuple(map(Column, ("suite", "questions", "identities", "pictures", "pictures shown, by group")))
    return Table("data", "What was asked, about whom", "Task", columns, tuple(rows.values()))


def _p(p: float | None) -> Entry:
    return "" if p is None or math.isnan(p) else (Figure(p, spec=".2g"),)
