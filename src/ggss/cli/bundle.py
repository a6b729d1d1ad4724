"""`ggss bundle` and `ggss verify`: evidence in one zip, and everything in it computed again."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ggss.cli.arguments import Force, Json, Seed, pairs, say
from ggss.cli.report import After, Source
from ggss.errors import InputError

if TYPE_CHECKING:
    from ggss.report.bundle import Verification

SHOWN = 40  # differences; --json has all


def bundle(
    source: Source,
    after: After = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The zip to write.")] = Path("evidence.zip"),
    pictures: Annotated[
        bool, typer.Option("--pictures", help="Of a study: also a report with thumbnails of the pictures.")
    ] = False,
    steerer: Annotated[
        list[Path] | None,
        typer.Option(help="A steerer's folder, whose card is put in; may be repeated.", show_default=False),
    ] = None,
    licence: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TEXT", help="A licence that ggss cannot know; may be repeated.", show_default=False
        ),
    ] = None,
    about: Annotated[
        Path | None,
        typer.Option(
            help="Of runs: a YAML file that says who ran them (`run_by`) and where the pictures come from (`data`: "
            "source, licence, consent, scope). A study's plan says it.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Put the evidence of a study, or of one or two runs, into one zip: what `ggss verify` needs to compute it again.

    It has the plan, every answer, every table, the report, technical documentation, versions, licences that are known
    and the sha256 of each file. Answers and labels of people are in it, pictures are not. The same study gives the
    same zip. --seed is for runs; a study's plan has its own.

    Example: ggss bundle my-study -o evidence.zip
    """
    from ggss.files import check_file
    from ggss.report import bundle as bundles
    from ggss.study.plan import About

    licences = pairs(licence or [], "--licence")
    study = source.is_dir()
    if study and after:
        raise InputError(f"{str(source)!r} is a study, which has all its runs: give nothing but its folder")
    if study and (seed or about):
        raise InputError("--seed and --about are for runs: the plan of a study has statistics.seed, run_by and data")
    if pictures and not study:
        raise InputError("--pictures is of a study: a file of answers has none; `ggss report --images` shows them")
    check_file(out, bundles.COMMAND, bundles.holds_bundle, force)
    if study:
        evidence = bundles.of_study(source, pictures, steerer or (), licences)
    else:
        said = None if about is None else About.read_about(about)
        evidence = bundles.of_files(source, after, seed, steerer or (), licences, said)
    manifest = bundles.write(evidence, out)
    size, files = out.stat().st_size, len(manifest.files)
    if as_json:
        print(json.dumps({"file": str(out), "bytes": size, "manifest": manifest.model_dump()}, indent=2))
        return
    say(f"{out} has {files:,} files and the sha256 of each ({size / 1e6:.1f} MB). `ggss verify {out}` checks it.")
    unknown = [name for name, words in manifest.licences.items() if words == bundles.NOT_RECORDED]
    if unknown:
        say(f"Licences that are not known: {'; '.join(unknown)}. --licence '{unknown[0]}=...' puts one in.")


def verify(
    file: Annotated[Path, typer.Argument(metavar="EVIDENCE.zip", help="A zip of `ggss bundle`.", show_default=False)],
    plugins: Annotated[
        bool, typer.Option("--plugins", help="Import the plug-ins that its plan names. This runs their code.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a bundle: every hash, then every number, computed again from the answers in it.

    Exit code 0 if all is equal, 1 if something differs, which is named with both values, 2 if it is no bundle. No
    model and no picture is needed, nothing is unpacked, and no code in it is run.

    Example: ggss verify evidence.zip
    """
    from ggss.report.bundle import verify as check
    from ggss.terminal import Terminal

    with Terminal(stderr=True).status("computing every number again"):
        verification = check(file, plugins)
    if as_json:
        print(json.dumps(_data(verification), indent=2))
    else:
        _show(file, verification)
    if not verification.equal:
        raise typer.Exit(1)


def _data(verification: "Verification") -> dict[str, object]:
    data = {name: value for name, value in vars(verification).items() if name not in ("manifest", "differences")}
    differences = [vars(difference) for difference in verification.differences]
    return (
        {"equal": verification.equal} | data | {"command": verification.manifest.command, "differences": differences}
    )


def _show(file: Path, verification: "Verification") -> None:
    manifest, differences = verification.manifest, verification.differences
    say(f"{file}: sha256 of its manifest {verification.manifest_sha256}")
    versions = ", ".join(f"{name} {number}" for name, number in manifest.versions.items())
    say(f"made by `{manifest.command}` with {versions}")
    for name, (then, now) in verification.versions.items():
        say(f"Other version: {name} {then} then, {now} now. Last digits may differ.")
    for difference in differences[:SHOWN]:
        say(f"DIFFERS  {difference.words}")
    if len(differences) > SHOWN:
        say(f"... and {len(differences) - SHOWN:,} more: --json lists all")
    for name, why in verification.unchecked.items():
        say(f"Only its hash was checked: {name} ({why})")
    count = f"{verification.files:,} files and {verification.answers:,} answers were read"
    if not differences:
        say(f"All equal: {count}, {len(verification.computed):,} files were computed again.")
        return
    last = sum(difference.what == "last digit" for difference in differences)
    only = f", {last:,} of them only in the last printed digit" if last else ""
    again = (
        f"{len(verification.computed):,} files were computed again"
        if verification.computed
        else "nothing was computed"
    )
    say(f"{len(differences):,} differences{only}: {count}, {again}.")
