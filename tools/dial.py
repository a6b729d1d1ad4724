"""`make dial`: the methods against the dial of entanglement.

Writes docs/dial.md, docs/dial.png and results/dial.json. Models that are missing from
dial-out are trained first (several minutes each on one thread); a model or a row that is there is not made again, so
the command may be stopped and goes on where it was. Everything is at alpha 1 and at the published site, under race
steering, on the evaluation identities.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tools.dial_page import page, picture

from ggss.activations import SITE
from ggss.activations.collection import collect
from ggss.analysis import Comparison, Run, ask, compare
from ggss.files import write_whole
from ggss.methods import registry
from ggss.methods.token_probe import folds, read_share
from ggss.models.feature_cache import FeatureCache
from ggss.probes.steered_model import SteeredModel
from ggss.smallworld import folders, own_name
from ggss.smallworld.discovery import HELD_OUT, load_model
from ggss.smallworld.sweeps import suite
from ggss.smallworld.town import town
from ggss.smallworld.training_card import CARD
from ggss.smallworld.training_dial import DIAL, dial_album, train_on_dial
from ggss.steering.fitting import fit

ROOT = Path(__file__).parent.parent
MODELS, ROWS, PAGE = ROOT / "dial-out", ROOT / "results" / "dial.json", ROOT / "docs" / "dial.md"
METHODS = (
    "ggss",
    "ggss-contrast",
    "leace-spherical",
    "svd-pooled-euclidean",
    "bend-euclidean",
    "inlp-spherical",
    "pace",
)
ATTRIBUTE, BIAS, CAPABILITY = "race", ("mcq", "2afc"), "smallstar"

Row = dict[str, Any]


def folder(separation: float) -> Path:
    return MODELS / f"separation-{separation:g}"


def finished(separation: float) -> bool:
    card = folder(separation) / CARD
    return card.exists() and "not finished" not in card.read_text(encoding="utf-8")


def train_missing(wanted: Sequence[float]) -> None:
    missing = [separation for separation in wanted if not finished(separation)]
    album = dial_album() if missing else None
    for separation in missing:
        train_on_dial(separation, folder(separation), threads=1, album=album)


def worlds() -> dict[str, str]:
    """By what the page calls them, the models that there are: those of the dial, and the ordinary control."""
    dial = {f"{separation:g}": str(folder(separation)) for separation in sorted(DIAL) if finished(separation)}
    return dial | {"1": "small-world/llava-vicuna", "ordinary": "small-world/entangled"}


def card(name: str) -> dict[str, str]:
    """What a model's card says, by name."""
    path = Path(name) if Path(name).is_dir() else folders()[own_name(name)]
    lines = (path / CARD).read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    return {key: value for key, value in cells if value}


def measured(world: str, name: str, methods: Sequence[str], known: dict[str, Row]) -> None:
    """Add the rows of one model to those that are known, each kept as soon as it is there."""
    missing = [method for method in methods if f"{world} {method}" not in known]
    if not missing:
        return
    plain = SteeredModel(FeatureCache(load_model(name)))
    before = {task: ask(plain, suite(), task) for task in (*BIAS, CAPABILITY)}
    for method in missing:
        about = {"card": card(name)} if method == registry.UNSTEERED else {}
        known[f"{world} {method}"] = {"world": world, "method": method, **about, **row(plain, before, method)}
        write_whole(ROWS, (json.dumps(known, indent=1) + "\n").encode())
        print(world, method, flush=True)


def row(plain: SteeredModel, before: dict[str, Run], method: str) -> Row:
    """The changes under a method, in percent of the bias and in points of capability, and its diagnostics."""
    if method == registry.UNSTEERED:
        return {"values": {task: _value(run) for task, run in before.items()}}
    faces = town().chosen(exclude={"occupation": HELD_OUT[ATTRIBUTE]})
    acts = collect(plain.vlm, faces, SITE, features=plain.cache, keep_tokens=True)
    steerer = fit(method, acts, attribute=ATTRIBUTE)
    model = plain.steered(steerer, 1.0)
    runs = {task: ask(model, suite(), task) for task in (*BIAS, CAPABILITY)}
    seen = steerer.diagnostics[SITE]
    steered = torch.stack([steerer.steer(rows, torch.zeros(len(rows)).long(), 1.0) for rows in acts.tokens])
    labels = torch.tensor([steerer.values.index(label) for label in acts.labels(ATTRIBUTE)])
    return {
        "values": {task: _value(run) for task, run in runs.items()},
        "changes": {task: _percent(compare(before[task], runs[task])) for task in BIAS},
        "capability": _points(compare(before[CAPABILITY], runs[CAPABILITY])),
        "race named": ask(model, suite(), f"recognition-{ATTRIBUTE}").measured().value(),
        "diagnostics": {
            "variance share": seen.get("variance_share"),
            "lowest split-half cosine": min(seen.get("split_half_cosines") or [None]),
            "transfer": seen.get("transfer"),
            "pooled probe after": read_share(steered.float().mean(1), labels, folds(acts.contexts)),
            "all-token probe after": seen["all_tokens"]["after"],
            "displacement": seen["all_tokens"]["displacement"],
        },
    }


def _value(run: Run) -> list[float]:
    span = run.measured().interval()
    return [span.estimate, span.low, span.high]


def _percent(comparison: Comparison) -> list[float] | None:
    change = comparison.change()
    return [change.estimate, change.low, change.high] if change else None


def _points(comparison: Comparison) -> list[float]:
    same = comparison.kept().same
    return [100 * same.difference, 100 * same.low, 100 * same.high]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.dial", description=__doc__)
    parser.add_argument("--no-training", action="store_true", help="measure the models that there are")
    parser.add_argument("--separations", type=float, nargs="*", default=list(DIAL), help="the models to train")
    parser.add_argument("--again", nargs="*", default=[], help="methods whose rows are measured again")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if not chosen.no_training:
        train_missing(chosen.separations)
    known: dict[str, Row] = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    known = {key: one for key, one in known.items() if one["method"] not in chosen.again}
    methods = [registry.UNSTEERED, *(name for name in METHODS if name in registry.names())]
    for world, name in worlds().items():
        measured(world, name, methods, known)
    PAGE.write_text(page(known, DIAL, methods), encoding="utf-8")
    picture(known, PAGE.with_suffix(".png"))
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
