"""The inputs of a model: from questions or token ids, and the pictures that they are about."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from transformers.utils.generic import ModelOutput

from ggss.errors import InputError
from ggss.models import prompts
from ggss.models.attachments import acting_before_text
from ggss.models.features import Features, Shown
from ggss.models.reading import Prompts, Tokenised
from ggss.models.told_rows import told_pixels

if TYPE_CHECKING:
    from ggss.models.vlm import Vlm

Choice = tuple[str, Sequence[Shown], Sequence[str]]
"""A question, its images, its options."""


class ModelInputs:
    """vlm: whose inputs they are. written: its prompts that are tokenised already."""

    def __init__(self, vlm: "Vlm", written: Prompts) -> None:
        self._vlm, self._written = vlm, written

    def of_questions(self, questions: Sequence[str], images: Sequence[Sequence[Shown]]) -> dict[str, Any]:
        """The inputs for one batch of questions, each about its images."""
        texts = [self._written.chat(question, len(own)) for question, own in zip(questions, images, strict=True)]
        inputs, placeholders = self._of_pictures(images)
        processor = self._vlm.processor
        sequences = prompts.tokens(processor, texts, placeholders)
        return inputs | prompts.left_padded(processor, sequences, self._vlm.model)

    def of_tokens(
        self,
        sequences: Sequence[list[int]],
        images: Sequence[Sequence[Shown]],
        answered: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """The inputs for one batch of prompts that are token ids.

        answered: how many tokens at the end of each are of the answer; None: they are prompts only.
        """
        inputs, _ = self._of_pictures(images)
        return inputs | prompts.left_padded(self._vlm.processor, sequences, self._vlm.model, answered)

    def tokenised(self, asked: Sequence[Choice]) -> list[Tokenised]:
        """The tokens of each question and of its options."""
        return self._written(
            [(question, tuple(self._placeholders(pictures)), tuple(options)) for question, pictures, options in asked]
        )

    def kept(self, images: Sequence[Sequence[Shown]]) -> list[list[Shown]]:
        """The same with each distinct picture encoded, if the family can answer from features."""
        if self._vlm.family.pack is None:
            return [list(pictures) for pictures in images]
        raw = {id(picture): picture for picture in chain(*images) if isinstance(picture, Image.Image)}
        encoded = dict(zip(raw, self._vlm.encode(list(raw.values())), strict=True))
        return [[encoded.get(id(picture), picture) for picture in pictures] for pictures in images]

    def _placeholders(self, pictures: Sequence[Shown]) -> list[str]:
        vlm = self._vlm
        return [
            p.placeholder if isinstance(p, Features) else told_pixels(vlm.model, vlm.processor, [p])[1][0]
            for p in pictures
        ]

    def _of_pictures(self, images: Sequence[Sequence[Shown]]) -> tuple[dict[str, Any], list[str]]:
        """The inputs for the images of a batch of prompts, and each image's placeholder."""
        pictures = list(chain(*images))
        if not pictures:
            return {}, []
        model = self._vlm.model
        if raw := [picture for picture in pictures if isinstance(picture, Image.Image)]:
            if len(raw) == len(pictures):
                return told_pixels(model, self._vlm.processor, raw)
            pictures = list(chain(*self.kept(images)))
        features = [picture for picture in pictures if isinstance(picture, Features)]
        if unseen := [own for one in features for own in acting_before_text(model) - one.under]:
            raise InputError(
                f"a steerer is attached at {', '.join(sorted(unseen[0].sites))}, and these features were encoded "
                "before that, so it cannot steer them: pass the images, or steer the features without attaching"
            )
        shared = [name for name in features[0].inputs if all(name in one.inputs for one in features)]
        inputs = {name: torch.stack([one.inputs[name] for one in features]) for name in shared}
        output = self._vlm.family.encoder_output(model, [one.rows for one in features], inputs)
        encoded = {"mm_encoder_outputs": {"image": ModelOutput(**output)}}
        return inputs | encoded, [one.placeholder for one in features]
