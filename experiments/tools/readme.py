"""`make readme`: the demo's real output and pictures and the study's main table, where README and docs show them."""

import csv
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ggss.report.rendering import Figure
from ggss.smallworld.painter import contact_sheet

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RESULTS = ROOT / "results" / "small-world"
AVERAGE, ABSENT = " Avg Δ%", "-"


def fill(block: str, text: str) -> None:
    """Replace what stands between the two marks of a block."""
    start, end = f"<!-- {block}: written by `make readme` -->", f"<!-- /{block} -->"
    before, rest = README.read_text(encoding="utf-8").split(start)
    README.write_text(f"{before}{start}\n{text.strip()}\n{end}{rest.split(end)[1]}", encoding="utf-8")


def demo() -> str:
    """Run the demo, keep its picture, return what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        ggss = str(Path(sys.executable).with_name("ggss"))
        out = Path(folder) / "demo-out"
        environment = {"COLUMNS": "100", "PATH": "/usr/bin:/bin", "HOME": folder}
        seen = subprocess.run([ggss, "demo", "-o", out], capture_output=True, text=True, check=True, env=environment)
        shutil.copy(out / "demo.png", ROOT / "docs" / "demo.png")
        text = "\n".join(line.rstrip() for line in seen.stdout.replace(str(out), "demo-out").splitlines())
    return f"```text\n{text.strip()}\n```"


def main_table() -> str:
    """The mean change of bias of every method, model by model, and what it costs; whole tables stand in RESULTS."""
    rows: dict[str, dict[str, str]] = {}
    for name in ("main_results", "added_baselines", "svd_ablation", "beyond"):
        for method, row in table(name).items():
            rows[method] = row | rows.get(method, {})
    unsteered, *methods = rows
    models = [name.removesuffix(AVERAGE) for name in rows[unsteered] if name.endswith(AVERAGE)]
    controls, costs = table("control"), table("capability")
    control = next(name.removesuffix(AVERAGE) for name in controls[unsteered] if name.endswith(AVERAGE))
    head = [*models, f"{control} (control)", "SmallStar", f"SmallStar, {control}"]
    lines = [f"| mean change of bias | {' | '.join(head)} |", f"| --- |{' ---: |' * len(head)}"]
    for method in methods:
        if not any(_average(rows[method], model) != ABSENT for model in models):
            continue
        shown = [_average(rows[method], model) for model in models]
        shown.append(_average(controls.get(method, {}), control))
        shown += [_worst(costs.get(method, {}), own) for own in (models, [control])]
        lines.append(f"| {method} | {' | '.join(shown)} |")
    return "\n".join([*lines, "", *([ABOUT] if any("% (" in line for line in lines) else []), COST])


def table(name: str) -> dict[str, dict[str, str]]:
    """The rows of a table by method."""
    with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        return {row["Method"]: row for row in csv.DictReader(stream)}


def _worst(row: dict[str, str], models: list[str]) -> str:
    """The lowest change of accuracy in points, over the models and what is steered."""
    changes = [
        float(value)
        for name, value in row.items()
        if value and name.endswith(tuple(f"steering {model} change" for model in models))
    ]
    return f"{min(changes):+.1f}" if changes else ABSENT


ABOUT = """First the published estimate. The 95 % interval is about the bias-corrected estimate; where that is
another number, it stands in parentheses with its interval."""
COST = """SmallStar: the lowest change of accuracy in points, over the four backbones and both attributes; then on the
control. -: not run. †: the mean of fewer tasks than the others."""


def _average(row: dict[str, str], model: str) -> str:
    name = f"{model}{AVERAGE}" if f"{model}{AVERAGE}" in row else model  # as a table of averages alone calls it
    value, low, high = (row.get(column, "") for column in (name, f"{name} low", f"{name} high"))
    centre, mark = row.get(f"{name} corrected"), row.get(f"{name} mark") or ""
    try:
        bounds = float(low), float(high)
        shown = Figure(float(value), bounds, "+.0f", "%", mark, centre=float(centre) if centre else None)
        return shown.number() + shown.after()
    except ValueError:
        return value if value and value != "not run" else ABSENT


def main() -> None:
    fill("results", main_table())
    if "--results" in sys.argv:
        return
    fill("demo", demo())
    contact_sheet().save(ROOT / "docs" / "contact-sheet.png", optimize=True)


if __name__ == "__main__":
    main()
