"""`ggss demo`: the whole job on the embedded small world."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss.cli.arguments import Json, one_thread
from ggss.smallworld import DEFAULT

if TYPE_CHECKING:
    from ggss.smallworld.demonstration import Demo


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write to.")] = Path("demo-out"),
    model: Annotated[str, typer.Option(help="A small-world model.")] = DEFAULT,
    alpha: Annotated[float, typer.Option(help="Strength of steering.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Paint a town, find what carries race and gender, steer, and measure before and after.

    Needs no GPU and no download. Ends with a table, and a picture next to a one-page HTML report.
    """
    from ggss.smallworld.demo_page import page
    from ggss.smallworld.demonstration import run

    one_thread()
    found = run(out, model, alpha)
    written = page(found, out / "index.html")
    if as_json:
        print(json.dumps(described(found), indent=2))
    else:
        show(found, written)


def described(found: "Demo") -> dict[str, Any]:
    spans = ("estimate", "low", "high")
    return {
        "model": found.model,
        "alpha": found.alpha,
        "bias": {
            row.name: {
                key: {s: getattr(getattr(row, key), s) * (1 if key == "change" else row.scale) for s in spans}
                for key in ("before", "after", "change")
            }
            for row in found.bias
        },
        "capability": {
            name: {"accuracy": span.estimate, "low": span.low, "high": span.high, "change": change.difference}
            for name, (span, change) in found.capability.items()
        },
        "recognition": found.recognition,
        "picture": str(found.picture),
    }


def show(found: "Demo", written: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("bias", "unsteered", "steered", "change", title=f"{found.model}, ggss at alpha {found.alpha:g}")
    for row in found.bias:
        table.add_row(*row.cells())
    console.print(table)
    table = Table("SmallStar", "accuracy", "change in points", "within 1.5 points")
    for name, (span, same) in found.capability.items():
        steered = name != "unsteered"
        table.add_row(
            f"{name} steering" if steered else name,
            f"{span.estimate:.1%} [{span.low:.1%}, {span.high:.1%}]",
            f"{100 * same.difference:+.1f} [{100 * same.low:+.1f}, {100 * same.high:+.1f}]" if steered else "",
            (f"yes, p = {same.p:.2g}" if same.equivalent else f"not shown, p = {same.p:.2g}") if steered else "",
        )
    console.print(table)
    for attribute, steerer in found.steerers.items():
        for text in steerer.warnings:
            console.print(f"[yellow]Warning:[/yellow] {attribute}: {text}")
    console.print(
        f"Look at [bold]{found.picture}[/bold] and [bold]{written}[/bold]. (95 % intervals over identities.)"
    )
