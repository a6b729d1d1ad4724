"""How many image tokens each image of a batch has, for the batches that ggss itself prepared.

A processor may cut an image into tiles, and then a model gets the tiles of all images in one tensor: its inputs do
not tell where an image ends. The processor knows it: it writes as many image tokens into the prompt as the image has.
So the numbers are noted beside the tensor of pixels, and `by_tokens` finds them when the model computes with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ggss.errors import InputError
from ggss.models import prompts
from ggss.models.wrappers import execution_device

_TOKENS = WeakTensorKeyDictionary()


def told_pixels(model: Any, processor: Any, images: Sequence[Image.Image]) -> tuple[dict[str, Tensor], list[str]]:
    """What the vision tower needs for the images, and each image's placeholder in a prompt."""
    batch, placeholders = prompts.preprocessed(processor, images)
    names = [name for name in processor.image_processor.model_input_names if name in batch]
    moved = batch.to(execution_device(model), model.dtype)
    inputs = {name: moved[name] for name in names}
    mark = image_token(model.config, processor)
    counts = tuple(placeholder.count(mark) for placeholder in placeholders)
    for value in inputs.values():
        if isinstance(value, Tensor):
            _TOKENS[value] = counts  # forgotten together with the tensor
    return inputs, placeholders


def told(inputs: Mapping[str, Any]) -> list[int] | None:
    """The number of image tokens of each image; None if ggss did not prepare these inputs."""
    known = {_TOKENS[value] for value in inputs.values() if isinstance(value, Tensor) and value in _TOKENS}
    return list(known.pop()) if len(known) == 1 else None


def image_token(config: Any, processor: Any) -> str:
    """The token whose embedding the text model replaces by an image's rows."""
    named = (getattr(config, name, None) for name in ("image_token_id", "image_token_index"))
    number = next((own for own in named if isinstance(own, int)), None)
    return processor.image_token if number is None else processor.tokenizer.convert_ids_to_tokens(number)


def by_tokens(model: Any, inputs: Mapping[str, Any]) -> list[int]:
    """`rows_per_image` of a family with a site row for each image token; InputError if ggss did not prepare it."""
    counts = told(inputs)
    if counts is None:
        raise InputError(
            f"the inputs of this {model.config.model_type} model do not tell which rows belong to which image (its "
            "processor may cut an image into tiles): ask it through ggss (ggss.load_vlm), or use a method and a "
            "strength that are the same for all images"
        )
    return counts
