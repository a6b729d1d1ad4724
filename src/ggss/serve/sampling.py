"""Chooses the tokens of a batch in which each row has its own temperature, top-p, seed, length and stop sequences.

It works inside transformers' `generate`: `RowSampler`, a logits processor, chooses the next token of each row and
sends its text; `RowsFinished`, a stopping criterion, ends rows. So a server generates with the code that `ggss ask`
uses, for every family that transformers supports. `PartialAnswer` makes pieces of tokens, for the vLLM engine too.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from ggss.serve.answers import AnswerPiece, AnswerText, logprob_entry


class PartialAnswer:
    """One choice of an answer while it is generated. choice: its index in the response."""

    def __init__(self, choice: int, most_tokens: int, text: AnswerText) -> None:
        self.choice, self.most_tokens, self.text = choice, most_tokens, text
        self.tokens, self.finished = 0, False

    def add(self, token: int, eos_tokens: Collection[int], logprobs: list[dict[str, Any]]) -> AnswerPiece:
        """The piece that one more token makes. eos_tokens: they end an answer and are not part of its text."""
        self.tokens += 1
        if token in eos_tokens:
            return self._last("", [], "stop")
        text = self.text.add(token)
        if self.text.stopped or self.tokens == self.most_tokens:
            return self._last(text, logprobs, "stop" if self.text.stopped else "length")
        return AnswerPiece(self.choice, text, 1, logprobs)

    def _last(self, text: str, logprobs: list[dict[str, Any]], reason: str) -> AnswerPiece:
        self.finished = True
        return AnswerPiece(self.choice, text + self.text.rest(), 1, logprobs, reason)


class AnswerRow(PartialAnswer):
    """One row of a batch. send: gets each new piece. is_cancelled: whether the client is gone."""

    def __init__(
        self,
        choice: int,
        most_tokens: int,
        text: AnswerText,
        send: Callable[[AnswerPiece], None],
        is_cancelled: Callable[[], bool],
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        top_logprobs: int | None = None,
    ) -> None:
        super().__init__(choice, most_tokens, text)
        self.send, self.is_cancelled = send, is_cancelled
        self.temperature, self.top_p, self.top_logprobs = temperature, top_p, top_logprobs
        self.generator = torch.Generator()
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)

    def sampled(self, logits: Tensor) -> int:
        """A token from logits [V], by temperature and top-p."""
        shifted = logits.double().cpu() - logits.max().double().cpu()  # no temperature is too low to divide this
        ordered, tokens = (shifted / self.temperature).softmax(0).sort(descending=True, stable=True)
        nucleus = ordered.cumsum(0) - ordered < self.top_p
        nucleus[0] = True
        return int(tokens[torch.multinomial(ordered * nucleus, 1, generator=self.generator)])


class RowSampler(LogitsProcessor):
    """Chooses the tokens of one call of `generate`.

    eos_tokens: they end an answer. poll: called before every token. token_text: the text of one token.
    """

    def __init__(
        self,
        rows: Sequence[AnswerRow],
        eos_tokens: Collection[int],
        poll: Callable[[], None],
        token_text: Callable[[int], str],
    ) -> None:
        self.rows, self.eos_tokens, self.poll, self.token_text = rows, eos_tokens, poll, token_text

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The scores [rows, V]. In a row that is sampled, all but the chosen token are -inf."""
        self.poll()
        likeliest = scores.argmax(-1).tolist()  # `generate` chooses the same way
        forced = scores
        for number, row in enumerate(self.rows):
            row.finished = row.finished or row.is_cancelled()
            if row.finished:
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
        row.send(row.add(token, self.eos_tokens, logprobs))

    def _logprobs(self, token: int, scores: Tensor, count: int) -> dict[str, Any]:
        """The token's log-probability before temperature and top-p, and those of the `count` likeliest."""
        every = scores.float().log_softmax(-1)
        values, tokens = every.topk(count)
        likeliest = zip(map(self.token_text, tokens.tolist()), values.tolist(), strict=True)
        entry = logprob_entry(self.token_text(token), float(every[token]))
        return entry | {"top_logprobs": [logprob_entry(text, logprob) for text, logprob in likeliest]}


class RowsFinished(StoppingCriteria):
    """Ends each row that its sampler has finished."""

    def __init__(self, rows: Sequence[AnswerRow]) -> None:
        self.rows = rows

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Any:
        return torch.tensor([row.finished for row in self.rows], device=input_ids.device)
