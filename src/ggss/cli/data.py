"""`ggss data`: fetch public data, and make a manifest, which all commands read, of a published set of pictures."""

import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss.cli.arguments import Force
from ggss.errors import InputError, no_such
from ggss.files import check_file, check_folder, never

if TYPE_CHECKING:
    from ggss.data.hub import HubData
    from ggss.data.layouts import Labels, Layout, SetContents
    from ggss.probes import Item

data = typer.Typer(
    no_args_is_help=True, help="Fetch public data, check it, and make a manifest of a published set of pictures."
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder that holds the set.", show_default=False)]
Manifest = Annotated[Path, typer.Option("--out", "-o", help="The manifest to write, a .csv file.")]
CompleteOnly = Annotated[
    bool, typer.Option(help="Leave out people of whom a picture is missing, damaged or of another size.")
]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch it from the Hugging Face hub; size and licence are shown first.")
]
Place = Annotated[
    Path | None, typer.Option("--to", metavar="DIR", help="The folder of benchmarks; GGSS_DATA by default.")
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
    download: Download = False,
    force: Force = False,
) -> None:
    """SocialCounterfactuals: the hub's parquet files, or the folder `images` of its authors' process_data.py.

    Pictures of parquet files are written into a folder beside the manifest. The hub has many gigabytes of them:
    --download shows how many first. Parquet needs the extra `parquet`.

    Example: ggss data social-counterfactuals SocialCounterfactuals -o faces.csv --download
    """
    from ggss.data import hub, layouts

    if kind not in layouts.SOCIAL_COUNTERFACTUALS:
        raise no_such(f"there is no kind {kind!r}", kind, layouts.SOCIAL_COUNTERFACTUALS)
    check_manifest(out, force)
    if download:
        fetch(hub.SOCIAL_COUNTERFACTUALS, folder)
    layout, pictures = layouts.SOCIAL_COUNTERFACTUALS[kind], folder
    if files := layouts.parquet_files(folder):
        pictures = out.with_suffix("")
        if pictures.exists() and any(pictures.iterdir()) and not force:
            raise InputError(
                f"the pictures go into {str(pictures)!r}, which is not empty: give another -o, or --force"
            )
        layout = layouts.extract(files, kind, pictures)
    _write(layout, pictures, out, complete_only, force)


@data.command()
def mmstar(download: Download = False, to: Place = None) -> None:
    """MMStar: fetch it with --download, or check the copy that is there.

    Example: ggss data mmstar --download --to data
    """
    from ggss.data.hub import MMSTAR
    from ggss.probes.benchmarks import load_mmstar

    _benchmark(MMSTAR, load_mmstar, download, to)


@data.command()
def mme(download: Download = False, to: Place = None) -> None:
    """MME: fetch lmms-eval's copy of it with --download, or check the copy that is there. Its files are parquet.

    Example: ggss data mme --download --to data
    """
    from ggss.data.hub import MME
    from ggss.probes.benchmarks import load_mme

    _benchmark(MME, load_mme, download, to)


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

    check_manifest(out, force)
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

    check_manifest(out, force)
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


def _say_left_out(layout: "Layout | Labels", pictures: "SetContents") -> None:
    from ggss.terminal import Terminal

    console = Terminal(stderr=True)
    for flaw in pictures.flaws:
        console.print(f"left out: {flaw}")
    if pictures.others:
        console.print(
            f"not of {layout.title}, by their names: {len(pictures.others)} images, such as {pictures.others[0]}"
        )


def check_manifest(out: Path, force: bool) -> None:
    """InputError if no manifest can be written there."""
    if out.suffix.lower() != ".csv":
        raise InputError(f"{str(out)!r} is no .csv file: a manifest is one, such as faces.csv")
    check_file(out, "ggss data", never, force)


def _benchmark(
    data: "HubData", load: "Callable[[Path | None], Sequence[Item]]", download: bool, to: Path | None
) -> None:
    """Fetch a benchmark if that is asked for, and say what is there."""
    place = to or (Path(os.environ["GGSS_DATA"]) if os.environ.get("GGSS_DATA") else None)
    if place is None:
        raise InputError(f"where is {data.title}, or where should it be? Give --to DIR, or set GGSS_DATA")
    if download:
        fetch(data, place.expanduser() / data.folder)
    items = load(place)
    revision = next((item.context["revision"] for item in items if "revision" in item.context), "")
    origin = f", {revision}" if revision else ", not downloaded by ggss"
    print(f"{data.title}: {len(items):,} questions about {len({i.cluster for i in items}):,} pictures{origin}")
    if os.environ.get("GGSS_DATA") != str(place):
        print(f"`export GGSS_DATA={shlex.quote(str(place))}` lets every command find it")


def fetch(data: "HubData", folder: Path, hub: Any = None) -> None:
    """Show what a download brings, ask if a person can be asked, and download. hub: as in `ggss.data.hub`."""
    from ggss.data.hub import download, offered, require_pyarrow

    if any(pattern.endswith(".parquet") for pattern in data.patterns):
        require_pyarrow(f"{data.title} on the hub is parquet")
    offer = offered(data, folder, hub)
    print(
        f"{data.title}: {len(offer.files)} files, {offer.size / 1e9:.2f} GB, licence: {offer.licence}, from "
        f"{data.address} at revision {offer.revision}, into {folder}"
    )
    if sys.stdin.isatty() and not typer.confirm("Download it?"):
        raise typer.Exit(1)
    download(offer, folder, hub)
