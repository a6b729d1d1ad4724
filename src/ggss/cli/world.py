"""`ggss demo` and `ggss world`: the whole job on the embedded small world; paint it, and check its models."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss import errors
from ggss.cli.arguments import Force, Json, one_thread, say
from ggss.cli.compare import comparison_data, show_comparison
from ggss.smallworld import DEFAULT

if TYPE_CHECKING:
    from ggss.smallworld.demo import Demo, Line

world = typer.Typer(
    no_args_is_help=True, help="The embedded small world: a painted town and tiny models of real classes."
)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write to.")] = Path("demo-out"),
    model: Annotated[
        str, typer.Option(help="A model of the small world: pixtral and small-world/pixtral are the same.")
    ] = DEFAULT,
    alpha: Annotated[float, typer.Option(help="Strength of steering.", min=0.0, max=errors.ALPHA.most)] = 1.0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Paint a town, find what carries race and gender, steer, and measure before and after.

    Needs no GPU and no download. Ends with a table, a picture, and the report of `ggss report` on what was found.

    Example: ggss demo -o demo-out
    """
    from ggss.report.page import write
    from ggss.smallworld.demo import COMMAND, PAGE, check_place, run

    check_place(out, force)
    one_thread()
    result = run(out, model, alpha)
    written = write(result.material, out / PAGE, command=COMMAND)
    if as_json:
        print(json.dumps(demo_data(result), indent=2))
    else:
        show_demo(result, written)


def demo_data(result: "Demo") -> dict[str, Any]:
    """The results as plain data: those of `ggss compare --json`, and the picture."""
    return (
        {"model": result.model, "alpha": result.alpha}
        | comparison_data(result.tasks)
        | {"picture": str(result.picture)}
    )


def show_demo(result: "Demo", written: Path) -> None:
    """Print the tables of `ggss compare`, the warnings of discovery, and where to look."""
    from rich.text import Text

    from ggss.terminal import Terminal

    console = Terminal()
    console.print(Text(f"{result.model}, ggss at alpha {result.alpha:g}", "bold"))
    show_comparison(result.tasks)
    for attribute, steerer in result.steerers.items():
        for text in steerer.warnings:
            console.print(Text("Warning:", "yellow"), f"{attribute}: {text}")
    files = ((str(result.picture), "bold"), " and ", (str(written), "bold"))
    console.print(Text.assemble("Look at ", *files, ". (95 % intervals over identities.)"))


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
    from ggss.smallworld.demo import check as run

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
