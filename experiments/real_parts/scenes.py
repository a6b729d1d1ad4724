"""The pictures of PAIRS (`katiefraser/PAIRS`, CC BY 4.0): 50 scenes, each with a Black and a white man and woman.

They are photorealistic pictures from an image generator, made to be as alike as possible within a scene. What a
scene shows is written down here, from its name and its pictures; gender and race are never part of what the
projector learns. Scenes are split into two halves, so that each occupation is in both.
"""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ggss.errors import InputError

OCCUPATIONS: dict[str, tuple[str, ...]] = {
    "doctor": ("lab_coat", "scrubs", "dental_office"),
    "cook": ("apron", "black_apron", "cooking", "restaurant"),
    "manager": ("bank", "coffee", "law_office", "phone", "professional"),
    "worker": ("clipboard", "mopping", "overalls", "vest"),
    "student": ("blackboard", "studying", "university"),
    "driver": ("airplane", "bus", "taxi", "train"),
}
"""What can be told from clothes and place; the other scenes show no occupation."""
OUTSIDE = frozenset(
    [
        "airplane",
        "bank",
        "overalls",
        "taxi",
        "vest",
        "jumpsuit",
        "running",
        "window",
        "basketball",
        "brick_wall",
        "casual",
        "city",
        "guitar",
        "shopping",
        "stroller",
        "tattoo",
        "tent",
        "train",
        "university",
    ]
)
"""Scenes in the open. All others are inside or in front of a plain background."""
GENDERS, RACES = ("man", "woman"), ("black", "white")


@dataclass(frozen=True)
class Scene:
    """A scene: its name, and which part of the data set it is in."""

    name: str
    section: str

    @property
    def occupation(self) -> str:
        """What the person most likely is; "" where the scene does not tell."""
        return next((job for job, names in OCCUPATIONS.items() if self.name in names), "")

    @property
    def place(self) -> str:
        return "outside" if self.name in OUTSIDE else "inside"

    @property
    def words(self) -> str:
        """What is shown, in words."""
        return self.name.replace("_", " ")


@dataclass(frozen=True)
class Picture:
    """One of the four versions of a scene."""

    scene: Scene
    race: str
    gender: str
    path: Path


def read_pictures(folder: Path) -> list[Picture]:
    """All pictures below a copy of the data set, by scene; InputError if a scene is incomplete."""
    pictures = []
    for place in sorted(path for path in (folder / "data").glob("*/*") if path.is_dir()):
        scene = Scene(place.name, place.parent.name)
        for race in RACES:
            for gender in GENDERS:
                names = [path for path in place.iterdir() if path.stem.rstrip("0123456789") == f"{race}_{gender}"]
                if len(names) != 1:
                    raise InputError(
                        f"the scene {scene.name} has {len(names)} pictures {race}_{gender}, not one: get it again"
                    )
                pictures.append(Picture(scene, race, gender, names[0]))
    if not pictures:
        raise InputError(f"there are no pictures data/SECTION/SCENE/RACE_GENDER.png in {folder}: get PAIRS again")
    return pictures


def pictures_of(scenes: Sequence[Scene]) -> list[Picture]:
    """The versions of scenes in the order of `read_pictures`, without their files."""
    return [Picture(scene, race, gender, Path()) for scene in scenes for race in RACES for gender in GENDERS]


def halves(scenes: list[Scene], seed: int = 0) -> tuple[list[Scene], list[Scene]]:
    """The scenes in two halves, drawn at random within each occupation and each section."""
    groups: dict[tuple[str, str], list[Scene]] = {}
    for scene in sorted(scenes, key=lambda scene: scene.name):
        groups.setdefault((scene.occupation, "" if scene.occupation else scene.section), []).append(scene)
    random_order = random.Random(seed)
    first: list[Scene] = []
    second: list[Scene] = []
    for _, members in sorted(groups.items()):
        random_order.shuffle(members)
        for scene in members:
            (first if len(first) <= len(second) else second).append(scene)
    return first, second


def write_manifest(pictures: list[Picture], path: Path) -> Path:
    """A manifest for `ggss`: the scene is the identity, and all that the versions of it share."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "identity", "race", "gender"])
        for picture in pictures:
            writer.writerow([picture.path.resolve(), picture.scene.name, picture.race, picture.gender])
    return path
