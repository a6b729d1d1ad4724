"""The worker's loop: what is answered together, what one request's failure means for the others. It has no model."""

import asyncio
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import ClassVar

import pytest

from ggss.errors import InputError
from ggss.models.reading import NoNumbers
from ggss.serve import engine
from ggss.serve.answers import AnswerPiece, AnswerStart
from ggss.serve.engine import (
    Ask,
    Cancel,
    Done,
    Failed,
    Heartbeat,
    JobQueue,
    Output,
    Reload,
    Reloaded,
    ServerGone,
    Started,
)
from ggss.serve.schema import ChatJob, ServedSteerer
from ggss.serve.vllm_engine import VllmProcess
from ggss.serve.worker import work
from ggss.steering.attach import NeverFired

LAST = Reload(-1, "the last request", "")


class InventedModel:
    """Answers with what was asked; some words are trouble."""

    facts: ClassVar = {"batches": 4, "cached_bytes": 5, "cache_hits": 1, "cache_misses": 2}

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def prepare(self, job, send, is_cancelled):
        text = job.turns[0][1][0]
        if text == "bad":
            raise InputError("that cannot be asked")
        return SimpleNamespace(text=text, job=job, send=send, is_cancelled=is_cancelled)

    def answer(self, jobs, poll) -> None:
        poll()
        self.batches.append([one.text for one in jobs])
        for one in jobs:
            one.send(AnswerStart(1, {}))
        for one in jobs:
            if one.is_cancelled():
                continue
            if one.text == "silent":
                raise NeverFired("the steerer did not act")
            if one.text == "damaged":
                raise NoNumbers("the model computes NaN")
            if one.text == "half" and len(jobs) > 1:
                one.send(AnswerPiece(0, "half", 1))
                raise RuntimeError
            if one.text == "poison":
                raise RuntimeError(one.text.upper())
            for choice in range(one.job.choices):
                one.send(AnswerPiece(choice, one.text, 1))
                one.send(AnswerPiece(choice, "", 1, [], "stop"))

    def load(self, name, folder):
        if name == LAST.name:
            raise ServerGone
        raise InputError("there is no such folder")


def received(connection) -> list:
    """All events until the worker closes its end."""
    events = []
    try:
        while True:
            events.append(connection.recv())
    except EOFError:
        return events


def worked(*requests, rows: int = 8) -> tuple[InventedModel, list]:
    """The model, and all events of a worker for which these requests wait when it starts."""
    worker_requests, to_worker = Pipe(duplex=False)
    from_worker, worker_events = Pipe(duplex=False)
    with worker_requests, to_worker, from_worker:
        for request in (*requests, LAST):
            to_worker.send(request)
        jobs, model = JobQueue(worker_requests, worker_events), InventedModel()
        while LAST not in jobs.waiting:
            jobs.poll()
        with worker_events, pytest.raises(ServerGone):
            work(jobs, model, rows)
        to_worker.close()
        return model, received(from_worker)


def ask(number: int, text: str, alone: bool = False, **job) -> Ask:
    return Ask(number, ChatJob([("user", [text])], **job), alone)


def about(events: list, number: int) -> list:
    return [event for event in events if getattr(event, "number", None) == number]


def kinds(events: list, number: int) -> list[type]:
    return [type(event) for event in about(events, number)]


def failures(events: list) -> dict[int, tuple[int, str]]:
    return {event.number: (event.status, event.sentence) for event in events if isinstance(event, Failed)}


def pieces(events: list, number: int) -> list[int]:
    """How many pieces each output has, after the start of the answer."""
    return [len(event.parts) for event in about(events, number) if isinstance(event, Output)][1:]


ANSWERED = [Output, Output, Done]  # the start of the answer, its pieces, and its end


def test_requests_that_wait_are_one_batch_up_to_its_rows():
    model, events = worked(*(ask(number, f"q{number}", choices=1 + (number == 1)) for number in range(5)), rows=3)
    assert model.batches == [["q0", "q1"], ["q2", "q3", "q4"]]
    assert [event.numbers for event in events if isinstance(event, Started)] == [[0, 1], [2, 3, 4]]
    for number in range(5):
        assert kinds(events, number) == ANSWERED
    assert events[-1].facts == model.facts


def test_a_request_is_done_before_its_batch_is():
    _, events = worked(ask(0, "short"), ask(1, "long", stream=True))
    assert events.index(about(events, 0)[-1]) < events.index(about(events, 1)[1])
    assert kinds(events, 0)[-1] is Done
    assert pieces(events, 0) == [2]
    assert pieces(events, 1) == [1, 1]


def test_one_that_is_tried_again_has_nobody_beside_it():
    model, _ = worked(ask(0, "a"), ask(1, "b", alone=True), ask(2, "c"))
    assert model.batches == [["a"], ["b"], ["c"]]


def test_one_request_cannot_fail_another(caplog):
    model, events = worked(ask(0, "a"), ask(1, "poison"), ask(2, "b"), ask(3, "bad"), ask(4, "silent"))
    assert model.batches == [["a", "poison", "b", "silent"], ["poison"], ["b"], ["silent"]]
    assert kinds(events, 0)[-1] is kinds(events, 2)[-1] is Done
    assert failures(events) == {
        1: (500, "a defect of the server (RuntimeError)"),
        3: (400, "that cannot be asked"),
        4: (500, "the steerer did not act"),
    }
    assert "POISON" not in caplog.text


def test_what_was_not_sent_of_a_failed_batch_is_not_sent_with_the_next_answer():
    model, events = worked(ask(0, "half"), ask(1, "b"))
    assert model.batches == [["half", "b"], ["half"], ["b"]]
    parts = [part for event in about(events, 0) if isinstance(event, Output) for part in event.parts]
    assert [part.text for part in parts if isinstance(part, AnswerPiece)] == ["half", ""]
    assert failures(events) == {}


def test_a_model_that_computes_no_numbers_is_not_the_fault_of_who_asks(caplog):
    _, events = worked(ask(0, "damaged"), ask(1, "bad"))
    assert failures(events) == {0: (500, "the model computes NaN"), 1: (400, "that cannot be asked")}
    assert "NoNumbers" in caplog.text


def test_a_stream_that_has_begun_is_not_begun_again():
    model, events = worked(ask(0, "a", stream=True, choices=2), ask(1, "b", stream=True), ask(2, "poison"))
    assert model.batches == [["a", "b", "poison"], ["poison"]]
    assert kinds(events, 0).count(Done) == 1
    assert list(failures(events)) == [2]


def test_what_is_cancelled_is_not_answered():
    model, events = worked(ask(0, "a"), ask(1, "b"), Cancel(0), Cancel(7))
    assert model.batches == [["b"]]
    assert kinds(events, 0) == [Done]
    assert kinds(events, 1) == ANSWERED


def test_a_steerer_that_is_refused_is_told():
    _, events = worked(ask(0, "a"), Reload(1, "race", "none"), ask(2, "b"))
    assert about(events, 1) == [Failed(1, 400, "there is no such folder")]
    assert kinds(events, 2)[-1] is Done


def test_a_heartbeat_is_sent_while_a_request_is_open(monkeypatch):
    monkeypatch.setattr(engine, "HEARTBEAT", -1.0)
    _, events = worked(ask(0, "a"))
    assert Heartbeat() in events
    assert not isinstance(events[-1], Heartbeat), "not after the last request"


class InventedVllm:
    """Answers with what was asked, as `VllmServed` does; "wait" never ends, "crash" takes vLLM with it."""

    def __init__(self) -> None:
        self.host = SimpleNamespace(dead=False, stop=lambda: None)
        self.cancelled: list[str] = []

    async def answer(self, job):
        text = job.turns[0][1][0]
        if text == "bad":
            raise InputError("that cannot be asked")
        if text == "crash":
            self.host.dead = True
            raise RuntimeError
        yield AnswerStart(1, {})
        if text == "wait":
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.append(text)
        yield AnswerPiece(0, text, 1)
        yield AnswerPiece(0, "", 1, [], "stop")

    async def load(self, name, folder):
        if folder == "none":
            raise InputError("there is no such folder")
        return ServedSteerer(folder, "ggss", name, 1.0, "0")


def served_by_vllm(*requests, last: int) -> tuple[int, InventedVllm, list]:
    """The exit code, the model and all events; the server closes the connection after the last event of a request."""
    worker_requests, to_worker = Pipe(duplex=False)
    from_worker, worker_events = Pipe(duplex=False)
    model, events = InventedVllm(), []

    async def run() -> int:
        process = asyncio.create_task(VllmProcess(jobs, model).run())
        while not process.done() and not (
            about(events, last) and kinds(events, last)[-1] in (Done, Failed, Reloaded)
        ):
            await asyncio.sleep(0)
            while from_worker.poll():
                events.append(from_worker.recv())
        to_worker.close()
        return await process

    with worker_requests, to_worker, from_worker:
        for request in requests:
            to_worker.send(request)
        with worker_events:
            jobs = JobQueue(worker_requests, worker_events)
            code = asyncio.run(run())
        return code, model, events + received(from_worker)


def test_vllm_gets_requests_as_they_arrive():
    requests = [
        ask(0, "a"),
        ask(1, "b", stream=True),
        ask(2, "bad"),
        Reload(3, "race", "none"),
        Reload(4, "race", "x"),
    ]
    code, _, events = served_by_vllm(*requests, ask(5, "wait"), Cancel(5), last=5)
    assert code == 0
    assert kinds(events, 0) == ANSWERED
    assert (pieces(events, 0), pieces(events, 1)) == ([2], [1, 1])
    assert failures(events) == {2: (400, "that cannot be asked"), 3: (400, "there is no such folder")}
    assert about(events, 4) == [Reloaded(4, "race", ServedSteerer("x", "ggss", "race", 1.0, "0"))]
    assert {number for event in events if isinstance(event, Started) for number in event.numbers} == {0, 1, 2, 5}


def test_a_request_that_vllm_works_on_can_be_cancelled():
    code, model, events = served_by_vllm(ask(0, "wait"), Cancel(0), last=0)
    assert code == 0
    assert kinds(events, 0)[-1] is Done
    assert pieces(events, 0) == []
    assert model.cancelled == ["wait"]


def test_the_process_ends_if_vllm_has_ended():
    code, _, events = served_by_vllm(ask(0, "wait"), ask(1, "crash"), last=1)
    assert code == 1
    assert failures(events) == {}, "the server starts another process, which gets the request"
