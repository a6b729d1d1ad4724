"""Choosing the tokens of a batch whose rows have their own temperature, seed, length and end.

It works inside transformers' `generate`: a logits processor sees what may come next for every row, chooses, and hands
out the text; a stopping criterion says which rows are over. So every family that transformers can generate with is
served by the code that `ggss ask` uses.

One answer while its tokens come: pieces of text, and why it ends.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from ggss.serve.schema import AnswerPiece, AnswerText, token_facts


class GrowingAnswer:
    """choice: its number in the response. most_tokens: its length at most."""

    def __init__(self, choice: int, most_tokens: int, text: AnswerText) -> None:
        self.choice, self.most_tokens, self.text = choice, most_tokens, text
        self.tokens, self.over = 0, False

    def grown(self, token: int, ends: Collection[int], logprobs: list[dict[str, Any]]) -> AnswerPiece:
        """The piece with one more token. ends: the tokens that end an answer; they are no part of it."""
        self.tokens += 1
        if token in ends:
            return self._last("", [], "stop")
        new = self.text.add(token)
        if self.text.stopped or self.tokens == self.most_tokens:
            return self._last(new, logprobs, "stop" if self.text.stopped else "length")
        return AnswerPiece(self.choice, new, 1, logprobs)

    def _last(self, new: str, logprobs: list[dict[str, Any]], why: str) -> AnswerPiece:
        self.over = True
        return AnswerPiece(self.choice, new + self.text.rest(), 1, logprobs, why)


class AnswerRow(GrowingAnswer):
    """One answer of a batch.

    give: gets each new piece. gone: whether nobody waits for it any more.
    """

    def __init__(
        self,
        choice: int,
        most_tokens: int,
        text: AnswerText,
        give: Callable[[AnswerPiece], None],
        gone: Callable[[], bool],
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        top_logprobs: int | None = None,
    ) -> None:
        super().__init__(choice, most_tokens, text)
        self.give, self.gone = give, gone
        self.temperature, self.top_p, self.top_logprobs = temperature, top_p, top_logprobs
        self.generator = torch.Generator()
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)

    def sampled(self, logits: Tensor) -> int:
        """A token from logits [V], by temperature and top-p."""
        below = logits.double().cpu() - logits.max().double().cpu()  # so that no temperature is too low to divide by
        ordered, tokens = (below / self.temperature).softmax(0).sort(descending=True, stable=True)
        kept = ordered.cumsum(0) - ordered < self.top_p
        kept[0] = True
        return int(tokens[torch.multinomial(ordered * kept, 1, generator=self.generator)])


class RowSampler(LogitsProcessor):
    """For one call of `generate`. ends: the tokens that end an answer. poll: called before every token.

    word: the text of a token.
    """

    def __init__(
        self, rows: Sequence[AnswerRow], ends: Collection[int], poll: Callable[[], None], word: Callable[[int], str]
    ) -> None:
        self.rows, self.ends, self.poll, self.word = rows, ends, poll, word

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The scores [rows, V]; of a row that is sampled, only its chosen token is left."""
        self.poll()
        likeliest = scores.argmax(-1).tolist()  # as `generate` will do it
        forced = scores
        for number, row in enumerate(self.rows):
            row.over = row.over or row.gone()
            if row.over:
                continue
            token = likeliest[number]
            if row.temperature > 0:
                token = row.sampled(scores[number])
                forced = scores.clone() if forced is scores else forced
                forced[number] = -torch.inf
                forced[number, token] = 0
            self._add(row, token, scores[number])
        return forced

    def _add(self, row: AnswerRow, token: int, scores: Tensor) -> None:
        logprobs = [] if row.top_logprobs is None else [self._logprobs(token, scores, row.top_logprobs)]
        row.give(row.grown(token, self.ends, logprobs))

    def _logprobs(self, token: int, scores: Tensor, count: int) -> dict[str, Any]:
        """The token's log-probability before temperature and top-p, and those of the likeliest."""
        every = scores.float().log_softmax(-1)
        top = every.topk(count) if count else None
        likeliest = [] if top is None else list(zip(top.indices.tolist(), top.values.tolist(), strict=True))
        return self._facts(token, float(every[token])) | {"top_logprobs": [self._facts(*one) for one in likeliest]}

    def _facts(self, token: int, logprob: float) -> dict[str, Any]:
        return token_facts(self.word(token), logprob)


class RowsOver(StoppingCriteria):
    """Ends each row that its sampler has ended."""

    def __init__(self, rows: Sequence[AnswerRow]) -> None:
        self.rows = rows

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Any:
        return torch.tensor([row.over for row in self.rows], device=input_ids.device)
