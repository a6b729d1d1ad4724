"""Every published table, and some beyond, from a study's stored answers. No number in them is typed by hand.

`write(results, folder)` makes each in Markdown, CSV and LaTeX; a picture of what bias each method leaves and what it
costs; results_report.md, with every method at every strength on every model; and an index. The same answers give the
same bytes. An entry without a run says "not run"; a table without any run is left out, and the index says why.

A package adds a table with `register(name, build)`, found by an entry point of the group `ggss.tables` or by a plan's
`plugins`. `build(figures)` returns a `Table`, or a sentence that says why these results do not give one.
"""

import io
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from ggss import probes
from ggss.errors import InputError
from ggss.escaping import markdown, plot
from ggss.files import mark, write_whole
from ggss.methods.registry import UNSTEERED
from ggss.plugins import Registry
from ggss.report import ablation_tables, bias_tables, capability_tables, cells, rendering
from ggss.report.cells import Figures
from ggss.report.rendering import Column, Entry, Row, Table, pipe_table
from ggss.stats import Interval
from ggss.study.results import Results
from ggss.terminal import track
from ggss.version import library_versions

__all__ = ["COMMAND", "TABLES", "Figures", "Table", "Written", "register", "write"]

T = TypeVar("T")
Build = Callable[[Figures], Table | str]

COMMAND = "ggss study tables"
REPORT, INDEX = "results_report", "README"
TABULATED = "- tabulated with "  # and versions: how a line of the index begins
FORMS: Mapping[str, Callable[[Table], str]] = {
    "md": rendering.markdown,
    "csv": rendering.comma_separated,
    "tex": rendering.latex,
}
LIBRARIES = ("numpy", "scipy")

NAME = "bias_and_capability.png"
_PICTURE_TITLE = "How much bias each method leaves, and what it costs in capability"
INK, SOFT = "#2b2640", "#8a86a0"
# Family, colour and marker, by how a method's label begins; the longest beginning that fits is taken.
_LOOKS: Mapping[str, tuple[str, str, str]] = {
    "": ("other", "#8a86a0", "o"),
    "ggss": ("GGSS, its ablations and variants", "#e0a030", "o"),
    "gated-": ("GGSS, its ablations and variants", "#e0a030", "o"),
    "inlp": ("INLP", "#3d6fb4", "s"),
    "meandiff": ("MeanDiff", "#6aa84f", "^"),
    "bend": ("BendVLM", "#8e5ea2", "v"),
    "leace": ("LEACE", "#2a9d9d", "D"),
    "svd": ("hard projection (SVD)", "#b0565b", "P"),
    "prompt": ("fairness instruction", "#8a86a0", "X"),
    "pace": ("PACE and auto", "#d43d8c", "h"),
    "auto": ("PACE and auto", "#d43d8c", "h"),
}
_NEAR = 5  # points: costs up to this are drawn to scale, larger ones closer together
_TICKS = (-80, -40, -20, -10, -5, -2, 0, 2)
_GGSS = ("GGSS", "#c2452d", "*")
PACE = "pace"

_REPORT_TITLE = (
    "All results: bias left (lower is better), capability and recognition kept (higher is better), at every strength"
)
_REPORT_NOTES = (
    "Each bias cell: the metric with the jackknife's interval; its change in percent of the unsteered model with "
    "Fieller's interval; the paper's interval of the same change, a percentile bootstrap over identities.",
    cells.INTERVALS,
    cells.AVERAGED,
    "Capability: accuracy in percent, and its change in points with Tango's 95 % interval.",
    cells.UNDEFINED,
    cells.DEGENERATE,
    cells.PARTIAL,
)


def _malformed(build: Build) -> str:
    return "" if callable(build) else f"it must be a function of Figures, got {type(build).__name__}"


TABLES: Registry[Build] = Registry("table", "ggss.tables", _malformed)


def register(name: str, build: Build) -> Build:
    """Add a table under the name of its files. InputError for a name that is taken or cannot be a file's name."""
    if not re.fullmatch(r"[a-z0-9]+([_-][a-z0-9]+)*", name) or name == REPORT:
        raise InputError(
            f"the table {name!r} of {getattr(build, '__module__', 'a plug-in')} cannot be registered: use lower-case "
            f"words joined by _ or -, other than {REPORT}"
        )
    return TABLES.add(name, build)


# In the order of the index.
for _name, _build in {
    "main_results": bias_tables.main_results,
    "capability": capability_tables.capability,
    "component_ablation": ablation_tables.components,
    "sensitivity": ablation_tables.sensitivity,
    "hyperparameters": capability_tables.hyperparameters,
    "significance": ablation_tables.significance,
    "capability_significance": ablation_tables.capability_significance,
    "added_baselines": bias_tables.added_baselines,
    "svd_ablation": bias_tables.svd_ablation,
    "alpha_choices": bias_tables.alpha_choices,
    "heldout_alpha": bias_tables.heldout_alpha,
    "heldout_methods": bias_tables.heldout_methods,
    "capability_dimensions": capability_tables.dimensions,
    "mme": capability_tables.yes_or_no,
    "mme_categories": capability_tables.categories,
    "recognition": capability_tables.other_attribute,
    "alpha_dial": capability_tables.alpha_dial,
    "ceo_salary": bias_tables.ceo_salary,
    "prompt_baseline": bias_tables.prompt_baseline,
    "geometry_ablation": ablation_tables.geometry,
    "gate_calibration": ablation_tables.gate_calibration,
    "prompt_invariance": bias_tables.prompt_invariance,
    "all_metrics": bias_tables.all_metrics,
    "beyond": bias_tables.beyond,
    "control": bias_tables.control,
    "pace_against": ablation_tables.pace_against,
    "spillover": bias_tables.spillover,
}.items():
    register(_name, _build)


@dataclass(frozen=True)
class Written:
    """The tables that were written and their titles, those left out and why, and the index."""

    tables: dict[str, str]
    left_out: dict[str, str]
    index: Path


def write(results: Results, folder: str | Path, show: bool | None = None, latex: bool = True) -> Written:
    """Write all tables into a folder. Older files of tables that are left out are removed.

    latex: write them in LaTeX, too; if not, older files in LaTeX are removed.
    """
    folder, figures = Path(folder), Figures(results)
    forms = FORMS if latex else {form: render for form, render in FORMS.items() if form != "tex"}
    files: dict[str, bytes] = {}
    titles: dict[str, str] = {}
    left_out: dict[str, str] = {}
    tables = TABLES.names()
    for name in track(tables, "tables", total=len(tables), show=show):
        table = _tried(lambda name=name: TABLES.get(name)(figures))
        if isinstance(table, str):
            left_out[name] = table
            continue
        titles[name] = table.title
        files |= {f"{name}.{form}": render(table).encode() for form, render in forms.items()}
    full = _tried(lambda: full_tables(figures, show))
    if isinstance(full, str):
        left_out[REPORT] = full
    else:
        titles[REPORT] = _REPORT_TITLE
        files[f"{REPORT}.md"] = full_markdown(full).encode()
        files[f"{REPORT}.csv"] = rendering.comma_separated(together(full)).encode()
    picture = _tried(lambda: draw(figures))
    if isinstance(picture, str):
        left_out[NAME] = picture
    else:
        files[NAME] = picture
    # The index is written first: it says that the folder is ours, should the rest be cut short.
    files = {f"{INDEX}.md": _index(results, titles, left_out, files).encode()} | files
    for name, data in files.items():
        write_whole(folder / name, data)
    for name in (*tables, *left_out):
        for file in (name, *(f"{name}.{form}" for form in FORMS)):
            if file not in files:
                (folder / file).unlink(missing_ok=True)
    return Written(titles, left_out, folder / f"{INDEX}.md")


def _tried(build: Callable[[], T | str]) -> T | str:
    """What `build` returns, or its InputError as text: there may be too few people to hold some out."""
    try:
        return build()
    except InputError as error:
        return str(error)


def draw(figures: Figures) -> bytes | str:
    """A PNG of the bias that each method leaves on each model against its cost, or why there is none."""
    task = figures.benchmark("multiple-choice")
    if task is None:
        return "the plan measures no multiple-choice benchmark"
    panels = {model: points for model in figures.results.models if (points := _points(figures, model, task))}
    if not panels:
        return "needs a method's runs on the bias tasks and on a multiple-choice benchmark"
    return _drawn(panels, probes.get(task).title)


def _points(figures: Figures, model: str, task: str) -> dict[str, tuple[Interval, Interval]]:
    """By method: the mean change of bias in percent, and of accuracy, averaged over the steerings."""
    attributes, points = list(figures.plan.attributes), {}
    for label in cells.compared(figures.results):
        bias = figures.average(model, label, figures.alpha(model, label))
        capability = figures.kept_across([model], label, task, attributes)
        if bias and capability:
            points[label] = (bias, capability[1])
    return points


def _look(label: str) -> tuple[str, str, str]:
    return _GGSS if label == cells.GGSS else _LOOKS[max(filter(label.startswith, _LOOKS), key=len)]


def _drawn(panels: Mapping[str, Mapping[str, tuple[Interval, Interval]]], benchmark: str) -> bytes:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    width = max(9.0, 3.1 * len(panels) + 1)
    figure, axes = plt.subplots(1, len(panels), figsize=(width, 4.9), sharex=True, sharey=True, squeeze=False)
    drawn: dict[str, Any] = {}
    for axis, (model, points) in zip(axes.flat, panels.items(), strict=True):
        axis.axhline(0, color=SOFT, linewidth=0.8, zorder=0)
        axis.axvline(100, color=SOFT, linewidth=0.8, linestyle=":", zorder=0)
        for label, (bias, capability) in sorted(points.items(), key=lambda point: point[0] == cells.GGSS):
            kind, colour, mark = _look(label)
            x, y = 100 + bias.estimate, 100 * capability.estimate
            axis.hlines(y, 100 + bias.low, 100 + bias.high, color=colour, alpha=0.35, linewidth=1)
            axis.vlines(x, 100 * capability.low, 100 * capability.high, color=colour, alpha=0.35, linewidth=1)
            large = 190 if label == cells.GGSS else 95 if label == PACE else 42
            drawn[kind] = axis.scatter(x, y, s=large, color=colour, marker=mark, zorder=4 if large > 42 else 3)
        axis.set_title(plot(cells.model_title(model)), color=INK, fontsize=12)
        axis.tick_params(colors=SOFT, labelsize=9)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0, 0].set_yscale("symlog", linthresh=_NEAR)
    axes[0, 0].set_yticks(_TICKS, map(str, _TICKS))
    tops = [100 * capability.high for points in panels.values() for _, capability in points.values()]
    axes[0, 0].set_ylim(top=max(2.5, *tops))
    axes[0, 0].minorticks_off()
    axes[0, 0].set_ylabel(plot(f"{benchmark}: change in points"), color=INK)
    figure.supxlabel("bias left, percent of unsteered", color=INK, fontsize=10, y=0.16)
    figure.suptitle(f"{_PICTURE_TITLE}\n(best: top left)", color=INK, fontsize=13, y=0.985)
    kinds = sorted(drawn, key=lambda kind: (kind != _GGSS[0], kind))
    figure.legend([drawn[kind] for kind in kinds], kinds, loc="lower center", ncols=4, frameon=False, fontsize=9)
    figure.subplots_adjust(left=0.8 / width, right=0.985, top=0.81, bottom=0.28, wspace=0.08)
    data = io.BytesIO()
    figure.savefig(data, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return data.getvalue()


def full_tables(figures: Figures, show: bool | None = None) -> list[Table] | str:
    """A table for each model that anything was run on: all methods at all strengths, everything measured."""
    models = track(figures.results.models, REPORT, len(figures.results.models), show)
    return [table for model in models if (table := _full_table(figures, model))] or "nothing was run yet"


def _full_table(figures: Figures, model: str) -> Table | None:
    """The columns are the same for every model; None if nothing was run on this one."""
    extras = _extras(figures)
    columns = (
        *(Column(figures.label(t), parts=cells.BIAS_PARTS[:3]) for t in figures.results.tasks),
        Column("Avg Δ%", parts=cells.AVERAGE_PARTS),
        *(column for _, _, column in extras),
    )
    rows = [row for label in figures.results.methods for row in _rows(figures, model, label, extras)]
    return Table(REPORT, _REPORT_TITLE, "Method, α", columns, tuple(rows)) if rows else None


def full_markdown(tables: Sequence[Table]) -> str:
    """results_report.md from the tables of `full_tables`."""
    blocks = [f"# {_REPORT_TITLE}", "\n".join(f"- {markdown(note)}" for note in _REPORT_NOTES)]
    for table in tables:
        blocks += [f"## {markdown(table.rows[0].section)}", pipe_table(_unsectioned(table))]
    return "\n\n".join(blocks) + "\n"


def together(tables: Sequence[Table]) -> Table:
    """All models in one table, a section for each."""
    rows = tuple(row for table in tables for row in table.rows)
    return Table(REPORT, _REPORT_TITLE, "Method, α", tables[0].columns, rows)


def _unsectioned(table: Table) -> Table:
    rows = tuple(Row(row.label, row.cells) for row in table.rows)
    return Table(table.name, table.title, table.corner, table.columns, rows)


def _extras(figures: Figures) -> list[tuple[str, str, Column]]:
    """(task, attribute steered, column) of all that is measured besides bias."""
    extras = []
    for task in figures.plan.tasks:
        if task in figures.results.tasks:
            continue
        name, parts = (
            (probes.get(task).title, ("", "change")) if _multiple_choice(task) else (figures.label(task), ("",))
        )
        extras += [
            (task, attribute, Column(f"{name}, {attribute} steering", parts=parts))
            for attribute in figures.plan.attributes
        ]
    return extras


def _multiple_choice(task: str) -> bool:
    return probes.get(task).kind == "multiple-choice"


def _rows(figures: Figures, model: str, label: str, extras: list[tuple[str, str, Column]]) -> list[Row]:
    unsteered = label == UNSTEERED
    strengths: Sequence[float | None] = [None] if unsteered else figures.results.strengths(label)
    rows = []
    for alpha in strengths:
        comparisons = [figures.comparison(model, label, task, alpha) for task in figures.results.tasks]
        extra = [_extra(figures, model, label, alpha, task, attribute) for task, attribute, _ in extras]
        if not any(comparisons) and not any(isinstance(cell, tuple) for cell in extra):
            continue
        bias = [
            cells.value(comparison) if unsteered else cells.with_percentiles(comparison, cells.OVERS[:1])
            for comparison in comparisons
        ]
        average = "" if unsteered else cells.average(figures, model, label, alpha, "+.1f")
        rows.append(Row(_label(figures, model, label, alpha), (*bias, average, *extra), cells.model_title(model)))
    return rows


def _label(figures: Figures, model: str, label: str, alpha: float | None) -> str:
    if alpha is None or not figures.plan.method(label).steers:
        return cells.method_title(label)
    text = f"{cells.method_title(label)}, {alpha:g}"
    return f"{text} (best-avg-α)" if alpha == figures.alpha(model, label) else text


def _extra(figures: Figures, model: str, label: str, alpha: float | None, task: str, attribute: str) -> Entry:
    if _multiple_choice(task):
        cell = capability_tables.accuracy(figures.kept(model, label, task, alpha, attribute), figures.display(task))
        return cell[:1] if label == UNSTEERED and isinstance(cell, tuple) else cell
    return cells.value(figures.comparison(model, label, task, alpha, attribute))


def _index(results: Results, titles: Mapping[str, str], left_out: Mapping[str, str], files: Collection[str]) -> str:
    """The page that lists the tables: the study, the versions they were made with, the tables, and those left out."""
    plan = results.plan
    versions = library_versions() | {name: version(name) for name in LIBRARIES}
    statistics = plan.statistics
    lines = [
        f"# Tables of the study {markdown(repr(plan.name))}",
        "",
        f"<!-- {mark(COMMAND)}; do not edit. -->",
        "",
        *([markdown(plan.description.strip()), ""] if plan.description.strip() else []),
        f"- answers: sha256 `{results.hash}`",
        f"- suite: {markdown(plan.suite.name)}; discovery: {markdown(_last(plan.discovery))}",
        f"- models: {markdown(', '.join(results.models))}",
        f"- statistics: {statistics.resamples:,} resamples, {statistics.permutations:,} permutations, "
        f"seed {statistics.seed}",
        f"{TABULATED}{', '.join(f'{name} {number}' for name, number in versions.items())}",
        "",
        *([f"![{_PICTURE_TITLE}]({NAME})", ""] if NAME in files else []),
        "| table | what it says | files |",
        "| --- | --- | --- |",
    ]
    for name, title in titles.items():
        links = " ".join(f"[{form}]({name}.{form})" for form in ("md", "csv", "tex") if f"{name}.{form}" in files)
        lines.append(f"| {name} | {markdown(title)} | {links} |")
    if left_out:
        lines += ["", "Left out:", ""]
        lines += [f"- {name}: {markdown(reason)}" for name, reason in left_out.items()]
    return "\n".join(lines) + "\n"


def _last(place: str) -> str:
    """A file's name without its folder: the same study gives the same page in whatever folder it is."""
    return place.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
