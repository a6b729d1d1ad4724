"""The server: its routes, the connections to its clients, and how it starts and ends.

`ChatServer` has the routes: OpenAI's chat API, health, metrics, and replacing a steerer. `run` starts the engine and
serves until a signal comes.

uvicorn limits the size of headers and closes a connection that is silent after an answer. But it waits without limit
for the first request of a connection and for a client that does not read its answer, and it accepts connections until
no file descriptors are left. `GuardedConnection` adds these limits: a place in a `ConnectionTable`, and a timer.
"""

import asyncio
import functools
import ipaddress
import json
import logging
import resource
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from ggss.data import pictures
from ggss.errors import InputError
from ggss.serve.answers import AnswerPart, AnswerPiece, AnswerStart, ChatAnswer, server_sent_event
from ggss.serve.engine import COMMANDS, WorkerEngine, WorkerSetup
from ggss.serve.guard import CHAT, HEALTH, METRICS, RELOAD, ApiKeys, Guard, RequestLog, ServerMetrics
from ggss.serve.schema import (
    ChatBody,
    ChatJob,
    ErrorBody,
    Limits,
    Refusal,
    ReloadBody,
    SteeringRules,
    applied_header,
    bad_request,
    defect,
    read_job,
)
from ggss.version import __version__

APPLIED = "x-ggss-applied"  # a header of every answer: the strengths
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}

HEADER_BYTES = 16 * 2**10  # of the request line and all headers
ACCEPTED_TOGETHER = 16  # connections that are accepted before the table has counted them
RESERVED = 96  # file descriptors for files, the worker, refused connections, and some that are not counted yet
LINGERING = 16  # refused connections that stay open until the client has read the refusal
LINGER = 1.0  # seconds for which they do
MINUTE = 60.0

log = logging.getLogger("ggss")


@dataclass(frozen=True)
class ServerSettings:
    """What the operator has configured. model: its name in requests."""

    model: str
    rules: SteeringRules
    limits: Limits
    keys: ApiKeys
    admin: ApiKeys
    requests: RequestLog | None = None
    metrics_key: ApiKeys | None = None


class AsciiJson(JSONResponse):
    """Escapes everything but ASCII: an error may quote text of the request, which need not be valid Unicode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode()


class ChatServer:
    """Answers requests with an engine."""

    def __init__(self, engine: WorkerEngine, settings: ServerSettings) -> None:
        self.engine, self.settings = engine, settings
        self.metrics = ServerMetrics()
        self.created = int(time.time())

    async def chat(self, body: ChatBody, request: Request) -> Any:
        """The answer, whole or as a stream. The header `x-ggss-applied` and the field `ggss` say what was applied."""
        self._check_model(body.model)
        job = await asyncio.to_thread(read_job, body, self.settings.rules, self.engine.steerers, self.settings.limits)
        request.state.audit = audit = {"stream": job.stream, "pictures": len(job.pictures)}
        audit["applied"] = dict(job.strengths)
        headers = {APPLIED: applied_header(job.strengths)}
        if job.stream:
            with_usage = bool(body.stream_options and body.stream_options.include_usage)
            stream = self._stream(job, with_usage, audit)
            first = await anext(stream)  # a request that is refused gets its status, not a stream
            return StreamingResponse(_after(first, stream), headers=headers, media_type="text/event-stream")
        async with aclosing(self.engine.ask(job)) as parts:
            answer = await self._started_answer(job, parts)
            completion = answer.completion([piece async for piece in parts if isinstance(piece, AnswerPiece)])
        self._account(answer, audit)
        return AsciiJson(completion, headers=headers)

    async def _stream(self, job: ChatJob, with_usage: bool, audit: dict[str, Any]) -> AsyncGenerator[str]:
        async with aclosing(self.engine.ask(job)) as parts:
            answer = await self._started_answer(job, parts)
            try:
                async for event in answer.events(parts, with_usage):
                    yield event
            except Refusal as refusal:  # the response has begun: its status cannot be changed any more
                audit["refused"] = refusal.status
                yield server_sent_event(refusal.body)
            self._account(answer, audit)

    async def _started_answer(self, job: ChatJob, parts: AsyncGenerator[AnswerPart]) -> ChatAnswer:
        start = await anext(parts)
        assert isinstance(start, AnswerStart)  # the first part of every answer
        return ChatAnswer(self.settings.model, job, start)

    def _account(self, answer: ChatAnswer, audit: dict[str, Any]) -> None:
        audit["gate_mean"] = {name: record.gate_mean for name, record in answer.start.steering.items()}
        audit |= answer.usage
        self.metrics.answer(answer.start.steering, answer.start.prompt_tokens, answer.tokens)

    def models(self) -> dict[str, Any]:
        """The served model and its steerers."""
        return {"object": "list", "data": [self.model(self.settings.model)]}

    def model(self, name: str) -> dict[str, Any]:
        """One model and its steerers."""
        self._check_model(name)
        strengths = self.settings.rules.defaults(self.engine.steerers)
        steerers = {
            steerer_name: {
                "alpha": strengths[steerer_name],
                "method": steerer.method,
                "attribute": steerer.attribute,
                "content": steerer.content,
            }
            for steerer_name, steerer in self.engine.steerers.items()
        }
        return {"id": name, "object": "model", "created": self.created, "owned_by": "ggss", "ggss": steerers}

    def health(self) -> Any:
        """200 once the model is loaded; 503 while it is loaded again."""
        ready = self.engine.ready
        return AsciiJson({"status": "ok" if ready else "the model is being loaded again"}, 200 if ready else 503)

    def show_metrics(self) -> Any:
        """Counts and gauges in Prometheus' format."""
        facts = {**self.engine.facts, "picture_warnings": pictures.pillow_warnings.count}
        text = self.metrics.text(self.engine.ready, facts)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def reload(self, body: ReloadBody) -> Any:
        """Replace a steerer once the new one is checked. `previous` in the response is the folder of the old one."""
        steerers = self.engine.steerers
        if body.name not in steerers:
            names = ", ".join(steerers) or "none"
            raise bad_request(f"no steerer {body.name!r} on this server: there are {names}", "name")
        previous = steerers[body.name].folder
        steerer = await self.engine.reload(body.name, body.folder)
        return AsciiJson({"name": body.name, **asdict(steerer), "previous": previous})

    def _check_model(self, name: str) -> None:
        if name != self.settings.model:
            raise Refusal(404, f"no model {name!r} on this server: there is {self.settings.model!r}", "model")


def make_app(engine: WorkerEngine, settings: ServerSettings) -> Guard:
    """The ASGI application with all routes and the guard before them."""
    server = ChatServer(engine, settings)
    app = FastAPI(title="ggss serve", version=__version__, docs_url=None, redoc_url=None)
    app.post(CHAT, responses=ERRORS, response_model=None)(server.chat)
    app.get("/v1/models", responses=ERRORS)(server.models)
    app.get("/v1/models/{name:path}", responses=ERRORS)(server.model)
    app.get(HEALTH, responses=ERRORS, response_model=None)(server.health)
    app.get(METRICS, responses=ERRORS, response_model=None)(server.show_metrics)
    app.post(RELOAD, responses=ERRORS, response_model=None)(server.reload)
    app.exception_handler(Refusal)(_refused)
    app.exception_handler(HTTPException)(_refused_by_framework)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(Exception)(_defect)
    return Guard(
        app, settings.limits, settings.keys, settings.admin, server.metrics, settings.requests, settings.metrics_key
    )


async def _after(first: str, rest: AsyncGenerator[str]) -> AsyncGenerator[str]:
    async with aclosing(rest):
        yield first
        async for event in rest:
            yield event


async def _refused(request: Request, error: Refusal) -> JSONResponse:
    return AsciiJson(error.body, error.status, headers=error.headers)


async def _refused_by_framework(request: Request, error: HTTPException) -> JSONResponse:
    refusal = Refusal(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    return AsciiJson(refusal.body, error.status_code, headers=error.headers)


async def _defect(request: Request, error: Exception) -> JSONResponse:
    """The response to the client; the guard logs the error."""
    return AsciiJson(defect(error).body, 500)


async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"][1:]) or None
    others = len(error.errors()) - 1
    more = f" (and {others} more)" if others else ""
    return AsciiJson(bad_request(f"{param or 'the body'}: {first['msg']}{more}", param).body, 400)


class Listener(socket.socket):
    """Accepts only a few connections at a time.

    asyncio would accept up to 2,048 before the first of them is counted, and log a traceback for each that finds no
    file descriptor.
    """

    _accepted = 0

    def accept(self) -> tuple[socket.socket, Any]:
        if self._accepted == ACCEPTED_TOGETHER:
            self._accepted = 0
            raise BlockingIOError  # ends asyncio's loop; it accepts again after the others have been counted
        self._accepted += 1
        return super().accept()


class OncePerMinute(logging.Filter):
    """Passes each message once a minute: clients must not be able to fill a log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._last: dict[object, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.msg, record.exc_info and record.exc_info[0]
        now = self._clock()
        if now - self._last.get(message, -MINUTE) < MINUTE:
            return False
        self._last[message] = now
        return True


class ConnectionTable:
    """Counts the open connections. descriptors: how many files this process may open; None: the system's limit."""

    def __init__(self, limits: Limits, metrics: ServerMetrics, descriptors: int | None = None) -> None:
        if descriptors is None:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            descriptors = 2**31 if limit == resource.RLIM_INFINITY else limit
        if descriptors <= RESERVED:
            raise InputError(
                f"this process may open {descriptors} files, a server needs more than {RESERVED}: raise `ulimit -n`"
            )
        self.most, self.per_address = min(limits.connections, descriptors - RESERVED), limits.per_address
        self.idle, self.longest = limits.idle, limits.seconds + 2 * limits.idle
        self.metrics = metrics
        self.lingering = 0
        self._addresses: Counter[str] = Counter()
        self._logged = OncePerMinute()

    def enter(self, address: str) -> Refusal | None:
        """Count a connection; the refusal if there are too many."""
        if self.metrics.connections >= self.most:
            limit, sentence = "all", f"{self.most} connections are open: try later"
        elif self._addresses[address] >= self.per_address:
            limit, sentence = "address", f"{self.per_address} connections of {address} are open: close some"
        else:
            self._addresses[address] += 1
            self.metrics.connections += 1
            return None
        self.metrics.refused_connection(limit)
        record = logging.makeLogRecord({"msg": limit})
        if self._logged.filter(record):
            log.warning("503: %s (logged once a minute; ggss_refused_connections_total counts all)", sentence)
        return Refusal(503, sentence)

    def leave(self, address: str) -> None:
        self.metrics.connections -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]


class GuardedConnection(H11Protocol):
    """uvicorn's protocol with a place in a table and one timer: for the arrival of a request, then for its answer.

    Single bytes do not restart the timer.
    """

    def __init__(self, table: ConnectionTable, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._table = table
        self._address = ""  # empty if it was refused
        self._lingers = self._answering = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        address = address_of(transport.get_extra_info("peername"))
        refusal = self._table.enter(address)
        if refusal is not None:
            return self._refuse(transport, refusal)
        self._address = address
        super().connection_made(transport)
        self._end_after(self._table.idle, self._silent)

    def _refuse(self, transport: asyncio.Transport, refusal: Refusal) -> None:
        """Send the refusal. Some clients could not read it if the connection was closed while they are sending."""
        self.transport = transport
        body = json.dumps(refusal.body).encode()
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
        transport.write(f"{head}Retry-After: {self._table.idle:.0f}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        transport.write(body)
        if self._table.lingering == LINGERING:
            return transport.close()
        self._lingers = True
        self._table.lingering += 1
        transport.write_eof()
        self._end_after(LINGER, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._address:
            super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if not self._answering and self.cycle is not None and not self.cycle.response_complete:
            self._answering = True
            # The guard ends a request that takes too long; this ends a client that does not read its answer.
            self._end_after(self._table.longest, self.transport.abort)

    def on_response_complete(self) -> None:
        self._answering = False
        self._end_after(self._table.idle, self.transport.abort)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._address:
            self._table.leave(self._address)
            super().connection_lost(exc)
        self._table.lingering -= self._lingers

    def _silent(self) -> None:
        self._table.metrics.silent_connection()
        self.transport.abort()

    def _end_after(self, seconds: float, end: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, end)


def address_of(peer: Any) -> str:
    """The address under which a client is counted. The IPv6 addresses of one /64 count as one client."""
    try:
        address = ipaddress.ip_address(peer[0].partition("%")[0])
    except (TypeError, IndexError, ValueError):
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)


def bound(host: str, port: int, keys: ApiKeys) -> socket.socket:
    """A socket that is bound to the address. InputError if it is taken, or if others could reach it without a key."""
    if not keys and not _is_loopback(host):
        raise InputError(
            f"others can reach {host}, and there is no key: give --keys-file or GGSS_SERVE_KEYS, or bind to 127.0.0.1"
        )
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = Listener(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise InputError(f"cannot listen on {host} port {port} ({error.strerror}): give another --port") from error
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def run(
    setup: WorkerSetup,
    settings: ServerSettings,
    listener: socket.socket,
    say: Callable[[str], None],
    engine: str = "transformers",
) -> bool:
    """Serve until a signal comes, then answer the waiting requests and end. False if the model was lost.

    listener: what `bound` returns. say: prints a line for the operator. engine: a name of `COMMANDS`.
    """
    return asyncio.run(_run(setup, settings, listener, say, COMMANDS[engine]))


async def _run(
    setup: WorkerSetup,
    settings: ServerSettings,
    listener: socket.socket,
    say: Callable[[str], None],
    command: Sequence[str],
) -> bool:
    import uvicorn

    model_lost = False

    def lost() -> None:
        nonlocal model_lost
        model_lost = server.should_exit = True

    engine = WorkerEngine(setup, settings.limits.seconds, lost, command)
    app = make_app(engine, settings)
    table = ConnectionTable(settings.limits, app.metrics)
    config: Any = uvicorn.Config(
        app,
        http=functools.partial(GuardedConnection, table),  # type: ignore[arg-type]
        ws="none",  # a WebSocket would leave the table without being counted out
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_keep_alive=max(1, int(settings.limits.idle)),
        timeout_graceful_shutdown=max(1, int(settings.limits.seconds)),
        h11_max_incomplete_event_size=HEADER_BYTES,
    )
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(OncePerMinute())
    server = uvicorn.Server(config)
    try:
        await engine.start()
        # While the model is being loaded, SIGTERM ends the process at once. From now on, requests are answered first.
        # uvicorn has a handler of its own, which raises the signal again at the end.
        signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
        listener.listen(config.backlog)  # a client may connect as soon as it reads the next line
        say(f"ready: http://{_authority(listener)}/v1")
        await server.serve(sockets=[listener])
    finally:
        await engine.stop()
    return not model_lost


def _authority(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
