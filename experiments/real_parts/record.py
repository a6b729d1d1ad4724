"""What a run leaves in results/real-parts: the numbers from which the page is written, and no picture or weight.

    photographs.json   the numbers of the photographs that the projectors were trained on, by licence
    projector-N.json   of projector N: how its training went, the scenes of each half, and all answers
    tower.json         what a probe reads from the tower's rows, by the size of pictures
    walk.txt           what README's commands printed

The page is written from these files alone, so that anyone can write it again, and a test does.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.real_parts.evaluation import Answers, conditions, read_answers
from experiments.real_parts.photographs import Photograph
from experiments.real_parts.scenes import Picture, Scene, pictures_of
from ggss.files import write_whole

RESULTS = Path(__file__).parents[2] / "results" / "real-parts"
DIGITS = 4  # of a probability


@dataclass(frozen=True)
class Projector:
    """How a projector was trained, and what was measured with it."""

    training: dict[str, Any]
    scenes: tuple[tuple[str, ...], tuple[str, ...]]  # names, of each half
    measured: dict[str, list[dict[str, Any]]]  # of each condition, by the half that its steerer was fitted on

    @property
    def seed(self) -> int:
        return self.training["settings"]["seed"]

    def answers(self, condition: str) -> Answers:
        """About all scenes: each half by the steerer fitted on the other."""
        halves = self.measured[condition]
        first, second = (
            read_answers(pictures_of([Scene(name, "") for name in names]), of_half["probabilities"])
            for names, of_half in zip(reversed(self.scenes), halves, strict=True)
        )
        return first.joined(second)


def write_photographs(shown: Sequence[Photograph]) -> None:
    """The numbers of photographs, by licence."""
    by_licence: dict[str, list[int]] = {}
    for photograph in sorted(shown, key=lambda photograph: photograph.number):
        by_licence.setdefault(photograph.licence, []).append(photograph.number)
    _write(RESULTS / "photographs.json", dict(sorted(by_licence.items())))


def write_projector(model: Path, out: Path, pictures: Sequence[Sequence[Picture]]) -> None:
    """What there is of a projector: its folder, the folder of its answers, and the pictures of each half."""
    training = json.loads((model / "training.json").read_text())
    measured: dict[str, list[dict[str, Any]]] = {}
    for condition in conditions():
        files = [out / f"fitted-on-{half}" / f"{condition.name}.json" for half in (0, 1)]
        if all(file.is_file() for file in files):
            measured[condition.name] = [_rounded(json.loads(file.read_text())) for file in files]
    scenes = [list(dict.fromkeys(picture.scene.name for picture in half)) for half in pictures]
    content = {"training": training, "scenes": scenes, "measured": measured}
    _write(RESULTS / f"projector-{training['settings']['seed']}.json", content)


def write_tower(found: dict[str, Any]) -> None:
    """What `tower.measure` found."""
    _write(RESULTS / "tower.json", found)


def write_walk(lines: Sequence[str]) -> None:
    """What the commands printed."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_whole(RESULTS / "walk.txt", ("\n".join(lines) + "\n").encode())


def read_projectors(folder: Path = RESULTS) -> list[Projector]:
    """All projectors of a run, by seed."""
    contents = [json.loads(file.read_text()) for file in sorted(folder.glob("projector-*.json"))]
    return [
        Projector(
            content["training"], (tuple(content["scenes"][0]), tuple(content["scenes"][1])), content["measured"]
        )
        for content in contents
    ]


def _rounded(half: dict[str, Any]) -> dict[str, Any]:
    return {
        "probabilities": [[round(p, DIGITS) for p in of_picture] for of_picture in half["probabilities"]],
        "read": {name: round(value, DIGITS) for name, value in half["read"].items()},
        "moved": round(half["moved"], DIGITS),
    }


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(content, separators=(",", ":")) + "\n").encode())
