"""The index of a folder of tables: the study, the versions they were made with, the tables, and those left out."""

from collections.abc import Collection, Mapping
from importlib.metadata import version

from ggss.escaping import markdown
from ggss.output import mark
from ggss.report import overview_picture as picture
from ggss.study.results import Results
from ggss.version import library_versions

COMMAND = "ggss study tables"
LIBRARIES = ("numpy", "scipy")


def page(results: Results, made: Mapping[str, str], left_out: Mapping[str, str], files: Collection[str]) -> str:
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
        f"- tabulated with {', '.join(f'{name} {number}' for name, number in versions.items())}",
        "",
        *([f"![{picture.TITLE}]({picture.NAME})", ""] if picture.NAME in files else []),
        "| table | what it says | files |",
        "| --- | --- | --- |",
    ]
    for name, title in made.items():
        links = " ".join(f"[{form}]({name}.{form})" for form in ("md", "csv", "tex") if f"{name}.{form}" in files)
        lines.append(f"| {name} | {markdown(title)} | {links} |")
    if left_out:
        lines += ["", "Left out:", ""]
        lines += [f"- {name}: {markdown(reason)}" for name, reason in left_out.items()]
    return "\n".join(lines) + "\n"


def _last(place: str) -> str:
    """A file by its name alone: the same study gives the same page in whatever folder it is."""
    return place.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
