"""A chat server that answers as a test says, on a port of this machine. What it was asked is kept."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any] | tuple[int, Any, dict[str, str]]
"""A status, a body (bytes, or what becomes JSON), and headers."""


def completion(text: Any, listed: dict[str, float] | None = None) -> Reply:
    """A chat completion; listed: log-probabilities of the tokens that the answer may begin with."""
    top = [{"token": token, "logprob": logprob, "bytes": None} for token, logprob in (listed or {}).items()]
    logprobs = None if listed is None else {"content": [{"token": text, "logprob": 0.0, "top_logprobs": top}]}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": logprobs}
    return 200, {"object": "chat.completion", "choices": [choice]}


def refusal(status: int, message: str, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"error": {"message": message, "type": "invalid_request_error"}}, named


class FakeServer:
    """reply: from the body of a request, and how many chat requests came before it, to what is answered."""

    def __init__(self, reply: Callable[[dict[str, Any], int], Reply], models: Reply) -> None:
        self.reply, self.models = reply, models
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.url = ""
        self._lock = threading.Lock()

    def answer(self, path: str, key: str | None, body: dict[str, Any] | None) -> Reply:
        with self._lock:
            self.keys.append(key)
            if body is None:
                return self.models
            assert path == "/v1/chat/completions", path
            self.asked.append(body)
            number = len(self.asked) - 1
        return self.reply(body, number)

    def shown(self, number: int) -> list[str]:
        """What a request shows: its texts, and `picture` for each picture."""
        (message,) = self.asked[number]["messages"]
        parts = message["content"]
        return [parts] if isinstance(parts, str) else [part.get("text", "picture") for part in parts]


@contextmanager
def serving(
    reply: Callable[[dict[str, Any], int], Reply], models: Reply = (200, {"data": [{"id": "vlm"}]})
) -> Iterator[FakeServer]:
    server = FakeServer(reply, models)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send(server.answer(self.path, self.headers["Authorization"], None))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send(server.answer(self.path, self.headers["Authorization"], body))

        def send(self, reply: Reply) -> None:
            status, body, *headers = reply
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in (headers[0] if headers else {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        server.url = f"http://127.0.0.1:{http.server_port}/v1"
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
