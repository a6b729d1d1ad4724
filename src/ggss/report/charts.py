"""The charts of a report, as inline SVG of a few kilobytes each: tasks before and after, groups before and after,
methods on a plane of bias and capability, quantities over the strength (the alpha dial), columns. And the comparison
of a study's methods that some of them draw: the matrix of methods and models.

Why not a chart library: the scripts of Vega-Lite or plotly are 1 to 4 MB, as much as the rest of the page, and show
nothing without JavaScript. matplotlib's SVG has fixed colours and letters as paths, 30 to 100 kB for a chart. These
functions write text that can be read aloud and searched, take their colours from the page's style sheet (light, dark
and print), and have links that a keyboard reaches. Every chart stands beside a table with the same numbers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import markupsafe
from markupsafe import Markup

from ggss import probes
from ggss.analysis.comparison import sign_flip
from ggss.analysis.selection import HeldOut
from ggss.analysis.verdict import Verdict, of_accuracy, of_average
from ggss.errors import InputError
from ggss.escaping import visible
from ggss.report import cells
from ggss.report.cells import Figures
from ggss.report.material import Material, ReportedModel
from ggss.report.summary import PlotRow
from ggss.stats import Interval

WIDTH = 620
LABEL = 14  # the height of a line of text
LANE = 5  # between the models of a row
COSTS = ("none", "better", "equivalent", "intended", "inconclusive", "worse", "unreadable")  # from the best
NAMED = 8  # methods of a plane that all have their names in it; of more, only those of the frontier
_ROW, _LEFT, _RIGHT = 34, 130, 24


def escape(text: str) -> Markup:
    """Text from outside in HTML, with its control characters shown."""
    return markupsafe.escape(visible(text))


@dataclass(frozen=True)
class Link:
    """Where a mark leads: an address on the page, and the filter that the page's script sets."""

    href: str
    filter: str = ""


class Axis:
    """A scale from numbers to pixels, from `start` to `end`, with round ticks. include: numbers that it must show."""

    def __init__(self, values: Sequence[float], start: float, end: float, include: Sequence[float] = ()) -> None:
        known = [value for value in (*values, *include) if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(known), max(known)
        if high - low < 1e-9:
            low, high = low - 0.5, high + 0.5
        self.step = _step((high - low) / 4)
        self.low, self.high = (
            math.floor(low / self.step + 1e-9) * self.step,
            math.ceil(high / self.step - 1e-9) * self.step,
        )
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[float]:
        count = round((self.high - self.low) / self.step)
        return [round(self.low + n * self.step, 10) for n in range(count + 1)]


def _step(rough: float) -> float:
    power = 10 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)


def groups(
    before: Mapping[str, Interval],
    after: Mapping[str, Interval] | None,
    title: str,
    links: Mapping[str, Link],
    scale: float = 100.0,
    unit: str = "%",
) -> Markup:
    """A row for each group: its value before (hollow) and after (filled), each with its interval."""
    values = [
        scale * value for interval in (*before.values(), *(after or {}).values()) for value in _numbers(interval)
    ]
    axis = Axis(values, _LEFT, WIDTH - _RIGHT, (0.0,) if unit == "%" else ())
    height = _ROW * len(before) + 34
    parts = [_grid_x(axis, height - 26, unit)]
    for n, (group, interval) in enumerate(before.items()):
        y = _ROW * n + 20
        parts.append(
            _linked(links.get(group), f'<text class="name" x="{_LEFT - 12}" y="{y + 4}">{escape(group)}</text>')
        )
        parts.append(_whisker(axis, interval, y - 5, scale, "before"))
        if after and group in after:
            parts.append(_whisker(axis, after[group], y + 6, scale, "after"))
    return _svg(title, height, parts)


def before_after(rows: Sequence[PlotRow], title: str) -> Markup:
    """The cover's picture: shares before (hollow) and after (filled) with their intervals, and the same as text.

    A row has a lane for each model. A mark below a row is what guessing gives.
    """
    left, right = 204, 138  # the longest words on the right are "96–100 → 2–44 %"
    axis = Axis((0.0, 100.0), left, WIDTH - right)
    y, group, parts = 0.0, "", list[str]()
    for row in rows:
        if row.group != group:
            group = row.group
            parts.append(f'<text class="group" x="0" y="{y + 16}">{escape(group)}</text>')
            y += 24
        height = max(22.0, LANE * len(row.lanes) + 6)
        middle = y + height / 2
        parts.append(f'<text class="name" x="{left - 12}" y="{middle + 4}">{escape(row.name)}</text>')
        if row.chance:
            x = axis(100 * row.chance)
            parts.append(
                f'<line class="chance" x1="{x}" x2="{x}" y1="{y + 2}" y2="{y + height - 2}">'
                f"<title>{escape(row.name)} by guessing: {100 * row.chance:.0f} %</title></line>"
            )
        for n, (before, after) in enumerate(row.lanes):
            at = middle + LANE * (n - (len(row.lanes) - 1) / 2)
            if before and after:
                parts.append(
                    f'<line class="way" x1="{axis(100 * before.estimate)}" x2="{axis(100 * after.estimate)}" '
                    f'y1="{at}" y2="{at}"/>'
                )
            shift, radius = (2, 5.0) if len(row.lanes) == 1 else (0, 3.2)  # two intervals do not cover each other
            parts += [_whisker(axis, before, at - shift, 100.0, "before", radius)] if before else []
            parts += [_whisker(axis, after, at + shift, 100.0, "after", radius)] if after else []
        parts.append(f'<text class="value" x="{WIDTH}" y="{middle + 4}">{percents(row)}</text>')
        y += height
    return _svg(title, y + 26, [_grid_x(axis, y + 2, "%"), *parts], "tasks")


def percents(row: PlotRow) -> str:
    """`96 → 2 %`; of several models the range of each."""
    words = []
    for side in (0, 1):
        values = [100 * shown.estimate for lane in row.lanes if (shown := lane[side])]
        if values := [value for value in values if math.isfinite(value)]:
            low, high = f"{min(values):.0f}", f"{max(values):.0f}"
            words.append(low if low == high else f"{low}–{high}")
    return f"{' → '.join(words)} %" if words else ""


def _whisker(axis: Axis, interval: Interval, y: float, scale: float, kind: str, radius: float = 5) -> str:
    if not math.isfinite(interval.estimate):
        return ""
    x = axis(scale * interval.estimate)
    bar = ""
    if math.isfinite(interval.low) and math.isfinite(interval.high):
        left, right = axis(scale * interval.low), axis(scale * interval.high)
        bar = f'<line class="{kind}" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
    words = f"{kind}: {scale * interval.estimate:.1f}"
    return f'<g>{bar}<circle class="{kind}" cx="{x}" cy="{y}" r="{radius:g}"><title>{words}</title></circle></g>'


@dataclass(frozen=True)
class Point:
    """A method on the plane: bias left in percent, change of capability in points."""

    name: str
    x: Interval
    y: Interval
    kind: str
    link: Link
    partial: bool = False


def plane(points: Sequence[Point], title: str, x_words: str, y_words: str) -> Markup:
    """Bias left against capability, with both intervals; the best place is the top left.

    The line is the frontier: the methods that no other one beats in both. A method is left out if its bias or its
    capability is not known, because its answers could not be read.
    """
    height = 360
    points = [p for p in points if math.isfinite(p.x.estimate) and math.isfinite(p.y.estimate)]
    xs = [point.x.estimate for point in points]
    ys = [max(point.y.estimate, _lowest(points)) for point in points]
    above = max(0.0, *ys) + 0.14 * (max(0.0, *ys) - min(0.0, *ys))  # room for names: most methods lie at the top
    x, y = Axis(xs, 62, WIDTH - _RIGHT, (0.0, 100.0)), Axis(ys, height - 52, 16, (0.0, above))
    parts = [_grid_x(x, height - 52, "%", words=x_words, at=height - 8), _grid_y(y, 62, y_words)]
    parts.append(f'<line class="zero" x1="62" x2="{WIDTH - _RIGHT}" y1="{y(0)}" y2="{y(0)}"/>')
    parts.append(f'<line class="zero dashed" x1="{x(100)}" x2="{x(100)}" y1="16" y2="{height - 52}"/>')
    placed: list[tuple[float, float]] = []
    edge: list[float] = []
    best = frontier([point for point in points if point.y.estimate >= y.low])
    line = " ".join(f"{x(point.x.estimate)},{y(point.y.estimate)}" for point in best)
    parts.append(f'<polyline class="frontier" points="{line}"/>')
    for point in sorted(points, key=lambda point: point.kind == "main"):
        px, py = x(point.x.estimate), y(point.y.estimate)
        bars = ""
        if math.isfinite(point.x.low):
            bars += (
                f'<line class="bar {point.kind}" x1="{x(point.x.low)}" x2="{x(point.x.high)}" y1="{py}" y2="{py}"/>'
            )
        if math.isfinite(point.y.low):
            bars += (
                f'<line class="bar {point.kind}" x1="{px}" x2="{px}" y1="{y(point.y.low)}" y2="{y(point.y.high)}"/>'
            )
        words = f"{point.name}: bias left {point.x.estimate:.0f} %, capability {point.y.estimate:+.1f} points"
        mark = f'<circle class="dot {point.kind}" cx="{px}" cy="{py}" r="{8 if point.kind == "main" else 6}"/>'
        if point.y.estimate < y.low:  # far below: at the edge, with its number
            higher = 12 * sum(abs(px - other) < 26 for other in edge)
            bars, place = "", f'x="{px}" y="{py - 16 - higher}"'
            edge.append(px)
            mark = (
                f'<path class="dot {point.kind}" d="M{px - 6} {py - 12}h12l-6 10z"/>'
                f'<text class="tick mid" {place}>{_tick(round(point.y.estimate))}</text>'
            )
        name = ""
        if len(points) <= NAMED or point in best or point.kind == "main":
            dy = _free(placed, px, py, 24, height - 58)
            end = px > WIDTH - 150
            place = f'class="label{" end" if end else ""}" x="{px + (-11 if end else 11)}" y="{py + dy}"'
            name = f"<text {place}>{escape(point.name)}</text>"
        parts.append(_linked(point.link, f"<title>{escape(words)}</title>{bars}{mark}{name}", words))
    return _svg(title, height, parts)


def _lowest(points: Sequence[Point]) -> float:
    """The least capability that a plane shows at its place: that of most methods, not of those that break a model."""
    return -max(5.0, 4 * median(max(0.0, -point.y.estimate) for point in points)) if points else 0.0


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other has both less bias and more capability than, from the left.

    A mean over fewer tasks is not compared.
    """
    whole = [point for point in points if not point.partial]
    ordered = sorted(whole, key=lambda point: (point.x.estimate, -point.y.estimate))
    best: list[Point] = []
    for point in ordered:
        if not best or point.y.estimate > best[-1].y.estimate:
            best.append(point)
    return best


def _numbers(interval: Interval) -> tuple[float, float, float]:
    return interval.estimate, interval.low, interval.high


def _free(placed: list[tuple[float, float]], x: float, y: float, top: float, bottom: float) -> int:
    """A place for a label inside the chart, above or below others that are near."""
    for dy in (-9, 18, -24, 33, -39, 48, 63, 78):
        inside = top <= y + dy <= bottom
        if inside and all(abs(x - px) > 130 or abs(y + dy - py) > 14 for px, py in placed):
            break
    placed.append((x, y + dy))
    return dy


@dataclass(frozen=True)
class DialLine:
    """One quantity over strength, in percent. partial: strengths at which it is a mean of fewer tasks."""

    name: str
    kind: str
    values: Mapping[float, Interval]
    partial: frozenset[float] = frozenset()


def dial(lines: Sequence[DialLine], chosen: float | None, title: str) -> Markup:
    """Bias, recognition and capability over strength."""
    height = 300
    alphas = sorted({alpha for line in lines for alpha in line.values})
    values = [value for line in lines for interval in line.values.values() for value in _numbers(interval)]
    x, y = Axis(alphas, 58, WIDTH - 175, (0.0,)), Axis(values, height - 48, 14, (0.0, 100.0))
    parts = [_grid_x(x, height - 48, "", words="strength α", at=height - 8), _grid_y(y, 58, "%")]
    if chosen is not None:
        parts.append(f'<line class="zero dashed" x1="{x(chosen)}" x2="{x(chosen)}" y1="14" y2="{height - 48}"/>')
        parts.append(f'<text class="tick end" x="{x(chosen) - 4}" y="24">chosen</text>')
    placed: list[float] = []
    for line in lines:
        finite = [alpha for alpha, interval in line.values.items() if math.isfinite(interval.estimate)]
        known = {alpha: line.values[alpha] for alpha in sorted(finite)}
        if not known:
            continue
        path = " ".join(f"{x(alpha)},{y(interval.estimate)}" for alpha, interval in known.items())
        parts.append(f'<polyline class="line {line.kind}" points="{path}"/>')
        for alpha, interval in known.items():
            if math.isfinite(interval.low) and math.isfinite(interval.high):
                place, bottom, top = x(alpha), y(interval.low), y(interval.high)
                parts.append(f'<line class="bar {line.kind}" x1="{place}" x2="{place}" y1="{bottom}" y2="{top}"/>')
            words = f"{line.name} at α = {alpha:g}: {interval.estimate:.1f} %"
            words += ", of fewer tasks" if alpha in line.partial else ""
            part = " part" if alpha in line.partial else ""
            parts.append(
                f'<circle class="dot {line.kind}{part}" cx="{x(alpha)}" cy="{y(interval.estimate)}" r="4">'
                f"<title>{escape(words)}</title></circle>"
            )
        end = _free_height(y(list(known.values())[-1].estimate), placed)
        placed.append(end)
        parts.append(f'<text class="label {line.kind}" x="{WIDTH - 168}" y="{end + 4}">{escape(line.name)}</text>')
    return _svg(title, height, parts)


def _free_height(target: float, placed: Sequence[float]) -> float:
    """The height nearest to the target, by whole lines, at which no label is. A label takes two of them at most."""
    steps = sorted(range(-len(placed), len(placed) + 1), key=abs)
    heights = (target + LABEL * step for step in steps)
    return next(height for height in heights if all(abs(height - other) > LABEL - 0.001 for other in placed))


def bars(
    values: Sequence[float], labels: Sequence[str], title: str, marked: Callable[[int], bool] = lambda n: False
) -> Markup:
    """A column for each value. marked: which columns have the mark's colour, by number."""
    height, left = 180, 46
    y = Axis(values, height - 26, 12, (0.0,))
    slot = (WIDTH - left - 10) / max(len(values), 1)
    parts = [_grid_y(y, left, "")]
    every = math.ceil(len(values) / 12)
    for n, (value, label) in enumerate(zip(values, labels, strict=True)):
        x, top, width = round(left + n * slot, 1), y(value), round(max(slot - 2, 1), 1)
        kind = "marked" if marked(n) else "plain"
        parts.append(
            f'<rect class="{kind}" x="{x}" y="{top}" width="{width}" height="{round(y(0) - top, 1)}">'
            f"<title>{escape(label)}: {value:.3g}</title></rect>"
        )
        if n % every == 0:
            parts.append(
                f'<text class="tick mid" x="{round(x + slot / 2, 1)}" y="{height - 8}">{escape(label)}</text>'
            )
    return _svg(title, height, parts)


def _grid_x(axis: Axis, bottom: float, unit: str, words: str = "", at: float = 0) -> str:
    space = f" {unit}" if unit else ""
    lines = "".join(
        f'<line class="grid" x1="{axis(t)}" x2="{axis(t)}" y1="6" y2="{bottom}"/>'
        f'<text class="tick mid" x="{axis(t)}" y="{bottom + 17}">{_tick(t)}{space}</text>'
        for t in axis.ticks
    )
    middle = (axis.start + axis.end) / 2
    return lines + (f'<text class="axis mid" x="{middle}" y="{at}">{escape(words)}</text>' if words else "")


def _grid_y(axis: Axis, left: float, words: str) -> str:
    lines = "".join(
        f'<line class="grid" x1="{left}" x2="{WIDTH - 10}" y1="{axis(t)}" y2="{axis(t)}"/>'
        f'<text class="tick end" x="{left - 7}" y="{axis(t) + 4}">{_tick(t)}</text>'
        for t in axis.ticks
    )
    middle = (axis.start + axis.end) / 2
    turned = f'transform="rotate(-90 13 {middle})"'
    return lines + (f'<text class="axis mid" x="13" y="{middle}" {turned}>{escape(words)}</text>' if words else "")


def _tick(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def _linked(link: Link | None, inside: str, words: str = "") -> str:
    if link is None:
        return inside
    label = f' aria-label="{escape(words)}"' if words else ""
    data = f' data-filter="{escape(link.filter)}"' if link.filter else ""
    return f'<a href="{escape(link.href)}"{data}{label}>{inside}</a>'


def _svg(title: str, height: float, parts: Sequence[str], kind: str = "") -> Markup:
    inside, view = "".join(parts), f"0 0 {WIDTH} {height:g}"
    role, classes = "group" if "<a " in inside else "img", f"chart {kind}".strip()
    return Markup(
        f'<svg class="{classes}" viewBox="{view}" role="{role}" aria-label="{escape(title)}">{inside}</svg>'
    )


@dataclass(frozen=True)
class MethodRow:
    """A method on a model at its chosen strength.

    published: the mean change of bias in percent, as the tables have it; average: bias-corrected (jackknife).
    partial: tasks are missing from both. capability: the mean change over the steerings, as a share. held_out: for
    each half of the people, the strength that was chosen on the other half, and the change of bias at it. verdict: on
    the mean change; cost: the worst of those on capability, None if it was not measured.
    """

    key: str
    name: str
    alpha: float
    published: Interval | None
    average: Interval | None
    partial: bool
    capability: Interval | None
    held_out: tuple[HeldOut, ...]
    verdict: Verdict
    cost: Verdict | None

    @property
    def shade(self) -> int:
        """Its colour in the matrix: 0 is more bias, 1 less than 10 % gone or tasks missing, 5 at least 90 % gone."""
        if self.published is None or self.partial:
            return 1
        change = self.published.estimate
        return 0 if change > 0 else 1 + sum(change <= -limit for limit in (10, 40, 70, 90))

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

    def row(self, name: str) -> MethodRow | None:
        return next((row for row in self.rows if row.name == name), None)

    @property
    def partial(self) -> bool:
        """Whether a strength of the dial has no value of some bias task: it is not compared with the others."""
        return any(line.partial for line in self.dial_lines)

    @property
    def alphas(self) -> list[float]:
        return sorted({alpha for line in self.dial_lines for alpha in line.values})


@dataclass(frozen=True)
class MatrixRow:
    """A method on every model, None where it was not run; and its mean change of bias over the models, if on all."""

    name: str
    cells: tuple[MethodRow | None, ...]
    mean: float | None


def matrix(methods: Sequence[ModelMethods]) -> list[MatrixRow]:
    """Methods by models, the least bias first, those that were not run on all models last; without controls."""
    names = dict.fromkeys(row.name for model in methods for row in model.rows)
    rows = []
    for name in names:
        cells_of_row = tuple(model.row(name) for model in methods)
        subjects = [cell for model, cell in zip(methods, cells_of_row, strict=True) if not model.model.control]
        changes = [cell.published.estimate for cell in subjects if cell and cell.published and not cell.partial]
        full = changes and len(changes) == len(subjects)
        rows.append(MatrixRow(name, cells_of_row, sum(changes) / len(changes) if full else None))
    return sorted(rows, key=lambda row: (row.mean is None, row.mean or 0.0))


def compared_methods(material: Material) -> list[ModelMethods]:
    """The comparison of methods on each model of a study; empty for runs that are no study.

    The tests of all methods on all models are adjusted together, those of bias and those of capability.
    """
    figures = material.figures
    if figures is None:
        return []
    task = figures.benchmark("multiple-choice")
    cases = [
        (number, n, model.name, label, alpha)
        for number, model in enumerate(material.models)
        for n, label in enumerate(cells.compared(figures.results))
        if (alpha := figures.alpha(model.name, label)) is not None
    ]
    tests = cells.adjusted([_test(figures, *case[2:]) for case in cases])
    costs = _costs(figures, [case[2:4] for case in cases], task)
    rows: dict[int, list[MethodRow]] = {number: [] for number in range(len(material.models))}
    for (number, n, model, label, alpha), p, cost in zip(cases, tests, costs, strict=True):
        rows[number].append(_row(figures, model, label, alpha, f"m{number}-{n}", task, p, cost))
    return [_of_model(figures, model, tuple(rows[number]), task) for number, model in enumerate(material.models)]


def _test(figures: Figures, model: str, label: str, alpha: float) -> float | None:
    """p of the sign-flip test over all bias tasks together."""
    comparisons = [task for task in figures.results.bias(model, label, alpha).values() if task.baseline is not None]
    return sign_flip(comparisons) if comparisons else None


def _costs(figures: Figures, cases: Sequence[tuple[str, str]], task: str | None) -> list[Verdict | None]:
    """For each model and method, the worst verdict on a task of capability, over the steerings."""
    attributes = list(figures.plan.attributes)
    compared = [
        (n, comparison, comparison.accuracy())
        for n, (model, label) in enumerate(cases)
        for attribute in attributes
        if task and (comparison := figures.at_best(model, label, task, attribute))
    ]
    worst: list[Verdict | None] = [None] * len(cases)
    for (n, comparison, kept), p in zip(compared, cells.adjusted([kept.p for _, _, kept in compared]), strict=True):
        verdicts = [of_accuracy(comparison, kept, p), worst[n]]
        worst[n] = max(filter(None, verdicts), key=lambda verdict: COSTS.index(verdict.kind))
    return worst


def _of_model(figures: Figures, model: ReportedModel, rows: tuple[MethodRow, ...], task: str | None) -> ModelMethods:
    lines = _lines(figures, model, task)
    title = probes.get(task).title if task else ""
    points = _points(rows, model)
    of_plane = f"{model.title}: bias left under each method against the change of {title}"
    method = cells.method_title(model.method)
    of_dial = f"{model.title}: bias, recognition and capability over the strength of {method}"
    axes = ("bias left, percent of unsteered", f"{title}: change in points")
    return ModelMethods(
        model,
        rows,
        plane(points, of_plane, *axes) if len(points) > 1 else Markup(),
        dial(lines, model.alpha, of_dial) if any(len(line.values) > 2 for line in lines) else Markup(),
        lines,
        title,
    )


def _row(
    figures: Figures,
    model: str,
    label: str,
    alpha: float,
    key: str,
    task: str | None,
    p_holm: float | None,
    cost: Verdict | None,
) -> MethodRow:
    capability = figures.kept_across([model], label, task, list(figures.plan.attributes)) if task else None
    over, of = figures.averaged(model, label, alpha)
    try:
        held_out = tuple(figures.held_out(model, label))
    except InputError:  # too few people to hold some out
        held_out = ()
    average = figures.corrected_average(model, label, alpha)
    return MethodRow(
        key,
        cells.method_title(label),
        alpha,
        figures.average(model, label, alpha),
        average,
        over < of,
        capability and capability[1],
        held_out,
        of_average(average, p_holm),
        cost,
    )


def _points(rows: Sequence[MethodRow], model: ReportedModel) -> list[Point]:
    main = cells.method_title(model.method)
    return [
        Point(
            row.name,
            replace(_moved(row.average, 100.0), estimate=100 + row.published.estimate),
            _scaled(row.capability, 100.0),
            "main" if row.name == main else "other",
            Link(f"#{row.key}", f"method={row.key}"),
            row.partial,
        )
        for row in rows
        if row.published is not None and row.average is not None and row.capability is not None
    ]


def _lines(figures: Figures, model: ReportedModel, task: str | None) -> tuple[DialLine, ...]:
    """Bias left, recognition of each steered attribute, and capability under each steering, all in percent."""
    if not model.method:
        return ()
    alphas, lines = figures.results.strengths(model.method), list[DialLine]()
    unsteered = Interval(100.0, 100.0, 100.0, figures.statistics.level, "fixed", 1)
    bias = {0.0: unsteered}
    for alpha in alphas:
        published = figures.average(model.name, model.method, alpha)
        corrected = figures.corrected_average(model.name, model.method, alpha)
        if published and corrected:
            bias[alpha] = replace(_moved(corrected, 100.0), estimate=100 + published.estimate)
    averaged = {alpha: figures.averaged(model.name, model.method, alpha) for alpha in alphas}
    fewer = frozenset(alpha for alpha, (over, of) in averaged.items() if over < of)
    lines.append(DialLine("bias left", "bias", bias, fewer))
    for attribute, recognition in figures.recognition().items():
        if attribute in figures.plan.attributes:
            values = _accuracies(figures, model, recognition, attribute, alphas)
            lines.append(DialLine(f"{attribute} named right", "recognition", values))
    for attribute in figures.plan.attributes if task else ():
        values = _accuracies(figures, model, str(task), attribute, alphas)
        title = probes.get(str(task)).title
        lines.append(DialLine(f"{title}, {attribute}", "capability", values))
    return tuple(line for line in lines if len(line.values) > 1)


def _accuracies(
    figures: Figures, model: ReportedModel, task: str, attribute: str, alphas: Sequence[float]
) -> dict[float, Interval]:
    """The share of right answers in percent, by strength: unsteered at 0, and at each that was measured."""
    values: dict[float, Interval] = {}
    if before := figures.unsteered(model.name, task):
        values[0.0] = _scaled(before.accuracy().before, 100.0)
    for alpha in alphas:
        if result := figures.kept(model.name, model.method, task, alpha, attribute):
            values[alpha] = _scaled(result.after, 100.0)
    return values


def _moved(interval: Interval, by: float) -> Interval:
    return replace(interval, estimate=interval.estimate + by, low=interval.low + by, high=interval.high + by)


def _scaled(interval: Interval, by: float) -> Interval:
    return replace(interval, estimate=interval.estimate * by, low=interval.low * by, high=interval.high * by)
