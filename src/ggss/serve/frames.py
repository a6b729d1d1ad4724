"""Messages between the server and the worker: a line of JSON, then the pictures that belong to it as they are.

Nothing is pickled, so a damaged message can be refused but never run.
"""

import json
from asyncio import IncompleteReadError, StreamReader
from collections.abc import Sequence
from typing import Any, BinaryIO

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
