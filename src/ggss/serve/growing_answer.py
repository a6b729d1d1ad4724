"""One answer while its tokens come: pieces of text, and why it ends."""

from collections.abc import Collection
from typing import Any

from ggss.serve.answer_text import AnswerText
from ggss.serve.engine import AnswerPiece


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
