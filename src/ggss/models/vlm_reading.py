"""Asking a model: its answers, the probabilities of options, and both together in as few passes as they need.

The logits that begin an answer also decide between options of one token; longer options are scored in passes of their
own. Questions about the same encoded pictures are read after one pass over what their prompts begin with, where that
pays.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ggss.errors import InputError
from ggss.models import prompts
from ggss.models.batching import Batches
from ggss.models.features import Features, Shown
from ggss.models.model_inputs import Choice, ModelInputs
from ggss.models.reading import (
    FirstLogits,
    NumbersOnly,
    Reading,
    Tail,
    Tokenised,
    option_runs,
    option_shares,
    require_numbers,
)
from ggss.models.shared_prefix import SharedPrefix, can_share
from ggss.models.shared_reading import plainly_greedy, read_after, shared_length, together
from ggss.models.told_rows import image_token

if TYPE_CHECKING:
    from ggss.models.vlm import Vlm


class VlmReader:
    """vlm: what is read. asking, sharing: how many questions fit into memory, apart and after one pass for all."""

    def __init__(self, vlm: "Vlm", inputs: ModelInputs, asking: Batches, sharing: Batches) -> None:
        self._vlm, self._inputs = vlm, inputs
        self._asking, self._sharing = asking, sharing

    def answer(self, asked: Sequence[tuple[str, Sequence[Shown]]], max_new_tokens: int, batch_size: int) -> list[str]:
        """One greedy answer to each question about its images."""
        return self._asking(asked, batch_size, partial(self._answer, max_new_tokens))

    def _answer(self, max_new_tokens: int, asked: Sequence[tuple[str, Sequence[Shown]]]) -> list[str]:
        inputs = self._inputs.of_questions([question for question, _ in asked], [pictures for _, pictures in asked])
        written = self.generate(inputs, max_new_tokens)
        return self._texts(written[:, inputs["input_ids"].shape[1] :])

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

    def read(self, asked: Sequence[Choice], max_new_tokens: int, batch_size: int) -> list[Reading]:
        """One greedy answer to each question, and the probabilities of its options, which sum to 1; () if none."""
        found: dict[int, Reading] = {}

        def find(numbers: Sequence[int], batches: Batches, work: Callable[..., list[Reading]]) -> None:
            own = [asked[number] for number in numbers]
            said = batches(own, batch_size, partial(work, max_new_tokens, batch_size))
            found.update(zip(numbers, said, strict=True))

        for numbers in self._groups_that_share(asked):
            find(numbers, self._sharing, self._read_sharing)
        find([number for number in range(len(asked)) if number not in found], self._asking, self._read_batch)
        return [found[number] for number in range(len(asked))]

    def score(self, asked: Sequence[Choice], batch_size: int) -> list[list[float]]:
        """log P(option | prompt) of each question's options, summed over the option's tokens (no end token)."""
        return self._asking(asked, batch_size, partial(self._score, batch_size))

    def option_logits(self, asked: Sequence[Choice]) -> tuple[Tensor, list[list[int]]]:
        """The next token's logits [questions, vocabulary] in one batch, and the tokens of each question's options."""
        tokenised = self._inputs.tokenised(asked)
        for (question, _, options), prompt in zip(asked, tokenised, strict=True):
            if not prompt.at_once:
                raise InputError(
                    f"the options {', '.join(options)} of {question!r} are not all single tokens of this model: ask "
                    "for a letter or a number"
                )
        return self._next_token(asked, tokenised), [[tail[0] for tail in prompt.tails] for prompt in tokenised]

    def _groups_that_share(self, asked: Sequence[Choice]) -> list[list[int]]:
        """The numbers of the questions that are read together, after one pass over what their prompts begin with."""
        if not self._may_share or not plainly_greedy(self._vlm.model.generation_config):
            return []
        keys = [
            tuple(map(id, pictures)) if pictures and all(isinstance(p, Features) for p in pictures) else None
            for _, pictures, _ in asked
        ]
        return [own for own in together(keys) if self._shared_length(self._inputs.tokenised([asked[i] for i in own]))]

    @property
    def _may_share(self) -> bool:
        # The questions that go on after the shared tokens need about as much memory again.
        room = self._asking.most is None or self._asking.most > 1
        return self._vlm.share_prefix and room and self._vlm.family.shares_prefix and can_share(self._vlm.model)

    def _shared_length(self, tokenised: Sequence[Tokenised]) -> int:
        processor = self._vlm.processor
        mark = image_token(self._vlm.model.config, processor)
        return shared_length(tokenised, processor.tokenizer.convert_tokens_to_ids(str(mark)))

    def _read_sharing(self, max_new_tokens: int, batch_size: int, asked: Sequence[Choice]) -> list[Reading]:
        """All about the same pictures, after one pass over the tokens that their prompts begin with."""
        tokenised = self._inputs.tokenised(asked)
        length = self._shared_length(tokenised)
        if not length:  # memory ran out before, and these are too few for it to pay
            return self._read_batch(max_new_tokens, batch_size, asked)
        model = self._vlm.model
        prefix = SharedPrefix(model, self._inputs.of_tokens([tokenised[0].ids[:length]], [asked[0][1]]))
        ends = model.generation_config.eos_token_id
        ends = frozenset([ends] if isinstance(ends, int) else ends or ())
        said = read_after(prefix, tokenised, max_new_tokens, ends, partial(require_numbers, name=self._vlm.name))
        return [Reading(self._text(tokens), shares) for tokens, shares in said]

    def _read_batch(self, max_new_tokens: int, batch_size: int, batch: Sequence[Choice]) -> list[Reading]:
        """Options of one token are read from the logits that begin the answer; longer ones in passes of their own."""
        asked = self._encoded(batch)
        tokenised = self._inputs.tokenised(asked)
        answers, first = self._written(asked, tokenised, max_new_tokens)
        shares: dict[int, tuple[float, ...]] = {}
        if first is not None:
            short = [i for i, prompt in enumerate(tokenised) if prompt.at_once]
            shares |= zip(short, option_shares(first[short], [tokenised[i] for i in short]), strict=True)
        longer = [i for i, (_, _, options) in enumerate(asked) if options and i not in shares]
        scores = self._score(batch_size, [asked[i] for i in longer]) if longer else []
        shares |= {i: tuple(torch.tensor(own).softmax(0).tolist()) for i, own in zip(longer, scores, strict=True)}
        return [Reading(answer, shares.get(i, ())) for i, answer in enumerate(answers)]

    def _written(
        self, asked: Sequence[Choice], tokenised: Sequence[Tokenised], max_new_tokens: int
    ) -> tuple[list[str], Tensor | None]:
        """The answers, and the logits [questions, vocabulary] of the first token of each.

        None if the model's settings of `generate` change logits: then those are not the model's own.
        """
        plain = plainly_greedy(self._vlm.model.generation_config)
        if plain and max_new_tokens == 1:
            logits = require_numbers(self._next_token(asked, tokenised), self._vlm.name)
            return self._texts(logits.argmax(1, keepdim=True)), logits
        first = FirstLogits()
        inputs = self._inputs.of_tokens([prompt.ids for prompt in tokenised], [pictures for _, pictures, _ in asked])
        written = self.generate(inputs, max_new_tokens, [first])
        return self._texts(written[:, inputs["input_ids"].shape[1] :]), first.logits if plain else None

    def _score(self, batch_size: int, batch: Sequence[Choice]) -> list[list[float]]:
        asked = self._encoded(batch)
        scores = [[0.0] * len(options) for _, _, options in asked]
        tokenised = self._inputs.tokenised(asked)

        def work(runs: Sequence[tuple[tuple[int, tuple[int, ...]], list[Tail]]]) -> list[None]:
            after = [max(0, len(ids) - len(tokenised[i].ids)) for (i, ids), _ in runs]
            inputs = self._inputs.of_tokens(
                [list(ids) for (_, ids), _ in runs], [asked[i][1] for (i, _), _ in runs], after
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

    def _encoded(self, asked: Sequence[Choice]) -> list[Choice]:
        kept = self._inputs.kept([pictures for _, pictures, _ in asked])
        return [(question, own, options) for (question, _, options), own in zip(asked, kept, strict=True)]

    def _next_token(self, asked: Sequence[Choice], tokenised: Sequence[Tokenised]) -> Tensor:
        """The logits [questions, vocabulary] of the token after each prompt, in float32."""
        inputs = self._inputs.of_tokens([prompt.ids for prompt in tokenised], [pictures for _, pictures, _ in asked])
        inputs |= prompts.shared_positions(self._vlm.model, inputs)
        return self._vlm.model(**inputs, logits_to_keep=1, use_cache=False).logits[:, -1].float()

    def _texts(self, written: Tensor) -> list[str]:
        """Of each row [questions, tokens]; the same answer is decoded once."""
        rows = [tuple(row) for row in written.tolist()]
        words = {row: self._text(row) for row in set(rows)}
        return [words[row] for row in rows]

    def _text(self, tokens: Sequence[int]) -> str:
        return self._vlm.processor.tokenizer.decode(tokens, skip_special_tokens=True).strip()
