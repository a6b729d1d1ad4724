"""How many tokens a prompt has, from the processor and the sizes of its images: nothing is decoded or encoded."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from PIL import Image

from ggss.models import prompts

Size = tuple[int, int]
"""Width and height of an image."""


class PromptLengths:
    """The lengths of prompts of one model."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.image_tokens = cache(self._image_tokens)
        self._chat = cache(partial(prompts.chat, processor))

    def __call__(self, asked: Sequence[tuple[str, Sequence[Size]]]) -> list[int]:
        """The number of tokens of each question about images of these sizes."""
        texts = [self._chat(question, len(sizes)) for question, sizes in asked]
        marks = [self.processor.image_token for _, sizes in asked for _ in sizes]
        # An image's mark is a token of its own, so that its placeholder can be counted apart.
        bare = prompts.tokens(self.processor, texts, marks) if texts else []
        return [
            len(ids) + sum(self.image_tokens(size) - 1 for size in sizes)
            for ids, (_, sizes) in zip(bare, asked, strict=True)
        ]

    def _image_tokens(self, size: Size) -> int:
        width, height = size
        count = getattr(self.processor, "_get_num_multimodal_tokens", None)
        if count is not None:
            return count(image_sizes=[(height, width)])["num_image_tokens"][0]
        _, (placeholder,) = prompts.preprocessed(self.processor, [Image.new("RGB", size)])
        return len(self.processor.tokenizer(placeholder, add_special_tokens=False)["input_ids"])
