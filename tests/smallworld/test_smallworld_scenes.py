"""Scenes: their plans, their splits, and shapes that cannot be taken for one another."""

import numpy as np
import pytest

from ggss.errors import InputError
from ggss.smallworld.painter import Portrait
from ggss.smallworld.scenes import CELLS, COLOURS, PLANS, SCENE_SPLITS, SHAPES, Scene, Shape, draw_scene


def pixels(portrait: Portrait | Scene) -> np.ndarray:
    return np.asarray(portrait.image())


def test_scenes_follow_their_plan_and_split() -> None:
    rng = np.random.default_rng(1)
    for plan in PLANS:
        for split in SCENE_SPLITS:
            scenes = [draw_scene(rng, split, plan) for _ in range(40)]
            assert {scene.split for scene in scenes} == {split}
            assert all(1 <= len(scene.shapes) <= 4 for scene in scenes)
    with pytest.raises(InputError, match="no split 'selection'"):
        draw_scene(rng, "selection")
    with pytest.raises(InputError, match="4 cells"):
        Scene((None, None, None, None), "pink")


def test_a_layouts_split_ignores_wall_and_seed() -> None:
    cells = (Shape("star", "red", "big"), None, None, None)
    assert len({Scene(cells, wall, seed).split for wall in ("pink", "blue") for seed in range(5)}) == 1


def test_a_scene_is_deterministic_and_shows_what_it_says() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        scene = draw_scene(rng)
        assert (pixels(scene) == pixels(scene)).all()
        blank = Scene((None, None, None, Shape("star", "red", "small")), scene.wall, scene.seed)
        for k in range(3):
            rows, columns = slice(32 * (k // 2), 32 * (k // 2) + 32), slice(32 * (k % 2), 32 * (k % 2) + 32)
            differs = (pixels(scene)[rows, columns] != pixels(blank)[rows, columns]).any()
            assert differs == (scene.cells[k] is not None)
            assert (scene.labels()[f"{CELLS[k]} shape"] == "none") == (scene.cells[k] is None)


def test_every_shape_and_colour_looks_unlike_every_other() -> None:
    def alone(shape: str, colour: str) -> np.ndarray:
        return pixels(Scene((Shape(shape, colour, "small"), None, None, None), "yellow")).astype(float)

    looks = [alone(shape, colour) for shape in SHAPES for colour in COLOURS]
    for k, first in enumerate(looks):
        assert min((np.abs(first - second).max(-1) > 30).sum() for second in looks[:k] or [first * 0]) > 20
