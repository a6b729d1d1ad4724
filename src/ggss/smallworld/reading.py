"""Asking a small-world model many questions fast: each picture is encoded once, each question read in one pass.

All questions of the world have answers of one word, so the greedy answer is the likeliest next word, and the
probabilities of the options come from the same pass. `Vlm.answer` and `Vlm.score` give the same, more slowly.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from ggss.models import Features, Vlm
from ggss.progress import track
from ggss.smallworld.questions import Picture, Question
from ggss.steerer import Steerer

BATCH = 64


@dataclass(frozen=True)
class Reading:
    """The model's answer, and the probability of each of the question's options among them."""

    answer: str
    probabilities: tuple[float, ...]

    def parsed(self, question: Question) -> str | None:
        """The answer if it is one of the options, else None."""
        return self.answer if self.answer in question.options else None


@dataclass(frozen=True)
class Gallery:
    """The world's pictures as a model sees them, steered or not; what was seen once is kept."""

    vlm: Vlm
    change: Callable[[Features], Features] | None = None
    below: "Gallery | None" = None
    kept: dict[Picture, Features] = field(default_factory=dict)

    def steered(self, steerer: Steerer, alpha: float) -> "Gallery":
        """The same pictures after steering; encoding is shared with this gallery."""
        return Gallery(self.vlm, lambda features: features.steered(steerer, alpha), self)

    def hang(self, pictures: Iterable[Picture], show: bool | None = None) -> None:
        """Encode the pictures that are not there yet."""
        missing = [picture for picture in dict.fromkeys(pictures) if picture not in self.kept]
        if self.below is not None and self.change is not None:
            self.below.hang(missing, show)
            self.kept.update((picture, self.change(self.below.kept[picture])) for picture in missing)
            return
        batches = [missing[i : i + BATCH] for i in range(0, len(missing), BATCH)]
        for batch in track(batches, f"{self.vlm.name}: looking at {len(missing)} pictures", show=show):
            self.kept.update(zip(batch, self.vlm.encode([picture.paint() for picture in batch]), strict=True))

    def read(self, questions: Sequence[Question], what: str = "questions", show: bool | None = None) -> list[Reading]:
        """One reading per question, in their order."""
        self.hang((picture for question in questions for picture in question.images), show)
        # Prompts of one length are asked together: padding is work for nothing.
        order = sorted(
            range(len(questions)), key=lambda i: (len(questions[i].images), len(questions[i].text.split()))
        )
        readings: dict[int, Reading] = {}
        batches = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
        for batch in track(batches, f"{self.vlm.name}: {what}", show=show):
            readings |= zip(batch, self._read([questions[i] for i in batch]), strict=True)
        return [readings[i] for i in range(len(questions))]

    def _read(self, questions: Sequence[Question]) -> list[Reading]:
        tokenizer = self.vlm.processor.tokenizer
        pictures = [[self.kept[picture] for picture in question.images] for question in questions]
        logits = self.vlm.logits([question.text for question in questions], pictures)
        words = tokenizer.convert_ids_to_tokens(logits.argmax(1).tolist())
        readings = []
        for question, word, row in zip(questions, words, logits, strict=True):
            options = torch.tensor(tokenizer.convert_tokens_to_ids(list(question.options)))
            readings.append(Reading(word, tuple(row[options].softmax(0).tolist())))
        return readings
