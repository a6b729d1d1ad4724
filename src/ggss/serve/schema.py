"""A chat request: what it may ask for, the steering strengths that act on it, and why it is refused.

`ChatBody` is the body as OpenAI's clients send it. `read_job` checks it against the server's `Limits` and
`SteeringRules` and returns a `ChatJob`, which has everything an engine needs. Whatever the server cannot do is a
`Refusal`; no field is silently ignored. Pictures are data URLs only: no other address is ever opened.
"""

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ggss import errors
from ggss.data.pictures import header_size
from ggss.errors import InputError, nearest, no_such
from ggss.escaping import is_unicode

NO_STEERING = "none"  # the header of an answer on which no steerer acted

# Fields that are accepted and have no effect on the answer.
WITHOUT_EFFECT = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
# Fields that are not supported, with the values that change nothing. None changes nothing either.
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

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=2**31)]

ServedTurn = tuple[str, list[str | None]]
"""A role and its content: texts, and None in the place of each picture."""


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, how many may wait, and how many connections may be open.

    body, picture: bytes. pixels: of one picture. rows: answers that are generated together; also the most choices of
    one request. queue: requests that are not answered yet. seconds: from the first byte of a request to the last byte
    of its answer. cache: bytes of encoded pictures. connections: open at a time; per_address: those of one client's
    address. idle: seconds without a complete request or a byte of its body.
    """

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


class Refusal(Exception):
    """A request that is not answered: its HTTP status and the sentence that says why, in OpenAI's error format.

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
        error_type = _ERROR_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.sentence, "type": error_type, "param": self.param, "code": None}}


def defect(error: Exception) -> Refusal:
    """500. The message of an exception may contain text of the request, so only its type is named."""
    return Refusal(500, f"a defect of the server ({type(error).__name__})")


def bad_request(sentence: str, param: str | None = None) -> Refusal:
    """400: the client can correct the request."""
    return Refusal(400, sentence, param)


@dataclass(frozen=True)
class ServedSteerer:
    """A steerer that the engine has checked against the model.

    alpha: the strength that it recommends, or 1. content: SHA-256 of everything that determines its effect.
    """

    folder: str
    method: str
    attribute: str
    alpha: float
    content: str


@dataclass(frozen=True)
class ChatJob:
    """A checked chat request, as an engine gets it.

    strengths: of every steerer that acts on it; empty if there is no picture. choices: how many answers.
    most_tokens: of one answer; None: as many as the server allows. temperature 0: always the most likely token.
    top_logprobs: how many alternatives are listed for each token; None: no log-probabilities at all.
    stream: whether each piece of text is sent as soon as it is generated.
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


class RequestPart(BaseModel):
    """Strict types: a number is never a text that looks like a number, and is neither infinite nor NaN."""

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
    """Further fields, such as `refusal` in a message that the client got from here, are ignored."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]]


class StreamOptions(RequestPart):
    include_usage: bool | None = None


class ChatBody(RequestPart):
    """The body of a chat request. Fields that are not declared here are refused if they would change the answer."""

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
    def undeclared(self) -> dict[str, Any]:
        """The fields of the body that this class does not declare."""
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
    """The body of every error response."""

    error: ErrorFacts


@dataclass(frozen=True)
class SteeringRules:
    """Which strengths act on a request: those of the server, or those that the request asks for if it may.

    configured: the operator's strengths, by steerer; a steerer without one has the strength that it recommends.
    locked: a request may not ask for less than the server's strength. allow_negative: it may ask for less than 0.
    max_alpha: it may not ask for more, nor for less than -max_alpha; the server's own strength may be larger.
    """

    configured: Mapping[str, float] = field(default_factory=dict)
    locked: bool = False
    allow_negative: bool = False
    max_alpha: float = errors.MAX_ALPHA

    def defaults(self, steerers: Mapping[str, ServedSteerer]) -> dict[str, float]:
        """The server's strength of each steerer."""
        return {name: self.configured.get(name, steerer.alpha) for name, steerer in steerers.items()}

    def strengths(
        self, requested: Mapping[str, float] | None, steerers: Mapping[str, ServedSteerer], pictures: int
    ) -> dict[str, float]:
        """Each steerer's strength for a request; none without a picture. Refusal if it may not ask for that."""
        defaults, requested = self.defaults(steerers), requested or {}
        for name, alpha in requested.items():
            if name not in defaults:
                sentence = str(no_such(f"no steerer {name!r} on this server", name, defaults))
                raise bad_request(sentence, f"ggss.{name}")
            self._check(name, alpha, defaults[name])
        if pictures:
            return {**defaults, **requested}
        if any(requested.values()):
            raise bad_request(
                "steering was asked for, and the request has no image: steering acts on images, send one or "
                "leave out `ggss`",
                "ggss",
            )
        return {}

    def _check(self, name: str, alpha: float, default: float) -> None:
        param = f"ggss.{name}"
        try:
            errors.ALPHA.check(f"the strength of {name!r}", alpha)
        except InputError as error:
            raise bad_request(str(error), param) from error
        most = max(self.max_alpha, default)
        if abs(alpha) > most:
            raise bad_request(
                f"the strength of {name!r} may be at most {most:g} on this server (--max-alpha), seen {alpha:g}",
                param,
            )
        if alpha < 0 and not self.allow_negative:
            raise bad_request(
                f"the strength {alpha:g} of {name!r} would amplify the bias, and this server was not started with "
                "--allow-negative",
                param,
            )
        if self.locked and alpha < default:
            raise Refusal(403, f"the strength of {name!r} is locked: at least {default:g}, seen {alpha:g}", param)


def applied_header(strengths: Mapping[str, float]) -> str:
    """The value of the header that names the strengths: `race=0.75, gender=1`."""
    return ", ".join(f"{name}={_short(alpha)}" for name, alpha in strengths.items()) or NO_STEERING


def _short(alpha: float) -> str:
    return str(int(alpha)) if math.isfinite(alpha) and alpha == int(alpha) else repr(alpha)


def picture_bytes(url: str, limits: Limits, param: str) -> bytes:
    """The file in a data URL. Refusal if it is not a picture of an allowed size.

    Only the picture's header is read here: the model's process decodes it, with the limits of `ggss.data.pictures`.
    """
    head, comma, encoded = url.partition(",")
    if not head[:5].lower() == "data:":
        raise bad_request(
            "an image must be a data URL, `data:image/png;base64,...`: this server opens no addresses, "
            f"seen {url[:12]!r}...",
            param,
        )
    media_type, *parameters = head[5:].lower().split(";")
    if not comma or not media_type.strip().startswith("image/") or "base64" not in map(str.strip, parameters):
        raise bad_request(f"an image's data URL begins with `data:image/...;base64,`, seen {head[:40]!r}", param)
    if len(encoded) * 3 // 4 > limits.picture + 3:
        raise _too_large(len(encoded) * 3 // 4, limits, param)
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad_request(f"an image's data URL is not base64 ({error})", param) from error
    if len(data) > limits.picture:
        raise _too_large(len(data), limits, param)
    try:
        width, height = header_size(data, "the image")
    except InputError as error:
        raise bad_request(str(error), param) from error
    if width * height > limits.pixels:
        raise bad_request(f"an image has {width} x {height} pixels, at most {limits.pixels:,} are allowed", param)
    return data


def _too_large(size: int, limits: Limits, param: str) -> Refusal:
    return bad_request(f"an image has {size:,} bytes, at most {limits.picture:,} are allowed", param)


def read_job(body: ChatBody, rules: SteeringRules, steerers: Mapping[str, ServedSteerer], limits: Limits) -> ChatJob:
    """The checked request. Refusal if anything in it cannot be done.

    It reads the headers of pictures, which takes time: call it in a thread.
    """
    _check_undeclared(body.undeclared)
    turns, pictures = _turns(body.messages, limits)
    strengths = rules.strengths(body.ggss, steerers, len(pictures))
    most = body.max_completion_tokens or body.max_tokens
    if most is not None and most > limits.tokens:
        raise bad_request(f"max_tokens must be at most {limits.tokens} on this server, seen {most}", "max_tokens")
    if (body.n or 1) > limits.rows:
        raise bad_request(f"n must be at most {limits.rows} on this server, seen {body.n}", "n")
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs=true", "top_logprobs")
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


def _check_undeclared(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if name in WITHOUT_EFFECT or value is None or value in NEUTRAL.get(name, ()):
            continue
        if name in NEUTRAL:
            raise bad_request(f"{name} is not supported: leave it out", name)
        suggestion = nearest(name, [*ChatBody.model_fields, *NEUTRAL, *WITHOUT_EFFECT])
        raise bad_request(f"unknown field {name!r}{f': {suggestion}' if suggestion else ''}", name)


def _turns(messages: list[ChatMessage], limits: Limits) -> tuple[list[ServedTurn], list[bytes]]:
    """The turns of the conversation, and the files of its pictures in their order."""
    turns: list[ServedTurn] = []
    pictures: list[bytes] = []
    for number, message in enumerate(messages):
        param = f"messages.{number}.content"
        parts = [TextPart(type="text", text=message.content)] if isinstance(message.content, str) else message.content
        content: list[str | None] = []
        for part in parts:
            if isinstance(part, TextPart):
                if not is_unicode(part.text):
                    raise bad_request("a text has a lone surrogate, so it is no Unicode text", param)
                content.append(part.text)
                continue
            if message.role != "user":
                raise bad_request(f"only the user may send images, seen one of the {message.role}", param)
            if len(pictures) == limits.pictures:
                raise bad_request(f"a request may have at most {limits.pictures} images", param)
            content.append(None)
            pictures.append(picture_bytes(part.image_url.url, limits, param))
        turns.append(("system" if message.role == "developer" else message.role, content))
    return turns, pictures
