"""`ggss world`: paint the small world, and check its models."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ggss import errors
from ggss.cli.arguments import Json, one_thread, say

if TYPE_CHECKING:
    from ggss.smallworld.check import Line

world = typer.Typer(
    no_args_is_help=True, help="The embedded small world: a painted town and tiny models of real classes."
)


@world.command()
def paint(
    folder: Annotated[Path, typer.Argument(help="Where to paint; a new or empty folder.")],
    seed: Annotated[int, typer.Option(help="Another seed is another town.", **errors.SEED.bounds)] = 0,
    sheet: Annotated[bool, typer.Option(help="Also write contact-sheet.png beside the folder.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a contact-sheet.png of something else.")] = False,
) -> None:
    """Paint 480 portraits (6 occupations x 8 identities x 5 races x 2 genders) and their manifest.

    Use them with: ggss discover MODEL --images FOLDER/manifest.csv --attribute race -o DIR

    Without painting files, --images small-world is the same set (of seed 0).

    Example: ggss world paint town --sheet
    """
    from ggss.files import check_file, marked
    from ggss.smallworld.painter import COMMAND, paint_focus_set, write_contact_sheet

    target = folder.resolve().with_name("contact-sheet.png")
    if sheet:
        check_file(target, COMMAND, marked(COMMAND), force)
    say(paint_focus_set(folder, seed))
    if sheet:
        say(write_contact_sheet(target))


@world.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Models to check; all embedded ones by default.")] = None,
    as_json: Json = False,
) -> None:
    """Measure embedded models again and compare them with what they should show. Exit code 1 if one falls short.

    Example: ggss world check pixtral
    """
    from ggss.smallworld import embedded
    from ggss.smallworld.check import check as run

    one_thread()
    results = {}
    for name in names or embedded():
        results[name] = run(name)
        if not as_json:
            show(name, results[name])
    if as_json:
        print(json.dumps({name: [asdict(line) for line in lines] for name, lines in results.items()}, indent=2))
    if any(line.met is False for lines in results.values() for line in lines):
        raise typer.Exit(1)


def show(name: str, lines: list["Line"]) -> None:
    from rich.table import Table
    from rich.text import Text

    from ggss.terminal import Terminal

    table = Table("", "measured", "seen", "goal", title=name, title_justify="left", box=None)
    for line in lines:
        mark = {True: Text("ok", "green"), False: Text("NO", "red"), None: ""}[line.met]
        table.add_row(mark, line.what, line.seen, line.goal)
    Terminal().print(table)
