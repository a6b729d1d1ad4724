"""Measure what each setting of the authors' released code is worth, one at a time and all together.

`python -m experiments.tools.release_differences` prints the table and writes release_differences.json beside this
file, from which `experiments.tools.fidelity` writes docs/fidelity.md.

On planted tokens: how far the steered tokens of a question about two pictures are apart, as a share of their movement
at alpha 1; the cosine of the largest angle between the two subspaces; and how far the option is from a float64
transcription of the authors' code (tests/release_transcription.py). On the small world: the published metrics of a
model under the method, by default and with the option. Its pictures have one size and its questions show them first,
so caps and layouts are not measured there.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

import ggss
from ggss.analysis.asking import ask
from ggss.data.counterfactuals import Counterfactuals
from ggss.methods import bend
from ggss.models.features import FeatureCache
from ggss.probes import suites
from ggss.probes.steered_model import SteeredModel
from ggss.probes.suites import sample_pairs
from ggss.steering.fitting import subspace_cosine
from ggss.steering.steerer import Steerer
from tests import release_transcription

ROOT = Path(__file__).resolve().parents[2]
MEASURED = Path(__file__).with_suffix(".json")
VALUES = "abcde"
MODEL = "small-world/qwen3-vl"
TASKS = {"mcq": "race", "2afc": "race", "nurse-doctor": "gender"}
DISCOVERED_ON = {"race": ("cook", "doctor", "lawyer", "nurse", "teacher"), "gender": ("cook", "lawyer", "teacher")}
PEOPLE = 60  # about so many items of each task


@dataclass(frozen=True)
class Effect:
    """tokens, cosine, transcription: see above; None where there is none. metrics: by task, (default, option)."""

    tokens: float | None = None
    cosine: float | None = None
    transcription: float | None = None
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def planted_table(contexts: int = 24, values: int = 5, positions: int = 6, width: int = 96, seed: int = 0) -> Any:
    """A table [U, A, T, D] of float32 numbers with a person, a place in the picture and a value in each token."""
    draw = np.random.default_rng(seed)
    axes = np.linalg.qr(np.random.default_rng(1).normal(size=(width, width)))[0]
    value = np.random.default_rng(2).normal(size=(values, 4)) @ axes[:, :4].T * 0.8
    person = draw.normal(size=(contexts, 1, 1, 20)) @ axes[:, 5:25].T * 0.5
    place = draw.normal(size=(1, 1, positions, 10)) @ axes[:, 50:60].T * 0.6
    noise = 0.4 * draw.normal(size=(contexts, values, positions, width))
    return (3 * axes[:, 40] + person + place + value[None, :, None] + noise).astype(np.float32).astype(float)


def planted_activations(table: Any) -> ggss.Activations:
    labels = release_transcription.labels(table)
    return ggss.Activations(
        [torch.tensor(image).float() for image in release_transcription.flat(table)],
        [{"value": VALUES[label]} for label in labels],
        [context for context in range(len(table)) for _ in range(table.shape[1])],
    )


TABLE = planted_table()
PAIR = planted_table(seed=5)[3, [1, 3]].reshape(-1, TABLE.shape[-1])  # the tokens of a question about two pictures
OWNERS = torch.tensor([0] * 6 + [1] * 6)


def released_options() -> dict[str, dict[str, Any]]:
    """By method, its options in the plan `release`."""
    methods = yaml.safe_load((ROOT / "studies" / "release.yaml").read_text(encoding="utf-8"))["methods"]
    return {one["name"]: one.get("options", {}) for one in methods if isinstance(one, dict) and "label" not in one}


def switches() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each option of the plan `release` alone, then all of a method together."""
    for method, options in released_options().items():
        for name, value in options.items():
            yield method, {name: value}
        if len(options) > 1:
            yield method, options


def label(method: str, options: Mapping[str, Any]) -> str:
    return f"{method} {' '.join(f'{name}={value}' for name, value in options.items())}"


def fitted(method: str, options: Mapping[str, Any]) -> Steerer:
    return ggss.fit(method, planted_activations(TABLE), attribute="value", **options)


def steered(steerer: Steerer) -> Any:
    return steerer.steer(torch.tensor(PAIR).float(), OWNERS).double().numpy()


def share(one: Any, other: Any) -> float:
    """How far steered tokens are apart, as a share of the movement of the second."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other - PAIR))


def on_tokens(method: str, options: Mapping[str, Any]) -> Effect:
    default, changed = fitted(method, {}), fitted(method, options)
    cosine = None
    bases = [steerer.operators["projection-mlp2"].tensors().get("basis") for steerer in (default, changed)]
    if all(basis is not None for basis in bases) and not method.startswith(("meandiff", "bend")):
        cosine = subspace_cosine(default, changed)
    theirs = release_transcription.METHODS[method](TABLE)(PAIR, 1.0)
    complete = options == released_options()[method]
    return Effect(
        share(steered(default), steered(changed)), cosine, share(steered(changed), theirs) if complete else None
    )


def rounding_of_bend(method: str) -> Effect:
    """Two seeds of the randomised SVD, which differ in the directions that are rounding errors alone."""
    options = released_options()[method]
    first, kept = steered(fitted(method, options)), bend.SEED
    try:
        bend.SEED = kept + 1
        return Effect(share(steered(fitted(method, options)), first))
    finally:
        bend.SEED = kept


def bfloat16_means() -> Effect:
    """GGSS fitted to pooled rows that are rounded to bfloat16."""
    acts = planted_activations(TABLE)
    rounded = [tokens.mean(0, keepdim=True).bfloat16().float() for tokens in acts.tokens]
    changed = ggss.fit("ggss", ggss.Activations(rounded, acts.attributes, acts.contexts), attribute="value")
    default = fitted("ggss", {})
    return Effect(share(steered(default), steered(changed)), subspace_cosine(default, changed))


class SmallWorld:
    """A model of the small world, and its published metrics under a method."""

    def __init__(self) -> None:
        self.vlm = ggss.load_vlm(MODEL)
        self.suite = suites.load("small-world", split="evaluation")
        self.faces = Counterfactuals.load("small-world")
        self.cache = FeatureCache(self.vlm)

    def measured(
        self,
        method: str = "ggss",
        options: Mapping[str, Any] | None = None,
        pooling: Any = "kept",
        pairs: float = 1.0,
        batch_size: int = 16,
        parser: Any = "careful",
    ) -> dict[str, float]:
        """By task, the published metric at alpha 1."""
        found = {}
        for task, attribute in TASKS.items():
            faces = self.faces.chosen(include={"occupation": DISCOVERED_ON[attribute]})
            acts = ggss.collect(self.vlm, faces, keep_tokens=True, features=self.cache, pooling=pooling, show=False)
            steerer = ggss.fit(method, acts, attribute=attribute, **(options or {}))
            asked = self.suite
            if task == "2afc" and pairs < 1:
                drawn = sample_pairs(self.suite.items(task), pairs)
                asked = suites.Suite(self.suite.name, (task,), lambda _, drawn=drawn: drawn)
            run = ask(SteeredModel(self.cache).steered(steerer, 1.0), asked, task, 1, batch_size, PEOPLE)
            found[task] = float(run.read_by(parser).metric)
        return found


def measure() -> dict[str, Effect]:
    """By name, the effect of each switch."""
    world = SmallWorld()
    cells: dict[str, dict[str, float]] = {}

    def compared(method: str = "ggss", **changed: Any) -> dict[str, tuple[float, float]]:
        if method not in cells:
            cells[method] = world.measured(method)
        after = world.measured(method, **changed)
        return {task: (cells[method][task], after[task]) for task in TASKS}

    found: dict[str, Effect] = {}
    for method, options in switches():
        effect = on_tokens(method, options)
        found[label(method, options)] = Effect(
            effect.tokens, effect.cosine, effect.transcription, compared(method, options=options)
        )
    for method in ("bend-euclidean", "bend-spherical"):
        found[f"{method} seed"] = rounding_of_bend(method)
    found["pooling"] = bfloat16_means()
    found["pairs"] = Effect(metrics=compared(pairs=0.5))
    found["batch_size"] = Effect(metrics=compared(batch_size=1))
    found["parser"] = Effect(metrics=compared(parser="release"))
    found["all of ggss"] = Effect(metrics=compared(pairs=0.5, batch_size=1, parser="release", pooling="release"))
    return found


def rounded(effect: Effect) -> dict[str, Any]:
    """With three digits, which is what other machines repeat where no rounding error decides."""
    numbers = {name: getattr(effect, name) for name in ("tokens", "cosine", "transcription")}
    return {name: float(f"{value:.3g}") for name, value in numbers.items() if value is not None} | (
        {"metrics": {task: [round(value, 5) for value in pair] for task, pair in effect.metrics.items()}}
        if effect.metrics
        else {}
    )


def line(name: str, effect: Mapping[str, Any]) -> str:
    cells = [f"{effect[key]:9.2g}" if key in effect else " " * 9 for key in ("tokens", "cosine", "transcription")]
    metrics = effect.get("metrics", {})
    cells += [f"{before:8.4f} {after:8.4f}" for before, after in metrics.values()]
    return f"{name:60} {' '.join(cells)}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    effects = {name: rounded(effect) for name, effect in measure().items()}
    print(f"{'':60} {'tokens':>9} {'cosine':>9} {'transcr.':>9} " + " ".join(f"{task:>17}" for task in TASKS))
    for name, effect in effects.items():
        print(line(name, effect))
    MEASURED.write_text(json.dumps(effects, indent=1) + "\n", encoding="utf-8")
