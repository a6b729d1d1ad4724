"""The SQLite file of a study: how it is opened, what it must be, and its errors as sentences."""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ggss.errors import InputError

VERSION = 4
_APPLICATION = 0x67677373  # "ggss", in the header of the file
_SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE fits (
    model TEXT, method TEXT, attribute TEXT, recipe TEXT NOT NULL, identity TEXT NOT NULL, steering TEXT NOT NULL,
    notes TEXT NOT NULL, gates TEXT NOT NULL, checksum TEXT NOT NULL,
    PRIMARY KEY (model, method, attribute)
) WITHOUT ROWID;
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, identity TEXT NOT NULL, steering TEXT NOT NULL, alpha REAL NOT NULL, suite TEXT NOT NULL,
    UNIQUE (identity, steering, alpha, suite)
);
CREATE TABLE answers (
    run INTEGER NOT NULL REFERENCES runs, item TEXT NOT NULL, answer TEXT NOT NULL, probabilities TEXT NOT NULL,
    checksum TEXT NOT NULL,
    PRIMARY KEY (run, item)
) WITHOUT ROWID;
"""


class StoreError(InputError):
    """The store cannot be written or read: the study cannot continue."""


def connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"{path.resolve().as_uri()}?mode={mode}"
    connection = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None, timeout=60)
    connection.text_factory = _text
    return connection


def connect_read_only(path: Path) -> sqlite3.Connection:
    """For a folder in which nothing can be written. What is still in the write-ahead log is read from a copy."""
    log = path.with_name(f"{path.name}-wal")
    if not log.exists() or not log.stat().st_size:
        return connect(path, "ro&immutable=1")
    memory = connect(Path(), "memory")
    try:
        with tempfile.TemporaryDirectory() as place:
            before = [_stamp(path), _stamp(log)]
            for file in (path, log):
                shutil.copyfile(file, Path(place, file.name))
            if before != [_stamp(path), _stamp(log)]:
                raise InputError(f"{str(path)!r} is being written: wait until the study has stopped, and try again")
            with closing(connect(Path(place, path.name), "rw")) as copy:
                copy.backup(memory)
    except OSError as error:
        raise InputError(f"cannot read all of {str(path)!r} ({error}): copy its folder to a writable one") from error
    memory.execute("PRAGMA query_only = 1")
    return memory


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def _text(data: bytes) -> str:
    """Also what is not UTF-8: such a row is damaged, and its checksum says so."""
    return data.decode(errors="surrogateescape")


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    pragmas = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {VERSION};"
    # One transaction: after a crash the database has its tables and its version, or it is empty.
    connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {pragmas} COMMIT;")


def checked(path: Path, connection: sqlite3.Connection, new: bool = False) -> sqlite3.Connection:
    """The connection; with `new` an empty database gets its tables. InputError for a database of something else."""
    try:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if empty and new:
            _create(connection)
        elif application != _APPLICATION:
            raise InputError(f"{str(path)!r} is not a study's database: choose another folder")
        elif version != VERSION:
            raise InputError(
                f"{str(path)!r} has version {version} and this ggss reads version {VERSION}: "
                "use the ggss that made it, or choose another folder"
            )
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def told(path: Path) -> Iterator[None]:
    """SQLite's errors as messages that say what to do; an unfinished transaction is rolled back."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's message may quote what is no text
        reason = str(error)
        kept = "what was answered before is kept"
        advice = f"{kept}; run the same command again"
        if "full" in reason or "disk I/O" in reason:
            advice = f"free some space and run the same command again, {kept}"
        elif "readonly" in reason or "unable to open" in reason:
            advice = "make the folder writable or choose another one"
        elif not isinstance(error, sqlite3.OperationalError):
            advice = "it is damaged or no database; move it away, or choose another folder"
        raise StoreError(f"the store {str(path)!r}: {reason}; {advice}") from error
