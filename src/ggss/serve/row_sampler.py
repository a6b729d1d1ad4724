"""Choosing the tokens of a batch whose rows have their own temperature, seed, length and end.

It works inside transformers' `generate`: a logits processor sees what may come next for every row, chooses, and hands
out the text; a stopping criterion says which rows are over. So every family that transformers can generate with is
served by the code that `ggss ask` uses.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from ggss.serve.answer_text import UNFINISHED, AnswerText
from ggss.serve.engine import AnswerPiece

LEAST_LOGPROB = -9999.0  # JSON has no number for minus infinity


class AnswerRow:
    """One answer in the making.

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
        self.choice, self.most_tokens, self.text, self.give, self.gone = choice, most_tokens, text, give, gone
        self.temperature, self.top_p, self.top_logprobs = temperature, top_p, top_logprobs
        self.tokens, self.over = 0, False
        self.generator = torch.Generator()
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)

    def sampled(self, logits: Tensor) -> int:
        """A token from logits [V], by temperature and top-p."""
        shares = (logits.double().cpu() / self.temperature).softmax(0)
        ordered, tokens = shares.sort(descending=True, stable=True)
        kept = ordered.cumsum(0) - ordered < self.top_p  # the most likely token always is
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
        row.tokens += 1
        if token in self.ends:
            return self._finish(row, "", [], "stop")
        new = row.text.add(token)
        logprobs = [] if row.top_logprobs is None else [self._logprobs(token, scores, row.top_logprobs)]
        if row.text.stopped or row.tokens == row.most_tokens:
            return self._finish(row, new, logprobs, "stop" if row.text.stopped else "length")
        row.give(AnswerPiece(row.choice, new, 1, logprobs))

    def _finish(self, row: AnswerRow, new: str, logprobs: list[dict[str, Any]], why: str) -> None:
        row.over = True
        row.give(AnswerPiece(row.choice, new + row.text.rest(), 1, logprobs, why))

    def _logprobs(self, token: int, scores: Tensor, count: int) -> dict[str, Any]:
        """The token's log-probability before temperature and top-p, and those of the likeliest."""
        every = scores.float().log_softmax(-1)
        top = every.topk(count) if count else None
        likeliest = [] if top is None else list(zip(top.indices.tolist(), top.values.tolist(), strict=True))
        return self._named(token, float(every[token])) | {"top_logprobs": [self._named(*one) for one in likeliest]}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        word = self.word(token)
        known = None if UNFINISHED in word else list(word.encode())  # a part of a character has no text
        return {"token": word, "logprob": max(logprob, LEAST_LOGPROB), "bytes": known}


class RowsOver(StoppingCriteria):
    """Ends each row that its sampler has ended."""

    def __init__(self, rows: Sequence[AnswerRow]) -> None:
        self.rows = rows

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Any:
        return torch.tensor([row.over for row in self.rows], device=input_ids.device)
