"""`python -m experiments.bench [--keep] [part ...]`: measure, print the table.

If no part is named, it writes docs/performance.md.

Each part's rows are kept in bench-out; with --keep a part that is there is not measured again.
"""

import hashlib
import importlib
import json
import platform
import sys
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table

PARTS = ("steer", "methods", "bend", "discovery", "start", "stats", "study", "report", "play")
ROOT = Path(__file__).parents[2]
PAGE, OUT, KEEP = ROOT / "docs" / "performance.md", ROOT / "bench-out", "--keep"
SWEEP = ("<!-- written by `make bench-sweep` -->", "<!-- end of `make bench-sweep` -->")
PACE_SIZE = ("<!-- written by `pace_size` -->", "<!-- end of `pace_size` -->")


def main(chosen: list[str]) -> int:
    keep, chosen = KEEP in chosen, [name for name in chosen if name != KEEP]
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        print(f"bench: no part {unknown[0]!r}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    console = Console(stderr=True)
    rows: list[dict[str, Any]] = []
    for name in chosen or PARTS:
        with console.status(f"measuring {name}"):
            rows += measured(name, keep)
    show(rows)
    if not chosen:
        written = PAGE.read_text(encoding="utf-8")
        kept = "\n\n".join(filter(None, (section(written, marks) for marks in (SWEEP, PACE_SIZE))))
        PAGE.write_text(page(rows, kept), encoding="utf-8")
        print(f"written to {PAGE.relative_to(Path.cwd())}" if PAGE.is_relative_to(Path.cwd()) else PAGE)
    return 0


def measured(name: str, keep: bool) -> list[dict[str, Any]]:
    """The rows of a part, written down as soon as they are there.

    keep: those that were measured before, if it was on this machine, with these libraries and this state of the code.
    """
    file, where = OUT / f"{name}.json", [machine(), state()]
    if keep and file.exists():
        kept = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(kept, dict) and kept["where"] == where:
            return kept["rows"]
    rows = importlib.import_module(f"experiments.bench.{name}").run()
    OUT.mkdir(exist_ok=True)
    file.write_text(json.dumps({"where": where, "rows": rows}), encoding="utf-8")
    return rows


def state() -> str:
    """Of all Python files of the package and of the bench."""
    digest = hashlib.sha256()
    for file in sorted(path for part in ("src", "experiments") for path in (ROOT / part).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def cells(row: dict[str, Any]) -> list[str]:
    met = {True: "yes", False: "**no**", None: ""}[row.get("met")]
    return [row["name"], row["value"], row["peer"], f"{row['ratio']:.2f}", row["goal"], met]


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("what", "measured", "peer", "ratio", "goal", "met")
    for row in rows:
        table.add_row(*(cell.replace("**", "") for cell in cells(row)))
    Console(width=150).print(table)


def processor() -> str:
    """The processor's name, and the instructions that torch uses on it."""
    described = Path("/proc/cpuinfo")
    text = described.read_text() if described.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    name = names[0] if names else platform.processor() or "a processor without a name"
    return f"{name} with {torch.backends.cpu.get_cpu_capability()}"


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(
        ["| what | measured | peer | ratio | goal | met |", "| --- | --- | --- | --- | --- | --- |", *lines]
    )


def machine() -> str:
    return f"""{processor()}; {platform.system()} {platform.machine()}, Python {platform.python_version()}, \
torch {torch.__version__}, transformers {transformers.__version__}."""


def section(text: str, marks: tuple[str, str]) -> str:
    """What another command wrote into the page, with its marks; "" if it has not."""
    begin, end = marks
    return begin + text.partition(begin)[2].partition(end)[0] + end if begin in text else ""


def with_section(text: str, marks: tuple[str, str], content: str) -> str:
    """The page with that part replaced, or added at the end."""
    begin, end = marks
    written = f"{begin}\n{content}\n{end}"
    old = section(text, marks)
    return text.replace(old, written) if old else f"{text.rstrip()}\n\n{written}\n"


def page(rows: list[dict[str, Any]], kept: str = "") -> str:
    """kept: the section of another command."""
    notes = "".join(f"\n{fill(row['note'], 118)}\n" for row in rows if "note" in row)
    return f"""# Performance

Written by `make bench`; do not edit. Every line is a ratio of two things measured in turn, in the same run, on one
thread (medians). The times are of the machine named below; the ratios are what to compare. What steering adds to a
request that is served is measured on [serving.md](serving.md#figures), and with models of 4 and 7 billion weights on
[full-size.md](full-size.md).

{machine()}

{table(rows)}
{notes}""" + (f"\n{kept}\n" if kept else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
