"""`make sites`: where to steer, measured on the embedded small-world models. Writes docs/sites.md.

Each site of a model by itself: blocks of its vision tower, its projector, layers of its text model. The race
steerers of a few methods are fitted there on the town and asked about evaluation identities, at alpha 1.
"""

import argparse
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from ggss import smallworld
from ggss.activations.collection import collect
from ggss.analysis import Run, ask, compare
from ggss.models import Vlm
from ggss.models.layer_sites import layer_counts
from ggss.models.sites import LM_LAYER, MLP2, VISION_BLOCK
from ggss.probes.steered_model import SteeredModel
from ggss.smallworld.discovery import HELD_OUT, load_model
from ggss.smallworld.sweeps import suite
from ggss.smallworld.town import town
from ggss.steering.examination import leak
from ggss.steering.fitting import fit

PAGE = Path(__file__).parent.parent / "docs" / "sites.md"
METHODS = ("ggss", "leace-spherical", "meandiff-lr-euclidean")
BIAS, CAPABILITY = ("mcq", "2afc"), "smallstar"
LIMITS = {"mcq": 240, "2afc": 240, "smallstar": 240}
ATTRIBUTE, ALPHA = "race", 1.0


def sites_of(vlm: Vlm) -> list[str]:
    """In the order in which an image passes them. No token reads the image's rows after the last text layer."""
    counts = layer_counts(vlm.model.config)
    layers = [f"{LM_LAYER}{i}" for i in range(counts[LM_LAYER] - 1)]
    return [f"{VISION_BLOCK}0", f"{VISION_BLOCK}{counts[VISION_BLOCK] - 1}", MLP2, *layers]


def asked(model: SteeredModel) -> dict[str, Run]:
    return {task: ask(model, suite(), task, limit=LIMITS[task], show=False) for task in (*BIAS, CAPABILITY)}


def cells(before: dict[str, Run], after: dict[str, Run]) -> list[str]:
    """The change of each bias task in percent, and that of the capability in points."""
    found = []
    for task in BIAS:
        change = compare(before[task], after[task]).change()
        found.append(f"{change.estimate:+.0f} % [{change.low:+.0f}, {change.high:+.0f}]" if change else "-")
    kept = compare(before[CAPABILITY], after[CAPABILITY]).kept().change
    found.append(f"{100 * kept.difference:+.1f} [{100 * kept.low:+.1f}, {100 * kept.high:+.1f}]")
    return found


def rows(name: str, folder: Path, kept: list[str]) -> list[str]:
    """A row of the table for each site and method on one model; those that are kept are not computed again."""
    plain = SteeredModel.of(load_model(name))
    sites, before = sites_of(plain.vlm), asked(plain)
    faces = town().chosen(exclude={"occupation": HELD_OUT[ATTRIBUTE]})
    acts, lines = collect(plain.vlm, faces, sites, cache=folder, show=False), []
    for site in sites:
        leaks = f"{leak(plain.vlm, site):.0%}"
        for method in METHODS:
            if known := [line for line in kept if line.startswith(f"| {name} | {site} | {method} |")]:
                lines.append(known[0])
                continue
            steerer = fit(method, acts.at(site), attribute=ATTRIBUTE)
            after = asked(plain.steered(steerer, ALPHA, force=True))
            lines.append(f"| {name} | {site} | {method} | " + " | ".join(cells(before, after)) + f" | {leaks} |")
            print(lines[-1], flush=True)
    return lines


def page(lines: list[str]) -> str:
    methods, held_out = ", ".join(f"`{name}`" for name in METHODS), ", ".join(HELD_OUT[ATTRIBUTE])
    return f"""# Where to steer, in the small world

Written by `make sites`; do not edit. {methods}
at one site at a time, fitted for {ATTRIBUTE} on the town without {held_out}, at alpha {ALPHA:g}. Change of the bias
metric in percent, with the 95 % interval over identities; change of SmallStar in points, with its 95 % interval.
About {LIMITS["mcq"]} items of each task, whole identities spread evenly over it: fewer than in
[results.md](results.md), so intervals are wider. Nothing is selected, and nothing is
corrected for the number of rows.

The leak is the share of the difference which two images make in the next token's logits that is left while the site's
rows are zero. In a text layer it has what later tokens have read from the image in the layers up to this one; in
qwen3-vl also what deepstack takes past the site. More than 100 % is possible: zeros are an unusual input.
`entangled` is the negative control, whose bias shares its directions with what it must see.

| model | site | method | mcq | 2afc | SmallStar | leak |
| --- | --- | --- | --- | --- | --- | --- |
{chr(10).join(lines)}

How sites inside the tower and the text model are steered: [steering.md](steering.md).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1, help="processes, each with a model of its own")
    parser.add_argument("--kept", type=Path, help="a file with rows that an earlier run printed")
    given = parser.parse_args()
    kept = given.kept.read_text().splitlines() if given.kept else []
    os.environ["OMP_NUM_THREADS"] = "1"  # the models are tiny
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        lines = pool.map(rows, smallworld.embedded(), repeat(Path(folder)), repeat(kept))
        PAGE.write_text(page([line for own in lines for line in own]))


if __name__ == "__main__":
    main()
