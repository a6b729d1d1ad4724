"""The worker's side of the socket: messages from the server in order, and what is told it about requests."""

import queue
import socket
import threading
import time
from collections import deque
from dataclasses import asdict

from ggss.serve.engine import AnswerPiece, Began
from ggss.serve.frames import Message, framed, received

QUIET = 1.0  # seconds without a word, after which a busy worker says that it is alive


class Gone(BaseException):
    """The server has closed the socket."""


class JobQueue:
    """Messages from the server, in order, and what is told it about requests."""

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
        """Take in what has arrived; a sign of life if nothing was said for a while."""
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
