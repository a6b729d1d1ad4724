"""The tokens of counterfactual groups side by side: token t of one variant shows what token t of another shows."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ggss.activations import Activations, Groups
from ggss.errors import problems
from ggss.progress import track

POSITIONS = 256  # that are read at once: a block of 5 values x 256 positions x 4096 numbers is 42 MB in float64


def aligned_blocks(activations: Activations, groups: Groups, what: str) -> Iterator[tuple[int, int, Tensor]]:
    """(number of the group, first position, tokens [positions, values, D] in float64), block by block.

    InputError if the images of a group have different numbers of tokens: then their positions do not correspond.
    """
    members = list(enumerate(zip(groups.contexts, groups.index.tolist(), strict=True)))
    for number, (context, images) in track(members, what):
        tokens = [activations.tokens[image] for image in images]
        counts = [len(own) for own in tokens]
        if len(set(counts)) > 1:
            found = [f"{value!r} has {count} tokens" for value, count in zip(groups.values, counts, strict=True)]
            raise problems(f"the images of context {context!r} need equal token counts", found)
        for start in range(0, counts[0], POSITIONS):
            yield number, start, torch.stack([own[start : start + POSITIONS].double() for own in tokens], 1)
