"""Many questions about one picture in one sequence.

A chat prompt is a prefix with the images, the question, a suffix, and the answer. The prefix is the same for every
question about a picture, so it is read once: the questions follow it side by side, each seeing the prefix and itself
(a block mask) and each at the positions that it would have alone. The logits are those of the separate prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import log_softmax

from ggss.models.prompts import chat
from ggss.smallworld.portraits import SIZE
from ggss.smallworld.questions import Question

TokenIds = list[int]


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


@dataclass(frozen=True)
class Prefix:
    ids: TokenIds
    positions: Tensor  # [3, prefix]: temporal, height and width; all the same but for Qwen3-VL
    next_position: int


class Format:
    """How a model's processor writes a question about no, one or two 64 x 64 pictures."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.mrope = model.config.model_type == "qwen3_vl"
        self.pad, self.eos = processor.tokenizer.pad_token_id, processor.tokenizer.eos_token_id
        self.prefixes: dict[int, Prefix] = {}
        self.suffix: TokenIds = []
        for count in (0, 1, 2):
            blank = [Image.new("RGB", (SIZE, SIZE))] * count
            texts = [chat(processor, word, count) for word in ("red", "blue")]
            both = processor(text=texts, images=blank * 2 or None, return_tensors="pt")
            first, second = both["input_ids"].tolist()
            start = _shared(first, second)
            self.suffix = first[start + 1 :]
            if self.mrope and count:
                keys = ("input_ids", "image_grid_thw", "mm_token_type_ids")
                positions = model.base_model.get_rope_index(**{key: both[key] for key in keys})[0][:, 0, :start]
            else:
                positions = torch.arange(start).expand(3, -1)
            self.prefixes[count] = Prefix(first[:start], positions, int(positions.max()) + 1)
        self.words = lru_cache(maxsize=65_536)(
            lambda text: tuple(processor.tokenizer(text, add_special_tokens=False)["input_ids"])
        )

    def tokens(self, question: Question) -> int:
        """How long a question is beside its pictures."""
        return len(self.words(question.text)) + len(self.suffix) + len(self.words(question.answer)) + 1


@dataclass(frozen=True)
class Packs:
    """Sequences with the same number of pictures. `targets`: the distribution wanted for each answer token."""

    images: Tensor  # [packs * pictures of a pack] long: which pictures stand in the prefixes, in order
    ids: Tensor  # [packs, L]
    positions: Tensor  # [packs, L] or, for Qwen3-VL, [3, packs, L]
    mask: Tensor  # [packs, 1, L, L] bool
    rows: Tensor  # [answers] long: the pack of each answer token
    columns: Tensor  # [answers] long: the place from which it is predicted
    targets: Tensor  # [answers, vocabulary]
    questions: tuple[Question, ...]
    first: Tensor  # [questions] long: which of the answers is the first token of each question's


def pack(
    layout: Format, packs: Sequence[tuple[Sequence[int], Sequence[Question]]], vocabulary: int, soft: bool = True
) -> Packs:
    """Packs of (pictures, questions), all with the same number of pictures.

    Where a question's truth is a distribution over its options, so is the target (`soft`): the mean of all labels
    that could be drawn, which is the same lesson with less noise.
    """
    prefix = layout.prefixes[len(packs[0][0])]
    sequences, numbers, places = [], [], []
    rows, columns, targets, first, asked = [], [], [], [], []
    for row, (_, questions) in enumerate(packs):
        ids, segment, place = list(prefix.ids), [0] * len(prefix.ids), [0] * len(prefix.ids)
        for number, question in enumerate(questions, start=1):
            answer = [*layout.words(question.answer), layout.eos]
            block = [*layout.words(question.text), *layout.suffix, *answer[:-1]]
            start = len(ids) + len(block) - len(answer)
            first.append(len(targets))
            asked.append(question)
            for step, word in enumerate(answer):
                rows.append(row)
                columns.append(start + step)
                certain = step > 0 or not question.truth or not soft
                options = [word] if certain else [layout.words(option)[0] for option in question.options]
                targets.append((options, [1.0] if certain else list(question.truth)))
            ids += block
            segment += [number] * len(block)
            place += range(prefix.next_position, prefix.next_position + len(block))
        sequences.append(ids)
        numbers.append(segment)
        places.append(place)
    width = max(map(len, sequences))
    ids, segments, positions = (
        torch.from_numpy(np.stack([np.pad(line, (0, width - len(line)), constant_values=fill) for line in lines]))
        for lines, fill in ((sequences, layout.pad), (numbers, -1), (places, 0))
    )
    mask = (segments[:, None, :] == 0) | (segments[:, None, :] == segments[:, :, None])
    dense = torch.zeros(len(targets), vocabulary)
    for answer, (options, shares) in enumerate(targets):
        dense[answer, options] = torch.tensor(shares)
    positions = positions.expand(3, -1, -1).clone()
    positions[:, :, : len(prefix.ids)] = prefix.positions[:, None]
    return Packs(
        torch.tensor([image for images, _ in packs for image in images], dtype=torch.long),
        ids,
        positions if layout.mrope else positions[0],
        (mask & torch.ones(width, width, dtype=torch.bool).tril())[:, None],
        torch.tensor(rows),
        torch.tensor(columns),
        dense,
        tuple(asked),
        torch.tensor(first),
    )


def answer_logits(model: Any, packs: Packs, encoded: Any = None) -> Tensor:
    """[answers, vocabulary]: what the model predicts at each place of an answer, from encoded pictures."""
    inputs: dict[str, Any] = {
        "input_ids": packs.ids,
        "attention_mask": packs.mask,
        "position_ids": packs.positions,
    }
    if chosen := packs.images.tolist():
        features: dict[str, Any] = {"pooler_output": [encoded.pooler_output[k] for k in chosen]}
        if getattr(encoded, "deepstack_features", None) is not None:
            features["deepstack_features"] = [[layer[k] for k in chosen] for layer in encoded.deepstack_features]
        inputs["mm_encoder_outputs"] = {"image": type(encoded)(**features)}
    hidden = model.base_model(**inputs, use_cache=False).last_hidden_state
    return model.lm_head(hidden[packs.rows, packs.columns])


def answer_loss(logits: Tensor, packs: Packs, by_token: bool = False) -> Tensor:
    """Cross-entropy with the targets: every question has the same weight, or with `by_token` every answer token."""
    losses = -(packs.targets * log_softmax(logits, dim=-1)).sum(-1)
    if by_token:
        return losses.mean()
    lengths = torch.diff(packs.first, append=torch.tensor([len(losses)]))
    return (losses / lengths.repeat_interleave(lengths)).sum() / len(lengths)
