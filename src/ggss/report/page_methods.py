"""All methods of a study side by side: bias left against capability, the alpha dial, the chosen strengths."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from ggss import probes
from ggss.analysis.crossfit import HeldOut
from ggss.errors import InputError
from ggss.report import names, page_charts
from ggss.report.figures import Figures
from ggss.report.page_charts import DialLine, Link, Point
from ggss.report.reported import Material, ReportedModel
from ggss.stats import Interval


@dataclass(frozen=True)
class MethodRow:
    """A method on a model at its chosen strength. capability: the mean change over the steerings, as a share.

    average: the mean change of bias in percent (jackknife); held_out: strength and change of each half of the people,
    chosen on the other half.
    """

    key: str
    name: str
    alpha: float
    average: Interval | None
    partial: bool
    capability: Interval | None
    held_out: tuple[HeldOut, ...]

    @property
    def held_out_change(self) -> float | None:
        """The mean over the halves; None if one of them has none."""
        changes = [turn.change for turn in self.held_out if turn.change is not None]
        return sum(changes) / len(changes) if changes and len(changes) == len(self.held_out) else None


@dataclass(frozen=True)
class ModelMethods:
    """The comparison of methods on one model; plane and dial are empty where they cannot be drawn."""

    model: ReportedModel
    rows: tuple[MethodRow, ...]
    plane: Markup
    dial: Markup
    dial_lines: tuple[DialLine, ...]
    benchmark: str

    @property
    def partial(self) -> bool:
        """Whether a strength of the dial has no value of some bias task: it is not compared with the others."""
        return any(line.partial for line in self.dial_lines)

    @property
    def alphas(self) -> list[float]:
        return sorted({alpha for line in self.dial_lines for alpha in line.values})


def compared_methods(material: Material) -> list[ModelMethods]:
    """For each model of a study; empty for runs that are no study."""
    figures = material.figures
    if figures is None:
        return []
    return [_of_model(figures, model, number) for number, model in enumerate(material.models)]


def _of_model(figures: Figures, model: ReportedModel, number: int) -> ModelMethods:
    task = figures.benchmark("multiple-choice")
    rows = tuple(
        row
        for n, label in enumerate(names.compared(figures.results))
        if (row := _row(figures, model.name, label, f"m{number}-{n}", task))
    )
    lines = _lines(figures, model, task)
    title = probes.get(task).title if task else ""
    points = _points(rows, model)
    what = f"{model.title}: bias left under each method against the change of {title}"
    over = f"{model.title}: bias, recognition and capability over the strength of {names.method(model.method)}"
    return ModelMethods(
        model,
        rows,
        page_charts.plane(points, what, "bias left, percent of unsteered", f"{title}: change in points")
        if points
        else Markup(),
        page_charts.dial(lines, model.alpha, over) if any(len(line.values) > 2 for line in lines) else Markup(),
        lines,
        title,
    )


def _row(figures: Figures, model: str, label: str, key: str, task: str | None) -> MethodRow | None:
    alpha = figures.alpha(model, label)
    if alpha is None:
        return None
    kept = figures.kept_across([model], label, task, list(figures.plan.steering)) if task else None
    over, of = figures.averaged(model, label, alpha)
    try:
        held_out = tuple(figures.held_out(model, label))
    except InputError:  # too few people to hold some out
        held_out = ()
    average = figures.corrected_average(model, label, alpha)
    return MethodRow(key, names.method(label), alpha, average, over < of, kept and kept[1], held_out)


def _points(rows: Sequence[MethodRow], model: ReportedModel) -> list[Point]:
    main = names.method(model.method)
    return [
        Point(
            row.name,
            _moved(row.average, 100.0),
            _scaled(row.capability, 100.0),
            "main" if row.name == main else "other",
            Link(f"#{row.key}", f"method={row.key}"),
        )
        for row in rows
        if row.average is not None and row.capability is not None
    ]


def _lines(figures: Figures, model: ReportedModel, task: str | None) -> tuple[DialLine, ...]:
    """Bias left, recognition of each steered attribute, and capability under each steering, all in percent."""
    if not model.method:
        return ()
    alphas, found = figures.results.strengths(model.method), list[DialLine]()
    whole = Interval(100.0, 100.0, 100.0, figures.statistics.level, "fixed", 1)
    left = {alpha: figures.corrected_average(model.name, model.method, alpha) for alpha in alphas}
    bias = {0.0: whole} | {alpha: _moved(one, 100.0) for alpha, one in left.items() if one}
    averaged = {alpha: figures.averaged(model.name, model.method, alpha) for alpha in alphas}
    fewer = frozenset(alpha for alpha, (over, of) in averaged.items() if over < of)
    found.append(DialLine("bias left", "bias", bias, fewer))
    for attribute, asked in figures.recognition().items():
        if attribute in figures.plan.steering:
            values = _over(figures, model, asked, attribute, alphas)
            found.append(DialLine(f"{attribute} named right", "recognition", values))
    for attribute in figures.plan.steering if task else ():
        values = _over(figures, model, str(task), attribute, alphas)
        title = probes.get(str(task)).title
        found.append(DialLine(f"{title}, {attribute}", "capability", values))
    return tuple(line for line in found if len(line.values) > 1)


def _over(
    figures: Figures, model: ReportedModel, task: str, attribute: str, alphas: Sequence[float]
) -> dict[float, Interval]:
    """The share of right answers at each strength that was measured, and unsteered, in percent."""
    found: dict[float, Interval] = {}
    if before := figures.unsteered(model.name, task):
        found[0.0] = _scaled(before.kept().before, 100.0)
    for alpha in alphas:
        if one := figures.kept(model.name, model.method, task, alpha, attribute):
            found[alpha] = _scaled(one.after, 100.0)
    return found


def _moved(one: Interval, by: float) -> Interval:
    return replace(one, estimate=one.estimate + by, low=one.low + by, high=one.high + by)


def _scaled(one: Interval, by: float) -> Interval:
    return replace(one, estimate=one.estimate * by, low=one.low * by, high=one.high * by)
