"""Files that the user names: read within bounds, written completely or not at all, even if the process is killed.

A command may write a new file, or replace what the same command wrote before. Anything else needs --force. It calls
`check_file` or `check_folder` before its long work starts. Its files say in their first lines which command wrote
them (`mark`, `marked`), unless their content says so already, as a steerer's config.json does.
"""

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from ggss.errors import InputError, problems

LARGEST = 2**30  # bytes of a file that is read into memory
GROWTH = 2**20  # bytes that a file may have beyond its size: those of /proc and /sys have size 0
DEEPEST = 32  # nested lists and objects in a JSON or YAML file
_LARGEST_INTEGER = 2**63  # of a YAML file: it must be smaller, to be stored
_MERGED = 10_000  # keys of a YAML mapping, including those that `<<` adds
_TAG = "tag:yaml.org,2002:"
_PLAIN = [_TAG + kind for kind in ("null", "bool", "int", "float", "str", "seq", "map")]
_HEAD = 2048  # bytes in which a mark is searched
MOST_ZIPPED = 20_000  # files in a zip
LARGEST_ZIPPED = 2**29  # bytes of one of them, unpacked
LARGEST_SUM = 2**33  # bytes of all of them, unpacked
LARGEST_ZIP = 2**32 - 2**20  # bytes; a larger one has another kind of directory, zip64, which is refused
_DIRECTORY = 512 * MOST_ZIPPED  # bytes of the list of files at a zip's end
_ZIPPED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_LONGEST_NAME = 200
_END, _END_SIZE = b"PK\x05\x06", 22  # a zip's last record, if it has no comment
_ZIP64, _ZIP64_SIZE = b"PK\x06\x07", 20  # the record before it, of a zip64
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


@contextlib.contextmanager
def open_zip(path: str | os.PathLike[str], what: str) -> Iterator[ZipFile]:
    """A zip from somebody else, open for reading. Nothing is unpacked.

    InputError if it is no zip; if it is damaged, which may be noticed only while it is read; and if it has what could
    do harm: links, names outside of its folder, names twice, more files or bytes than are read. what: its role in
    messages.
    """
    name = f"{what} {str(path)!r}"
    size = require_file(path, what)
    try:
        with open(path, "rb") as file:
            _check_end(file, size, name)
            with ZipFile(file) as archive:
                check_zip(archive, name)
                yield archive
    except (BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeDecodeError, OverflowError) as error:
        raise InputError(f"{name} is damaged or cut short ({error}): get it again") from error


def add_to_zip(archive: ZipFile, name: str, pieces: Iterable[bytes]) -> tuple[int, str]:
    """Add a file, without a time, so that equal files make equal zips; returns its size and sha256."""
    entry = ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type, entry.create_system = ZIP_DEFLATED, 3
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    digest, size = hashlib.sha256(), 0
    with archive.open(entry, "w") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
            if size > LARGEST_ZIPPED:
                raise InputError(f"{name} has more than {LARGEST_ZIPPED >> 20} MiB, the most of a file in a zip")
    return size, digest.hexdigest()


def check_zip(archive: ZipFile, name: str) -> None:
    """InputError if a zip has something that `open_zip` refuses."""
    entries = archive.infolist()
    refusals = list(_refusals(entries)) + [f"it has {len(entries):,} files"] * (len(entries) > MOST_ZIPPED)
    if refusals:
        raise problems(f"{name} is refused", refusals)


def _check_end(file: IO[bytes], size: int, name: str) -> None:
    """InputError unless a zip's last record is there, and says that its list of files is not too long to be read."""
    file.seek(max(0, size - _END_SIZE - _ZIP64_SIZE))
    tail = file.read()
    end = tail[-_END_SIZE:]
    if not end.startswith(_END):
        raise InputError(f"{name} is no zip, or it was cut short: get it again")
    count, directory = int.from_bytes(end[10:12], "little"), int.from_bytes(end[12:16], "little")
    if size > LARGEST_ZIP or tail.startswith(_ZIP64) or count > MOST_ZIPPED or directory > _DIRECTORY:
        raise InputError(f"{name} is refused: at most {MOST_ZIPPED:,} files and {LARGEST_ZIP >> 20:,} MiB are read")


def _refusals(entries: Sequence[ZipInfo]) -> Iterator[str]:
    """A sentence for each entry of a zip that is not read."""
    names: set[str] = set()
    for entry in entries:
        name, mode = entry.orig_filename, entry.external_attr >> 16
        if not _ZIPPED_NAME.fullmatch(name) or len(name) > _LONGEST_NAME or name != entry.filename:
            yield f"{name[:_LONGEST_NAME]!r} is not a plain name of a file inside it"
        if name.lower() in names:
            yield f"{name!r} is there twice"
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            yield f"{name!r} is a link or another special file"
        if entry.flag_bits & 0x61 or entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            yield f"{name!r} is encrypted, or compressed in an unusual way"
        if entry.file_size > LARGEST_ZIPPED:
            yield f"{name!r} would have {entry.file_size:,} bytes: at most {LARGEST_ZIPPED:,} are read"
        names.add(name.lower())
    if (total := sum(entry.file_size for entry in entries)) > LARGEST_SUM:
        yield f"its files would have {total:,} bytes: at most {LARGEST_SUM:,} are read"


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


def read_yaml(path: Path, what: str) -> Any:
    """The content of a file: text, numbers, true, false, null, lists and mappings; dates are text.

    InputError if it cannot be read, is not YAML, or has a key twice. what: its name in messages, such as "the plan".
    """
    import yaml

    text = read_utf8(path, what)
    try:
        return yaml.load(text, _plain_loader())
    except (yaml.YAMLError, ValueError, KeyError) as error:
        raise InputError(f"{what} {str(path)!r} is not usable YAML: {' '.join(str(error).split())}") from error


@cache
def _plain_loader() -> Any:
    """The class that reads YAML as plain data. It is made when it is needed: importing yaml takes a while."""
    import yaml

    class PlainLoader(yaml.SafeLoader):
        """Only the types that JSON has; `yes`, `no` and `2024-01-31` are text, as in YAML 1.2."""

        yaml_constructors = {  # noqa: RUF012
            tag: make for tag, make in yaml.SafeLoader.yaml_constructors.items() if tag is None or tag in _PLAIN
        }
        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [(tag, text) for tag, text in resolvers if tag not in (_TAG + "timestamp", _TAG + "bool")]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.depth += 1
            if self.depth > DEEPEST:
                raise yaml.YAMLError(f"it is nested too deeply, at most {DEEPEST} levels are read")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def plain_list(self, node: Any) -> list[Any]:
            return self.construct_sequence(node, deep=True)  # all of it at once: a list inside itself is refused

        def plain_mapping(self, node: Any) -> dict[Any, Any]:
            lines: dict[Any, int] = {}
            for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if isinstance(key_node, yaml.ScalarNode):
                    key, line = key_node.value, key_node.start_mark.line + 1
                    if key in lines:
                        raise yaml.YAMLError(f"{key!r} is there twice, in line {lines[key]} and in line {line}")
                    lines[key] = line
            return self.construct_mapping(node, deep=True)

        def flatten_mapping(self, node: Any) -> None:
            super().flatten_mapping(node)
            if len(node.value) > _MERGED:  # references to references of `<<` grow without end
                raise yaml.YAMLError(f"the mapping in line {node.start_mark.line + 1} merges too many others")

        def plain_int(self, node: Any) -> int:
            text = str(self.construct_scalar(node))
            # Python converts no more than some thousand digits.
            number = self.construct_yaml_int(node) if len(text) < 100 else _LARGEST_INTEGER
            if abs(number) >= _LARGEST_INTEGER:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"the whole number in line {line}, which begins {text[:20]}, is too large")
            return number

    for kind, make in (
        ("seq", PlainLoader.plain_list),
        ("map", PlainLoader.plain_mapping),
        ("int", PlainLoader.plain_int),
    ):
        PlainLoader.add_constructor(_TAG + kind, make)
    PlainLoader.add_implicit_resolver(
        _TAG + "bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
    )
    return PlainLoader
