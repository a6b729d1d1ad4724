"""Connections on a port of this machine: how many, how long they may be silent, and what a full table says."""

import asyncio
import functools
import json
import logging
import socket
from contextlib import asynccontextmanager

import pytest
import uvicorn

from ggss.errors import InputError
from ggss.serve import app
from ggss.serve.app import ConnectionTable, GuardedConnection, Listener, OncePerMinute, address_of, bound
from ggss.serve.guard import ApiKeys, ServerMetrics
from ggss.serve.schema import Limits

PATIENCE = 60  # seconds, after which a test fails; none waits for so long
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def short(scope, receive, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def served(app=short, **limits):
    """A table, and a function that opens a connection to its server."""
    table = ConnectionTable(Limits(**limits), ServerMetrics())
    protocol = functools.partial(GuardedConnection, table)
    config = uvicorn.Config(
        app, http=protocol, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    here = bound("127.0.0.1", 0, ApiKeys([]))
    here.listen(64)
    running = asyncio.create_task(server._serve([here]))  # without uvicorn's signal handlers
    try:
        yield table, functools.partial(asyncio.open_connection, *here.getsockname())
    finally:
        server.should_exit = True
        await asyncio.wait_for(running, PATIENCE)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server closes the connection."""
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE)
    except ConnectionResetError:
        return b""


async def until_open(table: ConnectionTable, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while table.metrics.connections != count:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_connection_without_a_request_is_closed(sent):
    async def run() -> None:
        async with served(idle=0.05) as (table, connect):
            reader, writer = await connect()
            writer.write(sent)
            assert await rest(reader) == b""
            writer.close()
            await until_open(table, 0)
            assert "ggss_silent_connections_total 1\n" in table.metrics.text(True, {})

    asyncio.run(run())


def test_a_byte_now_and_then_does_not_keep_a_connection_open():
    async def run() -> None:
        async with served(idle=0.5) as (table, connect):
            reader, writer = await connect()

            async def drip() -> None:
                for byte in GET[:-2] + b"X: " + b"x" * 10_000:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.005)

            dripping = asyncio.create_task(drip())
            assert await rest(reader) == b""
            assert not dripping.done()
            dripping.cancel()
            writer.close()
            await until_open(table, 0)

    asyncio.run(run())


def test_a_connection_is_kept_for_the_next_request_and_then_closed():
    async def run() -> None:
        async with served(idle=0.2) as (table, connect):
            reader, writer = await connect()
            for _ in range(3):
                writer.write(GET)
                assert (await asyncio.wait_for(reader.readuntil(b"ok"), PATIENCE)).startswith(b"HTTP/1.1 200")
            writer.write(GET[:20])
            assert await rest(reader) == b""
            writer.close()
            await until_open(table, 0)

    asyncio.run(run())


def test_a_request_that_is_answered_slowly_is_not_idle():
    async def slow(scope, receive, send) -> None:
        await asyncio.sleep(0.1)
        await short(scope, receive, send)

    async def run() -> None:
        async with served(slow, idle=0.02) as (_, connect):
            reader, writer = await connect()
            writer.write(GET)
            assert (await rest(reader)).endswith(b"ok")
            writer.close()

    asyncio.run(run())


def test_a_client_that_does_not_read_its_answer_is_left():
    async def endless(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1_000):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def run() -> None:
        async with served(endless, idle=0.02, seconds=0.05) as (table, connect):
            _, writer = await connect(limit=1)
            writer.write(GET)
            await until_open(table, 1)
            await until_open(table, 0)
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("limits", "said"),
    [({"connections": 2}, "2 connections are open"), ({"per_address": 2}, "2 connections of 127.0.0.1 are open")],
)
def test_a_full_table_answers_503_and_logs_one_line(limits, said, caplog):
    async def run() -> None:
        async with served(**limits) as (table, connect):
            kept = [await connect() for _ in range(2)]
            await until_open(table, 2)
            for _ in range(3 * app.LINGERING):
                reader, writer = await connect()
                head, _, body = (await rest(reader)).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 503 ")
                assert b"Retry-After: 10" in head
                assert said in json.loads(body)["error"]["message"]
                writer.close()
            assert [said in record.getMessage() for record in caplog.records] == [True]
            name = "all" if "connections" in limits else "address"
            assert f'ggss_refused_connections_total{{limit="{name}"}} 48\n' in table.metrics.text(True, {})
            kept.pop()[1].close()
            await until_open(table, 1)
            reader, writer = await connect()
            writer.write(GET)
            assert await asyncio.wait_for(reader.readuntil(b"ok"), PATIENCE), "a place that is free is given away"
            for _, one in [*kept, (reader, writer)]:
                one.close()

    with caplog.at_level(logging.WARNING, "ggss"):
        asyncio.run(run())


def test_a_client_that_is_refused_while_it_writes_reads_why():
    async def run() -> None:
        async with served(connections=1) as (table, connect):
            _, first = await connect()
            await until_open(table, 1)
            reader, writer = await connect()
            writer.write(GET[:-2] + b"Content-Length: 4000000\r\n\r\n" + b"x" * 4_000_000)
            assert b"1 connections are open" in await rest(reader)
            assert table.lingering == 1, "only the server's half is closed"
            writer.close()
            async with asyncio.timeout(PATIENCE):
                while table.lingering:
                    await asyncio.sleep(0.001)
            first.close()

    asyncio.run(run())


def test_the_table_leaves_descriptors_for_other_things():
    table = ConnectionTable(Limits(), ServerMetrics(), descriptors=256)
    assert table.most == 256 - app.RESERVED
    assert ConnectionTable(Limits(connections=10), ServerMetrics(), descriptors=256).most == 10
    with pytest.raises(InputError, match="may open 64 files, a server needs more than 96: raise `ulimit -n`"):
        ConnectionTable(Limits(), ServerMetrics(), descriptors=64)


def test_few_connections_are_accepted_at_a_time():
    """asyncio accepts until it would block, and counts nothing before that."""
    with Listener() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        listening.setblocking(False)
        clients = [socket.create_connection(listening.getsockname()) for _ in range(app.ACCEPTED_TOGETHER + 4)]
        accepted = []
        for expected in (app.ACCEPTED_TOGETHER, app.ACCEPTED_TOGETHER + 4):
            with pytest.raises(BlockingIOError):
                while True:
                    accepted.append(listening.accept()[0])
            assert len(accepted) == expected
        for one in [*clients, *accepted]:
            one.close()


def test_a_message_is_let_through_once_a_minute():
    now = 0.0
    once = OncePerMinute(lambda: now)
    record, other = (logging.makeLogRecord({"msg": text}) for text in ("Invalid HTTP request received.", "other"))
    assert [once.filter(one) for one in (record, record, other)] == [True, False, True]
    now = 59.0
    assert not once.filter(record)
    now = 60.0
    assert once.filter(record)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("::ffff:192.0.2.7", 1, 0, 0), "192.0.2.7"),
        (("2001:db8::1", 1, 0, 0), "2001:db8::/64"),
        (("2001:db8::ffff:1", 1, 0, 0), "2001:db8::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        (None, "unknown"),
        ("", "unknown"),
    ],
)
def test_addresses_of_one_client_count_as_one(peer, address):
    assert address_of(peer) == address
