"""What discovery can measure of a steerer without asking the model, the same numbers for every method.

    pooled probe, all-token probe   share of held-out people whose value is read from steered tokens (`token_probe`)
    displacement                    mean change of a token, relative to it
    effective rank                  of the contexts' centres: of the model, whatever the method
    other variance moved            of the centres, which show no attribute: sum |moved|^2 / sum |off their mean|^2;
                                    for an orthogonal projection, the share of variance inside the subspace
    variance share, transfer, split-half cosine      of methods with a counterfactual subspace (`diagnostics`)

`python -m experiments.bench.planted_diagnostics` measures them on planted tokens with what came out there, into
results/planted-diagnostics.json.
"""

import json
from pathlib import Path
from typing import Any

import torch

from experiments.bench.planted_page import DRAWN, WORLDS
from experiments.bench.planted_tokens import ATTRIBUTE, JUDGED, TOKENS, Directions, activations, judged
from ggss.activations import Activations
from ggss.errors import InputError
from ggss.files import write_whole
from ggss.methods.diagnostics import effective_rank, folds, probe_accuracy
from ggss.steering.fitting import fit
from ggss.steering.steerer import Steerer
from ggss.terminal import track

ROWS = Path(__file__).parents[2] / "results" / "planted-diagnostics.json"
SEEDS = 3


def diagnostics(steerer: Steerer, acts: Activations, attribute: str) -> dict[str, float | None]:
    """Of a steerer at one site, at its recommended strength or 1, on the tokens that it was fitted on."""
    (site,) = steerer.operators
    seen = steerer.diagnostics[site]
    tokens = [own.float() for own in acts.at(site).tokens]
    steered = [steerer.steer(own, torch.zeros(len(own), dtype=torch.long)) for own in tokens]
    before, after = (torch.stack([own.mean(0) for own in these]).double() for these in (tokens, steered))
    values = acts.groups(attribute).values
    labels = torch.tensor([values.index(label) for label in acts.labels(attribute)])
    groups = acts.groups(attribute)
    centres, moved = groups.of(before).mean(1), groups.of(after - before).mean(1)
    deviations, moved = centres - centres.mean(0), moved - moved.mean(0)
    read = seen.get("all_tokens") or {}
    return {
        "pooled probe after": probe_accuracy(after, labels, folds(acts.contexts)),
        "all-token probe after": read.get("after"),
        "displacement": read.get("displacement"),
        "effective rank": effective_rank(deviations),
        "other variance moved": float((moved**2).sum() / (deviations**2).sum()),
        "variance share": seen.get("variance_share"),
        "transfer": seen.get("transfer"),
        "lowest split-half cosine": min(seen.get("split_half_cosines") or [], default=None),
    }


def rows() -> list[dict[str, Any]]:
    """A world, a seed and a method each: diagnostics, the attribute still read, and the content lost in points."""
    found = []
    for name, world in track(list(WORLDS.items()), "diagnostics on planted tokens"):
        if world.strength == 0:
            continue  # nothing can be left where there is nothing
        for seed in range(SEEDS):
            planted = Directions.draw(type(world)(**{**vars(world), "seed": seed}))
            pictures = planted.pictures(world.identities, 2 * seed + 1, discovery=True)
            others = planted.pictures(JUDGED, 2 * seed + 2, discovery=False)
            acts = activations(pictures, world.mislabelled)
            images = torch.arange(len(others.tokens)).repeat_interleave(TOKENS)
            plain = judged(others, others.tokens)
            for method in DRAWN:
                try:
                    steerer = fit(method, acts, attribute=ATTRIBUTE)
                except InputError:
                    continue
                steered = steerer.steer(others.tokens.flatten(0, 1), images, 1.0).reshape(others.tokens.shape)
                came = judged(others, steered)
                found.append(
                    {
                        "world": f"{name} {seed}",
                        "method": method,
                        "left": came.all_tokens,
                        "lost": 100 * (plain.content - came.content),
                        "diagnostics": diagnostics(steerer, acts, ATTRIBUTE),
                    }
                )
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_whole(ROWS, (json.dumps(rows(), indent=1) + "\n").encode())
