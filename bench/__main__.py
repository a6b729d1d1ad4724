"""`python -m bench [part ...]`: measure, print the table, and write docs/performance.md when all parts were run."""

import importlib
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
PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


def main(chosen: list[str]) -> int:
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        print(f"bench: no part {unknown[0]!r}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    console = Console(stderr=True)
    rows: list[dict[str, Any]] = []
    for name in chosen or PARTS:
        with console.status(f"measuring {name}"):
            rows += importlib.import_module(f"bench.{name}").run()
    show(rows)
    if not chosen:
        PAGE.write_text(page(rows))
        print(f"written to {PAGE.relative_to(Path.cwd())}" if PAGE.is_relative_to(Path.cwd()) else PAGE)
    return 0


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


def page(rows: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(cells(row)) + " |" for row in rows]
    notes = "".join(f"\n{fill(row['note'], 118)}\n" for row in rows if "note" in row)
    return f"""# Performance

Written by `make bench`; do not edit. Every line is a ratio of two things measured in turn, in the same run, on one
thread (medians). The times are of the machine named below; the ratios are what to compare.

{processor()}; {platform.system()} {platform.machine()}, Python {platform.python_version()}, \
torch {torch.__version__}, transformers {transformers.__version__}.

| what | measured | peer | ratio | goal | met |
| --- | --- | --- | --- | --- | --- |
{chr(10).join(lines)}
{notes}"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
