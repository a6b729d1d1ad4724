"""Every published table, and some beyond, from a study's stored answers: nothing in them is typed by hand.

`write(results, folder)` makes each in Markdown, CSV and LaTeX, results_report.md with all strengths in full, and an
index. The same answers give the same bytes. What was not run says so, or is left out with the reason in the index.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ggss.errors import InputError
from ggss.files import write_whole
from ggss.progress import track
from ggss.study import rendering
from ggss.study.rendering import Table
from ggss.study.results import Results
from ggss.study.tables import (
    ablations,
    bias,
    capability,
    heldout,
    index,
    picture,
    prompts,
    recognition,
    report,
    significance,
)
from ggss.study.tables.figures import Figures

__all__ = ["BUILDERS", "Figures", "Written", "write"]

REPORT = "results_report"
FORMS: Mapping[str, Callable[[Table], str]] = {
    "md": rendering.markdown,
    "csv": rendering.comma_separated,
    "tex": rendering.latex,
}

# By the name of the file, in the order of the index: a table, or why there is none.
BUILDERS: Mapping[str, Callable[[Figures], Table | str]] = {
    "main_results": bias.main_results,
    "capability": capability.capability,
    "component_ablation": ablations.components,
    "sensitivity": ablations.sensitivity,
    "significance": significance.significance,
    "capability_significance": significance.capability_significance,
    "added_baselines": bias.added_baselines,
    "svd_ablation": bias.svd_ablation,
    "alpha_choices": bias.alpha_choices,
    "heldout_alpha": heldout.heldout_alpha,
    "heldout_methods": heldout.heldout_methods,
    "capability_dimensions": capability.dimensions,
    "mme": capability.yes_or_no,
    "recognition": recognition.other_attribute,
    "alpha_dial": recognition.alpha_dial,
    "prompt_baseline": prompts.prompt_baseline,
    "geometry_ablation": ablations.geometry,
    "gate_calibration": ablations.gate_calibration,
    "prompt_invariance": prompts.prompt_invariance,
    "beyond": bias.beyond,
    "control": bias.control,
}


@dataclass(frozen=True)
class Written:
    """The tables that were written and their titles, those left out and why, and the index."""

    tables: dict[str, str]
    left_out: dict[str, str]
    index: Path


def write(results: Results, folder: str | Path, show: bool | None = None) -> Written:
    """Write all tables into a folder; one that these answers do not allow is left out, and an older one removed."""
    folder, figures = Path(folder), Figures(results)
    files: dict[str, str] = {}
    made: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name, build in track(BUILDERS.items(), "tables", total=len(BUILDERS), show=show):
        try:
            table = build(figures)
        except InputError as error:  # such as too few people to hold some out
            table = str(error)
        if isinstance(table, str):
            left_out[name] = table
            continue
        made[name] = table.title
        files |= {f"{name}.{form}": render(table) for form, render in FORMS.items()}
    of_models = [report.table(figures, m) for m in track(results.models, REPORT, len(results.models), show)]
    if found := [table for table in of_models if table]:
        made[REPORT] = report.TITLE
        files[f"{REPORT}.md"] = report.markdown(found)
        files[f"{REPORT}.csv"] = rendering.comma_separated(report.together(found))
    else:
        left_out[REPORT] = "nothing was run yet"
    seen = picture.draw(figures)
    if isinstance(seen, str):
        left_out[picture.NAME] = seen
        (folder / picture.NAME).unlink(missing_ok=True)
    else:
        write_whole(folder / picture.NAME, seen)
    shown = None if isinstance(seen, str) else f"![{picture.TITLE}]({picture.NAME})"
    files["README.md"] = index.page(results, made, left_out, files, shown)
    for name, text in files.items():
        write_whole(folder / name, text.encode())
    for name in left_out:
        for form in FORMS:
            (folder / f"{name}.{form}").unlink(missing_ok=True)
    return Written(made, left_out, folder / "README.md")
