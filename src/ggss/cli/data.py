"""`ggss data`: make a manifest, which all commands read, from a published set of pictures as it was downloaded."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ggss.cli.arguments import Force
from ggss.errors import InputError, no_such
from ggss.files import check_file, check_folder, never

if TYPE_CHECKING:
    from ggss.data.layouts import Labels, Layout, SetContents

data = typer.Typer(no_args_is_help=True, help="Make a manifest of a published set of pictures, and check the set.")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder that holds the set.", show_default=False)]
Manifest = Annotated[Path, typer.Option("--out", "-o", help="The manifest to write, a .csv file.")]
CompleteOnly = Annotated[
    bool, typer.Option(help="Leave out people of whom a picture is missing, damaged or of another size.")
]


@data.command()
def focus(folder: Folder, out: Manifest, complete_only: CompleteOnly = False, force: Force = False) -> None:
    """REFLECT/FOCUS: {occupation}/{identity}/{Race}_{gender}.jpg, 480 pictures.

    Example: ggss data focus FOCUS -o faces.csv
    """
    from ggss.data.layouts import FOCUS

    _write(FOCUS, folder, out, complete_only, force)


@data.command()
def pairs(folder: Folder, out: Manifest, complete_only: CompleteOnly = False, force: Force = False) -> None:
    """PAIRS: {section}/{scenario}/{race}_{gender}.png, 200 pictures; the section becomes the occupation.

    Example: ggss data pairs PAIRS/data -o pairs.csv
    """
    from ggss.data.layouts import PAIRS

    _write(PAIRS, folder, out, complete_only, force)


@data.command("social-counterfactuals")
def social_counterfactuals(
    folder: Folder,
    out: Manifest,
    kind: Annotated[str, typer.Option(help="race_gender, physical_gender or physical_race.")] = "race_gender",
    complete_only: CompleteOnly = False,
    force: Force = False,
) -> None:
    """SocialCounterfactuals: the folder `images` that its authors' process_data.py writes, one of the three kinds.

    Example: ggss data social-counterfactuals SocialCounterfactuals/images -o faces.csv
    """
    from ggss.data.layouts import SOCIAL_COUNTERFACTUALS

    if kind not in SOCIAL_COUNTERFACTUALS:
        raise no_such(f"there is no kind {kind!r}", kind, SOCIAL_COUNTERFACTUALS)
    _write(SOCIAL_COUNTERFACTUALS[kind], folder, out, complete_only, force)


@data.command("genderbias-vl")
def genderbias_vl(folder: Folder, out: Manifest, complete_only: CompleteOnly = False, force: Force = False) -> None:
    """GenderBias-VL: a picture of xl_generate_base and its counterfactual version, two pictures of each person.

    Example: ggss data genderbias-vl GenderBias-VL -o faces.csv
    """
    from ggss.data.layouts import GENDER_BIAS_VL

    _write(GENDER_BIAS_VL, folder, out, complete_only, force)


@data.command()
def fairface(folder: Folder, out: Manifest, complete_only: CompleteOnly = False, force: Force = False) -> None:
    """FairFace: age group, gender and race from its tables, one picture of each person: ggss discover --unpaired.

    Example: ggss data fairface FairFace -o people.csv
    """
    from ggss.data.layouts import FAIRFACE

    _write_labels(FAIRFACE, folder, out, complete_only, force)


@data.command()
def utkface(folder: Folder, out: Manifest, complete_only: CompleteOnly = False, force: Force = False) -> None:
    """UTKFace: age, gender and race from file names, one picture of each person: ggss discover --unpaired.

    Example: ggss data utkface UTKFace -o people.csv
    """
    from ggss.data.layouts import UTKFACE

    _write_labels(UTKFACE, folder, out, complete_only, force)


@data.command()
def facet(
    folder: Folder,
    out: Manifest,
    crops: Annotated[Path, typer.Option(help="The folder to write a picture of each person to.")],
    complete_only: CompleteOnly = False,
    force: Force = False,
) -> None:
    """FACET: perceived gender, age, skin tone and occupation from annotations.csv: ggss discover --unpaired.

    A picture may show several people, so each is cut out.

    Example: ggss data facet FACET --crops people -o people.csv
    """
    from ggss.data.layouts import FACET

    _write_labels(FACET, folder, out, complete_only, force, crops)


@data.command()
def wording(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Your clone of the authors' code.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The wording to write, a .yaml file.")],
    force: Force = False,
) -> None:
    """The prompts of the authors' released code, for `wording:` in a plan and `ggss probe --wording`.

    Its files are parsed, and nothing in them is executed. What the published numbers need of them must be there.

    Example: ggss data wording GGSS -o wording.yaml
    """
    import yaml

    from ggss.files import write_whole
    from ggss.probes.wording import released

    if out.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(f"{str(out)!r} is no .yaml file: a wording is one, such as wording.yaml")
    check_file(out, "ggss data", never, force)
    said = released(folder)
    text = yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=100)
    write_whole(out, ("# From a clone of the authors' code, by `ggss data wording`.\n" + text).encode())
    asked = [f"{probe}: {', '.join(own['questions'])}" for probe, own in said.items() if "questions" in own]
    print(f"the questions of {'; '.join(asked)}: {out}")


def _write(layout: "Layout", folder: Path, out: Path, complete_only: bool, force: bool) -> None:
    from ggss.data.layouts import complete, placed, read_layout
    from ggss.data.manifests import write_manifest

    _check_manifest(out, force)
    pictures = read_layout(layout, folder)
    rows = complete(pictures, layout, complete_only)
    write_manifest(placed(rows, out), out)
    _say_left_out(layout, pictures)
    people = len(rows) // math.prod(map(len, layout.values.values()))
    values = ", ".join(f"{column} ({', '.join(values)})" for column, values in layout.values.items())
    print(f"{len(rows)} pictures of {people} people, varied in {values}: {out}")


def _write_labels(
    labels: "Labels", folder: Path, out: Path, complete_only: bool, force: bool, crops: Path | None = None
) -> None:
    from ggss.data.layouts import complete, cut_out, placed, read_labels
    from ggss.data.manifests import write_manifest

    _check_manifest(out, force)
    if crops is not None:
        check_folder(crops, "ggss data", never, force)
    pictures = read_labels(labels, folder)
    rows = complete(pictures, labels, complete_only)
    rows = rows if crops is None else cut_out(rows, crops)
    write_manifest(placed(rows, out), out)
    _say_left_out(labels, pictures)
    values = {column: len({row[column] for row in rows}) for column in rows[0] if column != "path"}
    counts = ", ".join(f"{column} ({count} values)" for column, count in values.items())
    print(f"{len(rows)} pictures, one of each person, with {counts}: {out}")


def _check_manifest(out: Path, force: bool) -> None:
    if out.suffix.lower() != ".csv":
        raise InputError(f"{str(out)!r} is no .csv file: a manifest is one, such as faces.csv")
    check_file(out, "ggss data", never, force)


def _say_left_out(layout: "Layout | Labels", pictures: "SetContents") -> None:
    from ggss.terminal import Terminal

    console = Terminal(stderr=True)
    for flaw in pictures.flaws:
        console.print(f"left out: {flaw}")
    if pictures.others:
        console.print(
            f"not of {layout.title}, by their names: {len(pictures.others)} images, such as {pictures.others[0]}"
        )
