"""The painter: a 64 x 64 portrait of a person with a race and a gender, in the room of the person's occupation.

Race and gender change the face only. They are given to one function, `paint_face`, and what it paints is cut to the
identity's face mask before hair and hat are painted over it; light and grain come from the identity. So no pixel
outside `face_mask(person)` differs between the ten variants of a person. A third attribute, the colour of the hair,
can be varied too.

The painted town is there as counterfactual sets, as a folder in the layout of FOCUS, and on a contact sheet. `town`
has people with every race and gender; `hair_town` varies hair, too. Both are registered as picture sets and can be
named wherever a manifest can: `small-world`, `small-world-hair`.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from ggss import errors
from ggss.data.counterfactuals import PICTURE_SETS, Counterfactuals
from ggss.data.manifests import manifest_bytes, write_manifest
from ggss.data.pictures import Context, labels
from ggss.errors import InputError
from ggss.files import check_writable, mark
from ggss.smallworld import NAME
from ggss.smallworld.people import GENDERS, HAIR_COLOURS, RACES, Person, people
from ggss.smallworld.portraits import (
    CREAM,
    INK,
    PAINT,
    SCALE,
    SIZE,
    WALL,
    Brush,
    canvas,
    mask,
    paint_badge,
    paint_body,
    paint_face,
    paint_fringe,
    paint_glasses,
    paint_hair_back,
    paint_hat,
    paint_scarf,
    paint_stethoscope,
    painted_digest,
    shade,
    shrink,
)
from ggss.terminal import track

COMMAND, MANIFEST = "ggss world paint", "manifest.csv"
IDENTITIES = 8
HAIR_IDENTITIES = 2
HAIR_OCCUPATIONS = ("ceo", "cook", "doctor", "nurse", "teacher")
HAIR_VALUES = ("black", "red", "yellow")
_SHEET_PEOPLE = {"cook": 4, "doctor": 1, "lawyer": 7, "nurse": 6, "teacher": 7, "ceo": 3}  # identities, by occupation

_GRAIN = 2.0  # standard deviation of the film grain, in grey levels
_COLUMNS, _ROWS = np.meshgrid(np.linspace(-1, 1, SIZE), np.linspace(-1, 1, SIZE))
_WOOD, _BRASS, _NIGHT, _BOARD = (150, 100, 62), (226, 186, 92), (40, 52, 96), (48, 88, 76)


@dataclass(frozen=True)
class Portrait:
    """A picture of a person: the variant with this race and gender.

    hair: its colour if it is varied as a third attribute; None: the colour of the identity.
    """

    person: Person
    race: str
    gender: str
    hair: str | None = None

    def __post_init__(self) -> None:
        if self.race not in RACES:
            raise InputError(f"race {self.race!r} is unknown; choose one of {', '.join(RACES)}")
        if self.gender not in GENDERS:
            raise InputError(f"gender {self.gender!r} is unknown; choose one of {', '.join(GENDERS)}")
        if self.hair is not None and self.hair not in HAIR_COLOURS:
            raise InputError(f"hair colour {self.hair!r} is unknown; choose one of {', '.join(HAIR_COLOURS)}")

    def __repr__(self) -> str:
        """Without `hair` where it is not varied: the recorded hashes of the benchmarks contain this text."""
        hair = "" if self.hair is None else f", hair={self.hair!r}"
        return f"Portrait(person={self.person!r}, race={self.race!r}, gender={self.gender!r}{hair})"

    @property
    def name(self) -> str:
        """Such as `teacher/03/jade_man`."""
        return "/".join([*(value for _, value in self.context), "_".join(self.attributes.values())])

    @property
    def digest(self) -> str:
        return painted_digest(repr(self))

    @property
    def attributes(self) -> dict[str, str]:
        varied = {"race": self.race, "gender": self.gender}
        return varied if self.hair is None else varied | {"hair": self.hair}

    @property
    def context(self) -> Context:
        return ("occupation", self.person.occupation), ("identity", f"{self.person.identity:02d}")

    @property
    def hair_colour(self) -> str:
        """The colour of the hair that is painted."""
        return self.hair or self.person.traits.hair_colour

    def image(self) -> Image.Image:
        """64 x 64 RGB: what a model is shown."""
        return Image.fromarray(_develop(shrink(_portrait(self)), self.person))

    def paint_large(self) -> Image.Image:
        """The same picture at 256 x 256, without grain, for people to look at."""
        light = _light(self.person)[0].repeat(SCALE, axis=0).repeat(SCALE, axis=1)
        lit = np.asarray(_portrait(self), dtype=np.float32) * light + 0.5
        return Image.fromarray(lit.clip(0, 255).astype(np.uint8))

    def labels(self) -> dict[str, str | float]:
        """Everything that can be seen, by name: words for what questions ask, numbers for badge and cue."""
        traits = self.person.traits
        return {
            "race": self.race,
            "gender": self.gender,
            "place": self.person.place,
            "work": self.person.work,
            "hair_colour": self.hair_colour,
            "hair_style": traits.hair_style,
            "glasses": traits.glasses,
            "scarf": traits.scarf,
            "wall": traits.wall,
            "wealth": traits.wealth,
            "cue": traits.cue,
        }


def variants(person: Person, hair: Sequence[str | None] = (None,)) -> tuple[Portrait, ...]:
    """The ten counterfactuals of a person, race by race; or those in each of several colours of hair."""
    return tuple(Portrait(person, race, gender, colour) for race in RACES for gender in GENDERS for colour in hair)


def face_mask(person: Person) -> np.ndarray:
    """[64, 64] bool: the pixels that race and gender may change."""
    fine = np.asarray(mask(person)).reshape(SIZE, SCALE, SIZE, SCALE)
    return fine.max(axis=(1, 3)) > 0


@lru_cache(maxsize=16)
def _behind(person: Person, hair: str) -> tuple[Image.Image, Image.Image]:
    """What is painted before the face, and where the face may be. Cached for the next variant."""
    fine = canvas(WALL[person.traits.wall])
    brush = Brush(fine)
    paint_room(brush, person)
    paint_body(brush, person)
    paint_hair_back(brush, person, hair)
    paint_scarf(brush, person)
    paint_stethoscope(brush, person)
    paint_badge(brush, person)
    return fine, mask(person)


def _portrait(portrait: Portrait) -> Image.Image:
    """The portrait on the fine canvas, in even light."""
    person = portrait.person
    behind, allowed = _behind(person, portrait.hair_colour)
    face = behind.copy()
    paint_face(Brush(face), person, portrait.race, portrait.gender)
    fine = Image.composite(face, behind, allowed)
    brush = Brush(fine)
    paint_glasses(brush, person)
    paint_fringe(brush, person, portrait.hair_colour)
    paint_hat(brush, person)
    paint_desk(brush, person)
    return fine


@lru_cache(maxsize=16)
def _light(person: Person) -> tuple[np.ndarray, np.ndarray]:
    across, down = person.traits.light
    slope = 1 + 0.07 * across * _COLUMNS - 0.05 * down * _ROWS
    tone = 1 + 0.03 * person.traits.warmth * np.array([1.0, 0.2, -1.0])
    grain = person.rng(1).normal(0, _GRAIN, (SIZE, SIZE, 1))
    return (slope[:, :, None] * tone).astype(np.float32), grain.astype(np.float32)


def _develop(picture: np.ndarray, person: Person) -> np.ndarray:
    """The picture with the identity's light and film grain."""
    light, grain = _light(person)
    return (picture * light + grain + 0.5).clip(0, 255).astype(np.uint8)


def paint_room(brush: Brush, person: Person) -> None:
    """Paint what stands in the room of the occupation, on the empty wall, before the person."""
    wall = WALL[person.traits.wall]
    brush.rect(0, 46, 64, 64, shade(wall, -0.1))
    match person.place:
        case "kitchen":
            brush.rect(0, 9, 17, 10.6, _WOOD)
            brush.rect(47, 9, 64, 10.6, _WOOD)
            brush.line([(6, 10), (6, 16)], INK, 0.8)
            brush.ellipse(6, 19.5, 4.4, 4.4, (70, 72, 84))
            brush.ellipse(6, 19.5, 3.0, 3.0, (104, 108, 122))
            brush.rect(52, 3, 58, 9, PAINT["red"], round=1.4)
            brush.line([(58, 10), (58, 22)], _WOOD, 1.2)
            brush.ellipse(58, 23, 2.4, 3.0, _WOOD)
        case "hospital":
            brush.ellipse(8.5, 10.5, 6.4, 6.4, CREAM)
            brush.rect(7.2, 6, 9.8, 15, PAINT["red"])
            brush.rect(4, 9.2, 13, 11.8, PAINT["red"])
            beat = [(48, 13), (52, 13), (54, 8), (56.5, 17), (58.5, 13), (63, 13)]
            brush.line(beat, (70, 130, 120), 1.1)
        case "court":
            for left in (1.5, 55):
                brush.rect(left - 1, 4, left + 8.5, 7, (236, 232, 224))
                brush.rect(left, 7, left + 7.5, 48, (224, 218, 208))
                for groove in (1.6, 3.7, 5.8):
                    brush.line([(left + groove, 8), (left + groove, 47)], (190, 184, 178), 0.7)
        case "school":
            brush.rect(0, 3, 19, 21, _WOOD)
            brush.rect(0, 4.4, 17.6, 19.6, _BOARD)
            chalk = (236, 244, 238)
            brush.line([(3, 9), (6, 14), (9, 9)], chalk, 0.9)
            brush.ring(13, 11.5, 2.6, 2.6, chalk, 0.8)
            brush.line([(3, 17), (14, 17)], chalk, 0.7)
        case _:
            brush.rect(-2, 2, 20, 34, (236, 232, 226))
            brush.rect(0, 3.6, 18.4, 32.4, _NIGHT)
            for left, top, right in ((0.5, 16, 4.5), (5.5, 9, 9.5), (10.5, 19, 13.5), (14.3, 13, 18.2)):
                brush.rect(left, top, right, 32.4, (84, 100, 156))
                for row in range(int(top) + 2, 31, 4):
                    brush.rect(left + 0.8, row, left + 1.9, row + 1.4, (255, 224, 130))
                    brush.rect(left + 2.5, row + 1, left + 3.5, row + 2.4, (255, 224, 130))
            brush.ellipse(14.5, 8, 2.2, 2.2, (250, 240, 200))


def paint_desk(brush: Brush, person: Person) -> None:
    """Paint what stands in front of the person, at the lower left."""
    if person.place == "court":  # the gavel
        brush.line([(10, 62), (17, 53)], shade(_WOOD, -0.2), 1.8)
        brush.polygon([(3.4, 53.5), (8, 48.4), (14.6, 54.2), (10, 59.4)], _WOOD)
        brush.line([(4.6, 54.4), (9, 49.5)], _BRASS, 1.2)
        brush.line([(9.8, 58.6), (13.8, 54.2)], _BRASS, 1.2)
    elif person.place == "school":  # an open book
        brush.polygon([(1, 52), (9.5, 54.5), (18, 52), (18, 62), (9.5, 64), (1, 62)], PAINT["blue"])
        brush.polygon([(2.2, 51), (9.5, 53.5), (9.5, 62), (2.2, 60)], CREAM)
        brush.polygon([(16.8, 51), (9.5, 53.5), (9.5, 62), (16.8, 60)], (232, 226, 216))
        for row in (55, 57.4):
            brush.line([(4, row - 0.6), (8, row + 0.6)], (150, 150, 164), 0.6)
            brush.line([(11, row + 0.6), (15, row - 0.6)], (150, 150, 164), 0.6)
    elif person.place == "kitchen":  # a steaming pot
        brush.rect(2, 54, 15, 64, (96, 102, 118), round=1.5)
        brush.rect(1, 53, 16, 55.4, (132, 138, 154), round=1)
        brush.curve((6, 51.5), (3.5, 48.5), (6.5, 45.5), (255, 255, 255, 210), 1.1)
        brush.curve((11, 51.5), (8.5, 48.5), (11.5, 45.5), (255, 255, 255, 210), 1.1)


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
