"""A reading: a model's answer and the probability of each option. Also a cache of tokenised prompts.

A study asks the same few thousand prompts of every steered model again, and tokenising takes as long as the forward
pass of a tiny model. So each prompt is tokenised once, together with its options.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ggss.errors import InputError
from ggss.models import prompts

Key = tuple[str, tuple[str, ...], tuple[str, ...]]
"""A question, the placeholders of its images, its options."""

Tail = tuple[int, int, list[int]]
"""The question's number, the option's number, and the option's token ids."""

KEPT_TOKENS = 4_000_000


@dataclass(frozen=True, slots=True)
class Reading:
    """A model's answer to a question, and the probabilities of the question's options, which sum to 1."""

    answer: str
    probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Tokenised:
    """A prompt's token ids; the context that it shares with all its options; each option's own ids after that."""

    ids: list[int]
    context: list[int]
    tails: list[list[int]]

    @property
    def at_once(self) -> bool:
        """Whether each option is a single token, so that the token after the prompt decides between them."""
        return len(self.context) == len(self.ids) and all(len(tail) == 1 for tail in self.tails)


class Prompts:
    """A cache of tokenised prompts, up to some millions of tokens."""

    def __init__(self, processor: Any, chat: Callable[..., str]) -> None:
        self._processor = processor
        self.chat = chat
        self._kept: dict[Key, Tokenised] = {}
        self._tokens = 0

    def __call__(self, asked: Sequence[Key]) -> list[Tokenised]:
        """One for each question asked, in order."""
        if missing := [key for key in dict.fromkeys(asked) if key not in self._kept]:
            if self._tokens > KEPT_TOKENS:
                missing = list(dict.fromkeys(asked))
                self._kept, self._tokens = {}, 0
            self._kept |= zip(missing, self._tokenise(missing), strict=True)
            self._tokens += sum(len(self._kept[key].ids) for key in missing)
        return [self._kept[key] for key in asked]

    def _tokenise(self, asked: Sequence[Key]) -> list[Tokenised]:
        """All in one call of the tokenizer, which is much faster than many."""
        texts: list[str] = []
        placeholders: list[str] = []
        for question, images, options in asked:
            texts += [self.chat(question, len(images), option) for option in (None, *options)]
            placeholders += images * (1 + len(options))
        ids = iter(prompts.tokens(self._processor, texts, placeholders))
        found = []
        for _, _, options in asked:
            prompt = next(ids)
            found.append(Tokenised(prompt, *prompts.split_options(prompt, [next(ids) for _ in options])))
        return found


def option_runs(asked: Sequence[Tokenised]) -> dict[tuple[int, tuple[int, ...]], list[Tail]]:
    """What has to be read to score the options: a prompt's number and token ids, and the tails that end there.

    The last token of an option is scored but not read, so options of one token share a single run.
    """
    runs: dict[tuple[int, tuple[int, ...]], list[Tail]] = {}
    for i, prompt in enumerate(asked):
        for j, tail in enumerate(prompt.tails):
            runs.setdefault((i, (*prompt.context, *tail[:-1])), []).append((i, j, tail))
    return runs


def option_shares(logits: Tensor, asked: Sequence[Tokenised]) -> list[tuple[float, ...]]:
    """The probabilities of each prompt's one-token options, which sum to 1, from the logits [prompts, vocabulary]."""
    shares: list[tuple[float, ...]] = [()] * len(asked)
    by_count: dict[int, list[int]] = {}
    for i, prompt in enumerate(asked):
        by_count.setdefault(len(prompt.tails), []).append(i)
    for count, rows in by_count.items():  # prompts with the same number of options together
        if count:
            tokens = torch.tensor([[tail[0] for tail in asked[i].tails] for i in rows], device=logits.device)
            for i, own in zip(rows, logits[rows].gather(1, tokens).softmax(1).tolist(), strict=True):
                shares[i] = tuple(own)
    return shares


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
