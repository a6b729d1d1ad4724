"""The process in which the model runs: `python -m ggss.serve.worker_process FD`, started by `worker_engine`.

It reads messages from a socket, answers all requests that wait in one batch, and ends when the socket is closed.
Requests that come while a batch runs wait for the next one.
"""

import logging
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from ggss.errors import InputError
from ggss.serve.chat_job import ChatJob
from ggss.serve.engine import AnswerPiece, Began
from ggss.serve.frames import Message
from ggss.serve.job_failure import failure, refused_reload
from ggss.serve.job_queue import Gone, JobQueue

if TYPE_CHECKING:
    from ggss.serve.served_model import Give, PreparedJob, ServedModel

log = logging.getLogger("ggss")


def work(jobs: JobQueue, model: "ServedModel", most_rows: int) -> None:
    """Do what messages say, until the server is gone."""
    while True:
        message, pictures = jobs.next()
        if message["do"] == "reload":
            jobs.tell(_reloaded(model, message))
            continue
        jobs.poll()
        batch = [(message, pictures)]
        rows = message["job"]["choices"]
        while jobs.waiting and jobs.waiting[0][0]["do"] == "ask" and not message["alone"]:
            rows += jobs.waiting[0][0]["job"]["choices"]
            if rows > most_rows or jobs.waiting[0][0]["alone"]:
                break
            batch.append(jobs.waiting.popleft())
        jobs.tell({"event": "started", "ids": [one["id"] for one, _ in batch]})
        _answer(jobs, model, batch)


def _answer(jobs: JobQueue, model: "ServedModel", batch: Sequence[tuple[Message, list[bytes]]]) -> None:
    ready: dict[int, PreparedJob] = {}
    for message, pictures in batch:
        number, job = message["id"], ChatJob.of_message(message["job"], pictures)
        if jobs.gone(number):
            _done(jobs, model, number)
            continue
        try:
            ready[number] = model.prepare(job, _teller(jobs, model, number, job), partial(jobs.gone, number))
        except Exception as error:
            _fail(jobs, number, error)
    if not ready:
        return
    try:
        _run(jobs, model, ready)
    except Exception as error:
        if len(ready) > 1:
            log.warning("a batch of %d requests failed (%s): each is tried alone", len(ready), type(error).__name__)
        for number, one in ready.items():
            # One request cannot fail another, unless a part of its answer is out already.
            if not jobs.is_open(number):
                continue
            if len(ready) == 1 or jobs.streamed(number):
                _fail(jobs, number, error)
            else:
                _run_alone(jobs, model, number, one)


def _teller(jobs: JobQueue, model: "ServedModel", number: int, job: ChatJob) -> "Give":
    """Tells the server of one request; it is done with its last choice, while others of its batch go on."""
    left = job.choices

    def tell(event: Began | AnswerPiece) -> None:
        nonlocal left
        jobs.give(number, job.stream, event)
        if isinstance(event, Began):
            left = job.choices  # it may begin again, alone
        elif event.finish:
            left -= 1
            if not left:
                _done(jobs, model, number)

    return tell


def _run_alone(jobs: JobQueue, model: "ServedModel", number: int, one: "PreparedJob") -> None:
    jobs.drop(number)
    try:
        _run(jobs, model, {number: one})
    except Exception as error:
        _fail(jobs, number, error)


def _run(jobs: JobQueue, model: "ServedModel", ready: "dict[int, PreparedJob]") -> None:
    model.answer(list(ready.values()), jobs.poll)
    for number in filter(jobs.is_open, ready):
        _done(jobs, model, number)  # cancelled, so that nothing was its last


def _done(jobs: JobQueue, model: "ServedModel", number: int) -> None:
    jobs.flush(number)
    jobs.tell({"event": "done", "id": number, "facts": model.facts})
    jobs.forget(number)


def _fail(jobs: JobQueue, number: int, error: Exception) -> None:
    jobs.tell(failure(number, error))
    jobs.forget(number)


def _reloaded(model: "ServedModel", message: Message) -> Message:
    try:
        steerer = model.load(message["name"], message["folder"])
    except Exception as error:
        return refused_reload(message["id"], error)
    return {"event": "reloaded", "id": message["id"], "steerer": asdict(steerer)}


def loaded(setup: Message) -> "tuple[ServedModel, Message]":
    """The model and its steerers, and what the server is told of them."""
    import torch

    from ggss.models import load_vlm
    from ggss.serve.served_model import ServedModel

    if setup["threads"]:
        torch.set_num_threads(setup["threads"])
    vlm = load_vlm(setup["model"], setup["dtype"], setup["device_map"], attention=setup["attention"])
    model = ServedModel(vlm, setup["cache_bytes"], setup["most_tokens"], setup["prompt_tokens"])
    steerers = {
        name: asdict(model.load(name, folder, expected)) for name, (folder, expected) in setup["steerers"].items()
    }
    return model, {"event": "ready", "model": vlm.identity.hash, "steerers": steerers}


def main(arguments: list[str]) -> int:
    """Until the server is gone, or the model cannot be loaded."""
    for one in (signal.SIGINT, signal.SIGTERM):  # they may reach all processes of a group; the server ends this one
        signal.signal(one, signal.SIG_IGN)
    jobs = JobQueue(socket.socket(fileno=int(arguments[0])))
    try:
        (setup, _), model = jobs.next(), None
        try:
            model, message = loaded(setup)
        except InputError as error:
            message = {"event": "refused", "sentence": str(error)}
        jobs.tell(message)
        if model is not None:
            work(jobs, model, setup["most_rows"])
    except Gone:
        return 0
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
