"""The addresses of the server: OpenAI's chat API, health, metrics, and replacing a steerer."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException

from ggss.serve.api_keys import ApiKeys
from ggss.serve.chat_answer import ChatAnswer, event
from ggss.serve.chat_body import ChatBody, ErrorBody, ReloadBody
from ggss.serve.chat_job import ChatJob
from ggss.serve.chat_reading import read_job
from ggss.serve.engine import AnswerPiece, Began, Engine
from ggss.serve.guard import CHAT, HEALTH, RELOAD, Asgi, Guard, Receive, Send
from ggss.serve.limits import Limits
from ggss.serve.refusal import Refusal, defect, wrong
from ggss.serve.request_log import RequestLog
from ggss.serve.server_metrics import ServerMetrics
from ggss.serve.steering_rules import SteeringRules, applied
from ggss.version import __version__

HEADER = "x-ggss-applied"
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}


@dataclass(frozen=True)
class ServerSettings:
    """model: its name in requests."""

    model: str
    rules: SteeringRules
    limits: Limits
    keys: ApiKeys
    admin: ApiKeys
    requests: RequestLog | None = None


class AsciiJson(JSONResponse):
    """Escapes all but ASCII: what a request said may be quoted in an error, and need not be Unicode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode()


class ChatServer:
    """Answers requests with an engine."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self.engine, self.settings = engine, settings
        self.metrics = ServerMetrics()
        self.created = int(time.time())

    async def chat(self, body: ChatBody, request: Request) -> Any:
        """An answer, whole or as a stream. Header `x-ggss-applied` and field `ggss` say what was applied."""
        self._check_model(body.model)
        job = await asyncio.to_thread(read_job, body, self.settings.rules, self.engine.steerers, self.settings.limits)
        request.state.audit = audit = {"stream": job.stream, "pictures": len(job.pictures)}
        audit["applied"] = dict(job.strengths)
        headers = {HEADER: applied(job.strengths)}
        if job.stream:
            with_usage = bool(body.stream_options and body.stream_options.include_usage)
            stream = self._stream(job, with_usage, audit)
            first = await anext(stream)  # a request that is refused gets its status, not a stream
            return StreamingResponse(_after(first, stream), headers=headers, media_type="text/event-stream")
        async with aclosing(self.engine.ask(job)) as events:
            found = [one async for one in events]
        answer = ChatAnswer(self.settings.model, job, _began(found))
        whole = answer.whole([one for one in found if isinstance(one, AnswerPiece)])
        self._account(answer, audit)
        return AsciiJson(whole, headers=headers)

    async def _stream(self, job: ChatJob, with_usage: bool, audit: dict[str, Any]) -> AsyncGenerator[str]:
        async with aclosing(self.engine.ask(job)) as events:
            answer = ChatAnswer(self.settings.model, job, _began([await anext(events)]))
            try:
                async for one in answer.events(events, with_usage):
                    yield one
            except Refusal as refusal:  # the stream has begun: its status cannot be changed any more
                audit["refused"] = refusal.status
                yield event(refusal.body)
            self._account(answer, audit)

    def _account(self, answer: ChatAnswer, audit: dict[str, Any]) -> None:
        audit["gate_mean"] = {name: one.gate_mean for name, one in answer.began.steering.items()}
        audit |= answer.usage
        self.metrics.answer(answer.job.strengths, answer.began.prompt_tokens, answer.tokens)

    def models(self) -> dict[str, Any]:
        """The model, and the steerers that act on it."""
        return {"object": "list", "data": [self.model(self.settings.model)]}

    def model(self, name: str) -> dict[str, Any]:
        """The same for one model."""
        self._check_model(name)
        strengths = self.settings.rules.defaults(self.engine.steerers)
        steerers = {
            own: {"alpha": strengths[own], "method": one.method, "attribute": one.attribute, "content": one.content}
            for own, one in self.engine.steerers.items()
        }
        return {"id": name, "object": "model", "created": self.created, "owned_by": "ggss", "ggss": steerers}

    def health(self) -> Any:
        """200 once the model is loaded; 503 while it is loaded again."""
        ready = self.engine.ready
        return AsciiJson({"status": "ok" if ready else "the model is being loaded again"}, 200 if ready else 503)

    def show_metrics(self) -> Any:
        """For Prometheus."""
        text = self.metrics.text(self.engine.ready, self.engine.facts)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def reload(self, body: ReloadBody) -> Any:
        """Replace a steerer once the new one is checked; the answer names the old one's folder, to go back to it."""
        known = self.engine.steerers
        if body.name not in known:
            raise wrong(f"no steerer {body.name!r} on this server: there are {', '.join(known) or 'none'}", "name")
        old = known[body.name].folder
        return AsciiJson(
            {"name": body.name, **asdict(await self.engine.reload(body.name, body.folder)), "previous": old}
        )

    def _check_model(self, name: str) -> None:
        if name != self.settings.model:
            raise Refusal(404, f"no model {name!r} on this server: there is {self.settings.model!r}", "model")


def make_app(engine: Engine, settings: ServerSettings) -> Callable[[Asgi, Receive, Send], Any]:
    """The whole server, to be run by an ASGI server."""
    server = ChatServer(engine, settings)
    app = FastAPI(title="ggss serve", version=__version__, docs_url=None, redoc_url=None)
    app.post(CHAT, responses=ERRORS, response_model=None)(server.chat)
    app.get("/v1/models", responses=ERRORS)(server.models)
    app.get("/v1/models/{name:path}", responses=ERRORS)(server.model)
    app.get(HEALTH, responses=ERRORS, response_model=None)(server.health)
    app.get("/metrics", responses=ERRORS, response_model=None)(server.show_metrics)
    app.post(RELOAD, responses=ERRORS, response_model=None)(server.reload)
    app.exception_handler(Refusal)(_refused)
    app.exception_handler(HTTPException)(_refused_by_framework)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(Exception)(_defect)
    return Guard(app, settings.limits, settings.keys, settings.admin, server.metrics, settings.requests)


def _began(events: list[Began | AnswerPiece]) -> Began:
    first = events[0]
    assert isinstance(first, Began)  # an engine's first event
    return first


async def _after(first: str, rest: AsyncGenerator[str]) -> AsyncGenerator[str]:
    async with aclosing(rest):
        yield first
        async for one in rest:
            yield one


async def _refused(request: Request, error: Refusal) -> JSONResponse:
    return AsciiJson(error.body, error.status, headers=error.headers)


async def _refused_by_framework(request: Request, error: HTTPException) -> JSONResponse:
    refusal = Refusal(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return AsciiJson(refusal.body, error.status_code, headers=error.headers)


async def _defect(request: Request, error: Exception) -> JSONResponse:
    """What the client gets; the guard logs it."""
    return AsciiJson(defect(error).body, 500)


async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"][1:]) or None
    others = len(error.errors()) - 1
    more = f" (and {others} more)" if others else ""
    return AsciiJson(wrong(f"{param or 'the body'}: {first['msg']}{more}", param).body, 400)
