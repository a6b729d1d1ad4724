"""The addresses of the server: OpenAI's chat API, health, metrics, and replacing a steerer.

Connections: how many may be open, in all and from one address, and how long each may do nothing.

uvicorn closes a connection that is silent after an answer, and limits the size of headers. It waits for ever for the
first request of a connection, and for a client that does not read its answer, and accepts whatever comes: until there
are no file descriptors left. So its protocol gets a table of connections and one timer.

Running the server: an address that may be bound, the engine, and an orderly end.
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
from ggss.serve.engine import COMMANDS, WorkerEngine, WorkerSetup
from ggss.serve.guard import CHAT, HEALTH, METRICS, RELOAD, ApiKeys, Guard, RequestLog, ServerMetrics
from ggss.serve.schema import (
    AnswerPiece,
    Began,
    ChatAnswer,
    ChatBody,
    ChatJob,
    Engine,
    ErrorBody,
    Limits,
    Refusal,
    ReloadBody,
    SteeringRules,
    applied,
    defect,
    event,
    read_job,
    wrong,
)
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
    metrics_key: ApiKeys | None = None


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
        self.metrics.answer(answer.began.steering, answer.began.prompt_tokens, answer.tokens)

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
        facts = {**self.engine.facts, "picture_warnings": pictures.pillow_warnings.count}
        text = self.metrics.text(self.engine.ready, facts)
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


def make_app(engine: Engine, settings: ServerSettings) -> Guard:
    """The whole server, to be run by an ASGI server."""
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


HEADER_BYTES = 16 * 2**10  # of the request line and all headers
BATCH = 16  # connections that are accepted before those before them are counted
RESERVED = (
    96  # file descriptors for files, the worker, refused connections, and some batches that are not counted yet
)
LINGERING, LINGER = (
    16,
    1.0,
)  # refused connections that may stay until the client has read why, and for how many seconds
MINUTE = 60.0

log = logging.getLogger("ggss")


class Listener(socket.socket):
    """Accepts a few connections at a time.

    asyncio would accept up to 2,048 before it calls the protocol of the first, and where descriptors end it logs a
    traceback for each of them.
    """

    _accepted = 0

    def accept(self) -> tuple[socket.socket, Any]:
        if self._accepted == BATCH:
            self._accepted = 0
            raise BlockingIOError  # which ends asyncio's loop; it asks again after the others have been counted
        self._accepted += 1
        return super().accept()


class OncePerMinute(logging.Filter):
    """Lets a message through once a minute: clients must not be able to fill a log."""

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
    """Who is connected. descriptors: how many files this process may open; None: what the system says."""

    def __init__(self, limits: Limits, metrics: ServerMetrics, descriptors: int | None = None) -> None:
        if descriptors is None:
            allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            descriptors = 2**31 if allowed == resource.RLIM_INFINITY else allowed
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
        """Take a place, or say why there is none."""
        if self.metrics.connections >= self.most:
            limit = "all"
            refusal = Refusal(503, f"{self.most} connections are open: try later")
        elif self._addresses[address] >= self.per_address:
            limit, refusal = (
                "address",
                Refusal(503, f"{self.per_address} connections of {address} are open: close some"),
            )
        else:
            self._addresses[address] += 1
            self.metrics.connections += 1
            return None
        self.metrics.refused_connection(limit)
        record = logging.makeLogRecord({"msg": limit})
        if self._logged.filter(record):
            log.warning("503: %s (this is said once a minute; ggss_refused_connections_total counts)", refusal)
        return refusal

    def leave(self, address: str) -> None:
        self.metrics.connections -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]


class GuardedConnection(H11Protocol):
    """uvicorn's protocol with a place in a table, and one timer: until a request has come, or until it is answered.

    A byte now and then does not set the timer back.
    """

    def __init__(self, table: ConnectionTable, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._table = table
        self._address = ""  # empty if it was refused
        self._lingers = self._asked = False
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
        """Some clients see nothing of an answer if the connection is closed while they write: they get a moment."""
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
        if not self._asked and self.cycle is not None and not self.cycle.response_complete:
            self._asked = True
            # The guard ends a request that takes too long; this ends a client that does not read what it is told.
            self._end_after(self._table.longest, self.transport.abort)

    def on_response_complete(self) -> None:
        self._asked = False
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
    """Of the other end, for counting: one customer of a provider has 2**64 addresses of IPv6, which count as one."""
    try:
        address = ipaddress.ip_address(peer[0].partition("%")[0])
    except (TypeError, IndexError, ValueError):
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)


def bound(host: str, port: int, keys: ApiKeys) -> socket.socket:
    """A socket at the address. InputError if it is taken, or if others could reach a server without keys."""
    if not keys and not _is_loopback(host):
        raise InputError(
            f"others can reach {host}, and there is no key: give --keys-file or GGSS_SERVE_KEYS, or bind to 127.0.0.1"
        )
    here = None
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        here = Listener(family, kind, number)
        here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        here.bind(address)
    except OSError as error:
        if here is not None:
            here.close()
        raise InputError(f"cannot listen on {host} port {port} ({error.strerror}): give another --port") from error
    return here


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def run(
    setup: WorkerSetup,
    settings: ServerSettings,
    here: socket.socket,
    say: Callable[[str], None],
    engine: str = "transformers",
) -> bool:
    """Serve until a signal comes, then answer what is there and end; False if the model was lost."""
    return asyncio.run(_run(setup, settings, here, say, COMMANDS[engine]))


async def _run(
    setup: WorkerSetup,
    settings: ServerSettings,
    here: socket.socket,
    say: Callable[[str], None],
    command: Sequence[str],
) -> bool:
    import uvicorn

    kept = True

    def lost() -> None:
        nonlocal kept
        kept, server.should_exit = False, True

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
        # While the model is loaded, SIGTERM ends the process. From now on it drains; uvicorn has its own handler, and
        # raises the signal once more when it is done.
        signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
        here.listen(config.backlog)  # or whoever reads the next line and is fast would be refused
        say(f"ready: http://{_written(here)}/v1")
        await server.serve(sockets=[here])
    finally:
        await engine.stop()
    return kept


def _written(here: socket.socket) -> str:
    host, port = here.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
