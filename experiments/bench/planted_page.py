"""`python -m experiments.bench.planted_page [--quick]`: every method on planted tokens.

Writes docs/planted-tokens.md and docs/planted-tokens.png.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the products are too small for threads

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

from experiments.bench.planted_tokens import CONTENTS, JUDGED, TOKENS, VALUES, WIDTH, Judgement, World, outcome
from ggss.errors import InputError
from ggss.methods import registry
from ggss.terminal import track

PAGE = Path(__file__).parents[2] / "docs" / "planted-tokens.md"
DRAWN = (
    "ggss",
    "ggss-contrast",
    "svd-pooled-euclidean",
    "inlp-spherical",
    "leace-spherical",
    "bend-token-euclidean",
    "pace",
)
OVERLAPS, IDENTITIES, PARTS = (0.0, 0.3, 0.6, 0.9), (6, 12, 24, 48), (1, 2, 4, 8)
USUAL = World(overlap=0.6, parts=2)
WORLDS = {
    "one part, apart": replace(USUAL, overlap=0.0, parts=1),
    "one part": replace(USUAL, parts=1),
    "two parts": USUAL,
    "four parts": replace(USUAL, parts=4),
    "two parts, 8 identities": replace(USUAL, identities=8),
    "two parts, a quarter mislabelled": replace(USUAL, mislabelled=0.25),
    "two parts, confounded": replace(USUAL, confound=1.0),
    "two parts, lengths vary": replace(USUAL, spread=0.8),
    "no attribute": replace(USUAL, strength=0.0),
}

INTRODUCTION = f"""# Planted tokens

Written by `make validity`; do not edit. Tokens are drawn at random, {TOKENS} of width {WIDTH} a picture, so that it
is known where the attribute ({VALUES} values) and the content ({CONTENTS} classes) lie and by how much they overlap
(`experiments/bench/planted_tokens.py`). Every method is fitted as `ggss.fit` does it, with its default
options, and used at
alpha 1. It is judged on {JUDGED} identities it has not seen, by linear probes cross-validated over identities:

- **pooled**, **all tokens**: how often the attribute is read from the mean token, and from all tokens side by side,
  by a probe that learned from *steered* tokens. Chance is {1 / VALUES:.2f}: lower than that is noise.
- **content lost**: how many points worse the content is read from steered tokens by a probe that learned *before*
  steering and is not told of it, as a language model is not. Chance is {1 / CONTENTS:.2f}.
- **moved**: mean over tokens of the change, relative to the token.

These worlds are linear and drawn by a rule that we chose: they show how a method can fail, not how often it does."""

PHASES = """## Overlap against identities, and against parts

![Attribute read from all tokens and content lost, by overlap, identities and parts](planted-tokens.png)

A row is a method. From the left: the attribute that a probe of all tokens still reads, by overlap and number of
identities at discovery, and by overlap and number of parts; the content lost, by the same. Green is good. Grey: the
method refuses so few identities."""


@dataclass(frozen=True)
class MeanOutcome:
    """A method in a world: means over seeds, and their standard errors."""

    mean: Judgement
    error: Judgement
    lost: float
    lost_error: float


@cache
def content_before(world: World) -> float:
    return outcome(world, registry.UNSTEERED).content


def measured(world: World, method: str, seeds: int) -> MeanOutcome | None:
    """None if the method refuses the world's activations."""
    seen, lost = [], []
    for seed in range(seeds):
        own = replace(world, seed=seed)
        try:
            found = outcome(own, method)
        except InputError:
            return None
        seen.append([found.pooled, found.all_tokens, found.content, found.displacement])
        lost.append(100 * (content_before(own) - found.content))
    scale = max(seeds, 1) ** 0.5
    values = np.array(seen)
    return MeanOutcome(
        Judgement(*values.mean(0)),
        Judgement(*(values.std(0) / scale)),
        float(np.mean(lost)),
        float(np.std(lost) / scale),
    )


def steering_methods() -> list[str]:
    return [name for name in registry.fitted_names() if registry.get(name).steers or name == registry.UNSTEERED]


def tables(methods: Sequence[str], drawn: Sequence[str], seeds: int) -> str:
    """A section for each world: all methods in the usual one, those that are drawn in the others."""
    parts = []
    for name, world in track(list(WORLDS.items()), "worlds of planted tokens"):
        lines = ["| method | pooled | all tokens | content lost | moved |", "| --- | --- | --- | --- | --- |"]
        for method in methods if world == USUAL else [registry.UNSTEERED, *drawn]:
            cell = measured(world, method, seeds)
            lines.append(f"| `{method}` | " + (" | ".join(_cells(cell)) if cell else "refused | | |") + " |")
        about = ", ".join(f"{key} {value:g}" for key, value in vars(world).items() if key != "seed")
        parts.append(f"### {name.capitalize()}\n\n{about}.\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _cells(cell: MeanOutcome) -> list[str]:
    mean, error = cell.mean, cell.error
    return [
        f"{mean.pooled:.2f} ± {error.pooled:.2f}",
        f"{mean.all_tokens:.2f} ± {error.all_tokens:.2f}",
        f"{cell.lost:+.1f} ± {cell.lost_error:.1f}",
        f"{mean.displacement:.2f}",
    ]


Grid = dict[str, list[np.ndarray]]


def phases(methods: Iterable[str], seeds: int) -> Grid:
    """Method -> four grids: attribute read by overlap x identities and x parts, content lost by the same."""
    worlds = [
        [[replace(USUAL, overlap=o, identities=n) for n in IDENTITIES] for o in OVERLAPS],
        [[replace(USUAL, overlap=o, parts=p) for p in PARTS] for o in OVERLAPS],
    ]
    found: Grid = {}
    for method in track(list(methods), "phase diagram"):
        cells = [[[measured(world, method, seeds) for world in row] for row in grid] for grid in worlds]
        found[method] = [
            np.array([[np.nan if cell is None else cell.mean.all_tokens for cell in row] for row in grid])
            for grid in cells
        ] + [np.array([[np.nan if cell is None else cell.lost for cell in row] for row in grid]) for grid in cells]
    return found


def draw(grids: Grid, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    heads = ("attribute, all tokens", "attribute, all tokens", "content lost, points", "content lost, points")
    figure, axes = plt.subplots(len(grids), 4, figsize=(11, 0.55 + 1.55 * len(grids)), squeeze=False)
    for at, (row, (method, found)) in enumerate(zip(axes, grids.items(), strict=True)):
        bottom = at == len(grids) - 1
        for k, (axis, grid) in enumerate(zip(row, found, strict=True)):
            low, high = ((1 / VALUES, 1.0), (0.0, 50.0))[k // 2]
            colours = plt.get_cmap("YlOrBr").with_extremes(bad="lightgrey")
            axis.imshow(grid, cmap=colours, vmin=low, vmax=high, origin="lower", aspect="auto")
            for i, j in product(*map(range, grid.shape)):
                text = "" if np.isnan(grid[i, j]) else f"{grid[i, j]:.2f}" if k < 2 else f"{grid[i, j]:.0f}"
                dark = grid[i, j] > low + 0.6 * (high - low)
                axis.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
            steps = (IDENTITIES, PARTS)[k % 2]
            axis.set_xticks(range(len(steps)), [f"{step}" for step in steps] if bottom else [])
            axis.set_yticks(range(len(OVERLAPS)), [f"{overlap:g}" for overlap in OVERLAPS] if k == 0 else [])
            if at == 0:
                axis.set_title(heads[k], fontsize=10)
            if bottom:
                axis.set_xlabel(("identities", "parts")[k % 2])
        row[0].set_ylabel(f"{method}\noverlap", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.planted_page", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two methods and one seed: only to see that it runs")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    chosen = parser.parse_args(arguments)
    seeds = 1 if chosen.quick else 3
    known = steering_methods()
    drawn = [name for name in DRAWN if name in known][: 1 if chosen.quick else None]
    draw(phases(drawn, seeds), chosen.output.with_suffix(".png"))
    text = page(tables(known[:2] if chosen.quick else known, drawn, seeds), seeds)
    chosen.output.write_text(text)
    print(text)


def page(sections: str, seeds: int) -> str:
    heading = (
        f"## Worlds\n\nMeans over {seeds} seed(s) and their standard errors; every method in the world of two parts."
    )
    return "\n\n".join([INTRODUCTION, PHASES, heading, sections]) + "\n"


if __name__ == "__main__":
    main()
