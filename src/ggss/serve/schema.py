"""How much one request may ask for, how many may wait, and how many connections may be open.

A request that is not answered: its status, and the sentence that says why.

One request as an engine gets it: checked, with every strength decided.

The text of an answer while its tokens come, cut at the first stop sequence.

A token and its log-probability as a response has them.

What the server needs of whatever runs the model.

The body of a chat request, as OpenAI's clients write it, and its schema.

Pictures in a request: data URLs, decoded within limits. No other address is ever opened.

Which strengths act on a request: the server's own, and what the request may ask for.

From the body of a request to the job of an engine. What cannot be done is refused, never left out.

Answers in the shape of OpenAI's: whole, or in chunks as server-sent events.
"""

import base64
import binascii
import json
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from ggss import errors
from ggss.data.pictures import header_size
from ggss.errors import InputError, nearest, no_such
from ggss.escaping import is_unicode
from ggss.version import __version__


@dataclass(frozen=True)
class Limits:
    """body, picture: bytes. pixels: of one picture. rows: answers that are written together; also the most choices of
    one request. queue: requests that are not answered yet. seconds: from the first byte to the last.
    connections: open at a time; per_address: those of one client's address. idle: seconds without a complete request
    or a byte of its body."""

    body: int = 32 * 2**20
    picture: int = 10 * 2**20
    pixels: int = 16_000_000
    pictures: int = 8
    tokens: int = 512
    prompt_tokens: int = 32_768
    rows: int = 16
    queue: int = 64
    seconds: float = 120.0
    cache: int = 512 * 2**20
    connections: int = 512
    per_address: int = 128
    idle: float = 10.0


_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refusal(Exception):
    """Becomes a response in the shape of OpenAI's errors.

    param: the field of the request that was wrong.
    """

    def __init__(
        self, status: int, sentence: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.param = status, sentence, param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.sentence, "type": kind, "param": self.param, "code": None}}


def defect(error: Exception) -> Refusal:
    """What the server did wrong. An exception's message may hold what was asked, so only its type is told."""
    return Refusal(500, f"a defect of the server ({type(error).__name__})")


def wrong(sentence: str, param: str | None = None) -> Refusal:
    """A request that its sender can correct."""
    return Refusal(400, sentence, param)


ServedTurn = tuple[str, list[str | None]]
"""A role and what it says: texts, and None where the next picture is shown."""


@dataclass(frozen=True)
class ChatJob:
    """A conversation that a model is to go on with.

    strengths: of every steerer that acts on it; empty if there is no picture. choices: how many answers.
    most_tokens: of one answer; None: as many as the server allows. temperature 0: the most likely token always.
    top_logprobs: how many alternatives of each token are wanted; None: no log-probabilities at all.
    stream: whether text is wanted as soon as it is there.
    """

    turns: list[ServedTurn]
    pictures: list[bytes] = field(default_factory=list, repr=False)
    strengths: Mapping[str, float] = field(default_factory=dict)
    choices: int = 1
    most_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    top_logprobs: int | None = None
    stream: bool = False

    def message(self) -> dict[str, Any]:
        """All but the pictures, to be written as JSON."""
        return {name: value for name, value in asdict(self).items() if name != "pictures"}

    @classmethod
    def of_message(cls, message: Mapping[str, Any], pictures: list[bytes]) -> "ChatJob":
        turns = [(role, list(parts)) for role, parts in message["turns"]]
        return cls(**{**message, "turns": turns}, pictures=pictures)


UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # a decoder's text for a character of which bytes are missing


class AnswerText:
    """Text that has been given away never changes: what may still become a stop sequence is held back."""

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = decode, [one for one in stop if one]
        self._tokens: list[int] = []
        self._text, self._given = "", 0
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that is now certain, and was not before."""
        self._tokens.append(token)
        self._text = self._decode(self._tokens)
        # A sequence may have begun in text that was given away only if it did not look like one then.
        places = [place for one in self._stop if (place := self._text.find(one, self._given)) >= 0]
        if places:
            self.stopped, self._text = True, self._text[: min(places)]
            return self.rest()
        end = len(self._text) - max(self._held(), len(self._text) - len(self._text.rstrip(UNFINISHED)))
        return self._give(end)

    def rest(self) -> str:
        """What was held back, once the answer is over."""
        return self._give(len(self._text))

    def _give(self, end: int) -> str:
        start, self._given = self._given, max(end, self._given)
        return self._text[start : self._given]

    def _held(self) -> int:
        """The length of the longest end of the text with which a stop sequence begins."""
        longest = max(map(len, self._stop), default=0)
        return next(
            (
                length
                for length in range(min(longest, len(self._text)), 0, -1)
                if any(one.startswith(self._text[-length:]) for one in self._stop)
            ),
            0,
        )


LEAST_LOGPROB = -9999.0  # JSON has no number for minus infinity


def token_facts(word: str, logprob: float) -> dict[str, Any]:
    """word: the token's text."""
    known = None if UNFINISHED in word else list(word.encode())  # a part of a character has no text
    return {"token": word, "logprob": max(logprob, LEAST_LOGPROB), "bytes": known}


NAMES = ("transformers", "vllm")


@dataclass(frozen=True)
class ServedSteerer:
    """A steerer that the engine has checked against the model.

    alpha: the strength that it recommends, or 1. content: SHA-256 of what decides what it does.
    """

    folder: str
    method: str
    attribute: str
    alpha: float
    content: str


@dataclass(frozen=True)
class SteeringRecord:
    """What one steerer did to the pictures of one request. gate_mean: None for a method without a gate."""

    alpha: float
    calls: int
    tokens: int
    gate_mean: float | None


@dataclass(frozen=True)
class Began:
    """The prompt is read and its pictures are steered: what was done to them, steerer by steerer."""

    prompt_tokens: int
    steering: Mapping[str, SteeringRecord]


@dataclass(frozen=True)
class AnswerPiece:
    """More of one answer. logprobs: of each new token, if asked for. finish: why the answer ends here, if it does."""

    choice: int
    text: str
    tokens: int
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None


class Engine(Protocol):
    """Runs the model. Every method raises a `Refusal` for what it cannot do."""

    @property
    def steerers(self) -> Mapping[str, ServedSteerer]: ...

    @property
    def ready(self) -> bool:
        """Whether a request would be answered now, and not wait for the model to be loaded again."""
        ...

    @property
    def facts(self) -> Mapping[str, float]:
        """Counters and sizes for the metrics, by name."""
        ...

    def ask(self, job: ChatJob) -> AsyncGenerator[Began | AnswerPiece]:
        """First that it began, then pieces until every choice has its last. Closing it early frees its place."""
        ...

    async def reload(self, name: str, folder: str) -> ServedSteerer:
        """Replace a steerer by the one in a folder, once that is checked; until then the old one acts."""
        ...

    async def stop(self) -> None: ...


Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=2**31)]


class RequestPart(BaseModel):
    """Numbers are numbers, never text that looks like one; neither infinite nor NaN."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class TextPart(RequestPart):
    type: Literal["text"]
    text: str


class ImageUrl(RequestPart):
    url: str = Field(description="data:image/...;base64,...; other addresses are refused")
    detail: str | None = None


class ImagePart(RequestPart):
    type: Literal["image_url"]
    image_url: ImageUrl


class ChatMessage(RequestPart):
    """What a client's own answer object has besides, such as `refusal`, is left alone."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]]


class StreamOptions(RequestPart):
    include_usage: bool | None = None


class ChatBody(RequestPart):
    """Fields that are not here are refused if they would change the answer."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1024)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Count | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(None, description="0, the default, is greedy")
    top_p: Share | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    ggss: dict[str, float] | None = Field(None, description="strengths by steerer, instead of the server's own")

    @property
    def others(self) -> dict[str, Any]:
        """Fields that are not declared above."""
        return self.model_extra or {}


class ReloadBody(RequestPart):
    """Replace a steerer by the one in a folder of the server."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    folder: str


class ErrorFacts(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """What every refused request gets."""

    error: ErrorFacts


def picture_bytes(url: str, limits: Limits, param: str) -> bytes:
    """The bytes of a data URL's file; a Refusal if there is anything but a picture of an allowed size in it.

    Of the picture only the header is read here. The model's process decodes it, by `ggss.data.pictures`.
    """
    head, comma, encoded = url.partition(",")
    if not head[:5].lower() == "data:":
        raise wrong(
            "an image must be a data URL, `data:image/png;base64,...`: this server opens no addresses, "
            f"seen one that begins with {url[:12]!r}",
            param,
        )
    kind, *settings = head[5:].lower().split(";")
    if not comma or not kind.strip().startswith("image/") or "base64" not in (one.strip() for one in settings):
        raise wrong(f"an image's data URL begins with `data:image/...;base64,`, seen {head[:40]!r}", param)
    if len(encoded) * 3 // 4 > limits.picture + 3:
        raise _large(len(encoded) * 3 // 4, limits, param)
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise wrong(f"an image's data URL is not base64 ({error})", param) from error
    if len(data) > limits.picture:
        raise _large(len(data), limits, param)
    try:
        width, height = header_size(data, "the image")
    except InputError as error:
        raise wrong(str(error), param) from error
    if width * height > limits.pixels:
        raise wrong(f"an image has {width} x {height} pixels, at most {limits.pixels:,} are allowed", param)
    return data


def _large(size: int, limits: Limits, param: str) -> Refusal:
    return wrong(f"an image has {size:,} bytes, at most {limits.picture:,} are allowed", param)


NOTHING = "none"


@dataclass(frozen=True)
class SteeringRules:
    """given: strengths that were given when the server was started, by steerer; the others are the steerers' own.

    locked: a request may not ask for less than the server's strength. allow_negative: it may ask for less than 0.
    max_alpha: it may not ask for more, nor for less than its negative; a server's own strength may be larger.
    """

    given: Mapping[str, float] = field(default_factory=dict)
    locked: bool = False
    allow_negative: bool = False
    max_alpha: float = errors.MAX_ALPHA

    def defaults(self, steerers: Mapping[str, ServedSteerer]) -> dict[str, float]:
        return {name: self.given.get(name, one.alpha) for name, one in steerers.items()}

    def strengths(
        self, asked: Mapping[str, float] | None, steerers: Mapping[str, ServedSteerer], pictures: int
    ) -> dict[str, float]:
        """Every steerer's strength for a request; none without a picture. A Refusal for what it may not ask for."""
        own = self.defaults(steerers)
        for name, alpha in (asked or {}).items():
            if name not in own:
                raise wrong(str(no_such(f"no steerer {name!r} on this server", name, own)), f"ggss.{name}")
            self._check(name, alpha, own[name])
        if not pictures:
            if any((asked or {}).values()):
                raise wrong(
                    "steering was asked for, and the request has no image: steering acts on images, send one or "
                    "leave out `ggss`",
                    "ggss",
                )
            return {}
        return own | dict(asked or {})

    def _check(self, name: str, alpha: float, default: float) -> None:
        param = f"ggss.{name}"
        try:
            errors.ALPHA.check(f"the strength of {name!r}", alpha)
        except InputError as error:
            raise wrong(str(error), param) from error
        most = max(self.max_alpha, default)
        if abs(alpha) > most:
            raise wrong(
                f"the strength of {name!r} may be at most {most:g} on this server (--max-alpha), seen {alpha:g}",
                param,
            )
        if alpha < 0 and not self.allow_negative:
            raise wrong(
                f"the strength {alpha:g} of {name!r} would amplify the bias, and this server was not started with "
                "--allow-negative",
                param,
            )
        if self.locked and alpha < default:
            raise Refusal(403, f"the strength of {name!r} is locked: at least {default:g}, seen {alpha:g}", param)


def applied(strengths: Mapping[str, float]) -> str:
    """Strengths as a header has them: `race=0.75, gender=1`."""
    return ", ".join(f"{name}={_short(alpha)}" for name, alpha in strengths.items()) or NOTHING


def _short(alpha: float) -> str:
    return str(int(alpha)) if math.isfinite(alpha) and alpha == int(alpha) else repr(alpha)


# They do not change what is answered.
WITHOUT_EFFECT = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
# The values with which they change nothing; None does not either.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}


def read_job(body: ChatBody, rules: SteeringRules, steerers: Mapping[str, ServedSteerer], limits: Limits) -> ChatJob:
    """A Refusal says what is wrong with it. Headers of pictures are read, which takes time: call it in a thread."""
    _check_others(body.others)
    turns, pictures = _turns(body.messages, limits)
    strengths = rules.strengths(body.ggss, steerers, len(pictures))
    most = body.max_completion_tokens or body.max_tokens
    if most is not None and most > limits.tokens:
        raise wrong(f"max_tokens must be at most {limits.tokens} on this server, seen {most}", "max_tokens")
    if (body.n or 1) > limits.rows:
        raise wrong(f"n must be at most {limits.rows} on this server, seen {body.n}", "n")
    if body.top_logprobs is not None and not body.logprobs:
        raise wrong("top_logprobs needs logprobs=true", "top_logprobs")
    return ChatJob(
        turns=turns,
        pictures=pictures,
        strengths=strengths,
        choices=body.n or 1,
        most_tokens=most,
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        stop=[body.stop] if isinstance(body.stop, str) else body.stop or [],
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        stream=bool(body.stream),
    )


def _check_others(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name in WITHOUT_EFFECT or value is None or value in NEUTRAL.get(name, ()):
            continue
        if name in NEUTRAL:
            raise wrong(f"{name} is not supported: leave it out", name)
        near = nearest(name, [*ChatBody.model_fields, *NEUTRAL, *WITHOUT_EFFECT])
        raise wrong(f"unknown field {name!r}{f': {near}' if near else ''}", name)


def _turns(messages: list[ChatMessage], limits: Limits) -> tuple[list[ServedTurn], list[bytes]]:
    turns: list[ServedTurn] = []
    pictures: list[bytes] = []
    for number, message in enumerate(messages):
        param = f"messages.{number}.content"
        parts = [TextPart(type="text", text=message.content)] if isinstance(message.content, str) else message.content
        said: list[str | None] = []
        for part in parts:
            if isinstance(part, TextPart):
                if not is_unicode(part.text):
                    raise wrong("a text has a lone surrogate and is no Unicode text", param)
                said.append(part.text)
                continue
            if message.role != "user":
                raise wrong(f"only the user shows images, seen one in a message of the {message.role}", param)
            if len(pictures) == limits.pictures:
                raise wrong(f"a request may have at most {limits.pictures} images", param)
            said.append(None)
            pictures.append(picture_bytes(part.image_url.url, limits, param))
        turns.append(("system" if message.role == "developer" else message.role, said))
    return turns, pictures


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
