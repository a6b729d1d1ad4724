"""Asking a model: greedy answers, the probabilities of options, and both together in as few passes as they need.

The logits that begin an answer also decide between options of one token; longer options are scored in passes of their
own. Questions about the same encoded pictures are read after one pass over what their prompts begin with (`prefix`),
where that saves enough.

`ModelInputs` makes a model's inputs, from questions or token ids and the pictures that they are about. `Batches`
halves a batch that does not fit in memory.
"""

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from PIL import Image
from torch import Tensor
from transformers.utils.generic import ModelOutput

from ggss import errors
from ggss.errors import InputError, out_of_memory
from ggss.models import prompts
from ggss.models.features import Features, ImageOrFeatures
from ggss.models.hooks import acting_before_text
from ggss.models.prefix import (
    SharedPrefix,
    Tail,
    can_share,
    option_runs,
    option_shares,
    plainly_greedy,
    read_after,
    shared_length,
    together,
)
from ggss.models.prompts import Prompts, Tokenised, image_token, prepare_images

if TYPE_CHECKING:
    from ggss.models.vlm import Vlm

T = TypeVar("T")
R = TypeVar("R")
Choice = tuple[str, Sequence[ImageOrFeatures], Sequence[str]]
"""A question, its images, its options."""

log = logging.getLogger(__name__)


class Batches:
    """One kind of work of one model. `most`: the largest batch that may be tried, once a larger one did not fit."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.most: int | None = None

    def __call__(self, items: Sequence[T], size: int, work: Callable[[Sequence[T]], Sequence[R]]) -> list[R]:
        """What `work` returns for each item, in order; it is given at most `size` items at a time."""
        errors.BATCH.check("the batch size", size)
        done: list[R] = []
        while len(done) < len(items):
            together = items[len(done) : len(done) + min(size, self.most or size)]
            fitted = self._tried(together, work)
            if fitted is None:
                self._halve(len(together))
            else:
                done += fitted
        return done

    def _tried(self, items: Sequence[T], work: Callable[[Sequence[T]], Sequence[R]]) -> Sequence[R] | None:
        """None if memory ran out. The exception ends here: it holds on to the tensors of the failed batch."""
        try:
            return work(items)
        except Exception as error:
            if not out_of_memory(error):
                raise
            if len(items) == 1:
                raise InputError(
                    f"not enough memory for one of the {self.what} alone: use smaller images, --dtype bfloat16, "
                    "or a device with more memory"
                ) from error
            return None

    def _halve(self, failed: int) -> None:
        if self.most is None:
            log.warning(f"{failed} {self.what} at a time do not fit in memory: going on with fewer")
        self.most = max(1, failed // 2)
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()


class ModelInputs:
    """Makes the inputs of a model. cache: its prompts that are tokenised already."""

    def __init__(self, vlm: "Vlm", cache: Prompts) -> None:
        self._vlm, self._cache = vlm, cache

    def of_questions(self, questions: Sequence[str], images: Sequence[Sequence[ImageOrFeatures]]) -> dict[str, Any]:
        """The inputs for one batch of questions, each about its images."""
        texts = [self._cache.chat(question, len(shown)) for question, shown in zip(questions, images, strict=True)]
        inputs, placeholders = self._of_pictures(images)
        processor = self._vlm.processor
        sequences = prompts.tokens(processor, texts, placeholders)
        return inputs | prompts.left_padded(processor, sequences, self._vlm.model)

    def of_tokens(
        self,
        sequences: Sequence[list[int]],
        images: Sequence[Sequence[ImageOrFeatures]],
        answered: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """The inputs for one batch of prompts that are token ids.

        answered: how many tokens at the end of each are of the answer; None: they are prompts only.
        """
        inputs, _ = self._of_pictures(images)
        return inputs | prompts.left_padded(self._vlm.processor, sequences, self._vlm.model, answered)

    def tokenised(self, choices: Sequence[Choice]) -> list[Tokenised]:
        """The tokens of each question and of its options."""
        return self._cache(
            [
                (question, tuple(self._placeholders(pictures)), tuple(options))
                for question, pictures, options in choices
            ]
        )

    def encoded(self, images: Sequence[Sequence[ImageOrFeatures]]) -> list[list[ImageOrFeatures]]:
        """The same with each distinct picture encoded, if the family can answer from features."""
        if self._vlm.family.pack is None:
            return [list(pictures) for pictures in images]
        raw = {id(picture): picture for picture in chain(*images) if isinstance(picture, Image.Image)}
        encoded = dict(zip(raw, self._vlm.encode(list(raw.values())), strict=True))
        return [[encoded.get(id(picture), picture) for picture in pictures] for pictures in images]

    def _placeholders(self, pictures: Sequence[ImageOrFeatures]) -> list[str]:
        vlm = self._vlm
        return [
            p.placeholder if isinstance(p, Features) else prepare_images(vlm.model, vlm.processor, [p])[1][0]
            for p in pictures
        ]

    def _of_pictures(self, images: Sequence[Sequence[ImageOrFeatures]]) -> tuple[dict[str, Any], list[str]]:
        """The inputs for the images of a batch of prompts, and each image's placeholder."""
        pictures = list(chain(*images))
        if not pictures:
            return {}, []
        model = self._vlm.model
        if raw := [picture for picture in pictures if isinstance(picture, Image.Image)]:
            if len(raw) == len(pictures):
                return prepare_images(model, self._vlm.processor, raw)
            pictures = list(chain(*self.encoded(images)))
        features = [picture for picture in pictures if isinstance(picture, Features)]
        if unseen := [attached for shown in features for attached in acting_before_text(model) - shown.under]:
            raise InputError(
                f"a steerer is attached at {', '.join(sorted(unseen[0].sites))}, and these features were encoded "
                "before that, so it cannot steer them: pass the images, or steer the features without attaching"
            )
        shared = [name for name in features[0].inputs if all(name in shown.inputs for shown in features)]
        inputs = {name: torch.stack([shown.inputs[name] for shown in features]) for name in shared}
        output = self._vlm.family.encoder_output(model, [shown.rows for shown in features], inputs)
        encoded = {"mm_encoder_outputs": {"image": ModelOutput(**output)}}
        return inputs | encoded, [shown.placeholder for shown in features]


class Answer(NamedTuple):
    """A model's answer to a question, as raw text, and the probabilities of the question's options.

    They sum to 1; () if the question has no options. This is what runs, run files and studies keep.
    """

    text: str
    probabilities: tuple[float, ...] = ()


class NoNumbers(InputError):
    """A model computes logits that are NaN. Whoever loaded it can correct that; whoever only asks it cannot."""


def require_numbers(logits: Tensor, name: str) -> Tensor:
    """The logits. NoNumbers if one is NaN: the largest of them would be a word, and mean nothing."""
    if logits.isnan().any():
        raise NoNumbers(
            f"{name} computes logits that are no numbers (NaN): its weights are damaged, or its numbers too large "
            "for their dtype (try --dtype float32, in Python dtype='float32')"
        )
    return logits


@dataclass(frozen=True)
class NumbersOnly:
    """The same for every step of `generate`, which takes it as a logits processor."""

    name: str

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        return require_numbers(logits, self.name)


class FirstLogits:
    """Keeps the logits [prompts, vocabulary] of the first token that `generate` writes; a logits processor too."""

    logits: Tensor | None = None

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        if self.logits is None:
            self.logits = logits
        return logits


class VlmReader:
    """Reads answers of a model. asking, sharing: batches of questions read apart, and after one pass for all."""

    def __init__(self, vlm: "Vlm", inputs: ModelInputs, asking: Batches, sharing: Batches) -> None:
        self._vlm, self._inputs = vlm, inputs
        self._asking, self._sharing = asking, sharing

    def answer(
        self, questions: Sequence[tuple[str, Sequence[ImageOrFeatures]]], max_new_tokens: int, batch_size: int
    ) -> list[str]:
        """One greedy answer to each question about its images."""
        return self._asking(questions, batch_size, partial(self._answer, max_new_tokens))

    def _answer(self, max_new_tokens: int, batch: Sequence[tuple[str, Sequence[ImageOrFeatures]]]) -> list[str]:
        inputs = self._inputs.of_questions([question for question, _ in batch], [pictures for _, pictures in batch])
        tokens = self.generate(inputs, max_new_tokens)
        return self._texts(tokens[:, inputs["input_ids"].shape[1] :])

    def generate(
        self, inputs: dict[str, Any], max_new_tokens: int, processors: Sequence[Any] = (), stops: Sequence[Any] = ()
    ) -> Tensor:
        """The tokens [prompts, length] of the prompts and of what the model writes after them, always the likeliest.

        processors: logits processors of transformers. stops: its stopping criteria.
        """
        return self._vlm.model.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            pad_token_id=self._vlm.processor.tokenizer.pad_token_id,
            logits_processor=[NumbersOnly(self._vlm.name), *processors],
            stopping_criteria=list(stops),
        )

    def read(self, choices: Sequence[Choice], max_new_tokens: int, batch_size: int) -> list[Answer]:
        """One greedy answer to each question, and the probabilities of its options, which sum to 1; () if none."""
        answers: dict[int, Answer] = {}

        def read(numbers: Sequence[int], batches: Batches, work: Callable[..., list[Answer]]) -> None:
            group = [choices[number] for number in numbers]
            answers.update(
                zip(numbers, batches(group, batch_size, partial(work, max_new_tokens, batch_size)), strict=True)
            )

        for numbers in self._groups_that_share(choices):
            read(numbers, self._sharing, self._read_sharing)
        read([number for number in range(len(choices)) if number not in answers], self._asking, self._read_batch)
        return [answers[number] for number in range(len(choices))]

    def score(self, choices: Sequence[Choice], batch_size: int) -> list[list[float]]:
        """log P(option | prompt) of each question's options, summed over the option's tokens (no end token)."""
        return self._asking(choices, batch_size, partial(self._score, batch_size))

    def option_logits(self, choices: Sequence[Choice]) -> tuple[Tensor, list[list[int]]]:
        """The next token's logits [questions, vocabulary] in one batch, and the tokens of each question's options."""
        tokenised = self._inputs.tokenised(choices)
        for (question, _, options), prompt in zip(choices, tokenised, strict=True):
            if not prompt.at_once:
                raise InputError(
                    f"the options {', '.join(options)} of {question!r} are not all single tokens of this model: ask "
                    "for a letter or a number"
                )
        return self._next_token(choices, tokenised), [[tail[0] for tail in prompt.tails] for prompt in tokenised]

    def _groups_that_share(self, choices: Sequence[Choice]) -> list[list[int]]:
        """The numbers of the questions that are read together, after one pass over what their prompts begin with."""
        if not self._may_share or not plainly_greedy(self._vlm.model.generation_config):
            return []
        keys = [
            tuple(map(id, pictures)) if pictures and all(isinstance(p, Features) for p in pictures) else None
            for _, pictures, _ in choices
        ]
        return [
            group
            for group in together(keys)
            if self._shared_length(self._inputs.tokenised([choices[i] for i in group]))
        ]

    @property
    def _may_share(self) -> bool:
        # The questions that go on after the shared tokens need about as much memory again.
        room = self._asking.most is None or self._asking.most > 1
        return self._vlm.share_prefix and room and self._vlm.family.shares_prefix and can_share(self._vlm.model)

    def _shared_length(self, tokenised: Sequence[Tokenised]) -> int:
        processor = self._vlm.processor
        mark = image_token(self._vlm.model.config, processor)
        return shared_length(tokenised, processor.tokenizer.convert_tokens_to_ids(str(mark)))

    def _read_sharing(self, max_new_tokens: int, batch_size: int, batch: Sequence[Choice]) -> list[Answer]:
        """All about the same pictures, after one pass over the tokens that their prompts begin with."""
        tokenised = self._inputs.tokenised(batch)
        length = self._shared_length(tokenised)
        if not length:  # memory ran out before, and these are too few for it to pay
            return self._read_batch(max_new_tokens, batch_size, batch)
        model = self._vlm.model
        prefix = SharedPrefix(model, self._inputs.of_tokens([tokenised[0].ids[:length]], [batch[0][1]]))
        ends = model.generation_config.eos_token_id
        ends = frozenset([ends] if isinstance(ends, int) else ends or ())
        checked = partial(require_numbers, name=self._vlm.name)
        answers = read_after(prefix, tokenised, max_new_tokens, ends, checked)
        return [Answer(self._text(tokens), probabilities) for tokens, probabilities in answers]

    def _read_batch(self, max_new_tokens: int, batch_size: int, batch: Sequence[Choice]) -> list[Answer]:
        """Options of one token are read from the logits that begin the answer; longer ones in passes of their own."""
        choices = self._encoded(batch)
        tokenised = self._inputs.tokenised(choices)
        texts, first = self._answered(choices, tokenised, max_new_tokens)
        shares: dict[int, tuple[float, ...]] = {}
        if first is not None:
            short = [i for i, prompt in enumerate(tokenised) if prompt.at_once]
            shares |= zip(short, option_shares(first[short], [tokenised[i] for i in short]), strict=True)
        longer = [i for i, (_, _, options) in enumerate(choices) if options and i not in shares]
        scores = self._score(batch_size, [choices[i] for i in longer]) if longer else []
        shares |= {i: tuple(torch.tensor(row).softmax(0).tolist()) for i, row in zip(longer, scores, strict=True)}
        return [Answer(text, shares.get(i, ())) for i, text in enumerate(texts)]

    def _answered(
        self, choices: Sequence[Choice], tokenised: Sequence[Tokenised], max_new_tokens: int
    ) -> tuple[list[str], Tensor | None]:
        """The answers, and the logits [questions, vocabulary] of the first token of each.

        None if the generation config changes logits: then those are not the model's own.
        """
        plain = plainly_greedy(self._vlm.model.generation_config)
        if plain and max_new_tokens == 1:
            logits = require_numbers(self._next_token(choices, tokenised), self._vlm.name)
            return self._texts(logits.argmax(1, keepdim=True)), logits
        first = FirstLogits()
        inputs = self._inputs.of_tokens(
            [prompt.ids for prompt in tokenised], [pictures for _, pictures, _ in choices]
        )
        tokens = self.generate(inputs, max_new_tokens, [first])
        return self._texts(tokens[:, inputs["input_ids"].shape[1] :]), first.logits if plain else None

    def _score(self, batch_size: int, batch: Sequence[Choice]) -> list[list[float]]:
        choices = self._encoded(batch)
        scores = [[0.0] * len(options) for _, _, options in choices]
        tokenised = self._inputs.tokenised(choices)

        def work(runs: Sequence[tuple[tuple[int, tuple[int, ...]], list[Tail]]]) -> list[None]:
            after = [max(0, len(ids) - len(tokenised[i].ids)) for (i, ids), _ in runs]
            inputs = self._inputs.of_tokens(
                [list(ids) for (_, ids), _ in runs], [choices[i][1] for (i, _), _ in runs], after
            )
            if "mm_token_type_ids" not in inputs:  # models that need them count positions by themselves
                inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
            longest = max(len(tail) for _, readings in runs for _, _, tail in readings)
            logits = self._vlm.model(**inputs, logits_to_keep=longest, use_cache=False).logits
            for row, (_, readings) in zip(logits.float().log_softmax(-1), runs, strict=True):
                for i, j, tail in readings:
                    steps = row[-len(tail) :]
                    scores[i][j] = require_numbers(steps[range(len(tail)), tail], self._vlm.name).sum().item()
            return [None] * len(runs)

        self._asking(list(option_runs(tokenised).items()), batch_size, work)
        return scores

    def _encoded(self, choices: Sequence[Choice]) -> list[Choice]:
        encoded = self._inputs.encoded([pictures for _, pictures, _ in choices])
        return [(question, shown, options) for (question, _, options), shown in zip(choices, encoded, strict=True)]

    def _next_token(self, choices: Sequence[Choice], tokenised: Sequence[Tokenised]) -> Tensor:
        """The logits [questions, vocabulary] of the token after each prompt, in float32."""
        inputs = self._inputs.of_tokens(
            [prompt.ids for prompt in tokenised], [pictures for _, pictures, _ in choices]
        )
        inputs |= prompts.shared_positions(self._vlm.model, inputs)
        return self._vlm.model(**inputs, logits_to_keep=1, use_cache=False).logits[:, -1].float()

    def _texts(self, tokens: Tensor) -> list[str]:
        """The text of each row [questions, tokens]; equal rows are decoded once."""
        rows = [tuple(row) for row in tokens.tolist()]
        words = {row: self._text(row) for row in set(rows)}
        return [words[row] for row in rows]

    def _text(self, tokens: Sequence[int]) -> str:
        return self._vlm.processor.tokenizer.decode(tokens, skip_special_tokens=True).strip()
