"""What is checked before the application sees a request, and what is counted and logged of each.

`Guard` is ASGI middleware: it checks the API key, the place in the queue, the size of the body and the time that a
request may take. A body is read only after its key was checked, and only for the paths that take one. Whatever fails,
the client gets an error in OpenAI's format. A client that goes away frees its place at once, also during a stream.

`ServerMetrics` counts for Prometheus. `RequestLog` is the audit log: JSON lines that say what was applied to each
request, without its text or its answer.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import math
import os
import time
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from logging import makeLogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ggss.errors import InputError
from ggss.files import read_utf8
from ggss.serve.answers import server_sent_event
from ggss.serve.schema import Limits, Refusal, defect
from ggss.steering import SteeringRecord

Asgi = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Asgi]]
Send = Callable[[Asgi], Awaitable[None]]

CHAT, RELOAD, HEALTH, METRICS = "/v1/chat/completions", "/ggss/reload", "/health", "/metrics"
ENVIRONMENT, ADMIN_ENVIRONMENT = "GGSS_SERVE_KEYS", "GGSS_SERVE_ADMIN_KEY"
METRICS_ENVIRONMENT = "GGSS_METRICS_KEY"
SHORTEST_KEY = 16  # characters
SMALL_BODY = 64 * 2**10  # bytes; of a request without pictures
CLIENT_GONE = 499  # the status of a request whose client went away, in logs and metrics only
LOG_BYTES, OLD_LOGS = 10 * 2**20, 5  # the size of the log's file; files of earlier lines, FILE.1 the newest

# The upper bounds of a histogram's buckets. A bucket of 0 holds the requests on which nothing was steered.
BUCKETS: Mapping[str, tuple[float, ...]] = {
    "ggss_request_seconds": (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
    "ggss_gate_mean": (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0),
    "ggss_steered_tokens": (0.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0),
    "ggss_request_steered_tokens": (0.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0),
}
HELP = {
    "ggss_requests_total": ("counter", "Chat requests by status, and all other requests that got 401."),
    "ggss_steered_requests_total": ("counter", "Answered requests on which a steerer acted."),
    "ggss_prompt_tokens_total": ("counter", "Tokens of prompts, with those of images."),
    "ggss_completion_tokens_total": ("counter", "Tokens of answers."),
    "ggss_waiting_requests": ("gauge", "Requests that are not answered yet."),
    "ggss_ready": ("gauge", "1 if the model is loaded."),
    "ggss_open_connections": ("gauge", "Connections that are open."),
    "ggss_refused_connections_total": ("counter", "Connections that got 503, by the limit that was reached."),
    "ggss_silent_connections_total": ("counter", "Connections that were closed because no request came in time."),
    "ggss_picture_warnings_total": ("counter", "Warnings of Pillow about pictures in requests, which are not shown."),
    "ggss_worker_restarts_total": ("counter", "Processes of the model that died and were replaced."),
    "ggss_batches_total": ("counter", "Batches that the model has answered, each of one request or more."),
    "ggss_processor_seconds_total": ("counter", "CPU time of the model's process, all threads."),
    "ggss_steering_seconds_total": ("counter", "The part of it in which pictures were steered."),
    "ggss_feature_cache_bytes": ("gauge", "Bytes of encoded pictures that are kept."),
    "ggss_feature_cache_hits_total": ("counter", "Pictures that were encoded already."),
    "ggss_feature_cache_misses_total": ("counter", "Pictures that had to be encoded."),
    "ggss_request_seconds": (
        "histogram",
        "From a chat request's first byte to its answer's last, unless it got 401.",
    ),
    "ggss_gate_mean": ("histogram", "Mean gate of a steerer over the tokens of an answered request."),
    "ggss_steered_tokens": ("histogram", "Tokens that a steerer moved, of each answered request with pictures."),
    "ggss_request_steered_tokens": ("histogram", "The same, all steerers together."),
}
_METRIC_OF_FACT = {
    "worker_restarts": "ggss_worker_restarts_total",
    "batches": "ggss_batches_total",
    "processor_seconds": "ggss_processor_seconds_total",
    "steering_seconds": "ggss_steering_seconds_total",
    "cached_bytes": "ggss_feature_cache_bytes",
    "cache_hits": "ggss_feature_cache_hits_total",
    "cache_misses": "ggss_feature_cache_misses_total",
    "picture_warnings": "ggss_picture_warnings_total",
}

log = logging.getLogger("ggss")


class ApiKeys:
    """The keys that requests may have; without any, every request is allowed.

    Only their hashes are stored, so that no key can appear in a message or a memory dump.
    """

    def __init__(self, keys: list[str]) -> None:
        for key in keys:
            if len(key) < SHORTEST_KEY or not key.isascii() or " " in key:
                raise InputError(
                    f"a key must have at least {SHORTEST_KEY} ASCII characters without spaces, this has {len(key)}: "
                    'make one with `python -c "import secrets; print(secrets.token_urlsafe(32))"`'
                )
        self._hashes = [_hashed(key) for key in keys]

    @classmethod
    def read(cls, file: str | None, environment: str) -> "ApiKeys":
        """The keys in a file, one per line, and in an environment variable, separated by commas.

        Lines of the file that begin with # are comments.
        """
        lines = read_utf8(file, "the file of keys").splitlines() if file else []
        keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if file and not keys:
            raise InputError(f"the file of keys {file!r} has no key: write one on a line of its own")
        return cls(keys + [key.strip() for key in os.environ.get(environment, "").split(",") if key.strip()])

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def match(self, authorization: str) -> bool:
        """Whether a header `Bearer KEY` has one of the keys. It is compared with all of them, in constant time."""
        scheme, _, key = authorization.partition(" ")
        key_hash = _hashed(key.strip())
        matches = [hmac.compare_digest(allowed, key_hash) for allowed in self._hashes]
        return any(matches) and scheme.lower() == "bearer"


def _hashed(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class RequestLog:
    """A file of JSON lines. When it is full it becomes FILE.1, FILE.1 becomes FILE.2, and so on."""

    def __init__(self, path: str, largest: int = LOG_BYTES, backups: int = OLD_LOGS) -> None:
        if not Path(path).parent.is_dir():
            raise InputError(f"the log {path!r} cannot be written: there is no folder {str(Path(path).parent)!r}")
        try:
            self._file = RotatingFileHandler(path, maxBytes=largest, backupCount=backups, encoding="utf-8")
        except OSError as error:
            raise InputError(f"the log {path!r} cannot be written: {error.strerror}") from error

    def write(self, record: dict[str, Any]) -> None:
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **record})
        self._file.handle(makeLogRecord({"msg": line}))

    def close(self) -> None:
        self._file.close()


class Histogram:
    """Counts values by bucket: a value belongs to the least bound that is not below it."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, label: str) -> list[str]:
        """The samples in Prometheus' format. label: such as `steerer="race"`; may be empty."""
        prefix, braced = f"{label}," if label else "", f"{{{label}}}" if label else ""
        total, lines = 0, []
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{prefix}le="{bound}"}} {total}')
        return [*lines, f"{name}_sum{braced} {self.sum:g}", f"{name}_count{braced} {total}"]


class ServerMetrics:
    """Counts since the server was started."""

    def __init__(self) -> None:
        self.waiting = self.connections = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._histograms: dict[tuple[str, str], Histogram] = {}
        self._seconds = self._histogram("ggss_request_seconds")

    @property
    def mean_seconds(self) -> float:
        """The mean duration of the requests so far; 1 if there are none."""
        return self._seconds.sum / sum(self._seconds.counts) if any(self._seconds.counts) else 1.0

    def status(self, status: int) -> None:
        self._counts["ggss_requests_total", f'status="{status}"'] += 1

    def request(self, status: int, seconds: float) -> None:
        """Count a chat request. The duration of one with a wrong key says nothing about others, so it is left out."""
        self.status(status)
        if status != 401:
            self._seconds.add(seconds)

    def refused_connection(self, limit: str) -> None:
        self._counts["ggss_refused_connections_total", f'limit="{limit}"'] += 1

    def silent_connection(self) -> None:
        self._counts["ggss_silent_connections_total", ""] += 1

    def answer(self, steering: Mapping[str, SteeringRecord], prompt_tokens: int, completion_tokens: int) -> None:
        """Count an answered request. steering: empty if it had no picture."""
        for name, record in steering.items():
            label = f'steerer="{name}"'
            if record.alpha:
                self._counts["ggss_steered_requests_total", label] += 1
            if record.gate_mean is not None:
                self._histogram("ggss_gate_mean", label).add(record.gate_mean)
            self._histogram("ggss_steered_tokens", label).add(record.tokens)
        if steering:
            tokens = sum(record.tokens for record in steering.values())
            self._histogram("ggss_request_steered_tokens").add(tokens)
        self._counts["ggss_prompt_tokens_total", ""] += prompt_tokens
        self._counts["ggss_completion_tokens_total", ""] += completion_tokens

    def text(self, ready: bool, facts: Mapping[str, float]) -> str:
        """All metrics in Prometheus' text format, version 0.0.4. facts: the engine's counts."""
        samples: dict[tuple[str, str], float] = {
            **self._counts,
            ("ggss_waiting_requests", ""): self.waiting,
            ("ggss_open_connections", ""): self.connections,
            ("ggss_ready", ""): int(ready),
            **{(_METRIC_OF_FACT[name], ""): value for name, value in facts.items()},
        }
        lines = []
        for name, (kind, meaning) in HELP.items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            for (sample, label), value in sorted(samples.items()):
                if sample == name:
                    lines.append(f"{name}{f'{{{label}}}' if label else ''} {value:g}")
            for (sample, label), histogram in sorted(self._histograms.items()):
                if sample == name:
                    lines += histogram.lines(name, label)
        return "\n".join([*lines, ""])

    def _histogram(self, name: str, label: str = "") -> Histogram:
        return self._histograms.setdefault((name, label), Histogram(BUCKETS[name]))


class Guard:
    """ASGI middleware: keys, queue, size and time, before the application.

    keys: of all paths but `HEALTH`. admin: the key of `RELOAD`, a path that does not exist without one. metrics_key:
    the key of `METRICS`, which has the keys of the other paths without one.
    """

    def __init__(
        self,
        app: Callable[[Asgi, Receive, Send], Awaitable[None]],
        limits: Limits,
        keys: ApiKeys,
        admin: ApiKeys,
        metrics: ServerMetrics,
        requests: RequestLog | None = None,
        metrics_key: ApiKeys | None = None,
    ) -> None:
        self.app, self.limits, self.keys, self.admin = app, limits, keys, admin
        self.metrics_key = metrics_key or keys
        self.metrics, self.requests = metrics, requests

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        exchange = Exchange(scope, receive, send)
        chat = scope["path"] == CHAT and scope["method"] == "POST"
        started = time.monotonic()
        try:
            self._check_key(scope)
            self.metrics.waiting += chat
            try:
                if self.metrics.waiting > self.limits.queue:
                    wait = {"Retry-After": str(max(1, math.ceil(self.metrics.mean_seconds)))}
                    raise Refusal(429, f"{self.limits.queue} requests are waiting: try later", headers=wait)
                await self._within_time(exchange)
            finally:
                self.metrics.waiting -= chat
        except Refusal as refusal:
            await exchange.refuse(refusal)
        except Exception as error:
            # The message of an exception may contain text of the request, so it is not logged.
            log.error("%s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
            await exchange.refuse(defect(error))
        if chat:
            self._account(scope, exchange.status, time.monotonic() - started)
        elif exchange.status == 401:
            self.metrics.status(401)

    def _check_key(self, scope: Asgi) -> None:
        headers = dict(scope["headers"])
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        if not self.keys and not _is_local_name(headers.get(b"host", b"").decode("latin-1")):
            raise Refusal(
                403, "without keys, this server answers only at its IP address or localhost: use one of these"
            )
        if scope["path"] == RELOAD and not self.admin:
            raise Refusal(404, "this server was started without an admin key, so nothing can be reloaded")
        keys = {RELOAD: self.admin, METRICS: self.metrics_key}.get(scope["path"], self.keys)
        if scope["path"] == HEALTH or not keys or keys.match(authorization):
            return
        if not authorization:
            sentence = "a key is needed: send the header `Authorization: Bearer KEY`"
            raise Refusal(401, sentence, headers={"WWW-Authenticate": "Bearer"})
        sentence = (
            f"the key in the header `Authorization: Bearer KEY` is not valid for {scope['path']}: correct the key"
        )
        raise Refusal(401, sentence, headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})

    async def _within_time(self, exchange: "Exchange") -> None:
        """Run the application until it has answered, the client is gone, or the request has taken too long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.limits.seconds
        most = {CHAT: self.limits.body, RELOAD: SMALL_BODY}.get(exchange.scope["path"])
        if most is not None and exchange.scope["method"] == "POST":
            try:
                async with asyncio.timeout_at(end):
                    await exchange.read_body(most, self.limits.idle)
            except TimeoutError as error:
                raise Refusal(408, f"the body did not arrive within {self.limits.seconds:g} s") from error
        work = asyncio.ensure_future(self.app(exchange.scope, exchange.receive, exchange.send))
        disconnect = asyncio.create_task(exchange.wait_until_gone())
        try:
            await asyncio.wait({work, disconnect}, timeout=end - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if disconnect.done():
                exchange.status = CLIENT_GONE
                return
            raise Refusal(504, f"the request took longer than {self.limits.seconds:g} s: ask for fewer tokens")
        finally:
            disconnect.cancel()
            work.cancel()
            await asyncio.wait({work, disconnect})

    def _account(self, scope: Asgi, status: int, seconds: float) -> None:
        self.metrics.request(status, seconds)
        if self.requests is not None:
            audit = scope.get("state", {}).get("audit", {})
            self.requests.write({"status": status, "seconds": round(seconds, 3), **audit})


def _is_local_name(host: str) -> bool:
    """Whether a Host header names no domain: the domain of a web page could point to this machine (DNS rebinding)."""
    try:
        name = urlsplit(f"//{host}").hostname or "localhost"
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _declares_body(scope: Asgi) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0") != b""


class Exchange:
    """One request and its response."""

    def __init__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        self.scope["state"] = dict(scope.get("state", {}))
        self.status = 0
        self._body: bytes | None = b""
        self._unread = _declares_body(scope)
        self._gone = asyncio.Event()
        self._ended = False

    async def read_body(self, most: int, idle: float) -> None:
        """Read the body. Refusal as soon as it has more than `most` bytes, or if none arrive for `idle` seconds."""
        declared = dict(self.scope["headers"]).get(b"content-length", b"0")
        body = bytearray()
        more = True
        while more:
            if len(body) > most or (declared.isdigit() and int(declared) > most):
                raise Refusal(413, f"the body has more than {most:,} bytes: send fewer or smaller pictures")
            try:
                async with asyncio.timeout(idle):
                    message = await self._receive()
            except TimeoutError as error:
                raise Refusal(408, f"no more of the body came for {idle:g} s: send it without pauses") from error
            if message["type"] == "http.disconnect":
                self._gone.set()
                break
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if len(body) > most:
            raise Refusal(413, f"the body has more than {most:,} bytes: send fewer or smaller pictures")
        self._body, self._unread = bytes(body), False

    async def wait_until_gone(self) -> None:
        """Return when the client is gone. Never if there is an unread body, which would be received first."""
        if self._unread:
            await asyncio.Event().wait()
        while not self._gone.is_set():
            if (await self._receive())["type"] == "http.disconnect":
                self._gone.set()

    async def receive(self) -> Asgi:
        """The application's `receive`: the body, once; then nothing until the client is gone."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Asgi) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._unread:  # or the rest of the body would be read as the next request
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        self._ended = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        """Send an error: as the response, or as the last event of a stream that has begun."""
        if self._ended or self._gone.is_set():
            return
        if self.status:
            self.status = refusal.status
            await self._send({"type": "http.response.body", "body": server_sent_event(refusal.body).encode()})
            return
        body = json.dumps(refusal.body).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": body})
