"""The dial of entanglement: one model whose room for race and gender is shared, more or less, with everything else.

All models of the dial begin with `small-world/llava-vicuna`, whose tower keeps race and gender in a block of
directions P that nothing else uses. Its projector's last layer is then followed by a fixed linear map that turns
the principal directions e_j of all other variation, each towards a random direction p_j of the block:

    e_j -> cos(t) e_j + sin(t) p_j,      sin(t)^2 = LARGEST (1 - separation)

This is what seeing would have ended with, had its frozen blocks overlapped by that much; being linear, it needs no
training. The map can be inverted, so nothing is lost, but what a picture shows besides race and gender now lies in
their directions too: sin(t)^2 is its share of variance there. The text model then learns on, to read such tokens.
At separation 1 nothing is turned. At 0 half of the other variance is in the block, as ordinary training leaves it
(`small-world/entangled`: a third to a half of it); unlike there, gender has been learned.
"""

from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.training.pictures import Album, draw_batch, paint_album
from experiments.training.recipe import Recipe
from experiments.training.trainer import Trainer, trained
from ggss.models import load_vlm
from ggss.smallworld import NAME as WORLD

NAME = "llava-vicuna"  # the class of all models on the dial, and where they begin
DIAL = (0.0, 0.25, 0.5, 0.75)  # 1 is small-world/llava-vicuna itself
LARGEST = 0.5  # share of the other variance inside the block at separation 0
TURNED = 64  # principal directions; they have nearly all of the variance


class DialTrainer(Trainer):
    """A text model that learns on behind a tower whose directions were turned."""

    def __init__(self, album: Album, recipe: Recipe, seed: int = 0) -> None:
        super().__init__(NAME, album, recipe, seed=0)  # the blocks are those that the model was trained with
        self.seed, self.rng = seed, np.random.default_rng(seed)
        first = load_vlm(f"{WORLD}/{recipe.begin}", dtype=torch.float32)
        self.model.load_state_dict(first.model.state_dict())
        block = torch.cat([self.blocks.basis["race"], self.blocks.basis["gender"]], dim=1)
        tokens = self.tokens(np.random.default_rng(seed))
        self.turn = turned(tokens, block, LARGEST * (1 - recipe.separation), seed)
        last = self.model.get_submodule(self.paths["projection-mlp2"])
        with torch.no_grad():
            last.weight.copy_(self.turn @ last.weight)
            last.bias.copy_(self.turn @ last.bias)

    @torch.no_grad()
    def tokens(self, rng: np.random.Generator) -> Tensor:
        """[N, D]: tokens of people and, as many, of scenes."""
        batch = draw_batch(self.album, rng, 20, 120)
        return torch.cat([rows.flatten(0, 1) for rows in self.encode(batch)[1].values()])


def turned(tokens: Tensor, block: Tensor, share: float, seed: int) -> Tensor:
    """[D, D]: the map that turns a share of the tokens' variance outside a block [D, k] into it."""
    width = len(block)
    outside = torch.eye(width) - block @ block.T
    centred = (tokens - tokens.mean(dim=0)) @ outside
    energy, found = torch.linalg.eigh((centred.T @ centred).double())
    count = min(TURNED, int((energy > 1e-6 * energy[-1]).sum()))  # the block itself has no energy here
    directions = found.flip(1)[:, :count].float()
    drawn = torch.randn(block.shape[1], count, generator=torch.Generator().manual_seed(seed))
    towards = block @ (drawn / drawn.norm(dim=0))
    return torch.eye(width) + (sqrt(share) * towards - (1 - sqrt(1 - share)) * directions) @ directions.T


def dial_album() -> Album:
    """Enough for as few steps as these: 6,000 portraits and 4,000 scenes."""
    return paint_album(100, 4_000)


def train_on_dial(
    separation: float,
    out: str | Path,
    seed: int = 0,
    steps: int | None = None,
    threads: int = 2,
    album: Album | None = None,
    show: bool | None = None,
) -> Path:
    """Train the model of the dial at a separation from 0 to 1 and save it to `out`, as `train` does.

    `steps` shortens or lengthens answering.
    """
    recipe = Recipe.on_dial(separation)
    if steps is not None:
        recipe = replace(recipe, answering=steps)
    command = f"python -m experiments.training {NAME} --separation {separation:g} --seed {seed} --threads {threads}"
    return trained(
        f"dial-{separation:g}",
        out,
        lambda: DialTrainer(album or dial_album(), recipe, seed),
        command,
        seed,
        threads,
        show,
    )
