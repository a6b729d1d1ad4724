"""Clients that are slow, silent or rude, against a running server on a port of this machine: the others are answered.

`make fuzz-serve` has some hundred of them; this test a few dozen.
"""

import json
import os
import random
import signal
import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import KEY, MODEL, PATIENCE, Server, asked, start
from test_faults import answer

CLIENTS = max(32, int(os.environ.get("GGSS_SERVE_CASES", "300")) // 25)
TOGETHER = 16
DESCRIPTORS, SILENT = 256, 300
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def limited(world, tmp_path_factory):
    options = ["--idle-timeout=1", "--max-per-address=1000", "--max-body-mb=1"]
    served = start(world, tmp_path_factory.mktemp("limited"), *options, descriptors=DESCRIPTORS)
    yield served
    served.process.send_signal(signal.SIGTERM)
    assert served.ended() == 0


def connected(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def health(server: Server) -> int:
    try:
        with urllib.request.urlopen(f"{server.url}/health", timeout=PATIENCE) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def until_healthy(server: Server) -> None:
    end = time.monotonic() + PATIENCE
    while health(server) != 200:
        assert time.monotonic() < end, "silent clients have kept everybody else out"
        time.sleep(0.05)


def test_silent_clients_keep_nobody_out(limited, world):
    """More of them than the server has file descriptors."""
    silent = [connected(limited) for _ in range(SILENT)]
    try:
        assert health(limited) == 503, "the table is full, and says so at once"
        until_healthy(limited)
        assert answer(limited.client, world, race=1.5)[1] == 1.5
        assert limited.metric('ggss_refused_connections_total{limit="all"}') > 0
        assert limited.metric("ggss_silent_connections_total") > 0
    finally:
        for one in silent:
            one.close()
    errors = limited.errors.read_text()
    assert errors.count("connections are open") == 1, "one line a minute"
    assert len(errors) < 10_000


def body(draw: random.Random, picture: bytes) -> bytes:
    """A chat request: right, wrong, cut or no JSON at all."""
    whole = {"model": MODEL, "max_tokens": 2, "stream": draw.random() < 0.5, "messages": asked("who ?", picture)}
    kind = draw.choice(["right", "strength", "cut", "bytes", "large"])
    if kind == "strength":
        whole["ggss"] = {"race": draw.choice([0, 1.5, 5, -1, "x", None])}
    text = json.dumps(whole).encode()
    if kind == "cut":
        return text[: draw.randrange(len(text))]
    return {"bytes": draw.randbytes(2_000), "large": b"x" * 2_000_000}.get(kind, text)


def client(server: Server, seed: int, picture: bytes) -> str:
    """One client that does something else for every seed; returns what it did, once the server has closed."""
    draw = random.Random(seed)
    kind = ["silent", "head", "drip", "slow", "stops", "leaves", "deaf", "no key", "health", "garbage"][seed % 10]
    key = b"" if kind == "no key" else f"Authorization: Bearer {KEY}\r\n".encode()
    sent = body(draw, picture)
    head = CHAT + key + b"Content-Length: %d\r\n\r\n" % len(sent)
    if kind == "health":
        head = head.replace(b"POST /v1/chat/completions", b"GET /health")
    with connected(server) as here:
        try:
            if kind == "head":
                here.sendall(head[: draw.randrange(1, len(head) - 1)])
            elif kind == "drip":
                for byte in head[:-2] + b"X: " + b"x" * 1_000:
                    here.sendall(bytes([byte]))
                    time.sleep(0.005)
            elif kind == "garbage":
                here.sendall(draw.randbytes(500) + b"\r\n\r\n")
            elif kind in ("stops", "leaves"):
                here.sendall(head + sent[: len(sent) // 2])
            elif kind != "silent":
                here.sendall(head)
                for place in range(0, len(sent), max(1, len(sent) // 20)):
                    here.sendall(sent[place : place + max(1, len(sent) // 20)])
                    time.sleep(0.005 if kind == "slow" else 0)
            if kind in ("leaves", "deaf"):
                return kind
            while here.recv(65_536):
                pass
        except (ConnectionError, BrokenPipeError):
            pass  # it was closed while this wrote
    return kind


def test_slow_and_rude_clients_disturb_nobody(limited, world):
    until_healthy(limited)
    expected = [answer(limited.client, world, number, race=1.0) for number in range(4)]
    restarts = limited.metric("ggss_worker_restarts_total")
    picture = world.png(0)
    with ThreadPoolExecutor(TOGETHER) as pool:
        rude = [pool.submit(client, limited, seed, picture) for seed in range(CLIENTS)]
        rounds = 0
        while rounds < 2 or not all(one.done() for one in rude):
            assert [answer(limited.client, world, number, race=1.0) for number in range(4)] == expected
            rounds += 1
        kinds = {one.result() for one in rude}
    assert len(kinds) == 10
    end = time.monotonic() + PATIENCE
    while limited.metric("ggss_open_connections") > 4 or limited.metric("ggss_waiting_requests"):
        assert time.monotonic() < end, "connections of clients that are gone stay open"
        time.sleep(0.05)
    text = limited.get("/metrics")
    assert 'ggss_requests_total{status="500"}' not in text
    assert 'ggss_requests_total{status="401"}' in text
    assert 'ggss_requests_total{status="408"}' in text
    assert limited.metric("ggss_worker_restarts_total") == restarts
    assert len(limited.errors.read_text()) < 10_000
