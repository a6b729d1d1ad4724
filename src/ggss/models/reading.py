"""Asking a model: greedy answers, the probabilities of options, and both together in as few passes as they need.

The logits that begin an answer also decide between options of one token; longer options are scored in passes of their
own. Questions about the same encoded pictures are read after one pass over what their prompts begin with (`prefix`),
where that saves enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ggss.errors import InputError
from ggss.models import prompts
from ggss.models.features import Features, Shown
from ggss.models.inputs import Batches, Choice, ModelInputs, Tokenised
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
from ggss.models.prompts import image_token

if TYPE_CHECKING:
    from ggss.models.vlm import Vlm


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
        self, questions: Sequence[tuple[str, Sequence[Shown]]], max_new_tokens: int, batch_size: int
    ) -> list[str]:
        """One greedy answer to each question about its images."""
        return self._asking(questions, batch_size, partial(self._answer, max_new_tokens))

    def _answer(self, max_new_tokens: int, batch: Sequence[tuple[str, Sequence[Shown]]]) -> list[str]:
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
