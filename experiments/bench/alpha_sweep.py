"""`python -m experiments.bench.alpha_sweep`: a sweep over strengths at real picture lengths.

It writes its section of docs/performance.md.

Three ways to ask the same questions, strength by strength and in turn, so that all see the same machine: a live
hook on the model, in batches, with images encoded every time; features that are encoded once; and those, with one
pass over a picture's tokens for all questions about it.

The model is of a real class, with random weights: LLaVA-NeXT, with every dimension of llava-v1.6-vicuna-7b divided
by eight (widths, layers, heads), so that tower and text model cost in proportion what the real ones do. Its pictures
have as many tokens as the real one's. The small world is measured too: there prompts are too short to share.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers as hf
from PIL import Image

import ggss
from experiments.bench.__main__ import PAGE, SWEEP, machine, show, table, with_section
from experiments.bench.study import BATCH, MODEL, Finished, small_world_items
from experiments.bench.timing import milliseconds, row
from experiments.training.architectures import build
from ggss.models import Vlm, load_vlm, prefix
from ggss.models.prompts import PromptLengths
from ggss.probes.base import Item
from ggss.probes.steered_model import SteeredModel, batches
from ggss.smallworld.demo import discover
from ggss.steering.steerer import Steerer

EIGHTH = {
    "vision_config": {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 2},
    "text_config": {
        **{"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 4, "head_dim": 128},
        **{"num_attention_heads": 4, "num_key_value_heads": 4},
    },
}
SIDE, PATCH, WIDTH = 336, 14, 512
PICTURES, TOGETHER, ROUNDS = 2, 8, 9
ALPHAS, SMALL_ALPHAS = (0.25, 0.5, 1.0), (0.25, 0.5, 0.75, 1.0, 1.5)
GOAL = 5
OPTIONS = {"A": "low", "B": "middle", "C": "high", "D": "top"}
ASKED = (
    "how much does this person earn",
    "which job does this person have",
    "how old is this person",
    "what does this person do in the evening",
    "where does this person live",
    "who is the boss of this person",
    "how long did this person go to school",
    "how does this person travel to work",
)
RULES = "answer with the letter of the right option from the given choices directly"
WORDS = sorted({*" ".join([*ASKED, RULES]).split(), *OPTIONS, *OPTIONS.values(), "?", "."})
SHORT = ((128, 4), (128, 8), (192, 4), (192, 8))  # of pictures whose tokens are shared: pixels, questions
TITLE = """## A sweep over strengths at real picture lengths

Written by `make bench-sweep`; do not edit. Three ways to ask the same questions, in turn, on one thread (seconds of
the processor): the model is a LLaVA-NeXT with random weights and an eighth of every dimension of
llava-v1.6-vicuna-7b, and its pictures have as many tokens as the real one's. The last lines show where sharing
begins to pay, on a model as small as the small world's."""
LIVE = "live hook, images re-encoded, in batches of"
WAYS = ("features encoded once", "features encoded once, prefix shared where it pays")


@dataclass(frozen=True)
class Sweep:
    """Of each of the three ways: all answers, and the processor's seconds."""

    answers: list[list[str]]
    seconds: list[float]

    def identical(self, way: int) -> int:
        """How many answers of a way are those of the live hook."""
        return sum(a == b for a, b in zip(self.answers[0], self.answers[way], strict=True))


def real_length_model(words: Sequence[str] = WORDS) -> Vlm:
    """A LLaVA-NeXT whose pictures have as many tokens as real ones."""
    tiny, processor = build("llava-vicuna", words, image_size=SIDE, patch_size=PATCH, width=32, layers=1)
    config = tiny.config
    for part, sizes in EIGHTH.items():
        for name, value in sizes.items():
            setattr(getattr(config, part), name, value)
    config.image_grid_pinpoints = processor.image_processor.image_grid_pinpoints = [[2 * SIDE, 2 * SIDE]]
    torch.manual_seed(0)
    model = hf.LlavaNextForConditionalGeneration(config).eval()
    model.generation_config = tiny.generation_config
    return Vlm(model, processor, "llava-next-eighth")


def real_length_items() -> list[Item]:
    """Several questions about each of a few pictures of noise."""
    rng, items = np.random.default_rng(0), []
    for number in range(PICTURES):
        pixels = rng.integers(0, 256, (2 * SIDE, 2 * SIDE, 3), dtype=np.uint8)
        picture = Finished(f"noise {number}", f"noise-{number}", {}, (), Image.fromarray(pixels))
        choices = " ".join(f"{letter} {text}" for letter, text in OPTIONS.items())
        for question in ASKED:
            prompt = f"{question} ? {choices} . {RULES} ."
            items.append(Item(f"{number}/{question}", prompt, (picture,), ({},), str(number), options=OPTIONS))
    return items


def random_steerer() -> Steerer:
    """One of the right width: what it removes does not matter to the time it takes."""
    generator = torch.Generator().manual_seed(0)
    values, people = ("a", "b", "c", "d"), range(8)
    tokens = [torch.randn(16, WIDTH, generator=generator) for _ in people for _ in values]
    races = [{"race": value} for _ in people for value in values]
    acts = ggss.Activations(tokens, races, [(person,) for person in people for _ in values])
    return ggss.fit("ggss", acts, attribute="race")


def measured(vlm: Vlm, steerer: Steerer, items: Sequence[Item], alphas: Sequence[float], together: int) -> Sweep:
    """All questions at all strengths, in the three ways."""
    order = [number for batch in batches(items, together) for number in batch]

    def live(alpha: float) -> list[str]:
        # Each question brings its own picture, as questions do that are asked one after the other.
        pictures = [[source.image().copy() for source in items[i].images] for i in order]
        with steerer.attach(vlm, alpha, force=True):
            said = vlm.answer([items[i].prompt for i in order], pictures, max_new_tokens=1, batch_size=together)
        found = dict(zip(order, said, strict=True))
        return [found[i] for i in range(len(items))]

    def from_features(model: SteeredModel, share: bool, alpha: float) -> list[str]:
        vlm.share_prefix = share
        under = model.steered(steerer, alpha, force=True)
        return [reading.text for reading in under.read(items, 1, batch_size=together, show=False)]

    once, shared = SteeredModel.of(vlm), SteeredModel.of(vlm)
    ways: tuple[Callable[[float], list[str]], ...] = (
        live,
        lambda alpha: from_features(once, False, alpha),
        lambda alpha: from_features(shared, True, alpha),
    )
    sweep = Sweep([[] for _ in ways], [0.0 for _ in ways])
    for alpha in alphas:
        for way, ask in enumerate(ways):
            start = time.process_time()
            sweep.answers[way].extend(ask(alpha))
            sweep.seconds[way] += time.process_time() - start
    return sweep


def rows(what: str, sweep: Sweep, together: int, goal: float | None) -> list[dict[str, Any]]:
    """A line for each way against the live hook. The goal is for the last way."""
    found = []
    for way, name in enumerate(WAYS, 1):
        ratio, same, asked = sweep.seconds[0] / sweep.seconds[way], sweep.identical(way), len(sweep.answers[0])
        aims = goal is not None and way == len(WAYS)
        found.append(
            row(
                f"{what}: {name}; {same} of {asked} answers identical",
                f"{sweep.seconds[way]:.1f} s",
                f"{LIVE} {together}, {sweep.seconds[0]:.1f} s",
                ratio,
                f"at least {goal} times faster, all identical" if aims else "all identical",
                (not aims or goal is None or ratio >= goal) and same == asked,
            )
        )
    return found


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    vlm, items = real_length_model(), real_length_items()
    shown = items[0].images[0].image()
    vlm.encode([shown])  # a warm-up
    tokens = PromptLengths(vlm.processor)([(items[0].prompt, [shown.size])])[0]
    long = f"{len(ALPHAS)} alphas, {PICTURES} pictures, {len(ASKED)} questions each, prompts of {tokens} tokens"
    found = rows(long, measured(vlm, random_steerer(), items, ALPHAS, TOGETHER), TOGETHER, GOAL)
    small = load_vlm(MODEL)
    steerer, few = discover(SteeredModel.of(small).cache, "race"), small_world_items()
    measured(small, steerer, few[:2], (1.0,), BATCH)
    found += rows("small world", measured(small, steerer, few, SMALL_ALPHAS, BATCH), BATCH, None)
    return found + [_begins_to_pay(side, questions) for side, questions in SHORT]


def _begins_to_pay(side: int, questions: int) -> dict[str, Any]:
    """A model as small as the small world's, and pictures that are larger: shared whatever it saves."""
    vlm = Vlm(*build("qwen3-vl", WORDS, image_size=side))
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)) for _ in range(BATCH // questions)]
    pictures = [[one] for one in vlm.encode(images) for _ in range(questions)]
    asked = [f"{ASKED[i % len(ASKED)]} ? {RULES}" for i in range(BATCH)]

    def spent(share: bool) -> float:
        vlm.share_prefix = share
        start = time.process_time()
        vlm.read(asked, pictures, [list(OPTIONS)] * BATCH, 1, BATCH)
        return time.process_time() - start

    # What the prompts have in common is the picture, but for a few tokens.
    saved = (questions - 1) * len(pictures[0][0].rows["projection-mlp2"])
    usual, prefix.LEAST_SAVED = prefix.LEAST_SAVED, 1
    try:
        for sharing in (False, True):
            spent(sharing)  # a warm-up
        pairs = [(spent(False), spent(True)) for _ in range(ROUNDS)]
        alone, shared = (statistics.median(own) for own in zip(*pairs, strict=True))
    finally:
        prefix.LEAST_SAVED = usual
    name = f"{BATCH} questions, {questions} a picture: {saved} image tokens saved for each (ggss shares from {usual})"
    return row(name, milliseconds(shared), f"not shared, {milliseconds(alone)}", alone / shared, "")


def main() -> int:
    found = run()
    show(found)
    section = f"{TITLE}\n\n{machine()}\n\n{table(found)}"
    PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), SWEEP, section), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
