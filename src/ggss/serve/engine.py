"""The engine: the process that has the model, and the two ends of the connection to it.

The server sends `WorkerRequest`s and gets `WorkerEvent`s back: frozen dataclasses, which `multiprocessing` pickles,
over two pipes between the two processes. Nothing that comes over HTTP is ever unpickled.

A request goes this way, whether transformers or vLLM runs the model:

    Ask -> Started -> Output (an AnswerStart, then AnswerPieces) -> Done or Failed

`JobQueue` is the worker's end, `WorkerProcess` the server's. `WorkerEngine` replaces a process that dies or hangs. A
request that was waiting in it is sent to the next process; one that it had started is repeated once, alone. A request
that was started twice, or of which a part is already answered, is refused with 503. No request is ever answered by a
process that has not loaded and checked every steerer.
"""

import asyncio
import itertools
import logging
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from ggss.errors import InputError
from ggss.serve.answers import AnswerPart, AnswerPiece, AnswerStart
from ggss.serve.schema import ChatJob, Refusal, ServedSteerer, bad_request

HEARTBEAT = 1.0  # seconds without an event, after which a busy worker sends a heartbeat
LAUNCHES = 3  # processes in a row that do not start, after which the server gives up
PAUSE = 1.0  # seconds before the second of them; twice as many before the third
ENDING = 10.0  # seconds in which a worker ends by itself, before it is killed

# -P: a module in the current directory never replaces a library's. multiprocessing.Process would look there first.
_PYTHON = (sys.executable, "-P", "-m")
COMMANDS = {"transformers": (*_PYTHON, "ggss.serve.worker"), "vllm": (*_PYTHON, "ggss.serve.vllm_engine")}
"""The program of a worker, by the engine's name."""

log = logging.getLogger("ggss")


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker loads. steerers: folders by name. threads: of torch; None: torch's default."""

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
    """Whether steerers may be made for another model, or not say for which."""
    max_side: int | None = None
    """Pixels of a picture's longer side, at most."""


@dataclass(frozen=True)
class Load:
    """The first request to a worker. contents: hashes that steerers must have, by name; others may have any."""

    setup: WorkerSetup
    contents: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ask:
    """number: names the request in all events about it. alone: in a batch with no other request."""

    number: int
    job: ChatJob
    alone: bool = False


@dataclass(frozen=True)
class Cancel:
    """The client of a request is gone."""

    number: int


@dataclass(frozen=True)
class Reload:
    """Replace a steerer by the one in a folder."""

    number: int
    name: str
    folder: str


WorkerRequest = Load | Ask | Cancel | Reload


@dataclass(frozen=True)
class Ready:
    """Everything is loaded and checked. model: the hash of its identity."""

    model: str
    steerers: Mapping[str, ServedSteerer]


@dataclass(frozen=True)
class NotLoaded:
    """The model or a steerer cannot be used; the worker ends."""

    sentence: str


@dataclass(frozen=True)
class Started:
    """The worker has begun with these requests."""

    numbers: Sequence[int]


@dataclass(frozen=True)
class Output:
    """The next parts of an answer."""

    number: int
    parts: Sequence[AnswerPart]


@dataclass(frozen=True)
class Done:
    """A request is answered, or was cancelled. facts: what the worker has counted so far, for the metrics."""

    number: int
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """A request, or a reload, was not possible."""

    number: int
    status: int
    sentence: str


@dataclass(frozen=True)
class Reloaded:
    """A steerer was checked and has replaced the one of this name."""

    number: int
    name: str
    steerer: ServedSteerer


@dataclass(frozen=True)
class Heartbeat:
    """The worker is busy and alive."""


WorkerEvent = Ready | NotLoaded | Started | Output | Done | Failed | Reloaded | Heartbeat


class ServerGone(BaseException):
    """The server has closed the connection. No `except Exception` of a model's code may catch it."""


@dataclass
class _OpenRequest:
    """A request that a worker has received and not finished."""

    stream: bool
    cancelled: bool = False
    streamed: bool = False
    unsent: list[AnswerPart] = field(default_factory=list)


class JobQueue:
    """Receives requests from the server in order and sends events back.

    A thread receives; everything else is called from one thread. arrived: called by the receiving thread after each
    request, for a worker that does not wait in `next`.
    """

    def __init__(self, requests: Connection, events: Connection) -> None:
        self.waiting: deque[Load | Ask | Reload] = deque()
        self.arrived: Callable[[], None] = lambda: None
        self._requests, self._events = requests, events
        self._received: queue.SimpleQueue[WorkerRequest | None] = queue.SimpleQueue()
        self._open: dict[int, _OpenRequest] = {}
        self._last_event = time.monotonic()
        threading.Thread(target=self._receive, daemon=True).start()

    @classmethod
    def of_process(cls, arguments: Sequence[str]) -> "JobQueue":
        """The queue of a process that `WorkerProcess` has started, whose arguments are the numbers of two pipes."""
        for number in (signal.SIGINT, signal.SIGTERM):
            # They may be sent to all processes of a group. The server ends this one, after its last answer.
            signal.signal(number, signal.SIG_IGN)
        requests, events = map(int, arguments)
        return cls(Connection(requests, writable=False), Connection(events, readable=False))

    def next(self) -> Load | Ask | Reload:
        """The next request, as soon as there is one. ServerGone if there will be none."""
        self.poll()
        while not self.waiting:
            self._sort(self._received.get())
        return self.waiting.popleft()

    def poll(self) -> None:
        """Sort what has been received, and send a heartbeat if it is time. ServerGone if the server has ended."""
        while not self._received.empty():
            self._sort(self._received.get())
        if self._open and time.monotonic() - self._last_event > HEARTBEAT:
            self.send(Heartbeat())

    def send(self, event: WorkerEvent) -> None:
        try:
            self._events.send(event)
        except OSError as error:
            raise ServerGone from error
        self._last_event = time.monotonic()

    def is_open(self, number: int) -> bool:
        """Whether a request was received and is not finished."""
        return number in self._open

    def is_cancelled(self, number: int) -> bool:
        request = self._open.get(number)
        return request is not None and request.cancelled

    def has_streamed(self, number: int) -> bool:
        """Whether a part of the answer has been sent."""
        return self._open[number].streamed

    def output(self, number: int, part: AnswerPart) -> None:
        """Send a part of an answer. Pieces that are not streamed are sent together: each event takes time."""
        request = self._open[number]
        request.unsent.append(part)
        if isinstance(part, AnswerStart):
            self._flush(number)
        elif request.stream:
            request.streamed = True
            self._flush(number)

    def restart(self, number: int) -> None:
        """The answer is generated again: discard what has not been sent."""
        self._open[number].unsent.clear()

    def done(self, number: int, facts: Mapping[str, float] | None = None) -> None:
        """The request is finished: send the rest of its answer."""
        self._flush(number)
        del self._open[number]
        self.send(Done(number, facts or {}))

    def fail(self, failure: Failed) -> None:
        """The request is finished without an answer, unless it is finished already."""
        if self._open.pop(failure.number, None) is not None:
            self.send(failure)

    def _flush(self, number: int) -> None:
        parts, self._open[number].unsent = self._open[number].unsent, []
        if parts:
            self.send(Output(number, parts))

    def _receive(self) -> None:
        try:
            while True:
                self._received.put(self._requests.recv())
                self.arrived()
        except (EOFError, OSError):
            pass
        finally:
            self._received.put(None)
            self.arrived()

    def _sort(self, request: WorkerRequest | None) -> None:
        match request:
            case None:
                raise ServerGone
            case Cancel(number):
                if number in self._open:  # else it is finished already
                    self._open[number].cancelled = True
                return
            case Ask(number, job):
                self._open[number] = _OpenRequest(job.stream)
        self.waiting.append(request)


class WorkerProcess:
    """The process of a worker and the server's end of the connection to it.

    Two threads send and receive, so that the server never waits for a worker that does not read.
    """

    def __init__(self, process: asyncio.subprocess.Process, requests: Connection, events: Connection) -> None:
        self._process = process
        self._requests: queue.SimpleQueue[WorkerRequest | None] = queue.SimpleQueue()
        self._events: asyncio.Queue[WorkerEvent | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._send_all, args=(requests,), daemon=True).start()
        threading.Thread(target=self._receive_all, args=(events, loop), daemon=True).start()

    @classmethod
    async def start(cls, command: Sequence[str]) -> "WorkerProcess":
        """command: gets the numbers of the two pipes as its last arguments."""
        worker_requests, requests = Pipe(duplex=False)
        events, worker_events = Pipe(duplex=False)
        with worker_requests, worker_events:
            pipes = worker_requests.fileno(), worker_events.fileno()
            process = await asyncio.create_subprocess_exec(*command, *map(str, pipes), pass_fds=pipes)
        return cls(process, requests, events)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    def send(self, request: WorkerRequest) -> None:
        self._requests.put(request)

    async def receive(self, patience: float | None = None) -> WorkerEvent | None:
        """The next event; None if the worker has ended. TimeoutError after `patience` seconds without one."""
        async with asyncio.timeout(patience):
            return await self._events.get()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def end(self) -> int:
        """The exit code of the process. It ends by itself when the connection is closed, or is killed."""
        self._requests.put(None)
        try:
            return await asyncio.wait_for(self._process.wait(), ENDING)
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    def _send_all(self, connection: Connection) -> None:
        with connection, suppress(OSError):  # raised if the worker has ended, which the other thread notices
            while (request := self._requests.get()) is not None:
                connection.send(request)

    def _receive_all(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        with connection, suppress(RuntimeError):  # raised if the server's loop has ended before the worker
            while (event := _received(connection)) is not None:
                loop.call_soon_threadsafe(self._events.put_nowait, event)
            loop.call_soon_threadsafe(self._events.put_nowait, None)


def _received(connection: Connection) -> WorkerEvent | None:
    """The next event; None if the worker has ended, or has sent something that is no event."""
    try:
        return connection.recv()
    except Exception:  # EOFError, OSError, or whatever unpickling raises
        return None


@dataclass
class _Ticket:
    """A request that is not answered yet. parts: of its answer; a Refusal or None ends them. starts: by workers."""

    job: ChatJob
    parts: "asyncio.Queue[AnswerPart | Refusal | None]" = field(default_factory=asyncio.Queue)
    starts: int = 0
    began: bool = False
    answered: bool = False
    """Whether a part of the answer's text was passed on."""

    def add(self, part: AnswerPart) -> None:
        if isinstance(part, AnswerPiece):
            self.answered = True
        elif self.began:  # a request that is started again has a second start
            return
        self.began = True
        self.parts.put_nowait(part)


class WorkerEngine:
    """Runs the model in a process of its own, and replaces that process if it ends.

    lost: called if no process can be started any more. patience: seconds without an event, after which a busy worker
    is killed. command: the worker's program.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        patience: float,
        lost: Callable[[], None] = lambda: None,
        command: Sequence[str] = COMMANDS["transformers"],
    ) -> None:
        self.setup, self.patience, self._lost, self._command = setup, patience, lost, command
        self._worker: WorkerProcess | None = None
        self._ready = False
        self._listening: asyncio.Task[None] | None = None
        self._model: str | None = None  # the hash of its identity, once it is loaded
        self._steerers: dict[str, ServedSteerer] = {}
        self._numbers = itertools.count()
        self._tickets: dict[int, _Ticket] = {}
        self._running: set[int] = set()  # requests that the worker has started
        self._reloads: dict[int, asyncio.Future[ServedSteerer]] = {}
        self._facts: dict[str, float] = {}
        self._restarts = 0

    @property
    def steerers(self) -> Mapping[str, ServedSteerer]:
        return self._steerers

    @property
    def ready(self) -> bool:
        """Whether a request would be answered now, and not wait until the model is loaded again."""
        return self._ready

    @property
    def facts(self) -> Mapping[str, float]:
        """Counts and sizes for the metrics, by name."""
        return self._facts | {"worker_restarts": self._restarts}

    async def start(self) -> None:
        """Load the model. InputError if it or a steerer cannot be used."""
        await self._launch()
        self._listening = asyncio.create_task(self._listen())

    async def stop(self) -> None:
        """End the worker."""
        if self._listening is not None:
            self._listening.cancel()
        self._ready = False
        if self._worker is not None:
            await self._worker.end()

    async def ask(self, job: ChatJob) -> AsyncGenerator[AnswerPart]:
        """First the start of the answer, then its pieces until every choice has its last. Refusal if it fails.

        Closing it early cancels the request.
        """
        number, ticket = next(self._numbers), _Ticket(job)
        self._tickets[number] = ticket
        if self._ready:
            self._send(Ask(number, job))
        try:
            while (part := await ticket.parts.get()) is not None:
                if isinstance(part, Refusal):
                    raise part
                yield part
        finally:
            if self._tickets.pop(number, None) is not None and self._ready:
                self._send(Cancel(number))

    async def reload(self, name: str, folder: str) -> ServedSteerer:
        """Replace a steerer by the one in a folder, once that is checked; until then the old one acts."""
        if not self._ready:
            raise Refusal(503, "the model is being loaded again: try later", headers={"Retry-After": "5"})
        number = next(self._numbers)
        self._reloads[number] = future = asyncio.get_running_loop().create_future()
        self._send(Reload(number, name, folder))
        try:
            return await future
        finally:
            self._reloads.pop(number, None)

    def _send(self, request: WorkerRequest) -> None:
        assert self._worker is not None  # a request is sent only while it is ready
        self._worker.send(request)

    async def _launch(self) -> None:
        """Start a worker and wait until it is ready. InputError if it does not load what the one before it had."""
        self._worker = worker = await WorkerProcess.start(self._command)
        folders = dict(self.setup.steerers) | {name: steerer.folder for name, steerer in self._steerers.items()}
        contents = {name: steerer.content for name, steerer in self._steerers.items()}
        worker.send(Load(replace(self.setup, steerers=folders), contents))
        event = await worker.receive()
        if not isinstance(event, Ready):
            code = await worker.end()
            if isinstance(event, NotLoaded):
                raise InputError(event.sentence)
            raise InputError(
                f"the model's process ended while it was loading (exit code {code}): is there enough memory?"
            )
        if difference := self._difference(event):
            await worker.end()
            raise InputError(f"{difference} while the server was running: put it back, or start the server again")
        self._model, self._steerers = event.model, self._steerers | dict(event.steerers)
        self._ready = True

    def _difference(self, loaded: Ready) -> str:
        """What a new worker has loaded that its predecessor had not; "" if all is the same."""
        if self._model not in (None, loaded.model):
            return f"the model {self.setup.model!r} has changed"
        for name, steerer in loaded.steerers.items():
            if self._steerers.get(name, steerer) != steerer:
                return f"the steerer {name!r} has changed"
        return ""

    async def _listen(self) -> None:
        """Handle the events of workers, and replace those that end."""
        while (worker := self._worker) is not None:
            while (event := await self._next_event(worker)) is not None:
                self._handle(event)
            self._ready = False
            self._running.clear()
            log.error("the model's process has died (exit code %s): it is replaced", await worker.end())
            self._restarts += 1
            self._refuse_unrepeatable()
            if not await self._relaunched():
                for number in list(self._tickets):
                    self._finish(number, Refusal(503, "the model cannot be loaded any more: the server ends"))
                return self._lost()
            for number, ticket in self._tickets.items():
                self._send(Ask(number, ticket.job, alone=ticket.starts > 0))

    async def _next_event(self, worker: WorkerProcess) -> WorkerEvent | None:
        """The worker's next event; None if it has ended. A worker that is busy and silent is killed."""
        while True:
            try:
                return await worker.receive(self.patience)
            except TimeoutError:
                if self._running:
                    log.error("the model's process sends no heartbeat")
                    worker.kill()

    def _handle(self, event: WorkerEvent) -> None:
        match event:
            case Started(numbers):
                self._running.update(numbers)
                for number in self._tickets.keys() & set(numbers):
                    self._tickets[number].starts += 1
            case Output(number, parts) if number in self._tickets:
                for part in parts:
                    self._tickets[number].add(part)
            case Done(number, facts):
                self._running.discard(number)
                self._facts |= facts
                self._finish(number)
            case Failed(number, _, sentence) if number in self._reloads:
                self._fail_reload(number, sentence)
            case Failed(number, status, sentence):
                self._running.discard(number)
                self._finish(number, Refusal(status, sentence))
            case Reloaded(number, name, steerer):
                self._steerers[name] = steerer  # also if nobody waits for it any more: the worker uses it now
                if number in self._reloads and not self._reloads[number].done():
                    self._reloads[number].set_result(steerer)

    def _finish(self, number: int, refusal: Refusal | None = None) -> None:
        ticket = self._tickets.pop(number, None)
        if ticket is not None:  # else it was cancelled
            ticket.parts.put_nowait(refusal)

    def _fail_reload(self, number: int, sentence: str) -> None:
        if not self._reloads[number].done():  # a reload whose client has gone is cancelled
            self._reloads[number].set_exception(bad_request(sentence, "folder"))

    def _refuse_unrepeatable(self) -> None:
        """Of a worker that has died: requests that it started for the second time or has answered, and reloads."""
        sentence = "the model's process died while it worked on this request, and nothing was answered"
        for number, ticket in list(self._tickets.items()):
            if ticket.answered or ticket.starts > 1:
                self._finish(number, Refusal(503, sentence, headers={"Retry-After": "5"}))
        for number in self._reloads:
            self._fail_reload(number, "the model's process died before the steerer was checked: try again")

    async def _relaunched(self) -> bool:
        for attempt in range(LAUNCHES):
            await asyncio.sleep(PAUSE * attempt)
            try:
                await self._launch()
                return True
            except InputError as error:
                log.error("the model's process did not start: %s", error)
        return False
