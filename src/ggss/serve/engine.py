"""An engine: a model in one process of its own, be it transformers' or vLLM's, which is replaced when it dies.

A request whose process died is given to the next one, once, and alone; if it has been started twice, or a part of its
answer is out, it is refused with 503. It is never answered by anything but a worker that has loaded and checked every
steerer.

Messages between the server and the worker: a line of JSON, then the pictures that belong to it as they are.

Nothing is pickled, so a damaged message can be refused but never run.
"""

import asyncio
import itertools
import json
import logging
import queue
import socket
import sys
import threading
import time
from asyncio import IncompleteReadError, StreamReader
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

from ggss.errors import InputError
from ggss.serve.schema import AnswerPiece, Began, ChatJob, Refusal, ServedSteerer, SteeringRecord, wrong

LONGEST_LINE = 64 * 2**20  # bytes
SIZES = "sizes"  # of the pictures that follow the line

Message = dict[str, Any]


def framed(message: Message, pictures: Sequence[bytes] = ()) -> bytes:
    sized = {**message, SIZES: [len(one) for one in pictures]} if pictures else message
    return b"".join([json.dumps(sized).encode(), b"\n", *pictures])


def received(stream: BinaryIO) -> tuple[Message, list[bytes]] | None:
    """The next message and its pictures; None if the other side is gone."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    message = json.loads(line)
    pictures = [stream.read(size) for size in message.pop(SIZES, ())]
    return message, pictures


async def heard_whole(stream: StreamReader) -> tuple[Message, list[bytes]] | None:
    """What `received` gives, from a stream of asyncio."""
    message = await heard(stream)
    if message is None:
        return None
    try:
        return message, [await stream.readexactly(size) for size in message.pop(SIZES, ())]
    except (OSError, IncompleteReadError):
        return None


async def heard(stream: StreamReader) -> Message | None:
    """The next message without its pictures, of which none from a worker has any; None if the other side is gone."""
    try:
        line = await stream.readline()
    except OSError:  # reset by the other side's death
        return None
    return json.loads(line) if line.endswith(b"\n") else None


TRIES = 3  # processes in a row that do not come up, after which the server gives up
PAUSE = 1.0  # seconds before the second of them
# -P: no module of the current directory takes the place of another.
_PYTHON = (sys.executable, "-P", "-m")
WORKER = (*_PYTHON, "ggss.serve.worker")
COMMANDS = {"transformers": WORKER, "vllm": (*_PYTHON, "ggss.serve.vllm_engine")}
"""What runs the model, by the engine's name."""

log = logging.getLogger("ggss")


QUIET = 1.0  # seconds without a word, after which a busy worker says that it is alive


class Gone(BaseException):
    """The server has closed the socket."""


class JobQueue:
    """The worker's side of the socket: receives requests from the server in order and sends events back."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._arrived: queue.SimpleQueue[tuple[Message, list[bytes]] | None] = queue.SimpleQueue()
        self.waiting: deque[tuple[Message, list[bytes]]] = deque()
        self._asked: set[int] = set()
        self._cancelled: set[int] = set()
        self._held: dict[int, list[Message]] = {}
        self._streamed: set[int] = set()
        self._said = time.monotonic()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with self._connection.makefile("rb") as stream:
            while (message := received(stream)) is not None:
                self._arrived.put(message)
        self._arrived.put(None)

    def tell(self, message: Message) -> None:
        try:
            self._connection.sendall(framed(message))
        except OSError as error:
            raise Gone from error
        self._said = time.monotonic()

    def next(self) -> tuple[Message, list[bytes]]:
        """The next message, once there is one."""
        self.poll()
        while not self.waiting:
            self._sort(self._arrived.get())
        return self.waiting.popleft()

    def poll(self) -> None:
        """Take in what has arrived; a heartbeat if nothing was sent for a while."""
        while not self._arrived.empty():
            self._sort(self._arrived.get())
        if time.monotonic() - self._said > QUIET:
            self.tell({"event": "alive"})

    def is_open(self, number: int) -> bool:
        """Whether a request was asked and is not over."""
        return number in self._asked

    def gone(self, number: int) -> bool:
        """Whether a request was cancelled."""
        return number in self._cancelled

    def streamed(self, number: int) -> bool:
        """Whether a part of the answer has been told."""
        return number in self._streamed

    def drop(self, number: int) -> None:
        """The answer begins again: what was not told of it never will be."""
        self._held.pop(number, None)

    def forget(self, number: int) -> None:
        """The request is over."""
        self.drop(number)
        self._asked.discard(number)
        self._cancelled.discard(number)
        self._streamed.discard(number)

    def give(self, number: int, stream: bool, event: Began | AnswerPiece) -> None:
        """Tell of a request. If it does not stream, all its pieces are told together: a message costs time."""
        if isinstance(event, Began):
            return self.tell({"event": "began", "id": number, **asdict(event)})
        self._held.setdefault(number, []).append(asdict(event))
        if stream:
            self._streamed.add(number)
            self.flush(number)

    def flush(self, number: int) -> None:
        if held := self._held.pop(number, None):
            self.tell({"event": "pieces", "id": number, "pieces": held})

    def _sort(self, message: tuple[Message, list[bytes]] | None) -> None:
        if message is None:
            raise Gone
        if message[0]["do"] == "cancel":
            self._cancelled |= self._asked & {message[0]["id"]}  # it may be over already
            return
        if message[0]["do"] == "ask":
            self._asked.add(message[0]["id"])
        self.waiting.append(message)


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker loads. steerers: folders by name. threads: of torch; None: as many as it likes."""

    model: str
    steerers: Mapping[str, str]
    most_rows: int
    most_tokens: int
    prompt_tokens: int
    cache_bytes: int
    most_pictures: int = 8
    dtype: str | None = None
    device_map: str | None = None
    attention: str | None = None
    threads: int | None = None
    any_model: bool = False
    """Whether steerers may be of other models, or of models that they do not record."""
    max_side: int | None = None
    """Pixels of a picture's longer side, at most."""


@dataclass
class Ticket:
    """A request that is not answered yet."""

    job: ChatJob
    events: "asyncio.Queue[Began | AnswerPiece | Refusal | None]" = field(default_factory=asyncio.Queue)
    starts: int = 0
    began: bool = False
    answered: bool = False
    """Whether a part of the answer is out."""


class WorkerEngine:
    """lost: called if no worker comes up any more. patience: seconds in which a worker that has something to do must
    send a heartbeat, else it is replaced. command: what is run, with the number of a socket as last argument."""

    def __init__(
        self,
        setup: WorkerSetup,
        patience: float,
        lost: Callable[[], None] = lambda: None,
        command: Sequence[str] = WORKER,
    ) -> None:
        self.setup, self.patience, self._lost, self._command = setup, patience, lost, command
        self._running: set[int] = set()
        self._model: str | None = None  # the hash of its identity, once it is loaded
        self._steerers: dict[str, ServedSteerer] = {}
        self._tickets: dict[int, Ticket] = {}
        self._reloads: dict[int, asyncio.Future[Message]] = {}
        self._numbers = itertools.count()
        self._facts: dict[str, float] = {}  # what the worker counts; vLLM counts in its own way
        self._restarts = 0
        self._ready = False
        self._listening: asyncio.Task[None] | None = None

    @property
    def steerers(self) -> Mapping[str, ServedSteerer]:
        return self._steerers

    @property
    def ready(self) -> bool:
        return self._ready

    @property
    def facts(self) -> Mapping[str, float]:
        return self._facts | {"worker_restarts": self._restarts}

    async def start(self) -> None:
        """Load the model. InputError if it or a steerer cannot be used."""
        await self._launch()
        self._listening = asyncio.create_task(self._listen())

    async def stop(self) -> None:
        """End the worker; it ends by itself when the socket is closed."""
        if self._listening is not None:
            self._listening.cancel()
        self._ready = False
        self._writer.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def ask(self, job: ChatJob) -> AsyncGenerator[Began | AnswerPiece]:
        number, ticket = next(self._numbers), Ticket(job)
        self._tickets[number] = ticket
        self._send(number)
        try:
            while (event := await ticket.events.get()) is not None:
                if isinstance(event, Refusal):
                    raise event
                yield event
        finally:
            if self._tickets.pop(number, None) is not None and self._ready:
                self._writer.write(framed({"do": "cancel", "id": number}))

    async def reload(self, name: str, folder: str) -> ServedSteerer:
        if not self._ready:
            raise Refusal(503, "the model is being loaded again: try later", headers={"Retry-After": "5"})
        number = next(self._numbers)
        self._reloads[number] = asyncio.get_running_loop().create_future()
        self._writer.write(framed({"do": "reload", "id": number, "name": name, "folder": folder}))
        answer = await self._reloads[number]
        if "sentence" in answer:
            raise wrong(answer["sentence"], "folder")
        self._steerers[name] = ServedSteerer(**answer["steerer"])
        return self._steerers[name]

    async def _launch(self) -> None:
        here, there = socket.socketpair()
        with there:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, str(there.fileno()), pass_fds=[there.fileno()]
            )
        self._reader, self._writer = await asyncio.open_connection(sock=here, limit=LONGEST_LINE)
        # A folder that was changed since its steerer was checked is refused.
        known = {name: one.content for name, one in self._steerers.items()}
        folders = dict(self.setup.steerers) | {name: one.folder for name, one in self._steerers.items()}
        steerers = {name: (folder, known.get(name)) for name, folder in folders.items()}
        self._writer.write(framed({"do": "load", **asdict(self.setup), "steerers": steerers}))
        message = await heard(self._reader)
        if message is None or message["event"] != "ready":
            code = await self._process.wait()
            self._writer.close()
            said = f"the model's process ended while it was loading (exit code {code}): is there enough memory?"
            raise InputError(said if message is None else message["sentence"])
        steerers = {name: ServedSteerer(**one) for name, one in message["steerers"].items()}
        if changed := self._changed(message["model"], steerers):
            self._writer.close()  # which ends it
            await self._process.wait()
            raise InputError(f"{changed} while the server was running: put it back, or start the server again")
        self._model, self._steerers = message["model"], self._steerers | steerers
        self._ready = True

    def _changed(self, model: str, steerers: Mapping[str, ServedSteerer]) -> str:
        """What a new worker has loaded that is not what the one before it had; "" if nothing is."""
        if self._model not in (None, model):
            return f"the model {self.setup.model!r} has changed"
        other = [name for name, one in steerers.items() if self._steerers.get(name, one) != one]
        return f"the steerer {other[0]!r} has changed" if other else ""

    async def _listen(self) -> None:
        """Hand on what workers say, and replace those that die."""
        while True:
            while (message := await self._heard()) is not None:
                self._told(message)
            self._ready = False
            self._running.clear()
            self._writer.close()
            log.error("the model's process has died (exit code %s): it is replaced", await self._process.wait())
            self._restarts += 1
            self._refuse_twice_started()
            if not await self._relaunched():
                self._refuse_all()
                return self._lost()
            for number in self._tickets:
                self._send(number)

    async def _heard(self) -> Message | None:
        """The worker's next message; None if it is gone. One that does not react any more is killed."""
        while True:
            try:
                return await asyncio.wait_for(heard(self._reader), self.patience)
            except TimeoutError:
                if self._running:
                    log.error("the model's process sends no heartbeat")
                    self._process.kill()
            except ValueError:  # what it says is no message: it cannot be trusted any more
                return None

    def _told(self, message: Message) -> None:
        event = message["event"]
        if event == "started":
            self._running |= set(message["ids"])
            for number in self._tickets.keys() & set(message["ids"]):
                self._tickets[number].starts += 1
        elif event == "reloaded":
            self._reloads.pop(message["id"]).set_result(message)
        elif (ticket := self._tickets.get(message.get("id", -1))) is not None:
            self._told_of(ticket, message)
        if event in ("done", "failed"):
            self._running.discard(message["id"])
            self._facts |= message.get("facts", {})

    def _told_of(self, ticket: Ticket, message: Message) -> None:
        event = message["event"]
        if event == "began" and not ticket.began:  # one that is started again begins again
            steering = {name: SteeringRecord(**one) for name, one in message["steering"].items()}
            ticket.began = True
            ticket.events.put_nowait(Began(message["prompt_tokens"], steering))
        elif event == "pieces":
            ticket.answered = True
            for piece in message["pieces"]:
                ticket.events.put_nowait(AnswerPiece(**piece))
        elif event == "failed":
            self._finish(message["id"], Refusal(message["status"], message["sentence"]))
        elif event == "done":
            self._finish(message["id"], None)

    def _send(self, number: int) -> None:
        """Give a request to the worker; if it is being replaced, the next one gets it."""
        if self._ready:
            ticket = self._tickets[number]
            message = {"do": "ask", "id": number, "alone": ticket.starts > 0, "job": ticket.job.message()}
            self._writer.write(framed(message, ticket.job.pictures))

    def _finish(self, number: int, last: Refusal | None) -> None:
        self._tickets.pop(number).events.put_nowait(last)

    def _refuse_twice_started(self) -> None:
        for number, ticket in list(self._tickets.items()):
            if ticket.answered or ticket.starts > 1:
                said = "the model's process died while it worked on this request, and nothing was answered"
                self._finish(number, Refusal(503, said, headers={"Retry-After": "5"}))
        for waiting in self._reloads.values():
            waiting.set_result({"sentence": "the model's process died before the steerer was checked: try again"})
        self._reloads.clear()

    def _refuse_all(self) -> None:
        for number in list(self._tickets):
            self._finish(number, Refusal(503, "the model cannot be loaded any more: the server ends"))

    async def _relaunched(self) -> bool:
        for attempt in range(TRIES):
            await asyncio.sleep(PAUSE * attempt)
            try:
                await self._launch()
                return True
            except InputError as error:
                log.error("the model's process did not come up: %s", error)
        return False
