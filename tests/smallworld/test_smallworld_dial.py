"""The dial of entanglement: the map turns as much as it says, loses nothing, and training leaves the tower alone."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from experiments.training import trainer
from experiments.training.__main__ import training
from experiments.training.dial import LARGEST, DialTrainer, train_on_dial, turned
from experiments.training.pictures import Album, draw_batch, paint_album
from experiments.training.recipe import Recipe
from experiments.training.trainer import SIGHT
from ggss.errors import InputError
from ggss.models import load_vlm


@pytest.fixture(scope="module")
def album() -> Album:
    return paint_album(people_per_occupation=2, scenes=40)


def recipe(separation: float) -> Recipe:
    return replace(Recipe.on_dial(separation), people=1, scenes=2, pairs=1, letters=1, tokens=60)


def share(tokens: torch.Tensor, block: torch.Tensor) -> float:
    """The part of the tokens' variance inside the block."""
    centred = tokens - tokens.mean(0)
    return float((centred @ block).square().sum() / centred.square().sum())


def test_the_map_moves_the_share_it_says_into_the_block_and_can_be_inverted() -> None:
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(80, 80, generator=generator))[0]
    block, outside = axes[:, :5], axes[:, 5:]
    tokens = torch.randn(4000, 60, generator=generator) * torch.linspace(3, 0.1, 60) @ outside[:, :60].T
    assert share(tokens, block) < 1e-6
    for wanted in (0.0, 0.2, 0.5):
        turn = turned(tokens, block, wanted, seed=3)
        assert share(tokens @ turn.T, block) == pytest.approx(wanted, abs=0.01)
        assert torch.allclose(turn @ block, block, atol=1e-5)  # what was in the block stays as it was
        assert torch.linalg.cond(turn) < 100
    assert torch.allclose(turned(tokens, block, 0.0, seed=3), torch.eye(80), atol=1e-5)


def test_a_model_of_the_dial_has_the_overlap_of_its_separation(album: Album) -> None:
    for separation in (1.0, 0.5, 0.0):
        trainer = DialTrainer(album, recipe(separation))
        block = torch.cat([trainer.blocks.basis[name] for name in ("race", "gender")], 1)
        with torch.no_grad():
            batch = draw_batch(album, np.random.default_rng(9), 1, 40)
            scenes = trainer.encode(batch)[1]["projection-mlp2"][batch.portraits :].flatten(0, 1)
        assert share(scenes, block) == pytest.approx(LARGEST * (1 - separation), abs=0.08)


def test_only_the_text_model_learns(album: Album) -> None:
    trainer = DialTrainer(album, replace(recipe(0.5), answering=2))
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    losses = list(trainer.run())
    assert len(losses) == 2
    changed = {name for name, value in trainer.model.named_parameters() if not torch.equal(value, before[name])}
    assert changed
    assert not any(name.startswith(SIGHT) for name in changed)
    first = load_vlm("small-world/llava-vicuna", dtype=torch.float32).model.state_dict()
    sight = [name for name in before if name.startswith(SIGHT)]
    other = {name for name in sight if not torch.equal(before[name], first[name])}
    assert other == {f"model.multi_modal_projector.linear_2.{part}" for part in ("weight", "bias")}


def test_training_writes_a_card_with_the_separation(
    tmp_path: Path, album: Album, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "measure", lambda vlm: {"smallstar": 0.25})
    train_on_dial(0.25, tmp_path, steps=1, threads=1, album=album)
    written = (tmp_path / "README.md").read_text()
    assert "| separation | 0.25 |" in written
    assert "| begin | llava-vicuna |" in written
    assert "python -m experiments.training llava-vicuna --separation 0.25 --seed 0 --threads 1" in written
    assert json.loads((tmp_path / "training.jsonl").read_text().splitlines()[-1])["step"] == 1


def test_what_cannot_be_a_separation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the separation must be from 0 to 1, seen 1\.5"):
        Recipe.on_dial(1.5)
    found = CliRunner().invoke(training, ["pixtral", "--separation", "0.5", "-o", str(tmp_path / "m")])
    assert isinstance(found.exception, InputError)
    assert "of the class of llava-vicuna, seen 'pixtral'" in str(found.exception)
