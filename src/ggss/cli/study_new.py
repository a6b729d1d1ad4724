"""`ggss study new`: a plan to begin with, from those that come with ggss."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ggss.cli.arguments import Force, Json, say
from ggss.errors import InputError, no_such

PLANS = Path(__file__).parent / "plans"


def new(
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="PLAN", help="What to copy; without it all are listed.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write; PLAN.yaml by default.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """List the plans that come with ggss, or copy one, to change and run it.

    Example: ggss study new --from small-world -o my-study.yaml
    """
    if source is None:
        if out is not None:
            raise InputError(f"which plan should become {str(out)!r}? Choose --from {', '.join(plans())}")
        _list(as_json)
        return
    if source not in plans():
        raise no_such(f"there is no plan {source!r}", source, plans())
    from ggss.files import write_whole
    from ggss.output import check_file, never

    target = out or Path(f"{source}.yaml")
    check_file(target, "ggss study new", never, force)
    write_whole(target, plans()[source].read_bytes())
    if as_json:
        print(json.dumps({"plan": source, "file": str(target)}))
    else:
        say(f"{target} is a copy of the plan {source}. Look at it with `ggss study plan {target}`")


def plans() -> dict[str, Path]:
    """The files of the plans that come with ggss, by name."""
    return {file.stem: file for file in sorted(PLANS.glob("*.yaml"))}


def _list(as_json: bool) -> None:
    from rich.table import Table

    from ggss.terminal import Terminal
    from ggss.yaml_files import read_yaml

    contents = {name: read_yaml(file, "the plan") for name, file in plans().items()}
    if as_json:
        print(
            json.dumps(
                [{"name": name, "description": one["description"]} for name, one in contents.items()], indent=2
            )
        )
        return
    table = Table("plan", "what it does", "models", box=None)
    for name, content in contents.items():
        table.add_row(name, content["description"], ", ".join(map(_named, content["models"])))
    Terminal().print(table)


def _named(model: Any) -> str:
    return model["name"] if isinstance(model, dict) else model
