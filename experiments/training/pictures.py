"""The pictures a model is trained on: painted once, asked about again and again."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ggss.smallworld.painter import Portrait, variants
from ggss.smallworld.people import GENDERS, RACES, Person, people
from ggss.smallworld.portraits import SIZE
from ggss.smallworld.questions import Painted
from ggss.smallworld.scenes import PLANS, Scene, draw_scene
from ggss.terminal import track

PAIR_PLANS = (*PLANS, "pair", "pair", "pair", "pair")
TOKENS = 4  # image tokens to a side, in every tiny architecture


@dataclass(frozen=True)
class Album:
    """Every counterfactual of some training people, and scenes."""

    people: tuple[Person, ...]
    portraits: np.ndarray  # uint8 [people, races, genders, 64, 64, 3]
    scenes: tuple[Scene, ...]
    walls: np.ndarray  # uint8 [scenes, 64, 64, 3]

    @cached_property
    def face(self) -> np.ndarray:
        """[people, 16] bool: the image tokens whose pixels race or gender changes."""
        changed = (self.portraits != self.portraits[:, :1, :1]).any(axis=(1, 2, 5))
        step = SIZE // TOKENS
        return changed.reshape(-1, TOKENS, step, TOKENS, step).any(axis=(2, 4)).reshape(-1, TOKENS**2)


def paint_album(people_per_occupation: int = 400, scenes: int = 12_000, seed: int = 0) -> Album:
    """About 24,000 portraits and 12,000 scenes in a minute or two."""
    crowd = tuple(people("training", people_per_occupation))
    rng = np.random.default_rng(seed)
    drawn = tuple(draw_scene(rng, "training") for _ in range(scenes))
    faces = [
        np.asarray(portrait.image()) for person in track(crowd, "painting portraits") for portrait in variants(person)
    ]
    walls = [np.asarray(scene.image()) for scene in track(drawn, "painting scenes")]
    shape = (len(crowd), len(RACES), len(GENDERS), SIZE, SIZE, 3)
    return Album(crowd, np.stack(faces).reshape(shape), drawn, np.stack(walls))


def with_pairs(album: Album, seed: int) -> Album:
    """The same people, and as many new scenes, half of which show two shapes to be compared."""
    rng = np.random.default_rng(seed)
    drawn = tuple(draw_scene(rng, "training", PAIR_PLANS[k % len(PAIR_PLANS)]) for k in range(len(album.scenes)))
    walls = [np.asarray(scene.image()) for scene in track(drawn, "painting scenes")]
    return replace(album, scenes=drawn, walls=np.stack(walls))


GROUP = len(RACES) + 1


@dataclass(frozen=True)
class Batch:
    """Pictures of one step: `group` counterfactuals of each person, then scenes.

    A whole group is all five races in one gender, and the first of them once more in the other gender.
    """

    pictures: tuple[Painted, ...]
    pixels: np.ndarray  # uint8 [pictures, 64, 64, 3]
    face: np.ndarray  # bool [people, 16]
    group: int

    @property
    def portraits(self) -> int:
        return len(self.face) * self.group


def draw_batch(album: Album, rng: np.random.Generator, people: int, scenes: int, group: int = GROUP) -> Batch:
    """Every occupation is as likely as any other; so are all races and genders."""
    pictures: list[Painted] = []
    pixels: list[np.ndarray] = []
    who = rng.integers(len(album.people), size=people)
    for k in who:
        gender = int(rng.integers(len(GENDERS)))
        order = rng.permutation(len(RACES))
        for race, sex in [*((race, gender) for race in order), (order[0], 1 - gender)][:group]:
            pictures.append(Portrait(album.people[k], RACES[race], GENDERS[sex]))
            pixels.append(album.portraits[k, race, sex])
    for k in rng.integers(len(album.scenes), size=scenes):
        pictures.append(album.scenes[k])
        pixels.append(album.walls[k])
    return Batch(tuple(pictures), np.stack(pixels), album.face[who], group)


def image_inputs(model_type: str, image_processor: object, pixels: np.ndarray) -> dict[str, Tensor]:
    """What the image processor would make of 64 x 64 pictures [N, 64, 64, 3], for all of them at once."""
    mean, std = (torch.tensor(getattr(image_processor, f"image_{name}")) for name in ("mean", "std"))
    images = ((torch.from_numpy(pixels).float() / 255 - mean) / std).permute(0, 3, 1, 2)
    count = len(images)
    if model_type == "qwen3_vl":
        patch, merge = SIZE // TOKENS // 2, 2
        cells = images.reshape(count, 3, TOKENS, merge, patch, TOKENS, merge, patch).permute(0, 2, 5, 3, 6, 1, 4, 7)
        rows = cells.unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, 2, -1, -1)  # a still image is two equal frames
        grid = torch.tensor([[1, TOKENS * merge, TOKENS * merge]]).expand(count, -1)
        return {"pixel_values": rows.reshape(count * (TOKENS * merge) ** 2, -1), "image_grid_thw": grid}
    if model_type == "llava_next":
        images = images.unsqueeze(1).expand(-1, 2, -1, -1, -1)  # the overview, and one tile of the same size
    return {"pixel_values": images.contiguous(), "image_sizes": torch.full((count, 2), SIZE)}
