"""What stands before every request: keys, a place in the queue, the size of the body, the time it may take.

An ASGI application around another one. Whatever happens inside, the client gets an error in OpenAI's shape, and the
place of a client that goes away is free at once, in the middle of a stream too.
"""

import asyncio
import ipaddress
import json
import logging
import math
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from ggss.serve.api_keys import ApiKeys
from ggss.serve.chat_answer import event
from ggss.serve.limits import Limits
from ggss.serve.refusal import Refusal, defect
from ggss.serve.request_log import RequestLog
from ggss.serve.server_metrics import ServerMetrics

Asgi = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Asgi]]
Send = Callable[[Asgi], Awaitable[None]]

CHAT, RELOAD, HEALTH = "/v1/chat/completions", "/ggss/reload", "/health"
GONE = 499  # the status of a request whose client went away, in logs and metrics only

log = logging.getLogger("ggss")


class Guard:
    """keys: of everything but `HEALTH`; admin: of `RELOAD`, which does not exist without one."""

    def __init__(
        self,
        app: Callable[[Asgi, Receive, Send], Awaitable[None]],
        limits: Limits,
        keys: ApiKeys,
        admin: ApiKeys,
        metrics: ServerMetrics,
        requests: RequestLog | None = None,
    ) -> None:
        self.app, self.limits, self.keys, self.admin = app, limits, keys, admin
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
            # An exception's message may hold what was asked, so it is not logged.
            log.error("%s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
            await exchange.refuse(defect(error))
        if chat:
            self._account(scope, exchange.status, time.monotonic() - started)

    def _check_key(self, scope: Asgi) -> None:
        headers = dict(scope["headers"])
        shown = headers.get(b"authorization", b"").decode("latin-1")
        if not self.keys and not _is_local_name(headers.get(b"host", b"").decode("latin-1")):
            raise Refusal(403, "a server without keys is asked by its address or as localhost, not by another name")
        if scope["path"] == RELOAD:
            if not self.admin:
                raise Refusal(404, "this server was started without an admin key, so nothing can be reloaded")
            allowed = self.admin.match(shown)
        else:
            allowed = scope["path"] == HEALTH or not self.keys or self.keys.match(shown)
        if not allowed:
            said = "a key is needed: send the header `Authorization: Bearer KEY`"
            raise Refusal(401, said, headers={"WWW-Authenticate": "Bearer"})

    async def _within_time(self, exchange: "Exchange") -> None:
        """Run the application until it has answered, the client is gone, or the time is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.limits.seconds
        try:
            async with asyncio.timeout_at(end):
                await exchange.read_body(self.limits.body)
        except TimeoutError as error:
            raise Refusal(408, f"the body did not arrive within {self.limits.seconds:g} s") from error
        work = asyncio.ensure_future(self.app(exchange.scope, exchange.receive, exchange.send))
        gone = asyncio.create_task(exchange.wait_until_gone())
        try:
            await asyncio.wait({work, gone}, timeout=end - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if gone.done():
                exchange.status = GONE
                return
            raise Refusal(504, f"the request took longer than {self.limits.seconds:g} s: ask for fewer tokens")
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.wait({work, gone})

    def _account(self, scope: Asgi, status: int, seconds: float) -> None:
        self.metrics.request(status, seconds)
        if self.requests is not None:
            known = scope.get("state", {}).get("audit", {})
            self.requests.write({"status": status, "seconds": round(seconds, 3), **known})


def _is_local_name(host: str) -> bool:
    """Whether no domain name led here: a web page could let its own name point to this machine, to ask the server."""
    try:
        name = urlsplit(f"//{host}").hostname or "localhost"
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


class Exchange:
    """One request and its response."""

    def __init__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        self.scope["state"] = dict(scope.get("state", {}))
        self.status = 0
        self._body: bytes | None = None
        self._gone = asyncio.Event()
        self._ended = False

    async def read_body(self, most: int) -> None:
        """All of it; a Refusal as soon as it is too large."""
        declared = dict(self.scope["headers"]).get(b"content-length", b"0")
        body = bytearray()
        more = True
        while more:
            if len(body) > most or (declared.isdigit() and int(declared) > most):
                raise Refusal(413, f"the body has more than {most:,} bytes: send fewer or smaller pictures")
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._gone.set()
                break
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if len(body) > most:
            raise Refusal(413, f"the body has more than {most:,} bytes: send fewer or smaller pictures")
        self._body = bytes(body)

    async def wait_until_gone(self) -> None:
        while not self._gone.is_set():
            if (await self._receive())["type"] == "http.disconnect":
                self._gone.set()

    async def receive(self) -> Asgi:
        """For the application: the body, once; then nothing until the client is gone."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Asgi) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self._ended = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        """An error as the response or, if that has begun, as its last event."""
        if self._ended or self._gone.is_set():
            return
        if self.status:
            self.status = refusal.status
            await self._send({"type": "http.response.body", "body": event(refusal.body).encode()})
            return
        body = json.dumps(refusal.body).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
        if refusal.status in (408, 413):
            headers["connection"] = "close"  # the rest of the body is never read
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": body})
