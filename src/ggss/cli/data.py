"""`ggss data`: make a manifest, which all commands read, from a published set of pictures as it was downloaded."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ggss.cli.arguments import Force
from ggss.errors import InputError, no_such
from ggss.files import check_file, never

if TYPE_CHECKING:
    from ggss.data.layouts import Layout

data = typer.Typer(
    no_args_is_help=True, help="Make a manifest of a published set of counterfactual pictures, and check the set."
)

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
    from ggss.terminal import Terminal

    if out.suffix.lower() != ".csv":
        raise InputError(f"{str(out)!r} is no .csv file: a manifest is one, such as faces.csv")
    check_file(out, "ggss data", never, force)
    pictures = read_layout(layout, folder)
    rows = complete(pictures, layout, complete_only)
    write_manifest(placed(rows, out), out)
    console = Terminal(stderr=True)
    for flaw in pictures.flaws:
        console.print(f"left out: {flaw}")
    if pictures.others:
        console.print(
            f"not of {layout.title}, by their names: {len(pictures.others)} images, such as {pictures.others[0]}"
        )
    people = len(rows) // math.prod(map(len, layout.values.values()))
    values = ", ".join(f"{column} ({', '.join(values)})" for column, values in layout.values.items())
    print(f"{len(rows)} pictures of {people} people, varied in {values}: {out}")
