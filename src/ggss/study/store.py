"""The store: one SQLite database in a study's folder. An answer is never changed or deleted.

A row is one answered item. Its key has content only, no names: the identity of the model that answered, hashes of all
that determines the steering and of all that the task asks (`suite`), the strength, and the item. A batch is one
transaction of a write-ahead log, so a killed process loses at most one batch. The table `fits` maps the names of a
plan to keys: which identity and which steering a (model, method, attribute) had when it was last run.

Every row has a checksum of its key and content: a row that was edited or damaged is refused when it is read.
"""

import hashlib
import json
import logging
import shlex
import shutil
import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ggss.errors import InputError
from ggss.files import locked
from ggss.models.reading import Answer
from ggss.steering.fitting import Gates

log = logging.getLogger(__name__)
_to_json = json.JSONEncoder(default=repr).encode  # a damaged row may have bytes where text was

DATABASE, LOCK = "study.sqlite", "study.lock"
VERSION = 4
_APPLICATION = 0x67677373  # "ggss", in the header of the file
_COSINE = "cosine"  # beside the gate's numbers, in their column
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


@dataclass(frozen=True)
class Fit:
    """What a (model, method, attribute) of a plan stands for.

    recipe: hash of what the plan says of it. identity (of the model) and steering: hashes of all that determines its
    answers. notes: warnings of discovery. gates: how far its gate opens on the discovery tokens, if it has one.
    cosine: if discovery had a prompt, that of the largest angle between its subspace and the one without a prompt.
    """

    recipe: str
    identity: str
    steering: str
    notes: tuple[str, ...] = ()
    gates: Gates | None = None
    cosine: float | None = None


@dataclass(frozen=True)
class Key:
    """The key of a run's answers: all that they depend on, besides the item."""

    identity: str
    steering: str
    alpha: float
    suite: str

    @property
    def parts(self) -> tuple[str, str, float, str]:
        return self.identity, self.steering, float(self.alpha), self.suite


class Store:
    """An open database, from `writing` or `reading`. It may be used from several threads."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._turn = threading.RLock()
        weakref.finalize(self, connection.close)

    def about(self, name: str) -> dict[str, Any] | None:
        """A fact about the study, such as its plan; None if it is not recorded."""
        row = self._first("SELECT value, checksum FROM about WHERE name = ?", name)
        if row is None:
            return None
        with self._refusing(lambda: f"what it says about {name!r}", "about"):
            (value,) = _verified((name,), row)
            return dict(json.loads(value).items())

    def tell(self, name: str, value: Mapping[str, Any]) -> None:
        """Record a fact about the study."""
        content = (json.dumps(value),)
        with self._transaction() as write:
            write("INSERT OR REPLACE INTO about VALUES (?, ?, ?)", (name, *content, _checksum(name, *content)))

    def fit(self, model: str, method: str, attribute: str) -> Fit | None:
        """The fit with these names when it was last run; None if it never was."""
        columns, names = "recipe, identity, steering, notes, gates, checksum", (model, method, attribute)
        row = self._first(f"SELECT {columns} FROM fits WHERE model = ? AND method = ? AND attribute = ?", *names)
        if row is None:
            return None
        with self._refusing(lambda: f"the fit of {method!r} on {model!r}", "fits"):
            recipe, identity, steering, notes, gates = _verified(names, row)
            measured = json.loads(gates) or {}
            cosine, warnings = measured.pop(_COSINE, None), _listed(notes, str)
            return Fit(recipe, identity, steering, warnings, Gates(**measured) if measured else None, cosine)

    def remember(self, model: str, method: str, attribute: str, fit: Fit) -> None:
        """Record a fit, in place of an earlier one with these names."""
        measured = asdict(fit.gates) if fit.gates else {}
        if fit.cosine is not None:
            measured[_COSINE] = fit.cosine
        gates = json.dumps(measured or None)
        row = (model, method, attribute, fit.recipe, fit.identity, fit.steering, json.dumps(fit.notes), gates)
        with self._transaction() as write:
            write("INSERT OR REPLACE INTO fits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, _checksum(*row)))

    def write(self, key: Key, answers: Mapping[str, Answer]) -> None:
        """Add the answers of a batch, by item key, all or none. An item that is answered already keeps its answer."""
        with self._transaction() as write:
            write("INSERT OR IGNORE INTO runs (identity, steering, alpha, suite) VALUES (?, ?, ?, ?)", key.parts)
            run = self._run(key)
            for item, (text, probabilities) in answers.items():
                content = (item, text, json.dumps(probabilities, separators=(",", ":")))
                row = (run, *content, _checksum(*key.parts, *content))
                write("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?)", row)

    def answered(self, key: Key) -> set[str]:
        """The keys of the items that are answered."""
        return set(self.answers(key))

    def answers(self, key: Key) -> dict[str, Answer]:
        """The answers by item key."""
        run, parts, answers, item = self._run(key), key.parts, {}, ""
        rows = self._rows("SELECT item, answer, probabilities, checksum FROM answers WHERE run = ?", run)
        with self._refusing(lambda: f"the answer to {item!r}", f"answers WHERE run = {run}"):
            for item, *row in rows:
                text, probabilities = _verified((*parts, item), row)
                answers[item] = Answer(text, _listed(probabilities, int | float))
        return answers

    def count(self) -> int:
        """The number of all answers, of this plan and of earlier ones."""
        return self._rows("SELECT count(*) FROM answers")[0][0]

    def _run(self, key: Key) -> int | None:
        row = self._first(
            "SELECT id FROM runs WHERE identity = ? AND steering = ? AND alpha = ? AND suite = ?", *key.parts
        )
        return None if row is None else row[0]

    def _first(self, query: str, *values: Any) -> Any:
        rows = self._rows(query, *values)
        return rows[0] if rows else None

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._turn, _sqlite_errors(self.path):
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _refusing(self, what: Callable[[], str], rows: str) -> Iterator[None]:
        """Raises StoreError if a row is damaged. rows: what to delete so that it is made again."""
        try:
            yield
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreError(
                f"the store {str(self.path)!r} is damaged: {what()} is not as it was written. Restore the folder "
                "from a copy; or delete what is wrong and run the study again, which makes it anew: "
                f"sqlite3 {shlex.quote(str(self.path))} 'DELETE FROM {rows}'"
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with self._turn, _sqlite_errors(self.path), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._write

    def _write(self, statement: str, values: Sequence[Any]) -> None:
        try:
            self._connection.execute(statement, values)
        except UnicodeEncodeError as error:
            message = f"the store {str(self.path)!r} holds Unicode text only, and was given {error.object!r}"
            raise StoreError(message) from error


@contextmanager
def writing(folder: str | Path) -> Iterator[Store]:
    """The store of a folder, created if it does not exist. Only one process at a time may write to it."""
    folder = Path(folder)
    path = folder / DATABASE
    refusal = f"another process is running the study in {str(folder)!r}: wait for it, or choose another folder"
    with ExitStack() as opened:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            opened.enter_context(locked(folder / LOCK, refusal))
        except OSError as error:
            raise InputError(f"cannot write to {str(folder)!r} ({error.strerror}): choose another folder") from error
        with _sqlite_errors(path):
            connection = _checked(path, connect(path, "rwc"), new=True)
        opened.enter_context(closing(connection))
        with _sqlite_errors(path):
            connection.execute("PRAGMA synchronous = NORMAL")
        yield Store(path, connection)


def reading(folder: str | Path) -> Store:
    """The store of a folder as it is, also while another process writes to it."""
    path = Path(folder) / DATABASE
    if not path.is_file():
        raise InputError(f"there is no study in {str(folder)!r}: it has no {DATABASE}; give a folder of `study run`")
    with _sqlite_errors(path):
        try:
            return Store(path, _checked(path, connect(path, "ro")))
        except sqlite3.OperationalError:  # a write-ahead log cannot be opened in a read-only folder
            return Store(path, _checked(path, _connect_read_only(path)))


def connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"{path.resolve().as_uri()}?mode={mode}"
    connection = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None, timeout=60)
    connection.text_factory = _text
    return connection


def _connect_read_only(path: Path) -> sqlite3.Connection:
    """A connection for a read-only folder. What is still in the write-ahead log is read from a copy."""
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
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _text(data: bytes) -> str:
    """Text, also if it is not UTF-8: such a row is damaged, and its checksum is wrong."""
    return data.decode(errors="surrogateescape")


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    pragmas = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {VERSION};"
    # One transaction: after a crash the database has its tables and its version, or it is empty.
    connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {pragmas} COMMIT;")


def _checked(path: Path, connection: sqlite3.Connection, new: bool = False) -> sqlite3.Connection:
    """The connection, if its database is a study's; InputError if it is another one.

    new: an empty database gets its tables, with a warning if the file is not empty; else it is refused.
    """
    try:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if empty and application in (0, _APPLICATION):
            # SQLite reads a damaged write-ahead log up to the damage: before the first checkpoint all may be gone.
            message = (
                f"{str(path)!r} is an empty database: nothing of a study was written to it yet, or its write-ahead "
                "log (-wal) is damaged or was not copied with it. `ggss study run` begins the study anew"
            )
            if not new:
                raise InputError(message)
            if path.stat().st_size:
                log.warning(message)
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
def _sqlite_errors(path: Path) -> Iterator[None]:
    """Raises SQLite's errors as StoreErrors that say what to do."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's message may quote what is no text
        reason = str(error)
        kept_answers = "what was answered before is kept"
        advice = f"{kept_answers}; run the same command again"
        if "full" in reason or "disk I/O" in reason:
            advice = f"free some space and run the same command again, {kept_answers}"
        elif "readonly" in reason or "unable to open" in reason:
            advice = "make the folder writable or choose another one"
        elif not isinstance(error, sqlite3.OperationalError):
            advice = "it is damaged or no database; move it away, or choose another folder"
        raise StoreError(f"the store {str(path)!r}: {reason}; {advice}") from error


def _checksum(*row: Any) -> str:
    return hashlib.sha256(_to_json(row).encode()).hexdigest()[:32]


def _verified(key: Sequence[Any], row: Sequence[Any]) -> Sequence[Any]:
    """A row's content without its last column, the checksum. ValueError if the checksum is wrong."""
    *content, checksum = row
    if checksum != _checksum(*key, *content) or not all(isinstance(value, str) for value in content):
        raise ValueError("the checksum differs")
    return content


def _listed(text: str, kind: Any) -> tuple[Any, ...]:
    """A JSON list of values of one kind, as a tuple; ValueError if it is something else."""
    values = json.loads(text)
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise ValueError(f"not a list of {kind}")
    return tuple(values)
