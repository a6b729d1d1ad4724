"""`make readme`: what README shows: the demo's picture and output, that of its five commands, five result rows."""

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ggss.smallworld.painter import contact_sheet

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RESULTS = ROOT / "results" / "small-world"
AVERAGE, DEPENDS, ABSENT = " Avg Δ%", " depends", "-"
UNSTEERED, SHOWN = "Unsteered", ("GGSS", "pace", "INLP (Eucl.)")
PROJECTIONS = ("Pooled SVD (Eucl.)", "Pooled SVD (sph.)", "Per-token SVD (Eucl.)", "Per-token SVD (sph.)")
# Of the output of each command, the lines that README shows; all of the others'.
KEPT = {
    "doctor": r"mlp2 silenced",
    "discover": r"written to",
    "ask": r"^│",
    "compare": r"depends (less|more) on|(less|more) bias|equivalent|worse",
}
WIDTH = 140  # of the terminal
ROW = re.compile(r"^small-world/|^ [^─ ]")  # of a table; README explains the rest itself


def fill(block: str, text: str) -> None:
    """Replace what stands between the two marks of a block."""
    start, end = f"<!-- {block}: written by `make readme` -->", f"<!-- /{block} -->"
    before, rest = README.read_text(encoding="utf-8").split(start)
    README.write_text(f"{before}{start}\n{text.strip()}\n{end}{rest.split(end)[1]}", encoding="utf-8")


def ran(arguments: Sequence[str], folder: Path) -> str:
    """What `ggss` prints, run in a folder."""
    ggss = str(Path(sys.executable).with_name("ggss"))
    environment = {"COLUMNS": str(WIDTH), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    if "GGSS_CACHE" in os.environ:
        environment["GGSS_CACHE"] = os.environ["GGSS_CACHE"]
    done = subprocess.run([ggss, *arguments], cwd=folder, capture_output=True, text=True, check=True, env=environment)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def demo(folder: Path) -> str:
    """Run the demo, keep its picture, return what it printed."""
    text = ran(["demo", "-o", "demo-out"], folder)
    shutil.copy(folder / "demo-out" / "demo.png", ROOT / "docs" / "demo.png")
    lines = [line for line in text.splitlines() if ROW.search(line)]
    return "```text\n" + "\n".join(lines) + "\n```"


def commands(folder: Path) -> str:
    """Run the five commands of README, and return what they printed, each below the command that printed it."""
    lines: list[str] = []
    named = set[str]()
    for arguments in five_commands():
        text = ran(arguments, folder)
        pattern = KEPT.get(arguments[0], "")
        shown = [line for line in text.splitlines() if re.search(pattern, line)] if pattern else []
        if shown:
            lines += [*([] if arguments[0] in named else [f"$ ggss {arguments[0]} …"]), *shown]
            named.add(arguments[0])
    return "```text\n" + "\n".join(lines) + "\n```"


def five_commands() -> list[list[str]]:
    """The commands of README's section about one's own model."""
    section = README.read_text(encoding="utf-8").split("## Your own model")[1]
    block = section.split("```sh\n")[1].split("```")[0].replace("\\\n", " ")
    return [shlex.split(line, comments=True)[1:] for line in block.splitlines() if line.startswith("ggss ")]


def result_rows() -> str:
    """Unsteered, GGSS, PACE, the best projection and INLP: whose answer depends on it, bias, cost.

    The lowest and the highest over the planted models, then the control; whole tables stand in RESULTS.
    """
    rows: dict[str, dict[str, str]] = {}
    for name in ("main_results", "svd_ablation", "beyond"):
        for method, row in table(name).items():
            rows[method] = row | rows.get(method, {})
    controls, costs = table("control"), table("capability")
    models, (control,) = (_models(kind[UNSTEERED]) for kind in (rows, controls))
    projection = min(
        (name for name in PROJECTIONS if name in rows),
        key=lambda name: sum(float(rows[name][f"{model}{AVERAGE}"]) for model in models),
    )
    ggss, pace, inlp = SHOWN
    lines = [
        f"| | answer depends | on {control} | mean change of bias | on {control} | SmallStar, worst | on {control} |",
        f"| --- |{' ---: |' * 6}",
    ]
    for method in (UNSTEERED, ggss, pace, projection, inlp):
        row, other, cost = rows[method], controls.get(method, {}), costs.get(method, {})
        shown = [
            _range(row, models, DEPENDS),
            _range(other, [control], DEPENDS),
            ABSENT if method == UNSTEERED else _range(row, models, AVERAGE),
            ABSENT if method == UNSTEERED else _range(other, [control], AVERAGE),
            *(ABSENT if method == UNSTEERED else _worst(cost, of) for of in (models, [control])),
        ]
        lines.append(f"| {'unsteered' if method == UNSTEERED else method} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _models(row: dict[str, str]) -> list[str]:
    return [name.removesuffix(AVERAGE) for name in row if name.endswith(AVERAGE)]


def _range(row: dict[str, str], models: Sequence[str], column: str) -> str:
    """The lowest and the highest of a column over models, in percent."""
    values = [row.get(f"{model}{column}", "") for model in models]
    try:
        low, high = (f"{number:+.0f}" if column == AVERAGE else f"{number:.0f}" for number in _ends(values))
    except ValueError:
        return ABSENT
    return f"{low} %" if low == high else f"{low} to {high} %"


def _ends(values: Sequence[str]) -> tuple[float, float]:
    numbers = [float(value) for value in values]
    return min(numbers), max(numbers)


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


def main() -> None:
    fill("results", result_rows())
    if "--results" in sys.argv:
        return
    with tempfile.TemporaryDirectory() as folder:
        fill("demo", demo(Path(folder)))
        fill("commands", commands(Path(folder)))
    contact_sheet().save(ROOT / "docs" / "contact-sheet.png", optimize=True)


if __name__ == "__main__":
    main()
