"""What stands before every request, and what is counted and logged of it. No model is needed."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from ggss.errors import InputError
from ggss.serve.guard import (
    CHAT,
    HEALTH,
    HELP,
    METRICS,
    RELOAD,
    SMALL_BODY,
    ApiKeys,
    Guard,
    RequestLog,
    ServerMetrics,
)
from ggss.serve.schema import Limits
from ggss.steering import SteeringRecord

KEY, ADMIN = "0123456789abcdef", "fedcba9876543210"


class Client:
    """One request to an ASGI application; `gone` makes it disconnect."""

    def __init__(self, path: str = CHAT, method: str = "POST", body: bytes = b"{}", key: str = "", **headers: str):
        named = {"authorization": f"Bearer {key}"} if key else {}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        self.scope = {
            "type": "http",
            "path": path,
            "method": method,
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        }
        self.parts = [body[i : i + 10] for i in range(0, len(body), 10)] or [b""]
        self.gone = asyncio.Event()
        self.status, self.headers, self.body = 0, {}, b""

    async def receive(self) -> dict[str, Any]:
        if self.parts:
            return {"type": "http.request", "body": self.parts.pop(0), "more_body": bool(self.parts)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert not self.status
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.body += message.get("body", b"")


async def echo(scope, receive, send) -> None:
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


def guard(app: Callable[..., Any] = echo, keys=(), admin=(), log: RequestLog | None = None, **limits) -> Guard:
    return Guard(app, Limits(**limits), ApiKeys(list(keys)), ApiKeys(list(admin)), ServerMetrics(), log)


def asked(guarded: Guard, **request) -> Client:
    async def run() -> Client:
        client = Client(**request)
        await guarded(client.scope, client.receive, client.send)
        return client

    return asyncio.run(run())


def sentence(client: Client) -> str:
    return json.loads(client.body)["error"]["message"]


def test_a_key_is_needed_for_all_but_health():
    guarded = guard(keys=[KEY], admin=[ADMIN])
    for path, key, status in [
        (CHAT, "", 401),
        (CHAT, ADMIN, 401),
        (CHAT, KEY, 200),
        ("/metrics", "", 401),
        ("/v1/models", "", 401),
        ("/openapi.json", "", 401),
        (HEALTH, "", 200),
        (RELOAD, KEY, 401),
        (RELOAD, "", 401),
        (RELOAD, ADMIN, 200),
    ]:
        seen = asked(guarded, path=path, key=key)
        assert (path, key, seen.status) == (path, key, status)
        if status == 401:
            assert json.loads(seen.body)["error"]["type"] == "authentication_error"
    refused = 'ggss_requests_total{status="401"} 7\n'
    assert refused in guarded.metrics.text(True, {}), "every address counts them"


def test_a_wrong_key_is_told_from_a_missing_one():
    guarded = guard(keys=[KEY])
    missing, wrong = asked(guarded), asked(guarded, key=ADMIN)
    assert "a key is needed" in sentence(missing)
    assert missing.headers[b"www-authenticate"] == b"Bearer"
    assert "is not valid for /v1/chat/completions: correct the key" in sentence(wrong)
    assert ADMIN not in sentence(wrong)
    assert wrong.headers[b"www-authenticate"] == b'Bearer error="invalid_token"'


def test_metrics_may_have_a_key_of_their_own():
    other = "key-of-prometheus"
    guarded = Guard(echo, Limits(), ApiKeys([KEY]), ApiKeys([]), ServerMetrics(), metrics_key=ApiKeys([other]))
    for path, key, status in [
        (METRICS, other, 200),
        (METRICS, KEY, 401),
        (METRICS, "", 401),
        (CHAT, other, 401),
        (CHAT, KEY, 200),
    ]:
        assert (path, key, asked(guarded, path=path, key=key).status) == (path, key, status)
    assert asked(guard(keys=[KEY]), path=METRICS, key=KEY).status == 200


def test_without_an_admin_key_nothing_can_be_reloaded():
    assert asked(guard(), path=RELOAD).status == 404
    assert asked(guard(), path=CHAT).status == 200


def test_a_body_that_is_too_large_is_not_read():
    assert asked(guard(body=40), body=b"x" * 40).body == b"x" * 40
    client = asked(guard(body=40), body=b"x" * 400)
    assert (client.status, len(client.parts)) == (413, 35)
    client = asked(guard(body=40), body=b"x" * 41, content_length="41")
    assert (client.status, len(client.parts)) == (413, 5)
    assert "more than 40 bytes" in sentence(client)


def test_nobody_without_a_key_can_upload():
    client = asked(guard(keys=[KEY]), body=b"x" * 100)
    assert (client.status, len(client.parts)) == (401, 10)


@pytest.mark.parametrize("length", [{"content_length": "100"}, {"transfer_encoding": "chunked"}])
@pytest.mark.parametrize(
    ("path", "method"),
    [(HEALTH, "GET"), (HEALTH, "POST"), (METRICS, "GET"), ("/v1/models", "GET"), ("/none", "POST"), (CHAT, "PUT")],
)
def test_an_address_that_takes_no_body_reads_none(path, method, length):
    client = asked(guard(), path=path, method=method, body=b"x" * 100, **length)
    assert (client.status, client.body, len(client.parts)) == (200, b"", 10)
    assert client.headers[b"connection"] == b"close", "or the body would be the next request"


def test_a_body_that_was_not_read_ends_the_connection():
    length = {"content_length": "100"}
    refused = asked(guard(keys=[KEY]), body=b"x" * 100, **length)
    assert (refused.status, refused.headers[b"connection"]) == (401, b"close")
    answered = asked(guard(), body=b"x" * 100, **length)
    assert (answered.status, b"connection" in answered.headers) == (200, False)


def test_the_body_of_a_reload_is_small():
    guarded = guard(admin=[ADMIN])
    assert asked(guarded, path=RELOAD, key=ADMIN, body=b"x" * SMALL_BODY).status == 200
    assert asked(guarded, path=RELOAD, key=ADMIN, body=b"x" * (SMALL_BODY + 1)).status == 413


def test_a_body_that_stops_coming_is_not_waited_for():
    async def run() -> Client:
        client = Client(body=b"x" * 20)
        first = client.parts[0]

        async def receive() -> dict[str, Any]:
            if client.parts:
                client.parts.clear()
                return {"type": "http.request", "body": first, "more_body": True}
            await asyncio.Event().wait()
            raise AssertionError

        await asyncio.wait_for(guard(idle=0.01, seconds=1e6)(client.scope, receive, client.send), 60)
        return client

    client = asyncio.run(run())
    assert client.status == 408
    assert "no more of the body came for 0.01 s" in sentence(client)


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:8000", 200), ("", 200), ("evil.example", 403), ("[x", 403)],
)
def test_a_web_page_cannot_use_a_name_of_its_own_for_this_machine(host, status):
    assert asked(guard(), host=host).status == status
    assert asked(guard(keys=[KEY]), host=host, key=KEY).status == 200


async def forever(scope, receive, send) -> None:
    await receive()
    await asyncio.Event().wait()


def test_a_full_queue_is_told_when_to_come_back():
    guarded = guard(forever, queue=2)

    async def run() -> None:
        clients = [Client() for _ in range(3)]
        tasks = [asyncio.create_task(guarded(one.scope, one.receive, one.send)) for one in clients]
        await asyncio.wait_for(tasks[2], 60)
        assert clients[2].status == 429
        assert int(clients[2].headers[b"retry-after"]) >= 1
        health = Client(path=HEALTH, method="GET")
        waiting = asyncio.create_task(guarded(health.scope, health.receive, health.send))  # needs no place
        clients[0].gone.set()
        await asyncio.wait_for(tasks[0], 60)  # a client that goes away frees its place
        assert guarded.metrics.waiting == 1
        for one in (clients[1], health):
            one.gone.set()
        await asyncio.wait_for(asyncio.gather(tasks[1], waiting), 60)
        assert guarded.metrics.waiting == 0

    asyncio.run(run())


def test_a_request_that_takes_too_long_is_ended():
    ended = []

    async def slow(scope, receive, send) -> None:
        await receive()
        if scope["path"] == CHAT:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(scope["path"])

    client = asked(guard(slow, seconds=0.01), path="/other")
    assert client.status == 504
    stream = asked(guard(slow, seconds=0.01))
    assert stream.status == 200, "the status was sent before"
    assert b'"type": "server_error"' in stream.body.split(b"data: ")[-1]
    assert ended == ["/other", CHAT]


def test_a_defect_is_500_and_its_message_is_not_logged(caplog):
    async def broken(scope, receive, send) -> None:
        raise ValueError((await receive())["body"])

    client = asked(guard(broken), body=b"what the user asked")
    assert client.status == 500
    assert "ValueError" in sentence(client)
    assert "what the user asked" not in client.body.decode() + caplog.text
    assert "test_serve_guard.py" in caplog.text


# metrics and log


def test_metrics_are_what_prometheus_reads():
    metrics = ServerMetrics()
    for status, seconds in [(200, 0.05), (200, 0.3), (400, 0.01), (200, 500.0)]:
        metrics.request(status, seconds)
    steering = {"race": SteeringRecord(0.5, 1, 16, 20, 7.0), "gender": SteeringRecord(0.0)}
    metrics.answer(steering, 100, 7)
    metrics.request(401, 99.0)
    text = metrics.text(True, {"worker_restarts": 1, "batches": 2, "cached_bytes": 5_000_000})
    samples = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            samples[name] = float(value)
    assert samples['ggss_requests_total{status="200"}'] == 3
    assert samples['ggss_steered_requests_total{steerer="race"}'] == 1
    assert 'ggss_steered_requests_total{steerer="gender"}' not in samples
    assert samples["ggss_completion_tokens_total"] == 7
    assert samples["ggss_batches_total"] == 2
    assert samples["ggss_feature_cache_bytes"] == 5_000_000
    assert samples['ggss_requests_total{status="401"}'] == 1
    assert samples['ggss_gate_mean_bucket{steerer="race",le="0.3"}'] == 0
    assert samples['ggss_gate_mean_bucket{steerer="race",le="0.4"}'] == 1
    assert samples['ggss_gate_mean_sum{steerer="race"}'] == 0.35
    assert samples['ggss_steered_tokens_bucket{steerer="race",le="0.0"}'] == 0
    assert samples['ggss_steered_tokens_bucket{steerer="race",le="16.0"}'] == 1
    assert samples['ggss_steered_tokens_bucket{steerer="gender",le="0.0"}'] == 1
    assert "ggss_feature_cache_hits_total" not in samples  # what an engine does not count is not 0
    assert samples["ggss_ready"] == 1
    assert samples['ggss_request_seconds_bucket{le="0.05"}'] == 2
    assert samples['ggss_request_seconds_bucket{le="0.5"}'] == 3
    assert samples['ggss_request_seconds_bucket{le="120.0"}'] == 3
    assert samples['ggss_request_seconds_bucket{le="+Inf"}'] == samples["ggss_request_seconds_count"] == 4
    assert samples["ggss_request_seconds_sum"] == pytest.approx(500.36)
    named = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {re.sub("_(bucket|sum|count)$", "", name.split("{")[0]) for name in samples} <= named == set(HELP)
    assert text.endswith("\n")


def test_the_share_of_requests_that_steered_nothing_can_be_read():
    metrics = ServerMetrics()
    acts, rests = SteeringRecord(1.0, 1, 300, 300, 150.0), SteeringRecord(0.0)
    for steering in ({"race": acts, "gender": rests}, {"race": rests, "gender": rests}, {"race": acts}, {}):
        metrics.answer(steering, 1, 1)
    lines = metrics.text(True, {}).splitlines()
    assert 'ggss_request_steered_tokens_bucket{le="0.0"} 1' in lines
    assert "ggss_request_steered_tokens_count 3" in lines, "one without a picture is not among them"
    assert "ggss_request_steered_tokens_sum 600" in lines


def test_the_log_has_what_was_applied_and_is_rotated(tmp_path):
    async def answers(scope, receive, send) -> None:
        scope["state"]["audit"] = {"applied": {"race": 0.75}, "pictures": 1}
        await echo(scope, receive, send)

    file = tmp_path / "requests.jsonl"
    log = RequestLog(str(file), largest=400, backups=2)
    guarded = guard(answers, log=log)
    for _ in range(20):
        asked(guarded, body=b'{"messages": "what is asked"}')
    asked(guarded, path="/v1/models", method="GET")
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [one.name for one in files] == ["requests.jsonl", "requests.jsonl.1", "requests.jsonl.2"]
    lines = [json.loads(line) for one in files for line in one.read_text().splitlines()]
    assert all(one.stat().st_size <= 400 for one in files)
    for line in lines:
        assert (line["status"], line["applied"], line["pictures"]) == (200, {"race": 0.75}, 1)
    assert "what is asked" not in "".join(one.read_text() for one in files)
    with pytest.raises(InputError, match="there is no folder"):
        RequestLog(str(tmp_path / "no" / "log"))
