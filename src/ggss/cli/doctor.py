"""`ggss doctor`: can this model be steered, and does image information bypass the site?"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from ggss.cli.arguments import DeviceMap, Dtype, Json, Model, load

if TYPE_CHECKING:
    from ggss.steering.examination import Examination


def doctor(model: Model, dtype: Dtype = None, device_map: DeviceMap = None, as_json: Json = False) -> None:
    """Examine a model: family, sites, rows per image, calls per generate, identity at alpha 0, and the leak test.

    The leak test silences the site (its output is set to zero) and measures how much two different images still
    change the model's next-token logits: information that bypasses the site cannot be steered there.
    """
    from rich.console import Console

    from ggss.steering.examination import examine

    vlm = load(model, dtype, device_map)
    with Console(stderr=True).status(f"examining {vlm.name}"):
        report = examine(vlm)
    if as_json:
        print(json.dumps(asdict(report) | {"healthy": report.healthy}, indent=2))
    else:
        show(report)


def show(report: "Examination") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"[bold]{report.model}[/bold]: {report.model_class}, family {report.family}, {report.dtype}")
    table = Table("site", "module", "width", "rows of one image", box=None)
    for site, facts in report.sites.items():
        table.add_row(site, facts["path"], str(facts["width"]), str(facts["rows"]))
    console.print(table)
    for what, passed, seen in report.checks:
        console.print(f"{'[green]ok[/green]  ' if passed else '[red]FAIL[/red]'} {what}: {seen}")
    leak = Table("leak test", "logits move by", "share", box=None)
    leak.add_row("nothing silenced", f"{report.moved:.3g}", "100 %")
    for name, moved in report.leaks.items():
        leak.add_row(f"{name} silenced", f"{moved:.3g}", f"{moved / report.moved:.2%}" if report.moved else "-")
    console.print(leak)
    for text in report.advice:
        console.print(f"[yellow]Note:[/yellow] {text}")
