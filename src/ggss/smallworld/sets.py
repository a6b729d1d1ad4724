"""The painted town: as counterfactual sets, as a folder in the layout of FOCUS, and on a contact sheet.

`town` has people with every race and gender; `hair_town` varies hair, too. Both are registered as picture sets and
can be named wherever a manifest can: `small-world`, `small-world-hair`.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from ggss import errors
from ggss.data.counterfactuals import PICTURE_SETS, Counterfactuals
from ggss.data.manifests import manifest_bytes, write_manifest
from ggss.data.pictures import labels
from ggss.errors import InputError
from ggss.files import check_writable, mark
from ggss.smallworld import NAME
from ggss.smallworld.painter import variants
from ggss.smallworld.people import GENDERS, RACES, Person, people
from ggss.smallworld.portraits import INK, SCALE, SIZE
from ggss.terminal import track

COMMAND, MANIFEST = "ggss world paint", "manifest.csv"
IDENTITIES = 8
HAIR_IDENTITIES = 2
HAIR_OCCUPATIONS = ("ceo", "cook", "doctor", "nurse", "teacher")
HAIR_VALUES = ("black", "red", "yellow")
_SHEET_PEOPLE = {"cook": 4, "doctor": 1, "lawyer": 7, "nurse": 6, "teacher": 7, "ceo": 3}  # identities, by occupation


def town(seed: int = 0) -> Counterfactuals:
    """480 portraits of the discovery identities: 6 occupations x 8 identities x 5 races x 2 genders."""
    errors.SEED.check("the seed of a town", seed)
    crowd = people("discovery", IDENTITIES, seed=seed)
    return Counterfactuals(tuple(portrait for person in crowd for portrait in variants(person)))


def hair_town() -> Counterfactuals:
    """300 portraits with a third attribute: 5 occupations x 2 identities x 5 races x 2 genders x 3 hair colours."""
    crowd = people("discovery", HAIR_IDENTITIES, HAIR_OCCUPATIONS)
    return Counterfactuals(tuple(portrait for person in crowd for portrait in variants(person, HAIR_VALUES)))


def paint_focus_set(folder: str | Path, seed: int = 0, progress: bool | None = None) -> Path:
    """Paint the town with its manifest into `folder` and return the manifest's path.

    A portrait's path is `{occupation}/{identity}/{race}_{gender}.png`. The set is painted beside the folder and moved
    into place when it is complete. An earlier set in the folder is replaced; a folder that holds anything else is
    refused with InputError and left as it is.
    """
    target = Path(folder).resolve()
    check_paintable(target)
    portraits = {f"{portrait.name}.png": portrait for portrait in town(seed)}
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    replaced = target.with_name(f".{target.name}.{os.getpid()}.replaced")
    try:
        for path, portrait in track(portraits.items(), "painting", total=len(portraits), show=progress):
            file = partial / path
            file.parent.mkdir(parents=True, exist_ok=True)
            portrait.image().save(file)
        write_manifest(_rows(), partial / MANIFEST)
        if target.exists():
            target.rename(replaced)
        partial.rename(target)
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        if replaced.exists() and not target.exists():
            replaced.rename(target)
        raise InputError(f"cannot paint into {target}: {error.strerror}; choose a folder you may write to") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target / MANIFEST


def check_paintable(folder: str | Path) -> None:
    """Raise InputError for a folder that holds anything but an earlier set, because all of it is replaced."""
    target = Path(folder).resolve()
    check_writable(target.parent)
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"{target} is a file; name a folder to paint into")
    ours = {str(row["path"]) for row in _rows()}
    if (target / MANIFEST).is_file() and (target / MANIFEST).read_bytes() == manifest_bytes(_rows()):
        ours.add(MANIFEST)
    known = ours | {folder.as_posix() for path in ours for folder in Path(path).parents}
    paths = (path.relative_to(target).as_posix() for path in sorted(target.rglob("*")))
    foreign = [path for path in paths if path not in known]
    if foreign:
        raise InputError(
            f"folder {target} holds {len(foreign)} files or folders that are not part of a painted set, such as "
            f"{foreign[0]!r}; choose an empty or new folder"
        )


def _rows() -> list[dict[str, str]]:
    """The manifest of the town, which is the same for every seed."""
    return [{"path": f"{portrait.name}.png"} | labels(portrait) for portrait in town()]


def write_contact_sheet(target: Path) -> Path:
    """Write the contact sheet of one person of each occupation, marked as written by the command."""
    metadata = PngInfo()
    metadata.add_text("Software", mark(COMMAND))
    contact_sheet().save(target, pnginfo=metadata)
    return target


def contact_sheet(rows: Sequence[Person] = (), large: bool = True) -> Image.Image:
    """One row a person, one column a variant, race and gender written above; `large` paints at 128 pixels, not 64."""
    rows = rows or [Person(identity, job) for job, identity in _SHEET_PEOPLE.items()]
    side = SIZE * SCALE // 2 if large else SIZE
    gap, head, margin = side // 16, side // 2, side // 2 + side // 4
    step = side + gap
    sheet = Image.new("RGB", (margin + 10 * step + gap, head + len(rows) * step + gap), (255, 255, 255))
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(side // 7)
    for column, name in enumerate(RACES):
        pen.text((margin + (2 * column + 1) * step, head * 0.3), name, INK, font, anchor="mm")
    for column in range(10):
        pen.text((margin + (column + 0.5) * step, head * 0.75), GENDERS[column % 2], INK, font, anchor="mm")
    for row, person in enumerate(rows):
        top = head + row * step
        pen.text((margin - gap * 2, top + side / 2), person.occupation, INK, font, anchor="rm")
        for column, portrait in enumerate(variants(person)):
            picture = portrait.paint_large().reduce(2) if large else portrait.image()
            sheet.paste(picture, (margin + column * step + gap // 2, top))
    return sheet


PICTURE_SETS.add(NAME, town)
PICTURE_SETS.add(f"{NAME}-hair", hair_town)
