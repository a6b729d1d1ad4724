"""What a sweep over strengths costs when pictures are encoded once, against a live hook that sees them every time.

The live hook is measured twice: one question after the other, as an evaluation loop around `generate` asks them, and
in the same batches as the study. The second shows what reuse alone is worth to models as tiny as these.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from PIL import Image

from experiments.bench.timing import row
from ggss.data.pictures import Context
from ggss.models import Answer, load_vlm
from ggss.probes import suites
from ggss.probes.base import Item
from ggss.probes.steered_model import SteeredModel
from ggss.smallworld.demo import discover
from ggss.study.plan import Plan
from ggss.study.runner import run as run_study
from ggss.study.store import Key, Store

MODEL = "small-world/qwen3-vl"
TASKS, SHARE = ("mcq", "2afc", "nurse-doctor"), 1 / 3
ALPHAS = (0.25, 0.5, 0.75, 1.0, 1.5)
BATCH = 64
PLAN = Plan.of(
    {
        "name": "bench",
        "suite": "small-world",
        "discovery": "small-world",
        "models": [MODEL],
        "methods": ["none", "ggss"],
        "alphas": ALPHAS,
        "steering": {"race": {"discover_on": ["cook"], "tasks": ["mcq", "2afc"]}},
        "limit": 200,
    }
)


@dataclass(frozen=True, eq=False)
class Finished:
    """A picture that is painted already: neither side waits for the painter."""

    name: str
    digest: str
    attributes: dict[str, str]
    context: Context
    painted: Image.Image

    def image(self) -> Image.Image:
        return self.painted


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    vlm = load_vlm(MODEL)
    reused = SteeredModel.of(vlm)
    steerer = discover(reused.cache, "race")
    items = small_world_items()

    def with_reuse(alpha: float) -> list[str]:
        return [reading.text for reading in reused.steered(steerer, alpha).read(items, 1, show=False)]

    def with_hook(alpha: float, batch_size: int) -> list[str]:
        # Each question brings its own picture, as questions do that are asked one after the other.
        pictures = [[source.image().copy() for source in item.images] for item in items]
        with steerer.attach(vlm, alpha):
            return vlm.answer([item.prompt for item in items], pictures, max_new_tokens=1, batch_size=batch_size)

    sweeps = (with_reuse, partial(with_hook, batch_size=1), partial(with_hook, batch_size=BATCH))

    SteeredModel.of(vlm).read(items[:2], 1, show=False)
    vlm.answer([items[0].prompt], [[source.image() for source in items[0].images]], max_new_tokens=1)
    # In turn, strength by strength, so that all see the same machine.
    timed = [[_timed(sweep, alpha) for sweep in sweeps] for alpha in ALPHAS]
    said, *live = ([answers for answers, _ in column] for column in zip(*timed, strict=True))
    seconds, *live_seconds = ([spent for _, spent in column] for column in zip(*timed, strict=True))
    later = sum(seconds[1:]) / (len(seconds) - 1)
    writes, whole = _writes()
    rows = []
    for how, goal, theirs, spent in zip(
        ("one question at a time", f"in batches of {BATCH}"), (5, 0), live, live_seconds, strict=True
    ):
        same = sum(a == b for mine, other in zip(said, theirs, strict=True) for a, b in zip(mine, other, strict=True))
        ratio, asked = sum(spent) / sum(seconds), len(items) * len(ALPHAS)
        rows.append(
            row(
                f"sweep of {len(ALPHAS)} alphas, {same} of {asked} answers identical",
                f"{sum(seconds):.1f} s",
                f"live hook, images re-encoded, {how}, {sum(spent):.1f} s",
                ratio,
                f"at least {goal} times faster, all identical" if goal else "all identical",
                ratio >= goal and same == asked,
            )
        )
    return [
        *rows,
        row("one more alpha", f"{later:.2f} s", f"the first, {seconds[0]:.2f} s", later / seconds[0], ""),
        row(
            "database writes of a study",
            f"{writes:.2f} s",
            f"the whole run, {whole:.1f} s",
            writes / whole,
            "at most 5 %",
            writes <= 0.05 * whole,
        ),
    ]


def small_world_items() -> list[Item]:
    """A third of each task's people, the same ones first: how often a picture is shown again is as in the whole."""
    suite = suites.load("small-world", split="evaluation")
    items = [item for task in TASKS for item in _third(suite.items(task))]
    painted = {
        p.digest: Finished(p.name, p.digest, dict(p.attributes), p.context, p.image())
        for item in items
        for p in item.images
    }
    return [replace(item, images=tuple(painted[source.digest] for source in item.images)) for item in items]


def _third(items: Sequence[Item]) -> list[Item]:
    people: dict[str, list[str]] = {}
    for person in dict.fromkeys(item.cluster for item in items):
        people.setdefault(person.partition("/")[0], []).append(person)
    kept = {person for own in people.values() for person in own[: max(1, round(SHARE * len(own)))]}
    return [item for item in items if item.cluster in kept]


def _timed(sweep: Callable[[float], list[str]], alpha: float) -> tuple[list[str], float]:
    """The answers and the processor's seconds: on one thread they are the clock's, less what others took."""
    start = time.process_time()
    return sweep(alpha), time.process_time() - start


def _writes() -> tuple[float, float]:
    """The seconds spent writing to the store, and those of the whole run."""
    write, spent = Store.write, [0.0]

    def timed(self: Store, key: Key, answers: Mapping[str, Answer]) -> None:
        start = time.perf_counter()
        write(self, key, answers)
        spent[0] += time.perf_counter() - start

    Store.write = timed
    try:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            run_study(PLAN, folder, show=False)
            return spent[0], time.perf_counter() - start
    finally:
        Store.write = write
