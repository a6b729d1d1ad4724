"""`python -m experiments.bench.vllm_sweep`: a sweep over strengths in three ways.

It writes its table into docs/serving.md.

In turn, strength by strength, so that all see the same machine: transformers with a live hook, in batches, with
pictures encoded every time; transformers as the study engine has it, with pictures that are encoded once and one
prefix for all questions about a picture; and vLLM. Each has one thread. One model is the small world's; the other
has random weights, an eighth of every dimension of llava-v1.6-vicuna-7b, and pictures with as many tokens as there.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import ggss
from experiments.bench.__main__ import processor
from experiments.bench.alpha_sweep import SIDE, real_length_model
from ggss.models import load_vlm
from ggss.models.features import steered
from ggss.models.reading import Answer
from ggss.version import library_versions
from ggss.vllm_plugin import engine_version
from ggss.vllm_plugin.engine import EngineReader, EngineSetup, EngineThread

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
BEGIN, END = "<!-- sweep: written by `make bench-vllm` -->", "<!-- end of the sweep -->"
SMALL = "small-world/qwen3-vl"
ALPHAS = (0.5, 1.0)
OPTIONS = ("amber", "coral", "ivory", "jade", "pearl")
QUESTIONS = tuple(
    f"which {what} is this person ?" for what in ("race", "gender", "color", "face", "cook", "one", "hat", "room")
)
WAYS = ("live hook, in batches", "features and prefix of a picture computed once", "vLLM")
GOAL = 5  # times the live hook in batches, at real picture lengths


@dataclass
class Sweep:
    """One model's. seconds: of each way, over all strengths. differing: answers of vLLM that are not transformers'.

    apart: the largest difference of an option's probability.
    """

    name: str
    tokens: int
    asked: int
    seconds: list[float] = field(default_factory=lambda: [0.0] * len(WAYS))
    differing: int = 0
    apart: float = 0.0


def sweep(name: str, model: str, images: Sequence[Image.Image], batch: int) -> Sweep:
    """Every question about every picture, at every strength, in each of the ways."""
    vlm = load_vlm(model, dtype="float32")
    faces = ggss.Counterfactuals.load("small-world", include={"occupation": "cook", "identity": ["00", "01"]})
    with tempfile.TemporaryDirectory() as cache:
        steerer = ggss.fit("ggss", ggss.collect(vlm, faces, cache=cache, show=False), attribute="race")
    asked = [(question, image) for image in range(len(images)) for question in QUESTIONS]
    questions, options = [question for question, _ in asked], [OPTIONS] * len(asked)
    engine = EngineThread(EngineSetup(model, "float32", context=4096))
    content = engine.call(engine.host.add(steerer))
    reader = EngineReader(engine.host, vlm.processor, vlm.name)
    encoded = vlm.encode(list(images), batch_size=1)  # once for all strengths, so its time is a part of the sweep's
    found = Sweep(name, len(encoded[0].rows["projection-mlp2"]), len(asked) * len(ALPHAS))
    found.seconds[1] += _seconds(lambda: vlm.encode(list(images), batch_size=1))[0]

    def live(alpha: float) -> list[Answer]:
        own = [[images[number].copy()] for _, number in asked]
        with steerer.attach(vlm, alpha):
            return vlm.read(questions, own, options, 1, batch)

    def reused(alpha: float) -> list[Answer]:
        features = steered(encoded, steerer, alpha)
        return vlm.read(questions, [[features[number]] for _, number in asked], options, 1, batch)

    def engines(alpha: float) -> list[Answer]:
        own = [[images[number]] for _, number in asked]
        return engine.call(reader.read(questions, own, options, {content: alpha}, 1))

    engines(0.1)  # so that no way pays for its first call
    vlm.read(questions[:1], [[images[0]]], options[:1], 1, 1)
    for alpha in ALPHAS:
        answers = []
        for way, run in enumerate((live, reused, engines)):
            seconds, said = _seconds(lambda run=run, alpha=alpha: run(alpha))
            found.seconds[way] += seconds
            answers.append(said)
        for mine, theirs in zip(answers[1], answers[2], strict=True):
            found.differing += mine.text != theirs.text
            pairs = zip(mine.probabilities, theirs.probabilities, strict=True)
            found.apart = max(found.apart, *(abs(one - other) for one, other in pairs))
    engine.close()
    return found


def _seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def large(folder: str) -> str:
    """A model with random weights whose pictures have as many tokens as real ones."""
    vlm = real_length_model(sorted({*" ".join(QUESTIONS).split(), *OPTIONS}))
    vlm.model.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    return folder


def text(sweeps: Sequence[Sweep]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in library_versions().items() if name != "ggss")
    lines = [
        f"{processor()}, one thread for each way; {versions}, {engine_version()}. Load of the machine at the end: "
        f"{Path('/proc/loadavg').read_text().split()[0]}; above 1 other programs ran.",
        "",
        "| model | tokens of a picture | questions | "
        + " | ".join(WAYS)
        + " | vLLM's answers that differ from transformers' |",
        "| --- " * (len(WAYS) + 4) + "|",
    ]
    for one in sweeps:
        hook, *others = one.seconds
        took = " | ".join(f"{seconds:.1f} s, {hook / seconds:.1f} times as fast" for seconds in others)
        lines.append(
            f"| {one.name} | {one.tokens:,} | {one.asked} | {hook:.1f} s | {took} | {one.differing}, "
            f"probabilities by at most {one.apart:.1e} |"
        )
    hook, *others = sweeps[-1].seconds
    verdicts = (
        f"{way} {'met' if hook / seconds >= GOAL else '**not met**'}"
        for way, seconds in zip(WAYS[1:], others, strict=True)
    )
    goal = f"Goal at real picture lengths: at least {GOAL} times the live hook in batches: {', '.join(verdicts)}."
    return "\n".join([*lines, "", goal])


def main() -> int:
    torch.set_num_threads(1)
    faces = ggss.Counterfactuals.load("small-world", include={"occupation": "nurse", "identity": ["00", "01"]})
    small = [own.image() for own in faces.pictures]
    sweeps = [sweep("small world", SMALL, small, 64)]
    with tempfile.TemporaryDirectory() as folder:
        pictures = [own.resize((2 * SIDE, 2 * SIDE)) for own in small[:2]]  # four tiles and an overview
        sweeps.append(sweep("an eighth of LLaVA-NeXT-7B, random weights", large(folder), pictures, 8))
    written = text(sweeps)
    print(written)
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{written}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
