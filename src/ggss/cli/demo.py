"""`ggss demo`: discover, steer and measure on the embedded small world."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss import errors
from ggss.cli.arguments import Force, Json, one_thread
from ggss.cli.compare import comparison_data, show_comparison
from ggss.smallworld import DEFAULT

if TYPE_CHECKING:
    from ggss.smallworld.demo import Demo


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
        print(json.dumps(described(result), indent=2))
    else:
        show(result, written)


def described(result: "Demo") -> dict[str, Any]:
    """The results as plain data: those of `ggss compare --json`, and the picture."""
    return (
        {"model": result.model, "alpha": result.alpha}
        | comparison_data(result.tasks)
        | {"picture": str(result.picture)}
    )


def show(result: "Demo", written: Path) -> None:
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
