"""`make pace`: PACE, its ablations and its peers are asked on the five embedded small-world models.

Race steering at alpha 1, fitted on the town without CEOs, asked about CEOs that nothing was fitted on. Answers are
kept in `pace-out`, one file for each steering: stop it whenever you like, and the same command goes on. `pace_page`
writes docs/pace.md from the answers that are there.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ggss.activations import SITE, Activations
from ggss.activations.collect import collect
from ggss.analysis import ask
from ggss.data.counterfactuals import Counterfactuals
from ggss.models.features import FeatureCache
from ggss.probes.steered_model import SteeredModel
from ggss.smallworld.bias_questions import portraits
from ggss.smallworld.demo import CONTROL, HELD_OUT, load_model, suite
from ggss.smallworld.painter import town
from ggss.smallworld.scenes import PLANS, draw_scene
from ggss.steering.fitting import AUTO, fit
from ggss.steering.steerer import Steerer

ROOT = Path(__file__).parents[2]
PAGE, OUT = ROOT / "docs" / "pace.md", ROOT / "pace-out"
MODELS = (CONTROL, "llava-vicuna", "llava-mistral", "pixtral", "qwen3-vl")
BIAS, CAPABILITY, NAMED = ("mcq", "2afc"), "smallstar", "recognition-race"
TASKS = (*BIAS, CAPABILITY, NAMED)
NEUTRAL, SEEN_SCENES = 200, 48  # scenes for discovery, and others on which displacement is measured


@dataclass(frozen=True)
class Steering:
    """A line of a table. identities: how many of the 40 are used; None: all."""

    label: str
    method: str = "pace"
    options: Mapping[str, Any] = field(default_factory=dict)
    neutral: bool = False
    identities: int | None = None
    alpha: float = 1.0


PACE, NEUTRAL_PACE = Steering("pace"), Steering("pace, neutral pictures", neutral=True)
PEERS = [
    Steering(name, name)
    for name in ("ggss", "ggss-contrast", "leace-spherical", "svd-pooled-euclidean", "bend-token-euclidean")
]
KERNEL = [
    Steering("pace-kernel", "pace-kernel"),
    Steering("pace-kernel, neutral pictures", "pace-kernel", neutral=True),
]
MAIN = [PACE, Steering("ggss", "ggss"), NEUTRAL_PACE, *KERNEL, Steering("auto", AUTO), *PEERS[1:]]
DIRECTIONS = [Steering(f"k = {k}", options={"k": k}) for k in (2, 4, 8, 16)]
ABLATED = [
    Steering(name, name)
    for name in (
        *("pace-norm", "pace-no-whitening", "pace-pooled", "pace-orthogonal", "pace-gated", "pace-within-parts"),
    )
]
IDENTITIES = [Steering(f"{n} identities", identities=n) for n in (4, 8, 20)]
CLUSTERS = [Steering(f"{n} clusters", options={"parts": n}) for n in (4, 16)]
SHRUNK = [Steering(f"shrinkage {s:g}", options={"shrinkage": s}) for s in (0.001, 0.1)]
PATHS = [
    Steering("pace-slerp, alpha 0.5", "pace-slerp", alpha=0.5),
    *(Steering(f"pace, alpha {alpha:g}", alpha=alpha) for alpha in (0.5, 1.5)),
]
TABLES = {
    "Peers and PACE": (MAIN, MODELS),
    "How many directions": (DIRECTIONS, (CONTROL,)),
    "Ablations": (ABLATED, (CONTROL,)),
    "The norm, where the attribute was planted": (ABLATED[:1], MODELS[1:]),
    "How many identities": (IDENTITIES, (CONTROL,)),
    "Content clusters instead of positions": (CLUSTERS, (CONTROL,)),
    "Shrinkage": (SHRUNK, (CONTROL,)),
    "Other strengths, and the arc": (PATHS, (CONTROL,)),
}


def scenes(count: int, split: str, seed: int) -> Counterfactuals:
    """Pictures without people; those of the split 'training' share no layout with SmallStar's."""
    rng, plans = np.random.default_rng(seed), tuple(PLANS)
    return Counterfactuals(tuple(draw_scene(rng, split, plans[i % len(plans)]) for i in range(count)))


@dataclass
class Asked:
    """One model, with what all of its steerings share."""

    name: str

    def __post_init__(self) -> None:
        self.plain = SteeredModel(FeatureCache(load_model(self.name)))
        vlm, features = self.plain.vlm, self.plain.cache
        faces = town().chosen(exclude={"occupation": HELD_OUT["race"]})
        self.acts = collect(vlm, faces, "all", features=features, keep_tokens=True)
        neutral = scenes(NEUTRAL, "training", 7)
        self.neutral = collect(vlm, neutral, "all", features=features, keep_tokens=True)
        others = Counterfactuals(tuple(portraits("mcq", "evaluation")))
        self.seen = {
            "moved": collect(vlm, others, features=features, keep_tokens=True),
            "neutral moved": collect(vlm, scenes(SEEN_SCENES, "evaluation", 8), features=features, keep_tokens=True),
        }

    def steerer(self, steering: Steering) -> Steerer:
        acts = self.acts if steering.identities is None else first_identities(self.acts, steering.identities)
        neutral = {"neutral": self.neutral} if steering.neutral else {}
        return fit(steering.method, acts, attribute="race", **neutral, **steering.options)

    def facts(self, steerer: Steerer, alpha: float) -> dict[str, Any]:
        """What is told of a steering besides its answers."""
        found = steerer.diagnostics.get(SITE, {})
        told = {name: found[name] for name in ("k", "shrinkage", "notes") if name in found}
        for name, acts in self.seen.items():
            pictures = list(acts.complete_tokens)
            rows = torch.cat([tokens.float() for tokens in pictures])
            images = torch.arange(len(pictures)).repeat_interleave(torch.tensor([len(tokens) for tokens in pictures]))
            steered = steerer.steer(rows, images, alpha, site=SITE)
            told[name] = float(((steered - rows).norm(dim=1) / rows.norm(dim=1)).mean())
        return told


def first_identities(acts: Activations, count: int) -> Activations:
    """Every n-th identity, so that all occupations are among few."""
    sources = list(dict.fromkeys(acts.contexts))
    chosen = set(sources[:: len(sources) // count][:count])
    return acts.of([i for i, context in enumerate(acts.contexts) if context in chosen])


def place(model: str, label: str) -> Path:
    return OUT / f"{model} {label}.json".replace("=", "").replace(",", "").replace(" ", "-")


def ask_all(names: Sequence[str]) -> None:
    """Whatever has no answer yet, the main table of all models first."""
    for model, lines in [*((name, MAIN) for name in names), *((name, lines_of(name)) for name in names)]:
        wanted = [Steering("none"), *lines]
        missing = [one for one in wanted if not place(model, one.label).exists()]
        if not missing:
            continue
        asked = Asked(model)
        for steering in missing:
            steerer = None if steering.label == "none" else asked.steerer(steering)
            under = asked.plain if steerer is None else asked.plain.steered(steerer, steering.alpha)
            known = None if steerer is None or steering.method != AUTO else same_steering(asked, steerer)
            answers = known or {
                task: [run.texts, run.probabilities]
                for task, run in ((task, ask(under, suite(), task)) for task in TASKS)
            }
            kept = {
                "steering": asdict(steering),
                "facts": {} if steerer is None else asked.facts(steerer, steering.alpha),
                "answers": answers,
            }
            path = place(model, steering.label)
            path.parent.mkdir(exist_ok=True)
            path.with_suffix(".part").write_text(json.dumps(kept))
            path.with_suffix(".part").rename(path)
            print(model, steering.label, flush=True)


def same_steering(asked: Asked, steerer: Steerer) -> Mapping[str, Any] | None:
    """The answers of another line of the main table whose operators are the very same; None if there is none."""
    for other in (one for one in MAIN if one.method != AUTO):
        path = place(asked.name, other.label)
        if path.exists() and alike(asked.steerer(other), steerer):
            return json.loads(path.read_text())["answers"]
    return None


def alike(one: Steerer, other: Steerer) -> bool:
    """Whether all numbers of two steerers are equal."""
    pairs = [(one.operators[site], operator) for site, operator in other.operators.items()]
    return all(
        a.kind == b.kind
        and a.scalars() == b.scalars()
        and all(torch.equal(numbers, b.tensors()[name]) for name, numbers in a.tensors().items())
        for a, b in pairs
    )


def lines_of(model: str) -> Iterator[Steering]:
    for lines, models in TABLES.values():
        if model in models:
            yield from lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="ask only these, comma separated")
    torch.set_num_threads(1)
    ask_all(parser.parse_args(arguments).models.split(","))


if __name__ == "__main__":
    main()
