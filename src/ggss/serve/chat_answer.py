"""Answers in the shape of OpenAI's: whole, or in chunks as server-sent events."""

import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ggss.serve.chat_job import ChatJob
from ggss.serve.engine import AnswerPiece, Began
from ggss.version import __version__

Json = dict[str, Any]
LAST = "data: [DONE]\n\n"


def event(data: Json) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(data, allow_nan=False)}\n\n"


@dataclass
class ChatAnswer:
    """One answer to one request; a part of every field of it that is the same in all its chunks."""

    model: str
    job: ChatJob
    began: Began
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))
    tokens: int = 0

    @property
    def steering(self) -> Json:
        return {name: asdict(record) for name, record in self.began.steering.items()}

    @property
    def usage(self) -> Json:
        prompt = self.began.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": self.tokens, "total_tokens": prompt + self.tokens}

    def whole(self, pieces: Sequence[AnswerPiece]) -> Json:
        """The response, from all pieces."""
        self.tokens = sum(piece.tokens for piece in pieces)
        choices = []
        for number in range(self.job.choices):
            own = [piece for piece in pieces if piece.choice == number]
            message = {"role": "assistant", "content": "".join(piece.text for piece in own), "refusal": None}
            choices.append(
                {
                    "index": number,
                    "message": message,
                    "logprobs": self._logprobs(own),
                    "finish_reason": next(piece.finish for piece in own if piece.finish),
                }
            )
        return self._shared("chat.completion") | {"choices": choices, "usage": self.usage, "ggss": self.steering}

    async def events(self, pieces: AsyncIterator[Began | AnswerPiece], with_usage: bool) -> AsyncIterator[str]:
        """The response as server-sent events; what was steered is in the first of them."""
        for number in range(self.job.choices):
            first = self._chunk(number, {"role": "assistant", "content": ""})
            yield event(first if number else first | {"ggss": self.steering})
        async for piece in pieces:
            if isinstance(piece, AnswerPiece):
                self.tokens += piece.tokens
                if piece.text or piece.logprobs:
                    yield event(self._chunk(piece.choice, {"content": piece.text}, [piece]))
                if piece.finish:
                    yield event(self._chunk(piece.choice, {}, finish=piece.finish))
        if with_usage:
            yield event(self._shared("chat.completion.chunk") | {"choices": [], "usage": self.usage})
        yield LAST

    def _chunk(self, number: int, delta: Json, pieces: Sequence[AnswerPiece] = (), finish: str | None = None) -> Json:
        choice = {"index": number, "delta": delta, "logprobs": self._logprobs(pieces), "finish_reason": finish}
        return self._shared("chat.completion.chunk") | {"choices": [choice]}

    def _logprobs(self, pieces: Sequence[AnswerPiece]) -> Json | None:
        if self.job.top_logprobs is None:
            return None
        return {"content": [one for piece in pieces for one in piece.logprobs], "refusal": None}

    def _shared(self, kind: str) -> Json:
        fingerprint = f"ggss-{__version__}"
        named = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return named | {"system_fingerprint": fingerprint}
