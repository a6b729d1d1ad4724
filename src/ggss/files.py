"""Files that the user names: read whole and within bounds, written completely or not at all, even if killed."""

import contextlib
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from ggss.errors import InputError

LARGEST = 2**30  # bytes of a file that is read into memory
GROWTH = 2**20  # bytes that a file may have beyond its size: files of the system say that they have none
DEEPEST = 32  # lists and objects inside each other in a JSON file
_SPECIAL = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def require_file(path: str | os.PathLike[str], what: str) -> int:
    """The size of an ordinary file; InputError for anything else. It is not opened: a FIFO would wait forever.

    what: the file's role in messages, such as "the plan".
    """
    try:
        seen = os.stat(path)
    except FileNotFoundError as error:
        raise InputError(f"{what} {str(path)!r} does not exist: correct its path") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{what} {str(path)!r} cannot be read: {_reason(error)}") from error
    if not stat.S_ISREG(seen.st_mode):
        kind = _SPECIAL.get(stat.S_IFMT(seen.st_mode), "no ordinary file")
        raise InputError(f"{what} {str(path)!r} is {kind}: give an ordinary file")
    return seen.st_size


def read_bounded(path: str | os.PathLike[str], what: str, largest: int = LARGEST) -> bytes:
    """All bytes of an ordinary file; InputError if it is none, cannot be read, or has more than `largest` bytes."""
    size = require_file(path, what)
    if size > largest:
        raise InputError(f"{what} {str(path)!r} is larger than {largest / 2**30:g} GiB, the most that ggss reads")
    try:
        with open(path, "rb") as file:
            data = file.read(size + GROWTH)
    except OSError as error:
        raise InputError(f"{what} {str(path)!r} cannot be read: {_reason(error)}") from error
    if len(data) == size + GROWTH:
        raise InputError(f"{what} {str(path)!r} has more bytes than it says, or grows: give a file that is complete")
    return data


def read_utf8(path: str | os.PathLike[str], what: str) -> str:
    """The text of an ordinary file in UTF-8, with or without a byte order mark; line ends become newlines."""
    try:
        text = read_bounded(path, what).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {str(path)!r} is not UTF-8 ({error.reason}): save it as UTF-8") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: str | os.PathLike[str], what: str) -> Any:
    """The value in a JSON file; InputError also for NaN, for infinity, and for a value nested too deeply."""
    text, name = read_utf8(path, what), f"{what} {str(path)!r}"
    try:
        value = json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        raise InputError(f"{name} is not JSON: {error}") from error
    except RecursionError:
        raise InputError(f"{name} is nested too deeply: at most {DEEPEST} levels are read") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    if level:
        raise InputError(f"{name} is nested too deeply: at most {DEEPEST} levels are read")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def write_whole(path: Path, data: bytes | Iterable[bytes], advice: str = "choose another place") -> None:
    """Write a temporary file in the same folder, then rename it; folders are created. InputError if that fails.

    data: all of it, or its pieces in order.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
        unfinished.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r} ({error.strerror}): {advice}") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
