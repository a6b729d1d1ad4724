"""The engine and its worker's process: answers, cancelling, death, hanging, reloading. The worker has no model."""

import asyncio
import os
import re
import signal
import socket
import sys
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from ggss.errors import InputError
from ggss.serve import app as running_server
from ggss.serve import engine
from ggss.serve.answers import AnswerPiece, AnswerStart
from ggss.serve.engine import WorkerEngine, WorkerSetup
from ggss.serve.guard import ApiKeys, Guard, ServerMetrics
from ggss.serve.schema import ChatJob, Limits, Refusal

COMMAND = (sys.executable, str(Path(__file__).parents[1] / "invented_worker.py"))


@asynccontextmanager
async def running(folder: Path, patience: float = 60.0, lost=lambda: None):
    (folder / "race").write_text("v1")
    setup = WorkerSetup(str(folder), {"race": str(folder / "race")}, 4, 8, 100, 0)
    engine = WorkerEngine(setup, patience, lost, COMMAND)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
        assert engine._worker.exit_code is not None


def job(text: str, pictures: int = 0) -> ChatJob:
    """It streams: what a worker that dies has answered is known."""
    return ChatJob([("user", [text])], [b"\n" * 100_000] * pictures, stream=True)


async def answer(engine: WorkerEngine, text: str, pictures: int = 0) -> str:
    async with aclosing(engine.ask(job(text, pictures))) as events:
        start, *pieces = [part async for part in events]
    assert isinstance(start, AnswerStart)
    assert all(isinstance(piece, AnswerPiece) for piece in pieces), "an answer starts once"
    return "".join(piece.text for piece in pieces)


def test_requests_are_answered_together(tmp_path):
    async def run():
        async with running(tmp_path) as engine:
            assert engine.ready
            assert engine.steerers["race"].content == "v1"
            said = await asyncio.gather(*(answer(engine, f"q{number}", number) for number in range(5)))
            assert said == [f"q{number} {number}" for number in range(5)]
            with pytest.raises(Refusal, match="that was wrong") as caught:
                await answer(engine, "wrong")
            assert caught.value.status == 400
            assert engine.facts == {"cached_bytes": 7, "cache_hits": 1, "cache_misses": 2, "worker_restarts": 0}

    asyncio.run(run())


def test_a_request_that_is_closed_early_is_cancelled(tmp_path):
    async def run():
        async with running(tmp_path) as engine:
            async with aclosing(engine.ask(job("wait for cancel"))) as events:
                await anext(events)
            assert await answer(engine, "next") == "next 0"

    asyncio.run(run())


def test_a_worker_that_dies_is_replaced_and_its_request_tried_once_more_alone(tmp_path):
    async def run():
        async with running(tmp_path) as engine:
            said = await asyncio.gather(answer(engine, "die once"), answer(engine, "other", 3))
            assert said == ["die once alone 0", "other 3"]
            assert engine.facts["worker_restarts"] == 1
            assert engine.ready
            assert await answer(engine, "start and die once") == "start and die once alone 0"

    asyncio.run(run())


@pytest.mark.parametrize(("text", "restarts"), [("die", 2), ("die later", 1)])
def test_a_request_that_kills_twice_or_has_begun_its_answer_is_refused(tmp_path, text, restarts):
    async def run():
        async with running(tmp_path) as engine:
            refused, other = await asyncio.gather(answer(engine, text), answer(engine, "x"), return_exceptions=True)
            assert isinstance(refused, Refusal)
            assert refused.status == 503
            assert other == "x 0"
            assert engine.facts["worker_restarts"] == restarts

    asyncio.run(run())


def test_a_worker_whose_event_cannot_be_read_is_replaced(tmp_path):
    async def run():
        async with running(tmp_path) as engine:
            assert await answer(engine, "damaged once") == "damaged once alone 0"
            assert engine.facts["worker_restarts"] == 1

    asyncio.run(run())


def test_a_worker_that_reads_nothing_does_not_stop_the_server(tmp_path):
    """More is sent to it than a pipe holds."""

    async def run():
        async with running(tmp_path) as engine:
            os.kill(engine._worker._process.pid, signal.SIGSTOP)
            answers = [asyncio.ensure_future(answer(engine, f"q{number}", 5)) for number in range(4)]
            await asyncio.sleep(0)
            assert len(engine._tickets) == 4
            os.kill(engine._worker._process.pid, signal.SIGCONT)
            assert await asyncio.gather(*answers) == [f"q{number} 5" for number in range(4)]

    asyncio.run(run())


def test_a_worker_that_hangs_is_replaced(tmp_path):
    async def run():
        async with running(tmp_path, patience=0.3) as engine:
            with pytest.raises(Refusal) as caught:
                await answer(engine, "hang")
            assert caught.value.status == 503
            engine.patience = 60.0  # what is being waited for may still end the next worker, once
            assert (await answer(engine, "next")).startswith("next")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("race", "race is not the one that was checked"),
        ("race-alpha", "the steerer 'race' has changed while the server was running"),
        ("identity", "the model '.*' has changed while the server was running"),
    ],
)
def test_a_replaced_worker_must_have_the_model_and_the_steerers_that_were_checked(
    tmp_path, monkeypatch, caplog, file, said
):
    monkeypatch.setattr(engine, "PAUSE", 0.0)
    ended = []

    async def run():
        async with running(tmp_path, lost=lambda: ended.append(1)) as engine:
            (tmp_path / file).write_text("another")
            with pytest.raises(Refusal) as caught:
                await answer(engine, "die once")
            assert caught.value.status == 503
            assert not engine.ready

    asyncio.run(run())
    assert ended == [1]
    assert re.search(said, caplog.text)


def test_reloading_and_going_back(tmp_path):
    async def run():
        async with running(tmp_path) as engine:
            (tmp_path / "new").write_text("v2")
            with pytest.raises(Refusal, match="no such folder"):
                await engine.reload("race", str(tmp_path / "none"))
            assert engine.steerers["race"].content == "v1"
            assert (await engine.reload("race", str(tmp_path / "new"))).content == "v2"
            await answer(engine, "die once")  # the next worker loads what is used now
            assert engine.steerers["race"].content == "v2"
            assert (await engine.reload("race", str(tmp_path / "race"))).content == "v1"

    asyncio.run(run())


def test_a_reload_whose_client_has_gone_still_counts(tmp_path):
    """The worker uses the new steerer, so the server must say so, and go on."""

    async def run():
        async with running(tmp_path) as engine:
            (tmp_path / "new").write_text("v2")
            reload = asyncio.create_task(engine.reload("race", str(tmp_path / "new")))
            await asyncio.sleep(0)
            reload.cancel()
            assert await answer(engine, "next") == "next 0"
            assert engine.steerers["race"].content == "v2"
            refused = asyncio.create_task(engine.reload("race", str(tmp_path / "none")))
            await asyncio.sleep(0)
            refused.cancel()
            assert await answer(engine, "next") == "next 0"
            assert engine.steerers["race"].content == "v2"

    asyncio.run(run())


def test_a_model_that_cannot_be_loaded_is_a_sentence(tmp_path):
    async def run(command):
        engine = WorkerEngine(WorkerSetup("none", {}, 4, 8, 100, 0), 60.0, command=command)
        await engine.start()

    with pytest.raises(InputError, match=r"ended while it was loading \(exit code 1\)"):
        asyncio.run(run((sys.executable, "-c", "raise SystemExit(1)")))


def test_a_server_that_says_it_is_ready_can_be_reached(monkeypatch):
    """Also by somebody who is faster than the server's next step."""

    class Idle:
        def __init__(self, *_: object) -> None: ...

        async def start(self) -> None: ...

        async def stop(self) -> None: ...

    def reached(line: str) -> None:
        socket.create_connection(here.getsockname()).close()
        said.append(line)
        os.kill(os.getpid(), signal.SIGTERM)

    async def app(scope: object, receive: object, send: object) -> None: ...

    limits = Limits(seconds=1.0)
    monkeypatch.setattr(running_server, "WorkerEngine", Idle)
    monkeypatch.setattr(
        running_server, "make_app", lambda *_: Guard(app, limits, ApiKeys([]), ApiKeys([]), ServerMetrics())
    )
    said: list[str] = []
    settings = SimpleNamespace(limits=limits)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with running_server.bound("127.0.0.1", 0, ApiKeys([])) as here:
            port = here.getsockname()[1]
            assert running_server.run(None, settings, here, reached)
        assert said == [f"ready: http://127.0.0.1:{port}/v1"]
    finally:
        signal.signal(signal.SIGTERM, before)
