"""What is handed over of a study or of runs: a page, technical documentation, a bundle of evidence.

`ggss report` writes one HTML page, and a PDF; or technical documentation. `ggss bundle` puts all evidence into one
zip, and `ggss verify` computes everything in it again.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ggss.cli.arguments import Force, Json, Seed, checked_run_file, pairs, say
from ggss.errors import InputError

if TYPE_CHECKING:
    from ggss.report.bundle import Verification
    from ggss.report.material import Material

SHOWN = 40  # differences of a bundle; --json has all

Source = Annotated[
    Path,
    typer.Argument(
        metavar="STUDY_DIR|RUN.jsonl", help="A study's folder, or a file of `ggss probe -o`.", show_default=False
    ),
]
After = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RUN2.jsonl]",
        help="The steered run, to compare with the first.",
        show_default=False,
        callback=checked_run_file,
    ),
]


def report(
    source: Source,
    after: After = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write; report.html by default.", show_default=False),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            metavar="annex-iv",
            help="Instead of the page, technical documentation in Markdown under the headings of the EU AI Act's "
            "Annex IV. No legal advice.",
            show_default=False,
        ),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Leave out pictures and raw answers.")] = False,
    method: Annotated[
        str | None,
        typer.Option(help="Of a study: the method whose answers are shown person by person; ggss by default."),
    ] = None,
    gates: Annotated[
        bool,
        typer.Option(
            "--gates",
            help="Of a study: load its models, fit the method again, and show what discovery found and the gate over "
            "each picture.",
        ),
    ] = False,
    images: Annotated[
        str | None, typer.Option(help="Of runs: the manifest of their pictures; a file of answers has none.")
    ] = None,
    pdf: Annotated[
        bool | None,
        typer.Option(
            "--pdf/--no-pdf", help="Also a PDF beside it; by default if a Chromium is found.", show_default=False
        ),
    ] = None,
    appendix: Annotated[
        bool,
        typer.Option(
            "--appendix", help="The PDF has everything that is behind a click in the page: all people, all tables."
        ),
    ] = False,
    about: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file that says who ran it (`run_by`) and where the pictures come from (`data`: source, "
            "licence, consent, scope), as a plan does.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML page: a cover, then methods, bias, people, capability, discovery and limits.

    It opens without a network, also from a mail. The cover fits one screen and one sheet of paper; the PDF has what
    the page shows before anything is opened. An unfinished study says what is missing. --template annex-iv writes
    annex-iv.md instead: what was measured is filled in, the rest is marked "To be written by you".

    Example: ggss report my-study -o report.html
    """
    from ggss.files import check_file, marked, never

    study = source.is_dir()
    _check(source, after, study, method, gates, images)
    if template is not None:
        from ggss.report import documentation

        documentation.check_template(template)
        if public or gates or images or pdf:
            raise InputError("--public, --gates, --images and --pdf are of the page: leave them out with --template")
        target = out or Path(documentation.TEMPLATES[template])
        check_file(target, "ggss report", never, force)  # somebody may have written into it
        documentation.write(_material(source, after, study, method, gates, images, seed), target, template)
        _say_written([target], "Search for 'To be written by you'; it is no legal advice:", as_json)
        return
    out = out or Path("report.html")
    if appendix and pdf is False:
        raise InputError("--appendix is a part of the PDF, and --no-pdf asks for none: leave one of them out")
    check_file(out, "ggss report", marked("ggss report"), force)
    printed = out.with_suffix(".pdf")
    if pdf is not False:
        check_file(printed, "ggss report", lambda _: marked("ggss report")(out), force)
    from ggss.report import page

    needs_pdf = pdf is True or appendix
    with_pdf = needs_pdf or (pdf is None and page.browser() is not None)
    if needs_pdf and page.browser() is None:
        needed = ", ".join(page.BROWSERS)
        raise InputError(f"a PDF needs a Chromium: install one of {needed}; none is on the path")
    material = _material(source, after, study, method, gates, images, seed)
    if about is not None:
        from ggss.study.plan import About

        material = replace(material, about=About.read_about(about))
    page.write(material, out, public)
    failed = page.print_pdf(out, printed, material if appendix else None, public) if with_pdf else ""
    if failed and needs_pdf:
        raise InputError(f"the page is in {str(out)!r}, but there is no PDF: {failed}")
    _say_written([out, *([printed] if with_pdf and not failed else [])], "Open", as_json)


def _say_written(files: list[Path], words: str, as_json: bool) -> None:
    """Print the files, and the size of the first."""
    size = files[0].stat().st_size
    if as_json:
        print(json.dumps({"files": [str(file) for file in files], "bytes": size}))
        return
    say(f"{words} {' or '.join(map(str, files))} ({size / 1e6:.1f} MB).")


def _check(
    source: Path, after: Path | None, study: bool, method: str | None, gates: bool, images: str | None
) -> None:
    """InputError for arguments that do not belong together."""
    if study and (after or images):
        raise InputError(
            f"{str(source)!r} is a study, which has all its runs and pictures: give nothing but its folder"
        )
    if not study and (method or gates):
        raise InputError(f"--method and --gates are of a study, and {str(source)!r} is no folder of one")


def _material(
    source: Path, after: Path | None, study: bool, method: str | None, gates: bool, images: str | None, seed: int
) -> "Material":
    from ggss.analysis.run import Statistics
    from ggss.report import material

    if study:
        data = material.of_study(source, method or "")
        return material.with_discovery(data) if gates else data
    data = material.of_files(source, after, Statistics(seed=seed))
    if images is None:
        return data
    from ggss.data.counterfactuals import Counterfactuals

    return material.with_pictures(data, Counterfactuals.load(images))


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
        print(json.dumps(_verification_data(verification), indent=2))
    else:
        _show_verification(file, verification)
    if not verification.equal:
        raise typer.Exit(1)


def _verification_data(verification: "Verification") -> dict[str, object]:
    data = {name: value for name, value in vars(verification).items() if name not in ("manifest", "differences")}
    differences = [vars(difference) for difference in verification.differences]
    return (
        {"equal": verification.equal} | data | {"command": verification.manifest.command, "differences": differences}
    )


def _show_verification(file: Path, verification: "Verification") -> None:
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
