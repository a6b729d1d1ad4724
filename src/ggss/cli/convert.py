"""`ggss convert`: between a steerer's folder and the paper's `.pt` checkpoint; from the authors' checkpoints."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ggss import errors
from ggss.cli.arguments import Loading, TrustRemoteCode, say
from ggss.errors import InputError, problems
from ggss.files import check_file, check_folder, never

FIRST_ATTRIBUTE = "race"  # of the authors' checkpoints in a folder without a suffix

if TYPE_CHECKING:
    from ggss.models import Vlm
    from ggss.steering.steerer import Steerer


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT", help="A .pt file, a folder of them, or a steerer's folder.", show_default=False
        ),
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
        typer.Option(help="Where the .pt file steers, projection-mlp2 if it does not say; or the site to write."),
    ] = None,
    kappa: Annotated[
        float | None,
        typer.Option(help="The gate's sharpness, if not the one in the file, or the paper's.", **errors.KAPPA.bounds),
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option(
            help="The gate's floor, if not the paper's 0.3. The authors' own files have an unused 0.",
            **errors.SHARE.bounds,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that the .pt file was made for, which it does not say: its fingerprint is recorded.",
            show_default=False,
        ),
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Convert the paper's .pt checkpoint to a steerer's folder, or a folder to a .pt checkpoint.

    A file becomes a folder, a folder becomes a file. A .pt file is read without running code. It holds the subspace,
    mu and the gate's statistics of one site; kappa, floor, the model and a recommended strength are not in it.
    With --model the steerer is refused by other models; without it every use says that it is unverified.
    Nothing that is there is replaced without --force.

    The checkpoints of the authors' own discovery script are read too, one or a folder of them. Their folder says the
    attribute, they say the site. Those of MeanDiff and BendVLM hold pickled objects and are listed as not converted.

      ggss convert race-steerer -o race.pt

      ggss convert results/qwen3-vl-4b/projection-mlp2_gender -o steerers

    Example: ggss convert race.pt -o race-steerer --attribute race --values asian,black,white --model org/model
    """
    if not source.exists():
        raise InputError(f"{str(source)!r} does not exist: give a .pt file or a steerer's folder")
    given = {"--attribute": attribute, "--values": values, "--kappa": kappa, "--floor": floor, "--model": model}
    if source.is_dir() and (out.suffix == ".pt" or not _of_checkpoints(source)):
        unused = [name for name, value in given.items() if value is not None]
        if unused:
            raise InputError(f"{', '.join(unused)} is for reading a .pt file, and {str(source)!r} is a folder")
        _to_file(source, out, site, force)
        return
    said = _Said(attribute, _named(values), site, _checked_gate(kappa, floor), _loaded(model, trust_remote_code))
    if source.is_dir():
        _to_folders(source, out, said, force)
    else:
        _to_folder(source, out, said, force)


class _Said(NamedTuple):
    """What the options say about a .pt file."""

    attribute: str | None
    values: tuple[str, ...]
    site: str | None
    gate: dict[str, float]
    vlm: "Vlm | None" = None


def _named(values: str | None) -> tuple[str, ...]:
    named = tuple(filter(None, (value.strip() for value in (values or "").split(","))))
    if values is not None and not named:
        raise InputError(f"--values {values!r} names no value: give them as a,b,c")
    return named


def _checked_gate(kappa: float | None, floor: float | None) -> dict[str, float]:
    chosen = {name: number for name, number in (("kappa", kappa), ("floor", floor)) if number is not None}
    if chosen:
        from ggss.methods import registry

        registry.checked_options(registry.get("ggss"), chosen)
    return chosen


def _loaded(model: str | None, trust_remote_code: bool) -> "Vlm | None":
    return None if model is None else Loading(trust_remote_code=trust_remote_code).load(model)


def _of_checkpoints(folder: Path) -> bool:
    """Whether a folder has .pt files and no steerer."""
    from ggss.steering.artefact import holds_steerer

    return any(folder.glob("*.pt")) and not holds_steerer(folder)


def _to_folder(source: Path, out: Path, said: _Said, force: bool) -> None:
    check_folder(out, "ggss convert", never, force)
    steerer = _read(source, said)
    steerer.save_pretrained(out)
    say(f"{_described(steerer)} written to {out}")
    if note := _floor_note(steerer, said):
        say(note)
    _say_model(said)


def _to_folders(source: Path, out: Path, said: _Said, force: bool) -> None:
    """Every checkpoint of a folder that can be read, each into a folder of its name; the others are listed."""
    from ggss.steering.checkpoints import has_gate

    made: dict[str, Steerer] = {}
    left: list[str] = []
    for path in sorted(source.glob("*.pt")):
        try:
            made[path.stem] = _read(path, said if has_gate(path) else said._replace(gate={}))
        except InputError as error:
            left.append(str(error))
    if not made:
        raise problems(f"no file in {str(source)!r} could be converted", left)
    for name in made:
        check_folder(out / name, "ggss convert", never, force)
    for name, steerer in made.items():
        steerer.save_pretrained(out / name)
        say(f"{_described(steerer)} written to {out / name}")
    for note in dict.fromkeys(filter(None, (_floor_note(steerer, said) for steerer in made.values()))):
        say(note)
    _say_model(said)
    if left:
        say(f"Not converted, {len(left)} of {len(made) + len(left)}:")
        for reason in left:
            say(f"  {reason}")


def _read(source: Path, said: _Said) -> "Steerer":
    steerer = _read_plain(source, said)
    if said.vlm is None:
        return steerer
    from ggss.models.sites import in_text

    of_text = any(map(in_text, steerer.operators))
    made = replace(steerer, source=steerer.source | said.vlm.describe(text=of_text))
    made.check(said.vlm)
    return made


def _say_model(said: _Said) -> None:
    if said.vlm is not None:
        say(f"recorded as made for {said.vlm.name}, as --model says: no file can prove that")
    else:
        say("unverified: the file does not say its model, and every use will say so; --model MODEL records it")


def _read_plain(source: Path, said: _Said) -> "Steerer":
    from ggss.activations import SITE
    from ggss.steering.checkpoints import UNNAMED, is_released, read_pt, read_released

    if is_released(source):
        return read_released(source, said.attribute, FIRST_ATTRIBUTE, said.values, said.site, **said.gate)
    steerer = read_pt(source, said.attribute, said.values, said.site or SITE, **said.gate)
    if steerer.attribute == UNNAMED:
        raise InputError(f"{str(source)!r} does not say which attribute it removes: give --attribute, such as race")
    return steerer


def _floor_note(steerer: "Steerer", said: _Said) -> str:
    """What became of the floor of 0 that the authors' files have."""
    if steerer.source.get("stored_floor") != 0:
        return ""
    used = next(iter(steerer.operators.values())).scalars()["floor"]
    chosen = "as --floor says" if "floor" in said.gate else "the paper's; --floor chooses another"
    return f"gate_floor is 0 in the file, which the authors' scripts replace when they steer: here {used:g}, {chosen}"


def _to_file(source: Path, out: Path, site: str | None, force: bool) -> None:
    check_file(out, "ggss convert", never, force)
    from ggss.activations import SITE
    from ggss.steering.checkpoints import write_pt
    from ggss.steering.steerer import Steerer

    steerer = Steerer.from_pretrained(source)
    only = next(iter(steerer.operators)) if len(steerer.operators) == 1 else SITE
    chosen = site or only
    write_pt(steerer, out, chosen)
    say(f"{_described(steerer)} at {chosen} written to {out}")
    lost = _lost(steerer, chosen)
    if lost:
        say(f"Not saved, because a .pt file has no place for it: {', '.join(lost)}")


def _described(steerer: "Steerer") -> str:
    attribute = steerer.attribute if isinstance(steerer.attribute, str) else " x ".join(steerer.attribute)
    return f"{steerer.method} steerer for {attribute}"


def _lost(steerer: "Steerer", site: str) -> list[str]:
    """What the steerer has and a .pt file cannot hold, apart from the paper's kappa and floor."""
    from ggss.methods.spherical import Geodesic

    scalars, usual = steerer.operators[site].scalars(), {"kappa": Geodesic.kappa, "floor": Geodesic.floor}
    found = [f"{name} {scalars[name]:g}" for name in usual if scalars[name] != usual[name]]
    if len(steerer.operators) > 1:
        found.append(f"the other sites ({', '.join(other for other in steerer.operators if other != site)})")
    if steerer.source.get("model"):
        found.append(f"the model {steerer.source['model']}")
    if steerer.recommended_alpha is not None:
        found.append(f"the recommended alpha {steerer.recommended_alpha:g}")
    return found
