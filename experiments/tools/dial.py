"""`make dial`: the methods against the dial of entanglement.

Writes docs/dial.md, docs/dial.png and results/dial.json. Models that are missing from
dial-out are trained first (several minutes each on one thread); a model or a row that is there is not made again, so
the command may be stopped and goes on where it was. Everything is at the published site, under race steering at
alpha 1, on the evaluation identities.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from experiments.bench.planted_diagnostics import ROWS as PLANTED
from experiments.bench.planted_diagnostics import diagnostics
from experiments.tools.dial_page import page, picture, world_name
from experiments.training.card import CARD
from experiments.training.dial import DIAL, dial_album, train_on_dial
from ggss.activations import SITE
from ggss.activations.collect import collect
from ggss.analysis import Comparison, Run, ask, compare
from ggss.files import write_whole
from ggss.methods import registry
from ggss.models.features import FeatureCache
from ggss.probes.steered_model import SteeredModel
from ggss.smallworld import folders, short_name
from ggss.smallworld.demo import HELD_OUT, load_model, suite
from ggss.smallworld.painter import town
from ggss.steering.fitting import fit

ROOT = Path(__file__).parents[2]
MODELS, ROWS, PAGE = ROOT / "dial-out", ROOT / "results" / "dial.json", ROOT / "docs" / "dial.md"
METHODS = (
    "ggss",
    "ggss-contrast",
    "leace-spherical",
    "svd-pooled-euclidean",
    "bend-euclidean",
    "bend-token-euclidean",
    "inlp-spherical",
    "pace",
    "pace-kernel",
    "auto",
)
ATTRIBUTE, BIAS, CAPABILITY = "race", ("mcq", "2afc"), "smallstar"
LIMIT = 600  # items of a task
SEEDS = (0, 1)  # of training: where a block's directions are turned to, and what the text model sees

Row = dict[str, Any]


def folder(separation: float, seed: int) -> Path:
    return MODELS / f"separation-{separation:g}-seed-{seed}"


def finished(separation: float, seed: int) -> bool:
    card = folder(separation, seed) / CARD
    return card.exists() and "not finished" not in card.read_text(encoding="utf-8")


def train_missing(wanted: Sequence[float], seeds: Sequence[int]) -> None:
    missing = [(separation, seed) for seed, separation in product(seeds, wanted) if not finished(separation, seed)]
    album = dial_album() if missing else None
    for separation, seed in missing:
        train_on_dial(separation, folder(separation, seed), seed, threads=1, album=album)


def worlds() -> dict[str, str]:
    """By what the page calls them, the models that there are: those of the dial, and the ordinary control."""
    dial = {
        world_name(separation, seed): str(folder(separation, seed))
        for separation, seed in product(sorted(DIAL), SEEDS)
        if finished(separation, seed)
    }
    return dial | {"1": "small-world/llava-vicuna", "ordinary": "small-world/entangled"}


def card(name: str) -> dict[str, str]:
    """What a model's card says, by name."""
    path = Path(name) if Path(name).is_dir() else folders()[short_name(name)]
    lines = (path / CARD).read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    return {key: value for key, value in cells if value}


def measured(world: str, name: str, methods: Sequence[str], known: dict[str, Row]) -> None:
    """Add the rows of one model to those that are known, each kept as soon as it is there."""
    missing = [method for method in methods if f"{world} {method}" not in known]
    if not missing:
        return
    plain = SteeredModel(FeatureCache(load_model(name)))
    before = {task: ask(plain, suite(), task, limit=LIMIT) for task in (*BIAS, CAPABILITY)}
    for method in missing:
        about = {"card": card(name)} if method == registry.UNSTEERED else {}
        known[f"{world} {method}"] = {"world": world, "method": method, **about, **row(plain, before, method)}
        keep(known)
        print(world, method, flush=True)


def stored() -> dict[str, Row]:
    return json.loads(ROWS.read_text(encoding="utf-8")) if ROWS.exists() else {}


def keep(known: dict[str, Row]) -> None:
    """Write the rows with those that another process has measured meanwhile."""
    known.update({key: one for key, one in stored().items() if key not in known})
    write_whole(ROWS, (json.dumps(known, indent=1) + "\n").encode())


def row(plain: SteeredModel, before: dict[str, Run], method: str) -> Row:
    """The changes under a method, in percent of the bias and in points of capability, and its diagnostics."""
    if method == registry.UNSTEERED:
        return {"values": {task: _value(run) for task, run in before.items()}}
    faces = town().chosen(exclude={"occupation": HELD_OUT[ATTRIBUTE]})
    acts = collect(plain.vlm, faces, SITE, features=plain.cache, keep_tokens=True)
    steerer = fit(method, acts, attribute=ATTRIBUTE)
    model = plain.steered(steerer, 1.0)
    runs = {task: ask(model, suite(), task, limit=LIMIT) for task in (*BIAS, CAPABILITY)}
    return {
        "values": {task: _value(run) for task, run in runs.items()},
        "changes": {
            **{task: _percent(compare(before[task], runs[task])) for task in BIAS},
            "net": _percent(compare(before["2afc"], runs["2afc"]), f"{ATTRIBUTE}_net_preference_std"),
        },
        "capability": _points(compare(before[CAPABILITY], runs[CAPABILITY])),
        "race named": ask(model, suite(), f"recognition-{ATTRIBUTE}").measured().value(),
        "notes": steerer.diagnostics[SITE].get("notes", [])[:1],
        "diagnostics": diagnostics(steerer, acts, ATTRIBUTE),
    }


def _value(run: Run) -> list[float]:
    span = run.measured().interval()
    return [span.estimate, span.low, span.high]


def _percent(comparison: Comparison, metric: str = "") -> list[float] | None:
    change = comparison.change(metric)
    return [change.estimate, change.low, change.high] if change else None


def _points(comparison: Comparison) -> list[float]:
    same = comparison.accuracy().same
    return [100 * same.difference, 100 * same.low, 100 * same.high]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.tools.dial", description=__doc__)
    parser.add_argument("--no-training", action="store_true", help="measure the models that there are")
    parser.add_argument("--separations", type=float, nargs="*", default=list(DIAL), help="the models to train")
    parser.add_argument("--seeds", type=int, nargs="*", choices=SEEDS, default=list(SEEDS), help="of their training")
    parser.add_argument("--worlds", nargs="*", default=[], help="the models to measure, as the page calls them")
    parser.add_argument("--methods", nargs="*", default=[], help="the methods to measure")
    parser.add_argument("--again", nargs="*", default=[], help="methods whose rows are measured again")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if not chosen.no_training:
        train_missing(chosen.separations, chosen.seeds)
    known = {key: one for key, one in stored().items() if one["method"] not in chosen.again}
    methods = [registry.UNSTEERED, *METHODS]
    for world, name in worlds().items():
        if not chosen.worlds or world in chosen.worlds:
            measured(world, name, [one for one in methods if not chosen.methods or one in chosen.methods], known)
    planted = json.loads(PLANTED.read_text(encoding="utf-8")) if PLANTED.exists() else []
    dial = [world_name(*one) for one in product(DIAL, SEEDS)]
    PAGE.write_text(page(known, dial, methods, planted), encoding="utf-8")
    picture(known, PAGE.with_suffix(".png"))
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
