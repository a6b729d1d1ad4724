"""The worker's loop: what is answered together, what one request's failure means for the others. It has no model."""

import json
import socket
from types import SimpleNamespace
from typing import ClassVar

import pytest

from ggss.errors import InputError
from ggss.models.reading import NoNumbers
from ggss.serve.engine import Gone, JobQueue, framed
from ggss.serve.schema import AnswerPiece, Began, ChatJob
from ggss.serve.worker import work
from ggss.steering.attach import NeverFired

LAST = "the last message"


class InventedModel:
    """Answers with what was asked; some words are trouble."""

    facts: ClassVar = {"batches": 4, "cached_bytes": 5, "cache_hits": 1, "cache_misses": 2}

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def prepare(self, job, give, gone):
        text = job.turns[0][1][0]
        if text == "bad":
            raise InputError("that cannot be asked")
        return SimpleNamespace(text=text, job=job, give=give, gone=gone)

    def answer(self, jobs, poll) -> None:
        poll()
        self.batches.append([one.text for one in jobs])
        for one in jobs:
            one.give(Began(1, {}))
        for one in jobs:
            if one.gone():
                continue
            if one.text == "silent":
                raise NeverFired("the steerer did not act")
            if one.text == "damaged":
                raise NoNumbers("the model computes NaN")
            if one.text == "poison":
                raise RuntimeError(one.text.upper())
            for choice in range(one.job.choices):
                one.give(AnswerPiece(choice, one.text, 1))
                one.give(AnswerPiece(choice, "", 1, [], "stop"))

    def load(self, name, folder):
        if name == LAST:
            raise Gone
        raise InputError("there is no such folder")


def told(*messages: dict, rows: int = 8) -> tuple[InventedModel, list[dict]]:
    """All that a worker tells of messages that wait for it when it starts."""
    here, there = socket.socketpair()
    with here:
        every = [*messages, {"do": "reload", "id": -1, "name": LAST, "folder": ""}]
        here.sendall(b"".join(framed(one) for one in every))
        jobs, model = JobQueue(there), InventedModel()
        while len(jobs.waiting) < sum(one["do"] != "cancel" for one in every):
            jobs.poll()
        with pytest.raises(Gone):
            work(jobs, model, rows)
        there.shutdown(socket.SHUT_RDWR)
        there.close()
        with here.makefile("rb") as stream:
            return model, [json.loads(line) for line in stream]


def ask(number: int, text: str, alone: bool = False, **job) -> dict:
    return {"do": "ask", "id": number, "alone": alone, "job": ChatJob([("user", [text])], **job).message()}


def events(messages: list[dict], number: int) -> list[str]:
    return [one["event"] for one in messages if one.get("id") == number]


def test_requests_that_wait_are_one_batch_up_to_its_rows():
    model, messages = told(*(ask(number, f"q{number}", choices=1 + (number == 1)) for number in range(5)), rows=3)
    assert model.batches == [["q0", "q1"], ["q2", "q3", "q4"]]
    assert [one["ids"] for one in messages if one["event"] == "started"] == [[0, 1], [2, 3, 4]]
    for number in range(5):
        assert events(messages, number) == ["began", "pieces", "done"]
    assert messages[-1]["facts"] == model.facts


def test_a_request_is_done_before_its_batch_is():
    _, messages = told(ask(0, "short"), ask(1, "long", stream=True))
    order = [(one["event"], one.get("id")) for one in messages]
    assert order.index(("done", 0)) < order.index(("pieces", 1))
    assert [len(one["pieces"]) for one in messages if one.get("id") == 0 and one["event"] == "pieces"] == [2]
    assert [len(one["pieces"]) for one in messages if one.get("id") == 1 and one["event"] == "pieces"] == [1, 1]


def test_one_that_is_tried_again_has_nobody_beside_it():
    model, _ = told(ask(0, "a"), ask(1, "b", alone=True), ask(2, "c"))
    assert model.batches == [["a"], ["b"], ["c"]]


def test_one_request_cannot_fail_another(caplog):
    model, messages = told(ask(0, "a"), ask(1, "poison"), ask(2, "b"), ask(3, "bad"), ask(4, "silent"))
    assert model.batches == [["a", "poison", "b", "silent"], ["poison"], ["b"], ["silent"]]
    assert events(messages, 0)[-1] == events(messages, 2)[-1] == "done"
    failed = {one["id"]: (one["status"], one["sentence"]) for one in messages if one["event"] == "failed"}
    assert failed == {
        1: (500, "a defect of the server (RuntimeError)"),
        3: (400, "that cannot be asked"),
        4: (500, "the steerer did not act"),
    }
    assert "POISON" not in caplog.text


def test_a_model_that_computes_no_numbers_is_not_the_fault_of_who_asks(caplog):
    _, messages = told(ask(0, "damaged"), ask(1, "bad"))
    failed = {one["id"]: (one["status"], one["sentence"]) for one in messages if one["event"] == "failed"}
    assert failed == {0: (500, "the model computes NaN"), 1: (400, "that cannot be asked")}
    assert "NoNumbers" in caplog.text


def test_a_stream_that_has_begun_is_not_begun_again():
    model, messages = told(ask(0, "a", stream=True, choices=2), ask(1, "b", stream=True), ask(2, "poison"))
    assert model.batches == [["a", "b", "poison"], ["poison"]]
    assert events(messages, 0).count("done") == 1
    assert [one["id"] for one in messages if one["event"] == "failed"] == [2]


def test_what_is_cancelled_is_not_answered():
    model, messages = told(ask(0, "a"), ask(1, "b"), {"do": "cancel", "id": 0}, {"do": "cancel", "id": 7})
    assert model.batches == [["b"]]
    assert events(messages, 0) == ["done"]
    assert events(messages, 1) == ["began", "pieces", "done"]


def test_a_steerer_that_is_refused_is_told():
    _, messages = told(ask(0, "a"), {"do": "reload", "id": 1, "name": "race", "folder": "none"}, ask(2, "b"))
    assert events(messages, 1) == ["reloaded"]
    assert next(one for one in messages if one.get("id") == 1)["sentence"] == "there is no such folder"
    assert events(messages, 2)[-1] == "done"
