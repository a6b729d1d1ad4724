"""Where a command may write: a new place, or over what the same command wrote before. All else needs --force.

A command calls `check_file` or `check_folder` before its long work starts. What it writes says in its first lines
which command wrote it (`mark`, `marked`), unless its content says so already, as a steerer's config.json does.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

from ggss.errors import InputError

_HEAD = 2048  # bytes in which a mark is looked for

Ours = Callable[[Path], bool]
"""Whether a file or a folder that exists was written by the command that wants to write it again."""


def mark(command: str) -> str:
    """What a command writes into the first lines of its files."""
    return f"Written by `{command}`"


def marked(command: str, name: str = "") -> Ours:
    """Ours is a file with the mark of a command; with a name, a folder whose file of this name has it."""

    def ours(path: Path) -> bool:
        file = path / name if name else path
        return file.is_file() and mark(command).encode() in head(file)

    return ours


def never(path: Path) -> bool:
    """Ours is nothing: whatever exists needs --force."""
    return False


def head(file: Path, size: int = _HEAD) -> bytes:
    with file.open("rb") as stream:
        return stream.read(size)


def check_file(path: Path, command: str, ours: Ours, force: bool = False) -> None:
    """Refuse, with InputError, a file that is not ours, unless forced; and a place that cannot be written to.

    command: as the user calls it, such as `ggss probe`.
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
    """Refuse, with InputError, a folder with files that is not ours, unless forced; and one that is not writable."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file: give a folder")
    if folder.is_dir() and not force:
        there = min(folder.iterdir(), default=None)
        if there is not None and not ours(folder):
            raise InputError(
                f"{str(folder)!r} is there, with {there.name!r}, and does not say that `{command}` wrote it: "
                "give a new folder, or --force to write into this one"
            )
    check_writable(folder)


def check_writable(folder: Path) -> None:
    """Write into the folder, or where it would be created; nothing of it stays, even if the process is killed."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"?")
    except OSError as error:
        raise InputError(f"cannot write to {str(folder)!r} ({error.strerror}): choose another place") from error
