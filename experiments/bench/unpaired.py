"""`python -m experiments.bench.unpaired [--quick]`: unpaired fits against the paired one, on planted tokens.

Writes docs/unpaired.md. It takes about a minute.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the products are too small for threads

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.bench.planted_tokens import (
    ATTRIBUTE,
    CONTENTS,
    JUDGED,
    TOKENS,
    VALUES,
    WIDTH,
    Directions,
    Pictures,
    World,
    activations,
    judged,
)
from ggss.activations import Activations
from ggss.methods.diagnostics import CONFOUNDED, PERMUTATIONS, explained
from ggss.steering.fitting import fit
from ggss.steering.steerer import MATCHING
from ggss.terminal import track

PAGE = Path(__file__).parents[2] / "docs" / "unpaired.md"
METHODS = ("leace-spherical", "pace")
CONFOUNDING = (0.0, 0.3, 0.7)
COUNT, COUNTS = 600, (75, 150, 300, 600, 1200)
WORLDS = {"One part": World(overlap=0.3, parts=1), "Two parts": World(overlap=0.3, parts=2)}
ALARM_COUNTS, ALARM_CONFOUNDING, ALARM_SEEDS = (60, 200, 600), (0.0, 0.1, 0.2, 0.4), 200
CONTENT = "content"

INTRODUCTION = f"""# Unpaired discovery, measured

Written by `python -m experiments.bench.unpaired`; do not edit.

Counterfactual sets show a person in several versions. FairFace, UTKFace, FACET and most sets that people have do not:
each picture shows somebody else, and the attribute goes with other things. `ggss discover --unpaired`
([how](howto-discover.md#without-counterfactual-sets)) compares pictures within *strata* that agree in the other
columns. Here the truth is planted: tokens are drawn at random, {TOKENS} of width {WIDTH} a picture, with an attribute
of {VALUES} values and a content of {CONTENTS} classes (`experiments/bench/planted_tokens.py`, whose worlds
[planted tokens](planted-tokens.md) describes). Every unpaired picture shows a person of its own. With *confounding*
c, a share c of the pictures has the value that goes with its content, and the others any.

- **paired**: the same method on a complete set of as many pictures; what an unpaired fit should come near.
- **matched**: unpaired, matched by content.
- **not matched**: unpaired, all pictures are one stratum: plain class means, the control.
- **not aligned**: matched, but the tokens of each picture are in a random order, so that positions mean nothing.

Each is judged on {JUDGED} people whom it has not seen, in all values, at alpha 1: how often a probe still reads the
attribute from the mean token (**pooled**) and from **all tokens**, where chance is {1 / VALUES:.2f}; by how many
points the content is read worse by a probe that learned before steering (**content lost**); how far tokens move.
**Predicted** is the diagnostic of `ggss discover`: the share of the label's variance that the content explains. There
are {COUNT} pictures. Means over {{seeds}} seeds and their standard errors."""

COUNTS_TEXT = """## How many pictures

`pace` in the world of two parts, at confounding 0.3. Versions of one person cancel what is theirs alone; in an
unpaired fit it is noise. So that one needs more pictures for the same."""

ALARMS_TEXT = f"""## When there is a warning

A warning needs a share above {CONFOUNDED:.0%} and above the largest of {PERMUTATIONS} shares with permuted labels.
The table has the share of {{seeds}} drawn sets of labels ({VALUES} values, {CONTENTS} contents) with a warning.
Without confounding each is a false alarm."""

LIMITS = """## What this cannot show

Matching removes what is in the columns. What goes with the attribute and is no column (light, camera, dress) is taken
for the attribute, whatever the diagnostic says: no number that is computed from labels can see it. And where parts of
a picture show the attribute in different ways, positions help only if they show the same part in all pictures, as in
faces that are cut out alike; elsewhere what single tokens show remains (not aligned, all tokens). Where versions of
people can be had, even of few, they are better."""


@dataclass(frozen=True)
class Drawn:
    """Unpaired pictures: tokens, labels, and what they are matched by if they are."""

    tokens: list[Tensor]
    labels: list[dict[str, str]]
    contents: list[str]

    def matched(self) -> Activations:
        contexts = [((CONTENT, content),) for content in self.contents]
        return Activations(self.tokens, self.labels, contexts, unpaired=True)

    def unaligned(self) -> Activations:
        generator = torch.Generator().manual_seed(len(self.tokens))
        shuffled = [rows[torch.randperm(len(rows), generator=generator)] for rows in self.tokens]
        return replace(self, tokens=shuffled).matched()

    def unmatched(self) -> Activations:
        labels = [row | {CONTENT: content} for row, content in zip(self.labels, self.contents, strict=True)]
        return Activations(self.tokens, labels, [()] * len(labels), unpaired=True)


def drawn_values(contents: Tensor, confounding: float, seed: int) -> Tensor:
    """A value for each picture: with this probability the one that goes with its content, else any."""
    generator = torch.Generator().manual_seed(seed)
    bound = torch.rand(len(contents), generator=generator) < confounding
    return torch.where(bound, contents % VALUES, torch.randint(VALUES, contents.shape, generator=generator))


def draw(planted: Directions, count: int, confounding: float, seed: int) -> Drawn:
    """So many people, each in one picture."""
    everybody: Pictures = planted.pictures(count, seed, discovery=True)
    values = drawn_values(everybody.contents[::VALUES], confounding, seed)
    chosen = torch.arange(count) * VALUES + values
    return Drawn(
        list(everybody.tokens[chosen]),
        [{ATTRIBUTE: f"v{value}"} for value in values.tolist()],
        [f"c{content}" for content in everybody.contents[chosen].tolist()],
    )


def outcomes(world: World, method: str, count: int, confounding: float) -> dict[str, list[float]]:
    """For each kind of fit: pooled, all tokens, points of content lost, displacement, share predicted."""
    planted = Directions.draw(world)
    unpaired = draw(planted, count, confounding, 2 * world.seed + 1)
    others = planted.pictures(JUDGED, 2 * world.seed + 2, discovery=False)
    images = torch.arange(len(others.tokens)).repeat_interleave(TOKENS)
    before = judged(others, others.tokens).content
    kinds: dict[str, Callable[[], Activations]] = {
        "paired": lambda: activations(planted.pictures(count // VALUES, 2 * world.seed + 1, discovery=True)),
        "matched": unpaired.matched,
        "not matched": unpaired.unmatched,
    }
    if method == "pace" and world.parts > 1:
        kinds["not aligned"] = unpaired.unaligned
    results = {}
    for kind, data in kinds.items():
        steerer = fit(method, data(), attribute=ATTRIBUTE)
        steered = steerer.steer(others.tokens.flatten(0, 1), images, 1.0).reshape(others.tokens.shape)
        probe = judged(others, steered)
        compared = steerer.source.get(MATCHING, {}).get(ATTRIBUTE, {})
        share = compared.get("left", {}).get(CONTENT) if kind == "not matched" else compared.get("predicted")
        results[kind] = [
            probe.pooled,
            probe.all_tokens,
            100 * (before - probe.content),
            probe.displacement,
            share["share"] if share else np.nan,
        ]
    return results


def cells(rows: Sequence[Sequence[float]]) -> list[str]:
    """Mean and standard error of each column over seeds."""
    values = np.array(rows)
    means, errors = values.mean(0), values.std(0) / len(values) ** 0.5
    formats = ("{:.2f} ± {:.2f}", "{:.2f} ± {:.2f}", "{:.1f} ± {:.1f}", "{:.2f} ± {:.2f}")
    texts = [form.format(mean, error) for form, mean, error in zip(formats, means, errors, strict=False)]
    return [*texts, "" if np.isnan(means[4]) else f"{max(means[4], 0):.0%}"]


def tables(seeds: int, methods: Sequence[str]) -> str:
    columns = ("confounding", "method", "fit", "pooled", "all tokens", "content lost", "moved", "predicted")
    parts = []
    for title, world in WORLDS.items():
        lines = [f"## {title}", "", f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
        for confounding in CONFOUNDING:
            for method in track(methods, f"{title}, confounding {confounding}"):
                by_seed = [outcomes(replace(world, seed=s), method, COUNT, confounding) for s in range(seeds)]
                for kind in by_seed[0]:
                    if kind == "paired" and confounding:
                        continue  # it does not depend on it
                    texts = " | ".join(cells([found[kind] for found in by_seed]))
                    lines.append(f"| {confounding} | `{method}` | {kind} | {texts} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def by_count(seeds: int, counts: Sequence[int]) -> str:
    columns = ("pictures", "fit", "pooled", "all tokens", "content lost", "moved")
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for count in track(counts, "numbers of pictures"):
        by_seed = [outcomes(replace(WORLDS["Two parts"], seed=s), "pace", count, 0.3) for s in range(seeds)]
        lines += [
            f"| {count} | {kind} | {' | '.join(cells([found[kind] for found in by_seed])[:4])} |"
            for kind in ("paired", "matched")
        ]
    return "\n".join(lines)


def alarms(seeds: int) -> str:
    """How often the labels alone give a warning."""
    lines = ["| pictures | " + " | ".join(f"confounding {c}" for c in ALARM_CONFOUNDING) + " |"]
    lines.append("| --- |" + " --- |" * len(ALARM_CONFOUNDING))
    for count in ALARM_COUNTS:
        shares = []
        for confounding in ALARM_CONFOUNDING:
            contents = torch.arange(count) % CONTENTS
            found = [
                explained(
                    torch.nn.functional.one_hot(drawn_values(contents, confounding, seed), VALUES).double(),
                    contents,
                    torch.zeros_like(contents),
                )
                for seed in range(seeds)
            ]
            shares.append(f"{np.mean([share is not None and share.confounded for share in found]):.1%}")
        lines.append(f"| {count} | " + " | ".join(shares) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.unpaired", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one method and one seed: only to see that it runs")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    chosen = parser.parse_args(arguments)
    seeds, alarm_seeds = (1, 2) if chosen.quick else (5, ALARM_SEEDS)
    parts = [
        INTRODUCTION.format(seeds=seeds),
        tables(seeds, METHODS[:1] if chosen.quick else METHODS),
        COUNTS_TEXT,
        by_count(seeds, COUNTS[:1] if chosen.quick else COUNTS),
        ALARMS_TEXT.format(seeds=alarm_seeds),
        alarms(alarm_seeds),
        LIMITS,
    ]
    chosen.output.write_text("\n\n".join(parts) + "\n")
    print(chosen.output.read_text())


if __name__ == "__main__":
    main()
