"""Training a tiny VLM of the small world from its recipe to a folder: weights, processor, log and card."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic

import numpy as np
import torch

from ggss import ranges
from ggss.models import Vlm
from ggss.progress import track
from ggss.smallworld import own_name
from ggss.smallworld.trainer import Trainer
from ggss.smallworld.training_album import Album, paint_album
from ggss.smallworld.training_card import begin_card, measure, write_card
from ggss.smallworld.training_recipe import STAGES, Recipe


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
    ranges.SEED.check("the seed", seed)
    name = own_name(name)
    recipe = Recipe.of(name)
    if steps is not None:
        stages = dict(zip(STAGES, steps, strict=True))
        recipe = replace(recipe, **stages | ({} if recipe.seeing else {"seeing": 0}))
    command = f"ggss world train {name} --seed {seed} --threads {threads}"
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
    ranges.THREADS.check("the number of threads", threads)
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
        metrics = measure(Vlm(trainer.model.float(), trainer.processor, f"small-world/{name}"))
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
