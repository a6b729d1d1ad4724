"""A proof of which site rows belong to which image, for a model of a family that is not in the table.

Two different pictures of different shapes are encoded alone, together, and together in the other order. The rows of a
batch must be those of its images one after the other, and there must be as many for each as the processor wrote image
tokens for it. If only the first holds, or a batch differs from its images, images are encoded one at a time.
"""

from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch import Tensor

from ggss.errors import InputError
from ggss.models.told_rows import told

Prepare = Callable[[Sequence[Image.Image]], dict[str, Tensor]]
"""From images to the inputs of the vision tower, told how many image tokens each image has (`told_rows`)."""
Encode = Callable[[dict[str, Tensor]], Tensor]
"""From these inputs to the rows of the site."""

SAME = 0.05  # relative distance of rows that should be equal: half precision and other batches change last digits
APART = 0.2  # of the distance between two pictures; two towers of bfloat16 stay well below it


def pictures() -> tuple[Image.Image, Image.Image]:
    """A wide and a tall picture: processors that cut images into tiles cut these, and into different numbers."""
    ramp, disc = Image.linear_gradient("L"), Image.radial_gradient("L")
    wide = Image.merge("RGB", (ramp, disc, ramp.rotate(90))).resize((1024, 384))
    tall = Image.merge("RGB", (disc, ramp.rotate(180), disc)).resize((384, 640))
    return wide, tall


def rows_follow_tokens(kind: str, prepare: Prepare, encode: Encode) -> bool:
    """Whether a batch can be split into images by their numbers of tokens; if not, one image at a time.

    InputError: the rows do not even tell two pictures apart, or are others each time.
    """
    first, second = pictures()
    inputs = [prepare([picture]) for picture in (first, second)]
    alone = [encode(one) for one in inputs]
    between = _distance(alone[0], alone[1])
    if between == 0:
        raise InputError(
            f"two different pictures give the same rows at the site of this {kind} model, so it cannot be proved "
            "which rows belong to which: register a ggss.models.Family for it"
        )
    if _distance(alone[0], encode(inputs[0])) > min(SAME, APART * between):
        raise InputError(
            f"the site of this {kind} model gives other rows each time for the same picture: put it into "
            "evaluation mode, or register a ggss.models.Family for it"
        )
    if any(told(one) != [len(rows)] for one, rows in zip(inputs, alone, strict=True)):
        return False
    limit = min(SAME, APART * between)
    for order in ((0, 1), (1, 0)):
        expected = torch.cat([alone[i] for i in order])
        try:
            batch = prepare([(first, second)[i] for i in order])
            together = encode(batch)
        except Exception:  # some processors and towers take only images of one shape
            return False
        if told(batch) != [len(alone[i]) for i in order] or together.shape != expected.shape:
            return False
        parts = zip(together.split([len(alone[i]) for i in order]), order, strict=True)
        if any(_distance(alone[i], part) > limit for part, i in parts):
            return False
    return True


def _distance(one: Tensor, other: Tensor) -> float:
    """Relative to the first; of the rows that both have."""
    count = min(len(one), len(other))
    left, right = one[:count].double(), other[:count].double()
    return float((left - right).norm() / left.norm().clamp(min=1e-30))
