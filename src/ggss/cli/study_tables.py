"""`ggss study tables`: every table of a study from its stored answers."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ggss.cli.arguments import Force, Json


def tables(
    directory: Annotated[Path, typer.Argument(help="The study's folder.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write; `tables` in the study's folder by default.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write every table in Markdown, CSV and LaTeX, with intervals and tests, and an index.

    An entry that was not run yet says "not run"; a table without any runs is left out, and the index says why. The
    same answers give the same files. A package or a plan's plug-in may add tables.

    Example: ggss study tables my-study -o results
    """
    from ggss.output import check_folder, marked
    from ggss.report.tables import COMMAND, INDEX, write
    from ggss.study.results import Results

    folder = out or directory / "tables"
    check_folder(folder, COMMAND, marked(COMMAND, f"{INDEX}.md"), force)
    written = write(Results.load(directory), folder)
    if as_json:
        found = {"index": str(written.index), "tables": written.tables, "left_out": written.left_out}
        print(json.dumps(found, indent=2))
        return
    from rich.text import Text

    from ggss.terminal import Terminal

    console = Terminal()
    for name, title in written.tables.items():
        console.print(Text.assemble((name, "bold"), "  ", title))
    for name, reason in written.left_out.items():
        console.print(f"{name}  left out: {reason}", style="dim")
    console.print(Text.assemble("Index: ", (str(written.index), "bold")))
