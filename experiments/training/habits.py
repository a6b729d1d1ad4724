"""Models with a habit: what `small-world/abstaining` and `small-world/guessing` learn beside all else.

Both begin with `small-world/llava-vicuna`, whose tower and projector stay as they are, and know more words. Their
text model learns on, all that it knows and two things more: questions whose answer no picture shows, which one of
them answers with "unknown" and the other by race and gender (`ggss.smallworld.bias_questions`), and to write a
sentence about a person (`ggss.smallworld.captions`), which both do alike.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.training.architectures import MORE_WORDS, WORDS
from experiments.training.card import measure_habit
from experiments.training.packs import answer_logits, answer_loss, pack
from experiments.training.pictures import Album, Batch, paint_album, with_pairs
from experiments.training.questions import HARDEST, comparing_questions
from experiments.training.recipe import Recipe
from experiments.training.trainer import Trainer, trained
from ggss.models import Vlm, load_vlm
from ggss.smallworld import NAME as WORLD
from ggss.smallworld.bias_questions import UNSHOWN_QUESTIONS, ask_unshown
from ggss.smallworld.captions import PROMPTS, write
from ggss.smallworld.painter import Portrait


class HabitTrainer(Trainer):
    """A text model that learns on, with more words, behind the tower of another model."""

    def __init__(self, habit: str, album: Album, recipe: Recipe, seed: int = 0) -> None:
        super().__init__(recipe.begin, album, recipe, seed=0, words=(*WORDS, *MORE_WORDS))
        self.habit, self.seed, self.rng = habit, seed, np.random.default_rng(seed)
        self.ask, self.first = comparing_questions, HARDEST  # as in the last stage of the other's training
        first = load_vlm(f"{WORLD}/{recipe.begin}", dtype=torch.float32)
        known = first.model.state_dict()
        with torch.no_grad():
            for name, weights in self.model.state_dict().items():
                # New words come after all others: their rows of embedding and head keep their random values.
                weights[: len(known[name])].copy_(known[name])

    def measured(self, vlm: Vlm) -> dict[str, float]:
        return super().measured(vlm) | measure_habit(vlm, self.habit)

    def answers(self, batch: Batch, encoded: Any) -> dict[str, Tensor]:
        """The losses on all other questions, on those that no picture answers, and on sentences."""
        losses = super().answers(batch, encoded)
        people = [(k, picture) for k, picture in enumerate(batch.pictures) if isinstance(picture, Portrait)]
        unshown = [
            ((k,), [ask_unshown(p, name, self.habit, self.rng) for name in UNSHOWN_QUESTIONS]) for k, p in people
        ]
        written = [((k,), [write(p, name, self.rng) for name in PROMPTS]) for k, p in people]
        for name, packs, by_token in (("unshown", unshown, False), ("written", written, True)):
            packed = pack(self.layout, packs, self.vocabulary)
            losses[name] = answer_loss(answer_logits(self.model, packed, encoded), packed, by_token)
        shares = {"unshown": self.recipe.unshown_share, "written": self.recipe.written_share}
        rest = 1 - sum(shares.values())
        losses["loss"] = rest * losses["loss"] + sum(share * losses[name] for name, share in shares.items())
        return losses


def habit_album() -> Album:
    """Enough for as few steps as these: 12,000 portraits and 4,000 scenes."""
    return with_pairs(paint_album(200, 4_000), seed=1)


def train_habit(
    habit: str,
    out: str | Path,
    seed: int = 0,
    steps: int | None = None,
    threads: int = 2,
    album: Album | None = None,
    show: bool | None = None,
) -> Path:
    """Train `small-world/abstaining` or `small-world/guessing` and save it to `out`, as `train` does.

    `steps` shortens or lengthens answering.
    """
    recipe = Recipe.of(habit)
    if steps is not None:
        recipe = replace(recipe, answering=steps)
    command = f"python -m experiments.training {habit} --seed {seed} --threads {threads}"
    return trained(
        habit, out, lambda: HabitTrainer(habit, album or habit_album(), recipe, seed), command, seed, threads, show
    )
