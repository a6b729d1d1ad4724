"""`ggss demo`: discover, steer and measure on the embedded small world."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss import errors
from ggss.cli.arguments import Force, Json, one_thread
from ggss.smallworld import DEFAULT

if TYPE_CHECKING:
    from ggss.smallworld.demo import Demo
    from ggss.stats import Interval


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
    return {
        "model": result.model,
        "alpha": result.alpha,
        "bias": {
            row.comparison.task: {
                "name": row.name,
                "meaning": row.meaning,
                "published": dict(
                    zip(("before", "after"), (row.scale * value for value in row.published), strict=True)
                ),
                "before": span(row.before, row.scale),
                "after": span(row.after, row.scale),
                "change": row.change and span(row.change),
            }
            for row in result.bias
        },
        "capability": {
            "unsteered": span(result.unsteered),
            **{
                attribute: span(accuracy.after) | {"change": accuracy.same.difference}
                for attribute, accuracy in result.capability.items()
            },
        },
        "recognition": result.recognition,
        "picture": str(result.picture),
    }


def span(interval: "Interval", scale: float = 1.0) -> dict[str, float]:
    return {bound: scale * getattr(interval, bound) for bound in ("estimate", "low", "high")}


def show(result: "Demo", written: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    from ggss.terminal import Terminal

    console = Terminal()
    table = Table(
        "bias",
        "unsteered",
        "steered",
        "change",
        "bias-corrected",
        title=f"{result.model}, ggss at alpha {result.alpha:g}",
    )
    for row in result.bias:
        table.add_row(*row.cells())
    console.print(table)
    table = Table("SmallStar", "accuracy", "change in points", "within 1.5 points")
    table.add_row("unsteered", _shares(result.unsteered), "", "")
    for attribute, accuracy in result.capability.items():
        same = accuracy.same
        table.add_row(
            f"{attribute} steering",
            _shares(accuracy.after),
            f"{100 * same.difference:+.1f} [{100 * same.low:+.1f}, {100 * same.high:+.1f}]",
            f"{'yes' if same.equivalent else 'not shown'}, p = {same.p:.2g}",
        )
    console.print(table)
    for attribute, steerer in result.steerers.items():
        for text in steerer.warnings:
            console.print(Text("Warning:", "yellow"), f"{attribute}: {text}")
    files = ((str(result.picture), "bold"), " and ", (str(written), "bold"))
    console.print(Text.assemble("Look at ", *files, ". (95 % intervals over identities.)"))


def _shares(of: "Interval") -> str:
    return f"{of.estimate:.1%} [{of.low:.1%}, {of.high:.1%}]"
