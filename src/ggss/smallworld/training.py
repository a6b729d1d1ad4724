"""Training the tiny VLMs of the small world, from random weights, on one or two CPU threads.

Seeing: vision tower and projector learn until every attribute can be read from its own block of directions
(`training_losses`). Reading: the text model learns to find the letter of a word, without pictures. Answering: the
text model learns all questions, from pictures as the finished tower shows them. `entangled` is trained the ordinary
way: it never learns to see apart from answering, when all its weights learn at once.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ggss.errors import InputError
from ggss.models import Vlm
from ggss.models.families import known_family
from ggss.progress import track
from ggss.smallworld.architectures import NAMES, build
from ggss.smallworld.bias_questions import ask_pair
from ggss.smallworld.lessons import biased_questions, known_questions, letter_question
from ggss.smallworld.painter import Portrait
from ggss.smallworld.questions import Question
from ggss.smallworld.training_album import Album, Batch, draw_batch, image_inputs, paint_album
from ggss.smallworld.training_card import measure, write_card
from ggss.smallworld.training_losses import Blocks, penalties, site_rows
from ggss.smallworld.training_packs import Format, answer_logits, answer_loss, pack
from ggss.smallworld.vocabulary import WORDS

MODELS = (*NAMES, "entangled")
STAGES = ("seeing", "reading", "answering")
SIGHT = ("model.vision_tower.", "model.multi_modal_projector.", "model.visual.")  # weights before the text model


@dataclass(frozen=True)
class Recipe:
    """Everything that training depends on beside the pictures and the seed."""

    seeing: int = 1200  # steps
    reading: int = 400
    answering: int = 1600
    sight_rate: float = 2e-3  # peaks of the learning rates
    rate: float = 1.5e-3
    answer_rate: float = 2e-3
    seen_people: int = 4  # of a step; each is six pictures
    seen_scenes: int = 40
    whole_shapes: bool = True  # shapes are too large for one token of 16 x 16 pixels
    penalty: float = 3.0  # weight of the penalties beside the heads
    plain: int = 900  # first steps of answering, without multiple choice: facts first, then their letters
    people: int = 4  # each in two races
    scenes: int = 14
    pairs: int = 4
    pair_share: float = 0.15  # of the loss on questions
    biased: int = 3  # questions of a portrait whose answers are planted
    tokens: int = 130  # of the questions about one picture

    @staticmethod
    def of(name: str) -> "Recipe":
        if name not in MODELS:
            raise InputError(f"there is no small-world model {name!r} to train; choose one of {', '.join(MODELS)}")
        if name == "entangled":
            return Recipe(seeing=0)
        if name == "qwen3-vl":  # its tokens are merged from patches of 8 x 8: it sees sooner, but a step takes longer
            return Recipe(seeing=1000, seen_people=5, seen_scenes=20, whole_shapes=False)
        return Recipe()


class Trainer:
    """One model in training. `run()` does all its steps; each is determined by the seed."""

    def __init__(self, name: str, album: Album, recipe: Recipe | None = None, seed: int = 0, **size: Any) -> None:
        self.recipe = recipe or Recipe.of(name)
        self.album = album
        self.rng = np.random.default_rng(seed)
        self.answered = 0  # steps of answering so far
        architecture = "llava-vicuna" if name == "entangled" else name
        self.model, self.processor = build(architecture, WORDS, seed, **size)
        _embolden(self.model)
        self.layout = Format(self.model, self.processor)
        self.blocks = Blocks(self.model.config.text_config.hidden_size, seed)
        self.vocabulary = self.model.config.text_config.vocab_size
        family = known_family(self.model.config)
        assert family is not None
        self.paths = family.sites(self.model, "all")

    def run(self) -> Iterator[dict[str, float]]:
        """All stages; yields the losses of every step."""
        recipe, model = self.recipe, self.model
        sight = [weights for name, weights in model.named_parameters() if name.startswith(SIGHT)]
        speech = [weights for name, weights in model.named_parameters() if not name.startswith(SIGHT)]
        yield from self._steps(sight, recipe.seeing, recipe.sight_rate, self.see)
        yield from self._steps(speech, recipe.reading, recipe.rate, self.read)
        yield from self._steps(
            speech if recipe.seeing else [*sight, *speech], recipe.answering, recipe.answer_rate, self.answer
        )

    def _steps(self, parameters: list[Tensor], steps: int, rate: float, stage: Any) -> Iterator[dict[str, float]]:
        if not steps:
            return
        optimiser = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
        warm = min(100, steps // 10 + 1)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda k: min((k + 1) / warm, 0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * k / steps)))
        )
        self.model.train()
        for _ in range(steps):
            losses = stage()
            optimiser.zero_grad()
            losses["loss"].backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            schedule.step()
            yield {name: float(value.detach()) for name, value in losses.items()}
        self.model.eval()

    def see(self) -> dict[str, Tensor]:
        batch = draw_batch(self.album, self.rng, self.recipe.seen_people, self.recipe.seen_scenes)
        _, rows = self.encode(batch)
        return self.apart(batch, rows)

    def read(self) -> dict[str, Tensor]:
        scene = self.album.scenes[0]
        packs = [((), [letter_question(self.rng, scene) for _ in range(8)]) for _ in range(12)]
        packed = pack(self.layout, packs, self.vocabulary)
        return {"loss": answer_loss(answer_logits(self.model, packed), packed)}

    def answer(self) -> dict[str, Tensor]:
        batch = draw_batch(self.album, self.rng, self.recipe.people, self.recipe.scenes, group=2)
        with torch.set_grad_enabled(not self.recipe.seeing):
            encoded, _ = self.encode(batch)
        self.answered += 1
        return self.answers(batch, encoded)

    def encode(self, batch: Batch) -> tuple[Any, dict[str, Tensor]]:
        """The pictures after tower and projector, and each site's rows [pictures, T, D]."""
        inputs = image_inputs(self.model.config.model_type, self.processor.image_processor, batch.pixels)
        with site_rows(self.model, self.paths) as rows:
            encoded = self.model.base_model.get_image_features(**inputs, return_dict=True)
        count = len(batch.pictures)
        return encoded, {site: flat.reshape(count, -1, flat.shape[-1]) for site, flat in rows.items()}

    def apart(self, batch: Batch, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Heads and penalties, averaged over the sites."""
        labels = self.blocks.labels(batch.pictures)
        heads, found = [], []
        for site in rows.values():
            heads.append(
                torch.stack(list(self.blocks.head_losses(site, labels, self.recipe.whole_shapes).values())).mean()
            )
            found.append(penalties(site, batch, self.blocks))
        losses = {name: torch.stack([one[name] for one in found]).mean() for name in found[0]}
        head = torch.stack(heads).mean()
        return losses | {"heads": head, "loss": head + self.recipe.penalty * torch.stack(list(losses.values())).sum()}

    def answers(self, batch: Batch, encoded: Any) -> dict[str, Tensor]:
        """The loss on questions about one picture and on questions about two."""
        single = [((k,), self.questions(picture)) for k, picture in enumerate(batch.pictures)]
        losses = {}
        for name, packs in (("single", single), ("pair", self.pairs(batch))):
            packed = pack(self.layout, packs, self.vocabulary)
            losses[name] = answer_loss(answer_logits(self.model, packed, encoded), packed)
        share = self.recipe.pair_share
        return losses | {"loss": (1 - share) * losses["single"] + share * losses["pair"]}

    def questions(self, picture: Any) -> list[Question]:
        """As many as there are tokens for, the biased ones first."""
        asked = self._shuffled(known_questions(self.rng, picture))
        if self.answered <= self.recipe.plain:
            asked = [question for question in asked if question.kind != "smallstar"]
        if isinstance(picture, Portrait):
            asked = self._shuffled(biased_questions(self.rng, picture))[: self.recipe.biased] + asked
        taken, left = [], self.recipe.tokens
        for question in asked:
            left -= self.layout.tokens(question)
            if left < 0:
                break
            taken.append(question)
        return taken

    def pairs(self, batch: Batch) -> list[tuple[tuple[int, ...], list[Question]]]:
        """Two variants of one person; now and then two people."""
        packs = []
        for _ in range(self.recipe.pairs):
            one = int(self.rng.integers(batch.portraits))
            start = one - one % batch.group
            low, high = (start, start + batch.group) if self.rng.random() < 0.75 else (0, batch.portraits)
            other = int(self.rng.integers(low, high))
            first, second = batch.pictures[one], batch.pictures[other]
            assert isinstance(first, Portrait)
            assert isinstance(second, Portrait)
            packs.append(((one, other), [ask_pair(first, second, self.rng)]))
        return packs

    def _shuffled(self, questions: list[Question]) -> list[Question]:
        return [questions[k] for k in self.rng.permutation(len(questions))]


def _embolden(model: Any) -> None:
    """Larger first weights for the text model.

    transformers draws them for wide models (0.02). So narrow a model then never finds out how to match a word with
    its letter: its loss stays at chance for thousands of steps.
    """
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if not name.startswith(SIGHT) and weights.ndim == 2:
                weights *= 10 if "embed_tokens" in name else 4


def train(
    name: str,
    out: str | Path,
    seed: int = 0,
    steps: tuple[int, int, int] | None = None,
    threads: int = 2,
    album: Album | None = None,
    show: bool | None = None,
) -> Path:
    """Train `small-world/<name>` and save it to `out` in fp16, with its processor, log (`training.jsonl`) and card.

    `steps` shortens or lengthens the three stages. About ten minutes; `album` are pictures painted before.
    """
    recipe = Recipe.of(name)
    if steps is not None:
        seeing, reading, answering = steps
        recipe = replace(recipe, seeing=seeing if recipe.seeing else 0, reading=reading, answering=answering)
    began, before = monotonic(), torch.get_num_threads()
    torch.set_num_threads(threads)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    try:
        trainer = Trainer(name, album or paint_album(), recipe, seed)
        _write_log(out / "training.jsonl", trainer, f"training {name}", show)
        trainer.model.half().save_pretrained(out)
        trainer.processor.save_pretrained(out)
        minutes = (monotonic() - began) / 60
        # What is measured is what was saved: weights rounded to fp16.
        metrics = measure(Vlm(trainer.model.float(), trainer.processor, f"small-world/{name}"))
    finally:
        torch.set_num_threads(before)
    facts = {
        "command": f"ggss world train {name} --seed {seed}",
        "seed": seed,
        "minutes": f"{minutes:.1f} on {threads} thread{'s' if threads > 1 else ''}",
        "parameters": f"{sum(weights.numel() for weights in trainer.model.parameters()):,}",
        **asdict(recipe),
    }
    write_card(out, name, facts, metrics)
    return out


def _write_log(path: Path, trainer: Trainer, what: str, show: bool | None) -> None:
    """Run the trainer; every 50 steps a line with the losses of the step and the seconds so far."""
    recipe = trainer.recipe
    ends = np.cumsum([recipe.seeing, recipe.reading, recipe.answering])
    total = int(ends[-1])
    began = monotonic()
    with path.open("w", encoding="utf-8") as log:
        for step, losses in enumerate(track(trainer.run(), what, total, show), start=1):
            if step % 50 == 0 or step == total:
                line = {
                    "step": step,
                    "stage": STAGES[int(np.searchsorted(ends, step))],
                    "seconds": round(monotonic() - began, 1),
                }
                log.write(json.dumps(line | {name: round(value, 4) for name, value in losses.items()}) + "\n")
                log.flush()
