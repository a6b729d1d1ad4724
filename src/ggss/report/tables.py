"""Every published table, and some beyond, from a study's stored answers: nothing in them is typed by hand.

`write(results, folder)` makes each in Markdown, CSV and LaTeX, results_report.md with all strengths in full, and an
index. The same answers give the same bytes. An entry without a run says "not run"; a table without any is left out,
and the index says why.

A package adds a table with `register(name, build)`, found by an entry point of the group `ggss.tables` or by a plan's
`plugins`. `build(figures)` returns a `Table`, or a sentence that says why these results do not give one.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ggss.errors import InputError
from ggss.files import write_whole
from ggss.plugins import Registry
from ggss.progress import track
from ggss.report import ablation_tables as ablations
from ggss.report import bias_tables as bias
from ggss.report import capability_tables as capability
from ggss.report import full_report as report
from ggss.report import heldout_tables as heldout
from ggss.report import metric_tables as metrics
from ggss.report import overview_picture as picture
from ggss.report import prompt_tables as prompts
from ggss.report import recognition_tables as recognition
from ggss.report import rendering
from ggss.report import salary_tables as salary
from ggss.report import setting_tables as settings
from ggss.report import significance_tables as significance
from ggss.report import table_index as index
from ggss.report import versus_tables as versus
from ggss.report.figures import Figures
from ggss.report.latex import latex
from ggss.report.rendering import Table
from ggss.report.table_index import COMMAND
from ggss.study.results import Results

__all__ = ["COMMAND", "TABLES", "Figures", "Table", "Written", "register", "write"]

REPORT, INDEX = "results_report", "README"
T = TypeVar("T")
Build = Callable[[Figures], Table | str]
FORMS: Mapping[str, Callable[[Table], str]] = {
    "md": rendering.markdown,
    "csv": rendering.comma_separated,
    "tex": latex,
}


def _malformed(build: Build) -> str:
    return "" if callable(build) else f"it must be a function of Figures, got {type(build).__name__}"


TABLES: Registry[Build] = Registry("table", "ggss.tables", _malformed)


def register(name: str, build: Build) -> Build:
    """Add a table under the name of its files; a name that is taken or cannot be a file's is refused."""
    if not re.fullmatch(r"[a-z0-9]+([_-][a-z0-9]+)*", name) or name == REPORT:
        raise InputError(
            f"the table {name!r} of {getattr(build, '__module__', 'a plug-in')} cannot be registered: use lower-case "
            f"words joined by _ or -, other than {REPORT}"
        )
    return TABLES.add(name, build)


# In the order of the index.
for _name, _build in {
    "main_results": bias.main_results,
    "capability": capability.capability,
    "component_ablation": ablations.components,
    "sensitivity": ablations.sensitivity,
    "hyperparameters": settings.hyperparameters,
    "significance": significance.significance,
    "capability_significance": significance.capability_significance,
    "added_baselines": bias.added_baselines,
    "svd_ablation": bias.svd_ablation,
    "alpha_choices": bias.alpha_choices,
    "heldout_alpha": heldout.heldout_alpha,
    "heldout_methods": heldout.heldout_methods,
    "capability_dimensions": capability.dimensions,
    "mme": capability.yes_or_no,
    "mme_categories": capability.categories,
    "recognition": recognition.other_attribute,
    "alpha_dial": recognition.alpha_dial,
    "ceo_salary": salary.ceo_salary,
    "prompt_baseline": prompts.prompt_baseline,
    "geometry_ablation": ablations.geometry,
    "gate_calibration": ablations.gate_calibration,
    "prompt_invariance": prompts.prompt_invariance,
    "all_metrics": metrics.all_metrics,
    "beyond": bias.beyond,
    "control": bias.control,
    "pace_against": versus.pace_against,
}.items():
    register(_name, _build)


@dataclass(frozen=True)
class Written:
    """The tables that were written and their titles, those left out and why, and the index."""

    tables: dict[str, str]
    left_out: dict[str, str]
    index: Path


def write(results: Results, folder: str | Path, show: bool | None = None) -> Written:
    """Write all tables into a folder. One that these answers do not allow is left out, its older files removed."""
    folder, figures = Path(folder), Figures(results)
    files: dict[str, bytes] = {}
    made: dict[str, str] = {}
    left_out: dict[str, str] = {}
    tables = TABLES.names()
    for name in track(tables, "tables", total=len(tables), show=show):
        table = _tried(lambda name=name: TABLES.get(name)(figures))
        if isinstance(table, str):
            left_out[name] = table
            continue
        made[name] = table.title
        files |= {f"{name}.{form}": render(table).encode() for form, render in FORMS.items()}
    found = _tried(lambda: report.tables(figures, show))
    if isinstance(found, str):
        left_out[REPORT] = found
    else:
        made[REPORT] = report.TITLE
        files[f"{REPORT}.md"] = report.markdown(found).encode()
        files[f"{REPORT}.csv"] = rendering.comma_separated(report.together(found)).encode()
    seen = _tried(lambda: picture.draw(figures))
    if isinstance(seen, str):
        left_out[picture.NAME] = seen
    else:
        files[picture.NAME] = seen
    # The index is written first: it says that the folder is ours, should the rest be cut short.
    files = {f"{INDEX}.md": index.page(results, made, left_out, files).encode()} | files
    for name, data in files.items():
        write_whole(folder / name, data)
    for name in left_out:
        for file in (name, *(f"{name}.{form}" for form in FORMS)):
            (folder / file).unlink(missing_ok=True)
    return Written(made, left_out, folder / f"{INDEX}.md")


def _tried(build: Callable[[], T | str]) -> T | str:
    """What was built, or why it cannot be: such as too few people to hold some out."""
    try:
        return build()
    except InputError as error:
        return str(error)
