"""`ggss doctor`: can this model be steered, and does image information bypass the site?"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ggss.cli.arguments import Attention, DeviceMap, Dtype, Json, TrustRemoteCode, load
from ggss.errors import InputError

if TYPE_CHECKING:
    from ggss.steering.examination import Examination


def doctor(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a hub id, or small-world/NAME.", show_default=False)
    ] = None,
    env: Annotated[
        bool,
        typer.Option("--env", help="Show versions, devices, folders and environment variables; no MODEL needed."),
    ] = False,
    sites: Annotated[
        str, typer.Option(help="More sites for the leak test, comma separated: lm-layer1, vision-block0, ...")
    ] = "",
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    trust_remote_code: TrustRemoteCode = False,
    attention: Attention = None,
    as_json: Json = False,
) -> None:
    """Examine a model: family, sites, rows per image, calls per generate, identity at alpha 0, and the leak test.

    The leak test silences the site (its output is set to zero) and measures how much two different images still
    change the model's next-token logits: information that bypasses the site cannot be steered there. Exit code 1 if a
    check fails.

    Example: ggss doctor small-world/qwen3-vl
    """
    if env:
        from ggss.cli.doctor_env import show_environment

        if model is not None:
            raise InputError(f"--env is about this machine, not about a model: leave out {model!r}")
        show_environment(as_json)
        return
    if model is None:
        raise InputError("a model is needed, such as small-world/qwen3-vl, or --env")
    from ggss.terminal import Terminal

    vlm = load(model, dtype, device_map, trust_remote_code, attention)

    from ggss.steering.examination import examine

    with Terminal(stderr=True).status(f"examining {vlm.name}"):
        more = [site.strip() for site in sites.split(",")]
        report = examine(vlm, [site for site in more if site not in ("", "all")])  # all sites are examined anyway
    if as_json:
        print(json.dumps(asdict(report) | {"healthy": report.healthy}, indent=2))
    else:
        show(report)
    if not report.healthy:
        raise typer.Exit(1)


def show(report: "Examination") -> None:
    from rich.table import Table
    from rich.text import Text

    from ggss.terminal import Terminal

    console = Terminal()
    about = f": {report.model_class}, family {report.family}, {report.dtype}"
    console.print(Text.assemble((report.model, "bold"), about))
    table = Table("site", "module", "width", "rows of one image", box=None)
    for site, facts in report.sites.items():
        table.add_row(site, facts["path"], str(facts["width"]), str(facts["rows"]))
    console.print(table)
    for what, passed, seen in report.checks:
        console.print(Text("ok  ", "green") if passed else Text("FAIL", "red"), f"{what}: {seen}")
    leak = Table("leak test", "logits move by", "share", box=None)
    leak.add_row("nothing silenced", f"{report.moved:.3g}", "100 %")
    for name, moved in report.leaks.items():
        leak.add_row(f"{name} silenced", f"{moved:.3g}", f"{moved / report.moved:.2%}" if report.moved else "-")
    console.print(leak)
    for text in report.advice:
        console.print(Text("Note:", "yellow"), text)
