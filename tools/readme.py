"""`make readme`: the demo's real output and pictures and the study's main table, where README and docs show them."""

import csv
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ggss.report.rendering import Figure
from ggss.smallworld.sets import contact_sheet

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "results" / "small-world" / "main_results.csv"
AVERAGE = " Avg Δ%"


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
    """The averages of the study's main table, model by model; the whole of it stands beside the CSV."""
    with RESULTS.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    models = [name.removesuffix(AVERAGE) for name in rows[0] if name.endswith(AVERAGE)]
    lines = [f"| mean change of bias | {' | '.join(models)} |", f"| --- |{' ---: |' * len(models)}"]
    lines += [f"| {row['Method']} | {' | '.join(_average(row, model) for model in models)} |" for row in rows[1:]]
    return "\n".join([*lines, *(["", ABOUT] if any("% (" in line for line in lines) else [])])


ABOUT = """The published estimate; where the 95 % interval is about another one, freed of the bias of small samples,
that one stands in parentheses with it."""


def _average(row: dict[str, str], model: str) -> str:
    name = f"{model}{AVERAGE}"
    value, low, high = (row.get(column, "") for column in (name, f"{name} low", f"{name} high"))
    centre, mark = row.get(f"{name} corrected"), row.get(f"{name} mark") or ""
    try:
        bounds = float(low), float(high)
        shown = Figure(float(value), bounds, "+.0f", "%", mark, centre=float(centre) if centre else None)
        return shown.number() + shown.after()
    except ValueError:
        return value or "not run"


def main() -> None:
    fill("results", main_table())
    if "--results" in sys.argv:
        return
    fill("demo", demo())
    contact_sheet().save(ROOT / "docs" / "contact-sheet.png", optimize=True)


if __name__ == "__main__":
    main()
