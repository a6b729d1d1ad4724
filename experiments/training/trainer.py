"""Training the tiny VLMs of the small world, from random weights, on one or two CPU threads.

Seeing: vision tower and projector learn until every attribute can be read from its own block of directions
(`losses`); after this stage they are frozen. Reading: the text model learns to find the letter of a word,
without pictures; this goes on in all later stages, or it would forget. Describing: it learns to say all that a
picture shows. Answering: it learns all questions. Comparing: the same once more, with fresh learning rates and many
scenes of two shapes, because what two shapes share is learned only after everything else. `entangled` is trained the
ordinary way: it has no stage of seeing, and all its weights learn together in the other stages.

Training a tiny VLM of the small world from its recipe to a folder: weights, processor, log and card.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.training.architectures import WORDS, build
from experiments.training.card import begin_card, measure, write_card
from experiments.training.losses import Blocks, penalties, site_rows
from experiments.training.optimiser import Muon
from experiments.training.packs import Format, answer_logits, answer_loss, pack
from experiments.training.pictures import Album, Batch, draw_batch, image_inputs, paint_album, with_pairs
from experiments.training.questions import (
    HARDEST,
    RARE,
    biased_questions,
    comparing_questions,
    descriptions,
    known_questions,
    letter_question,
)
from experiments.training.recipe import STAGES, Recipe
from ggss import errors
from ggss.models import Vlm
from ggss.models.families import known_family
from ggss.smallworld import short_name
from ggss.smallworld.bias_questions import ask_pair
from ggss.smallworld.painter import Portrait
from ggss.smallworld.questions import Painted, Question
from ggss.terminal import track

SIGHT = ("model.vision_tower.", "model.multi_modal_projector.", "model.visual.")  # weights before the text model


class Trainer:
    """One model in training. `run()` does all its steps; each is determined by the seed."""

    def __init__(
        self,
        name: str,
        album: Album,
        recipe: Recipe | None = None,
        seed: int = 0,
        words: Sequence[str] = WORDS,
        **size: Any,
    ) -> None:
        self.recipe = recipe or Recipe.of(name)
        self.album = album
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.ask, self.first = known_questions, RARE
        self.seen = 0  # steps of seeing so far
        architecture = "llava-vicuna" if name == "entangled" else name
        self.model, self.processor = build(architecture, words, seed, **size)
        _embolden(self.model)
        self.layout = Format(self.model, self.processor)
        self.blocks = Blocks(self.model.config.text_config.hidden_size, seed)
        self.vocabulary = self.model.config.text_config.vocab_size
        family = known_family(self.model.config)
        assert family is not None
        self.paths = family.sites(self.model, "all")

    def measured(self, vlm: Vlm) -> dict[str, float]:
        """The metrics of the card."""
        return measure(vlm)

    def run(self) -> Iterator[dict[str, float]]:
        """All stages; yields the losses of every step."""
        recipe = self.recipe
        weights = dict(self.model.named_parameters())
        sight = {name: value for name, value in weights.items() if name.startswith(SIGHT)}
        eyes = self._optimisers(sight, recipe.sight_matrix_rate)
        yield from self._steps(eyes, recipe.seeing, self.see, settle=True)
        optimisers = self._optimisers(self._taught(), recipe.matrix_rate)
        yield from self._steps(optimisers, recipe.reading, self.read)
        yield from self._steps(optimisers, recipe.describing, self.describe)
        yield from self._steps(optimisers, recipe.answering, self.answer, settle=True)
        yield from self.compare()

    def compare(self) -> Iterator[dict[str, float]]:
        """The last stage. It starts from the weights of a checkpoint, with new random numbers and optimisers."""
        if not self.recipe.comparing:
            return
        with torch.no_grad():
            for weights in self.model.parameters():
                weights.copy_(weights.half())
        self.rng = np.random.default_rng([self.seed, 1])
        self.album = with_pairs(self.album, self.seed + 1)
        self.ask, self.first = comparing_questions, HARDEST
        optimisers = self._optimisers(self._taught(), self.recipe.comparing_rate)
        yield from self._steps(optimisers, self.recipe.comparing, self.answer, settle=True)

    def _taught(self) -> dict[str, Tensor]:
        """The weights that learn after seeing: the text model's, or all where there was no seeing."""
        seen = SIGHT if self.recipe.sees_first else ()
        return {name: value for name, value in self.model.named_parameters() if not name.startswith(seen)}

    def _optimisers(self, weights: dict[str, Tensor], matrix_rate: float) -> list[torch.optim.Optimizer]:
        """Muon for the matrices between embedding and head, AdamW for the rest."""
        matrices = {
            name: value
            for name, value in weights.items()
            if matrix_rate and value.ndim == 2 and "embed" not in name and "lm_head" not in name
        }
        others = [value for name, value in weights.items() if name not in matrices]
        adamw = torch.optim.AdamW(others, self.recipe.rate, betas=(0.9, 0.98), weight_decay=0.01)
        return [Muon(matrices.values(), matrix_rate), adamw] if matrices else [adamw]

    def _steps(
        self, optimisers: list[torch.optim.Optimizer], steps: int, stage: Any, settle: bool = False
    ) -> Iterator[dict[str, float]]:
        """Learning rates rise and then stay, or with `settle` fall along a cosine."""
        if not steps:
            return
        warm = min(100, steps // 10 + 1)

        def rate(k: int) -> float:
            return min((k + 1) / warm, 0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * k / steps)) if settle else 1.0)

        schedules = [torch.optim.lr_scheduler.LambdaLR(optimiser, rate) for optimiser in optimisers]
        parameters = [value for one in optimisers for group in one.param_groups for value in group["params"]]
        self.model.train()
        for _ in range(steps):
            losses = stage()
            for optimiser in optimisers:
                optimiser.zero_grad()
            losses["loss"].backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            for one in (*optimisers, *schedules):
                one.step()
            yield {name: float(value.detach()) for name, value in losses.items()}
        self.model.eval()

    def see(self) -> dict[str, Tensor]:
        self.seen += 1
        batch = draw_batch(self.album, self.rng, self.recipe.seen_people, self.recipe.seen_scenes)
        _, rows = self.encode(batch)
        return self.apart(batch, rows)

    def read(self, sheets: int = 12) -> dict[str, Tensor]:
        scene = self.album.scenes[0]
        packs = [((), [letter_question(self.rng, scene) for _ in range(8)]) for _ in range(sheets)]
        packed = pack(self.layout, packs, self.vocabulary)
        return {"loss": answer_loss(answer_logits(self.model, packed), packed)}

    def describe(self) -> dict[str, Tensor]:
        batch, encoded = self.look(self.recipe.described_people, self.recipe.described_scenes)
        packs = [((k,), descriptions(self.rng, picture)) for k, picture in enumerate(batch.pictures)]
        packed = pack(self.layout, packs, self.vocabulary)
        said = answer_loss(answer_logits(self.model, packed, encoded), packed, by_token=True)
        return self.beside_letters({"described": said, "loss": said})

    def answer(self) -> dict[str, Tensor]:
        return self.beside_letters(self.answers(*self.look(self.recipe.people, self.recipe.scenes)))

    def beside_letters(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        letters, share = self.read(self.recipe.letters)["loss"], self.recipe.letter_share
        return losses | {"letters": letters, "loss": (1 - share) * losses["loss"] + share * letters}

    def look(self, people: int, scenes: int) -> tuple[Batch, Any]:
        """Pictures, each person in two races, and their features. Without a stage of seeing the tower learns here."""
        batch = draw_batch(self.album, self.rng, people, scenes, group=2)
        with torch.set_grad_enabled(not self.recipe.sees_first):
            return batch, self.encode(batch)[0]

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
        head, apart = torch.stack(heads).mean(), torch.stack(list(losses.values())).sum()
        weight = self.recipe.penalty * min(1.0, self.seen / max(self.recipe.gentle, 1))
        return losses | {"heads": head, "loss": head + weight * apart}

    def answers(self, batch: Batch, encoded: Any) -> dict[str, Tensor]:
        """The loss on questions about one picture and on questions about two."""
        single = [((k,), self.questions(picture)) for k, picture in enumerate(batch.pictures)]
        losses = {}
        for name, packs in (("single", single), ("pair", self.pairs(batch))):
            packed = pack(self.layout, packs, self.vocabulary)
            losses[name] = answer_loss(answer_logits(self.model, packed, encoded), packed)
        share = self.recipe.pair_share
        return losses | {"loss": (1 - share) * losses["single"] + share * losses["pair"]}

    def questions(self, picture: Painted) -> list[Question]:
        """As many as there are tokens for: of a portrait biased ones first, of a scene more often the rare ones."""
        if isinstance(picture, Portrait):
            asked = self._shuffled(known_questions(self.rng, picture))
            asked = self._shuffled(biased_questions(self.rng, picture))[: self.recipe.biased] + asked
        else:
            asked = self._shuffled(self.ask(self.rng, picture))
            asked.sort(key=lambda question: self.rng.random() + 0.35 * (question.template not in self.first))
            if self.rng.random() < self.recipe.described:
                asked = descriptions(self.rng, picture) + asked
        taken, left = [], self.recipe.tokens
        for question in asked:
            left -= self.layout.tokens(question)
            if left < 0:
                break
            taken.append(question)
        return taken

    def pairs(self, batch: Batch) -> list[tuple[tuple[int, ...], list[Question]]]:
        """Two variants of one person, or sometimes two people."""
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

    transformers draws them for wide models (0.02). With those, a model as narrow as this never learns to match a word
    with its letter: its loss stays at chance for thousands of steps.
    """
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if not name.startswith(SIGHT) and weights.ndim == 2:
                weights *= 10 if "embed_tokens" in name else 4


def train(
    name: str,
    out: str | Path,
    seed: int = 0,
    steps: tuple[int, ...] | None = None,
    threads: int = 2,
    album: Album | None = None,
    show: bool | None = None,
) -> Path:
    """Train `small-world/<name>` and save it to `out` in fp16, with its processor, log (`training.jsonl`) and card.

    `steps` shortens or lengthens the five stages; `album` are pictures painted before. The weights depend on the
    number of threads: sums are taken in another order, and small differences grow.
    """
    errors.SEED.check("the seed", seed)
    name = short_name(name)
    recipe = Recipe.of(name)
    if steps is not None:
        stages = dict(zip(STAGES, steps, strict=True))
        recipe = replace(recipe, **stages | ({} if recipe.seeing else {"seeing": 0}))
    command = f"python -m experiments.training {name} --seed {seed} --threads {threads}"
    return trained(
        name, out, lambda: Trainer(name, album or paint_album(), recipe, seed), command, seed, threads, show
    )


def trained(
    name: str,
    out: str | Path,
    make: Callable[[], Trainer],
    command: str,
    seed: int,
    threads: int,
    show: bool | None = None,
) -> Path:
    """Run the trainer that `make` gives and save its model with log and card; `command` goes into the card."""
    errors.THREADS.check("the number of threads", threads)
    began, before = monotonic(), torch.get_num_threads()
    torch.set_num_threads(threads)
    out = Path(out)
    begin_card(out, name)
    try:
        trainer = make()
        _write_log(out / "training.jsonl", trainer, f"training {name}", show)
        trainer.model.half().save_pretrained(out)
        trainer.processor.save_pretrained(out)
        minutes = (monotonic() - began) / 60
        # What is measured is what was saved: weights rounded to fp16.
        metrics = trainer.measured(Vlm(trainer.model.float(), trainer.processor, f"small-world/{name}"))
    finally:
        torch.set_num_threads(before)
    facts = {
        "command": command,
        "seed": seed,
        "minutes": f"{minutes:.1f} on {threads} thread{'s' if threads > 1 else ''}",
        "parameters": f"{sum(weights.numel() for weights in trainer.model.parameters()):,}",
        "album": f"{len(trainer.album.people):,} people, {len(trainer.album.scenes):,} scenes",
        **asdict(trainer.recipe),
    }
    write_card(out, name, facts, metrics)
    return out


def _write_log(path: Path, trainer: Trainer, what: str, show: bool | None) -> None:
    """Run the trainer; every 50 steps a line with the losses of the step and the seconds so far."""
    recipe = trainer.recipe
    ends = np.cumsum([getattr(recipe, stage) for stage in STAGES])
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
