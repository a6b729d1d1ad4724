"""What keeps a tiny model's attributes apart: frozen heads, and penalties on the sites of steering.

Trained the ordinary way, a tiny VLM keeps its image tokens in three to nine effective dimensions, and the
directions of race also carry shapes and colours. Here every attribute has a block of directions of its own,
orthogonal to all others:

- heads    each attribute is read from its block of the mean-pooled tokens, a shape from every token of its cell;
- outside  a change of race (gender) moves the tokens inside its block and nowhere else;
- centre   ... and evenly about zero there, whoever the person is;
- scenes   pictures without people have nothing in the two blocks;
- away     tokens that do not see the face do not change with race or gender.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from experiments.training.pictures import GROUP, TOKENS, Batch
from ggss.smallworld.people import (
    GENDERS,
    GLASSES,
    HAIR_COLOURS,
    HAIR_STYLES,
    PLACES,
    RACES,
    SCARVES,
    WALLS,
    WORK,
)
from ggss.smallworld.questions import Painted
from ggss.smallworld.scenes import CELLS, COLOURS, SHAPES, SIZES

# The labels of pictures and their values; a number has none.
OF_PICTURE: dict[str, tuple[str, ...]] = {
    "race": RACES,
    "gender": GENDERS,
    "place": tuple(sorted(set(PLACES.values()))),
    "work": tuple(sorted(set(WORK.values()))),
    "hair_colour": HAIR_COLOURS,
    "hair_style": HAIR_STYLES,
    "glasses": GLASSES,
    "scarf": SCARVES,
    "wall": WALLS,
    "wealth": (),
    "cue": (),
}
OF_CELL = {"shape": ("none", *SHAPES), "colour": ("none", *COLOURS), "size": ("none", *SIZES), "cell": CELLS}
LABELS = OF_PICTURE | OF_CELL
_SHARPNESS = 5.0  # at a coordinate of one, the right value is this many nats above the mean of the others
_NUMBERS = {"wealth": 9.0, "cue": 21.0}  # weights of squared errors: three over the number's variance


def simplex(count: int) -> Tensor:
    """[count, count - 1]: unit vectors as far from one another as can be (Helmert's contrasts)."""
    contrasts = torch.ones(count, count).tril(-1)[1:] - torch.diag(torch.arange(1.0, count), 1)[:-1]
    corners = (contrasts / contrasts.norm(dim=1, keepdim=True)).T
    return corners / corners.norm(dim=1, keepdim=True)


class Blocks:
    """Orthonormal directions [D, k] of each attribute, the same at every site, drawn once and never trained."""

    def __init__(self, width: int, seed: int) -> None:
        self.codes = {name: simplex(len(values)) if values else torch.ones(1, 1) for name, values in LABELS.items()}
        sizes = [codes.shape[1] for codes in self.codes.values()]
        noise = torch.randn(width, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        directions = torch.linalg.qr(noise).Q[:, : sum(sizes)].float()
        self.basis = dict(zip(LABELS, directions.split(sizes, dim=1), strict=True))

    def labels(self, pictures: Sequence[Painted]) -> dict[str, Tensor]:
        """Attribute -> [pictures]: the index of the value (-1: it has none), or the number (nan); of cells [.., 4].

        The cells of a portrait are empty.
        """
        seen = [picture.labels() for picture in pictures]
        found = {
            name: torch.tensor([values.index(one[name]) if name in one else -1 for one in seen])
            if values
            else torch.tensor([one.get(name, np.nan) for one in seen], dtype=torch.float32)
            for name, values in OF_PICTURE.items()
        }
        return found | {
            part: torch.tensor(
                [
                    [values.index(one.get(f"{cell} {part}", cell if part == "cell" else "none")) for cell in CELLS]
                    for one in seen
                ]
            )
            for part, values in OF_CELL.items()
        }

    def head_losses(self, rows: Tensor, labels: Mapping[str, Tensor], whole_shapes: bool) -> dict[str, Tensor]:
        """Attribute -> how badly it is read from one site's rows [pictures, T, D]; those of cells count double.

        `whole_shapes`: a shape is read from the mean of its cell's tokens; else, as colour and size, from each.
        """
        pooled, tokens = rows.mean(dim=1), _tokens_by_cell(rows)
        losses = {}
        for name, wanted in labels.items():
            read = tokens if name in OF_CELL else pooled
            if name == "shape" and whole_shapes:
                read = tokens.mean(dim=1, keepdim=True)
            coordinates = read @ self.basis[name]
            if name in OF_CELL:
                wanted = wanted[:, None].expand(coordinates.shape[:-1])
            if LABELS[name]:
                logits = _SHARPNESS * coordinates @ self.codes[name].T
                loss = cross_entropy(logits.flatten(0, -2), wanted.flatten(), ignore_index=-1)
                losses[name] = 2 * loss if name in OF_CELL else loss
            else:
                there = ~wanted.isnan()
                losses[name] = _NUMBERS[name] * (coordinates[there, 0] - wanted[there]).square().mean()
        return losses


def _tokens_by_cell(rows: Tensor) -> Tensor:
    """[pictures, tokens of a cell, 4, D]: the tokens of all tiles, sorted by the quarter of the picture they see."""
    half = TOKENS // 2
    tiles = rows.unflatten(1, (-1, 2, half, 2, half))
    return tiles.permute(0, 1, 3, 5, 2, 4, 6).flatten(1, 3).flatten(2, 3)


def _energy(rows: Tensor) -> Tensor:
    return rows.square().sum()


def _inside(rows: Tensor, basis: Tensor) -> Tensor:
    """The share of the rows' energy that lies in the span of the basis."""
    return _energy(rows @ basis) / (_energy(rows) + 1e-6)


def penalties(rows: Tensor, batch: Batch, blocks: Blocks) -> dict[str, Tensor]:
    """The four penalties on one site's rows [pictures, T, D] of whole groups: shares of energy from 0 to 1."""
    people = rows[: batch.portraits].unflatten(0, (-1, GROUP))
    scenes = rows[batch.portraits :]
    races, genders = people[:, : GROUP - 1], people[:, [0, -1]]
    elsewhere = torch.from_numpy(~batch.face).repeat(1, rows.shape[1] // batch.face.shape[1])
    found: dict[str, list[Tensor]] = {"outside": [], "centre": [], "away": []}
    for group, name in ((races, "race"), (genders, "gender")):
        middle = group.mean(dim=1, keepdim=True)
        shift = group - middle
        found["outside"].append(1 - _inside(shift, blocks.basis[name]))
        found["centre"].append(_inside(middle, blocks.basis[name]))
        found["away"].append(_energy(shift * elsewhere[:, None, :, None]) / (_energy(shift) + 1e-6))
    both = torch.cat([blocks.basis["race"], blocks.basis["gender"]], dim=1)
    return {name: torch.stack(values).mean() for name, values in found.items()} | {"scenes": _inside(scenes, both)}


@contextmanager
def site_rows(model: Any, paths: Mapping[str, str]) -> Iterator[dict[str, Tensor]]:
    """Site -> what the module at its path last returned, with gradients, while the context is open."""
    rows: dict[str, Tensor] = {}

    def keep(site: str) -> Any:
        return model.get_submodule(paths[site]).register_forward_hook(
            lambda _module, _args, output: rows.__setitem__(site, output)
        )

    hooks = [keep(site) for site in paths]
    try:
        yield rows
    finally:
        for hook in hooks:
            hook.remove()
