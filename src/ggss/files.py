"""Files that the user names: read within bounds, written completely or not at all, even if the process is killed.

A command may write a new file, or replace what the same command wrote before. Anything else needs --force. It calls
`check_file` or `check_folder` before its long work starts. Its files say in their first lines which command wrote
them (`mark`, `marked`), unless their content says so already, as a steerer's config.json does.
"""

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from ggss.errors import InputError

LARGEST = 2**30  # bytes of a file that is read into memory
GROWTH = 2**20  # bytes that a file may have beyond its size: those of /proc and /sys have size 0
DEEPEST = 32  # nested lists and objects in a JSON file
_HEAD = 2048  # bytes in which a mark is searched
_SPECIAL = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

Ours = Callable[[Path], bool]
"""Whether an existing file or folder was written by the command that wants to replace it."""


def require_file(path: str | os.PathLike[str], what: str) -> int:
    """The size of an ordinary file; InputError for anything else. It is not opened: a FIFO would wait forever.

    what: the file's role in messages, such as "the plan".
    """
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        raise InputError(f"{what} {str(path)!r} does not exist: correct its path") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{what} {str(path)!r} cannot be read: {_reason(error)}") from error
    if not stat.S_ISREG(status.st_mode):
        kind = _SPECIAL.get(stat.S_IFMT(status.st_mode), "no ordinary file")
        raise InputError(f"{what} {str(path)!r} is {kind}: give an ordinary file")
    return status.st_size


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
    """Write a file completely or not at all: a temporary file in the same folder is renamed. Folders are created.

    data: all of it, or its pieces in order. InputError if it cannot be written.
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


@contextlib.contextmanager
def locked(lock: Path, refusal: str) -> Iterator[None]:
    """Hold a lock file inside the block. The system frees the lock of a killed process.

    refusal: the message of the InputError if another process holds it. OSError if the file cannot be created.
    Use a file of its own, not the protected one: on Windows nobody can read a locked file.
    """
    from filelock import FileLock, Timeout  # takes a tenth of a second, and most commands lock nothing

    try:
        acquired = FileLock(lock).acquire(timeout=0)
    except Timeout:
        raise InputError(refusal) from None
    with acquired:
        yield


def mark(command: str) -> str:
    """The text that a command writes into the first lines of its files."""
    return f"Written by `{command}`"


def marked(command: str, name: str = "") -> Ours:
    """A test for the mark of a command: in a file, or with `name` in the file of this name in a folder."""

    def ours(path: Path) -> bool:
        file = path / name if name else path
        return file.is_file() and mark(command).encode() in head(file)

    return ours


def never(path: Path) -> bool:
    """A test that is always False: whatever exists needs --force."""
    return False


def head(file: Path, size: int = _HEAD) -> bytes:
    with file.open("rb") as stream:
        return stream.read(size)


def check_file(path: Path, command: str, ours: Ours, force: bool = False) -> None:
    """InputError for a file that is not ours, unless forced, and for a folder that cannot be written to.

    command: as the user types it, such as `ggss probe`.
    """
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder: name a file in it")
    if path.exists():
        if not path.is_file():
            raise InputError(f"{str(path)!r} is not an ordinary file: choose another place")
        if not force and path.stat().st_size and not ours(path):
            raise InputError(
                f"{str(path)!r} is there and does not say that `{command}` wrote it: give another "
                "file, or --force to replace it"
            )
    check_writable(path.parent)


def check_folder(folder: Path, command: str, ours: Ours, force: bool = False) -> None:
    """InputError for a folder with files that is not ours, unless forced, and for one that is not writable."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file: give a folder")
    if folder.is_dir() and not force:
        first = min(folder.iterdir(), default=None)
        if first is not None and not ours(folder):
            raise InputError(
                f"{str(folder)!r} is there, with {first.name!r}, and does not say that `{command}` wrote it: "
                "give a new folder, or --force to write into this one"
            )
    check_writable(folder)


def check_writable(folder: Path) -> None:
    """InputError unless a file can be written in the folder, or where it would be created. No file is left behind."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"?")
    except OSError as error:
        raise InputError(f"cannot write to {str(folder)!r} ({error.strerror}): choose another place") from error
