"""The answer to a chat request: the parts an engine sends, the text of each choice, and OpenAI's response.

An engine sends one `AnswerStart`, then an `AnswerPiece` for each new token. `AnswerText` turns tokens into text and
cuts it at the first stop sequence; `PartialAnswer` makes the pieces of a choice. `ChatAnswer` builds the response:
one JSON object, or server-sent events.
"""

import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ggss.serve.schema import ChatJob
from ggss.steering import SteeringRecord
from ggss.version import __version__

Json = dict[str, Any]

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # a decoder's text for a character of which bytes are missing
LEAST_LOGPROB = -9999.0  # JSON has no number for minus infinity
LAST_EVENT = "data: [DONE]\n\n"


@dataclass(frozen=True)
class AnswerStart:
    """The prompt is tokenised and its pictures are steered. steering: what each steerer did, by its name."""

    prompt_tokens: int
    steering: Mapping[str, SteeringRecord]


@dataclass(frozen=True)
class AnswerPiece:
    """More text of one choice. logprobs: of each new token, if requested. finish: the reason, if it ends here."""

    choice: int
    text: str
    tokens: int
    logprobs: list[Json] = field(default_factory=list)
    finish: str | None = None


AnswerPart = AnswerStart | AnswerPiece


class AnswerText:
    """The text of one choice, decoded token by token and cut at the first of the stop sequences.

    Text that was returned never changes: what may still become a stop sequence is held back.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = decode, [sequence for sequence in stop if sequence]
        self._tokens: list[int] = []
        self._text, self._returned = "", 0  # the second: how many characters of it
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that this token makes certain."""
        self._tokens.append(token)
        self._text = self._decode(self._tokens)
        # Text that was returned is not searched: a stop sequence that could begin there would have held it back.
        places = [self._text.find(sequence, self._returned) for sequence in self._stop]
        if places := [place for place in places if place >= 0]:
            self.stopped, self._text = True, self._text[: min(places)]
            return self.rest()
        incomplete = len(self._text) - len(self._text.rstrip(INCOMPLETE))
        return self._return_until(len(self._text) - max(self._possible_stop(), incomplete))

    def rest(self) -> str:
        """The text that was held back, once the answer is complete."""
        return self._return_until(len(self._text))

    def _return_until(self, end: int) -> str:
        start, self._returned = self._returned, max(end, self._returned)
        return self._text[start : self._returned]

    def _possible_stop(self) -> int:
        """The length of the longest end of the text with which a stop sequence begins."""
        longest = max(map(len, self._stop), default=0)
        return next(
            (
                length
                for length in range(min(longest, len(self._text)), 0, -1)
                if any(sequence.startswith(self._text[-length:]) for sequence in self._stop)
            ),
            0,
        )


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


def logprob_entry(text: str, logprob: float) -> Json:
    """A token's text and log-probability, as a response has them."""
    encoded = None if INCOMPLETE in text else list(text.encode())  # a part of a character has no text
    return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": encoded}


def server_sent_event(data: Json) -> str:
    """One event of a stream."""
    return f"data: {json.dumps(data, allow_nan=False)}\n\n"


@dataclass
class ChatAnswer:
    """Builds one chat completion, whole or in chunks. id, created and model are the same in every chunk."""

    model: str
    job: ChatJob
    start: AnswerStart
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))
    tokens: int = 0

    @property
    def steering(self) -> Json:
        return {name: record.json() for name, record in self.start.steering.items()}

    @property
    def usage(self) -> Json:
        prompt = self.start.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": self.tokens, "total_tokens": prompt + self.tokens}

    def completion(self, pieces: Sequence[AnswerPiece]) -> Json:
        """The response, from all pieces."""
        self.tokens = sum(piece.tokens for piece in pieces)
        choices = []
        for number in range(self.job.choices):
            selected = [piece for piece in pieces if piece.choice == number]
            message = {"role": "assistant", "content": "".join(piece.text for piece in selected), "refusal": None}
            choices.append(
                {
                    "index": number,
                    "message": message,
                    "logprobs": self._logprobs(selected),
                    "finish_reason": next(piece.finish for piece in selected if piece.finish),
                }
            )
        return self._head("chat.completion") | {"choices": choices, "usage": self.usage, "ggss": self.steering}

    async def events(self, parts: AsyncIterator[AnswerPart], with_usage: bool) -> AsyncIterator[str]:
        """The response as server-sent events; the first of them also says what was steered."""
        for number in range(self.job.choices):
            first = self._chunk(number, {"role": "assistant", "content": ""})
            yield server_sent_event(first if number else first | {"ggss": self.steering})
        async for piece in parts:
            if isinstance(piece, AnswerPiece):
                self.tokens += piece.tokens
                if piece.text or piece.logprobs:
                    yield server_sent_event(self._chunk(piece.choice, {"content": piece.text}, [piece]))
                if piece.finish:
                    yield server_sent_event(self._chunk(piece.choice, {}, finish=piece.finish))
        if with_usage:
            yield server_sent_event(self._head("chat.completion.chunk") | {"choices": [], "usage": self.usage})
        yield LAST_EVENT

    def _chunk(self, number: int, delta: Json, pieces: Sequence[AnswerPiece] = (), finish: str | None = None) -> Json:
        choice = {"index": number, "delta": delta, "logprobs": self._logprobs(pieces), "finish_reason": finish}
        return self._head("chat.completion.chunk") | {"choices": [choice]}

    def _logprobs(self, pieces: Sequence[AnswerPiece]) -> Json | None:
        if self.job.top_logprobs is None:
            return None
        return {"content": [entry for piece in pieces for entry in piece.logprobs], "refusal": None}

    def _head(self, kind: str) -> Json:
        """The fields that every object of this answer has."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"ggss-{__version__}",
        }
