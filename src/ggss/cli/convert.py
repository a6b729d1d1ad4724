"""`ggss convert`: between a steerer's folder and the paper's `.pt` checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ggss.errors import InputError

if TYPE_CHECKING:
    from ggss.steering.steerer import Steerer


def convert(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="A .pt file, or a steerer's folder.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder, or the .pt file, to write.")],
    attribute: Annotated[
        str | None,
        typer.Option(
            help="What the .pt file removes, such as race, if the file does not say it.", show_default=False
        ),
    ] = None,
    values: Annotated[
        str | None, typer.Option(help="The values of the attribute, comma separated.", show_default=False)
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(help="Where the .pt file steers, projection-mlp2 by default; or the site to write to it."),
    ] = None,
    kappa: Annotated[
        float | None, typer.Option(help="The gate's sharpness, which is not in a .pt file; the paper's by default.")
    ] = None,
    floor: Annotated[
        float | None, typer.Option(help="The gate's floor, which is not in a .pt file; the paper's by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a steerer or a checkpoint that is there.")] = False,
) -> None:
    """Convert the paper's .pt checkpoint to a steerer's folder, or a folder to a .pt checkpoint.

    A file becomes a folder, a folder becomes a file. A .pt file is read without running code. It holds the subspace,
    mu and the gate's statistics of one site; kappa, floor, the model and a recommended strength are not in it.

      ggss convert race.pt -o race-steerer --attribute race --values asian,black,white

      ggss convert race-steerer -o race.pt
    """
    if not source.exists():
        raise InputError(f"{str(source)!r} does not exist: give a .pt file or a steerer's folder")
    if source.is_dir():
        given = {"--attribute": attribute, "--values": values, "--kappa": kappa, "--floor": floor}
        unused = [name for name, value in given.items() if value is not None]
        if unused:
            raise InputError(f"{', '.join(unused)} is for reading a .pt file, and {str(source)!r} is a folder")
        _to_file(source, out, site, force)
    else:
        _to_folder(source, out, attribute, values, site, {"kappa": kappa, "floor": floor}, force)


def _to_folder(
    source: Path,
    out: Path,
    attribute: str | None,
    values: str | None,
    site: str | None,
    gate: dict[str, float | None],
    force: bool,
) -> None:
    _refuse_folder(out, force)
    from ggss.activations import SITE
    from ggss.methods import registry
    from ggss.steering.published import UNNAMED, read_pt

    chosen = {name: number for name, number in gate.items() if number is not None}
    registry.checked_options(registry.get("ggss"), chosen)
    named = tuple(filter(None, (value.strip() for value in (values or "").split(","))))
    if values is not None and not named:
        raise InputError(f"--values {values!r} names no value: give them as a,b,c")
    steerer = read_pt(source, attribute, named, site or SITE, **chosen)
    if steerer.attribute == UNNAMED:
        raise InputError(f"{str(source)!r} does not say which attribute it removes: give --attribute, such as race")
    steerer.save_pretrained(out)
    print(f"{_described(steerer)} written to {out}")


def _to_file(source: Path, out: Path, site: str | None, force: bool) -> None:
    _refuse_file(out, force)
    from ggss.activations import SITE
    from ggss.steering.published import write_pt
    from ggss.steering.steerer import Steerer

    steerer = Steerer.from_pretrained(source)
    only = next(iter(steerer.operators)) if len(steerer.operators) == 1 else SITE
    chosen = site or only
    write_pt(steerer, out, chosen)
    print(f"{_described(steerer)} at {chosen} written to {out}")
    lost = _lost(steerer, chosen)
    if lost:
        print(f"Not saved, because a .pt file has no place for it: {', '.join(lost)}")


def _refuse_folder(out: Path, force: bool) -> None:
    """A folder to write to: new, empty or, with --force, a steerer's."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{str(out)!r} is a file, and a steerer is a folder: give a new folder")
    if not out.exists() or not any(out.iterdir()):
        return
    from ggss.steering.artefact import holds_steerer

    if not holds_steerer(out):
        raise InputError(f"{str(out)!r} exists and holds no steerer: give a new folder")
    if not force:
        raise InputError(f"{str(out)!r} holds a steerer: give a new folder, or --force to replace it")


def _refuse_file(out: Path, force: bool) -> None:
    """A file to write to: new or, with --force, a checkpoint in the paper's layout."""
    if out.is_dir():
        raise InputError(f"{str(out)!r} is a folder: name a file, such as {str(out / 'race.pt')!r}")
    if not out.exists():
        return
    if not force:
        raise InputError(f"{str(out)!r} exists: give a new file, or --force to replace it")
    from ggss.steering.published import read_pt

    try:
        read_pt(out)
    except InputError as error:
        raise InputError(f"{str(out)!r} is not a checkpoint of the paper's layout: give a new file") from error


def _described(steerer: "Steerer") -> str:
    attribute = steerer.attribute if isinstance(steerer.attribute, str) else " x ".join(steerer.attribute)
    return f"{steerer.method} steerer for {attribute}"


def _lost(steerer: "Steerer", site: str) -> list[str]:
    """What the steerer has and a .pt file cannot hold, apart from the paper's kappa and floor."""
    from ggss.methods.geodesic import Geodesic

    scalars, usual = steerer.operators[site].scalars(), {"kappa": Geodesic.kappa, "floor": Geodesic.floor}
    found = [f"{name} {scalars[name]:g}" for name in usual if scalars[name] != usual[name]]
    if len(steerer.operators) > 1:
        found.append(f"the other sites ({', '.join(other for other in steerer.operators if other != site)})")
    if steerer.source.get("model"):
        found.append(f"the model {steerer.source['model']}")
    if steerer.recommended_alpha is not None:
        found.append(f"the recommended alpha {steerer.recommended_alpha:g}")
    return found
