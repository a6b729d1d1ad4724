"""The store: one SQLite database in a study's folder. An answer is never changed or deleted.

A row is one answered item, under a key of content alone: the weights that answered, all that decides the steering,
its strength, all that the task asks (`suite`), and the item. A batch is one transaction of a write-ahead log, so a
killed process loses at most one batch. `fits` says what the names of a plan stand for: which weights and
which steering a (model, method, attribute) had when it was last run.
"""

import fcntl
import json
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ggss.errors import InputError
from ggss.steering.gates import Gates

DATABASE, LOCK = "study.sqlite", "study.lock"
VERSION = 3
_APPLICATION = 0x67677373  # "ggss", in the header of the file
_SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE fits (
    model TEXT, method TEXT, attribute TEXT, recipe TEXT NOT NULL, weights TEXT NOT NULL, steering TEXT NOT NULL,
    notes TEXT NOT NULL, gates TEXT NOT NULL,
    PRIMARY KEY (model, method, attribute)
) WITHOUT ROWID;
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, weights TEXT NOT NULL, steering TEXT NOT NULL, alpha REAL NOT NULL, suite TEXT NOT NULL,
    UNIQUE (weights, steering, alpha, suite)
);
CREATE TABLE answers (
    run INTEGER NOT NULL REFERENCES runs, item TEXT NOT NULL, answer TEXT NOT NULL, probabilities TEXT NOT NULL,
    PRIMARY KEY (run, item)
) WITHOUT ROWID;
"""


class StoreError(InputError):
    """The store cannot be written or read: the study cannot continue."""


Answer = tuple[str, str, tuple[float, ...]]
"""An item's key, the raw answer, the probabilities of its options."""


@dataclass(frozen=True)
class Fit:
    """What a (model, method, attribute) of a plan stands for.

    recipe: hash of what the plan says of it. weights and steering: hashes of all that decides its answers. notes:
    discovery's warnings. gates: how far its gate opens on the discovery tokens, if it has one.
    """

    recipe: str
    weights: str
    steering: str
    notes: tuple[str, ...] = ()
    gates: Gates | None = None


@dataclass(frozen=True)
class Key:
    """What a run's answers depend on, besides the item."""

    weights: str
    steering: str
    alpha: float
    suite: str


class Store:
    """An open database; it may be used from several threads. `writing` opens one, and `reading`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._turn = threading.RLock()
        weakref.finalize(self, connection.close)

    def about(self, name: str) -> Any:
        """A fact about the study, or None."""
        row = self._first("SELECT value FROM about WHERE name = ?", name)
        return None if row is None else json.loads(row[0])

    def tell(self, name: str, value: Any) -> None:
        with self._transaction() as write:
            write("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, json.dumps(value)))

    def fit(self, model: str, method: str, attribute: str) -> Fit | None:
        columns = "recipe, weights, steering, notes, gates"
        row = self._first(
            f"SELECT {columns} FROM fits WHERE model = ? AND method = ? AND attribute = ?", model, method, attribute
        )
        if row is None:
            return None
        recipe, weights, steering, notes, gates = row
        measured = json.loads(gates)
        said = tuple(json.loads(notes))
        return Fit(recipe, weights, steering, said, Gates(**measured) if measured else None)

    def remember(self, model: str, method: str, attribute: str, fit: Fit) -> None:
        gates = json.dumps(fit.gates and asdict(fit.gates))
        hashes = (fit.recipe, fit.weights, fit.steering)
        with self._transaction() as write:
            row = (model, method, attribute, *hashes, json.dumps(fit.notes), gates)
            write("INSERT OR REPLACE INTO fits VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def write(self, key: Key, answers: Iterable[Answer]) -> None:
        """Add a batch, whole or not at all; an item that is answered already keeps its answer."""
        with self._transaction() as write:
            values = (key.weights, key.steering, key.alpha, key.suite)
            write("INSERT OR IGNORE INTO runs (weights, steering, alpha, suite) VALUES (?, ?, ?, ?)", values)
            run = self._run(key)
            for item, answer, probabilities in answers:
                row = (run, item, answer, json.dumps(probabilities, separators=(",", ":")))
                write("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", row)

    def answered(self, key: Key) -> set[str]:
        """The keys of the items that are answered."""
        return {item for (item,) in self._rows("SELECT item FROM answers WHERE run = ?", self._run(key))}

    def answers(self, key: Key) -> dict[str, tuple[str, tuple[float, ...]]]:
        """By item key, the raw answer and the options' probabilities."""
        rows = self._rows("SELECT item, answer, probabilities FROM answers WHERE run = ?", self._run(key))
        return {item: (answer, tuple(json.loads(probabilities))) for item, answer, probabilities in rows}

    def count(self) -> int:
        """All answers there are, of this plan and of earlier ones."""
        return self._rows("SELECT count(*) FROM answers")[0][0]

    def _run(self, key: Key) -> int | None:
        row = self._first(
            "SELECT id FROM runs WHERE weights = ? AND steering = ? AND alpha = ? AND suite = ?",
            key.weights,
            key.steering,
            key.alpha,
            key.suite,
        )
        return None if row is None else row[0]

    def _first(self, query: str, *values: Any) -> Any:
        rows = self._rows(query, *values)
        return rows[0] if rows else None

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with self._turn, _told(self.path):
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with self._turn, _told(self.path), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection.execute


@contextmanager
def writing(folder: str | Path) -> Iterator[Store]:
    """The store of a folder, created if it does not exist, for the one process that may write to it."""
    folder = Path(folder)
    path = folder / DATABASE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("a")
    except OSError as error:
        raise InputError(f"cannot write to {str(folder)!r} ({error.strerror}): choose another folder") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"another process is running the study in {str(folder)!r}: wait for it, or choose another folder"
            ) from None
        with _told(path):
            connection = _checked(path, _connect(path, "rwc"), new=True)
            try:
                connection.execute("PRAGMA synchronous = NORMAL")
                yield Store(path, connection)
            finally:
                connection.close()


def reading(folder: str | Path) -> Store:
    """The store of a folder as it is, also while another process writes to it."""
    path = Path(folder) / DATABASE
    if not path.is_file():
        raise InputError(f"there is no study in {str(folder)!r}: it has no {DATABASE}; give a folder of `study run`")
    with _told(path):
        try:
            return Store(path, _checked(path, _connect(path, "ro")))
        except sqlite3.OperationalError:  # a write-ahead log cannot be opened in a read-only folder
            return Store(path, _checked(path, _connect(path, "ro&immutable=1")))


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"{path.resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None, timeout=60)


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    pragmas = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {VERSION};"
    # One transaction: after a crash the database has its tables and its version, or it is empty.
    connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {pragmas} COMMIT;")


def _checked(path: Path, connection: sqlite3.Connection, new: bool = False) -> sqlite3.Connection:
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
def _told(path: Path) -> Iterator[None]:
    """SQLite's errors as messages that say what to do; an unfinished transaction is rolled back."""
    try:
        yield
    except sqlite3.Error as error:
        reason = str(error)
        kept = "what was answered before is kept"
        advice = f"{kept}; run the same command again"
        if "full" in reason or "disk I/O" in reason:
            advice = f"free some space and run the same command again, {kept}"
        elif "readonly" in reason or "unable to open" in reason:
            advice = "make the folder writable or choose another one"
        elif isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            advice = "it is damaged or no database; move it away, or choose another folder"
        raise StoreError(f"the store {str(path)!r}: {reason}; {advice}") from error
