"""The store: nothing doubled, nothing half written, a sentence for everything that can be wrong with a folder."""

import os
import shutil
import sqlite3
from contextlib import closing, nullcontext

import pytest

from fresh_python import python
from ggss.errors import InputError
from ggss.models.reading import Answer
from ggss.steering.fitting import Gates
from ggss.study import store
from ggss.study.store import DATABASE, Fit, Key, StoreError, reading, writing

GATES = Gates(0.1, 0.05, 0.2, 0.8, 0.7, 0.1)
KEY = Key("identity", "steering", 0.5, "suite")
ROWS = {"one": Answer("a", (0.25, 0.75)), "two": Answer("b")}
MORE = {"three": Answer("c")}


@pytest.fixture
def folder(tmp_path):
    with writing(tmp_path) as store:
        store.write(KEY, ROWS)
    return tmp_path


def test_answers_come_back_as_they_were(folder):
    store = reading(folder)
    assert store.answers(KEY) == {"one": ("a", (0.25, 0.75)), "two": ("b", ())}
    assert store.answered(KEY) == {"one", "two"}
    assert store.count() == 2


@pytest.mark.parametrize("part", ["identity", "steering", "alpha", "suite"])
def test_every_part_of_the_key_counts(folder, part):
    other = Key(**{**vars(KEY), part: 0.75 if part == "alpha" else "other"})
    assert reading(folder).answers(other) == {}


def test_an_answer_is_kept_once_and_never_replaced(folder):
    with writing(folder) as store:
        store.write(KEY, {"one": Answer("changed")} | MORE)
        assert store.count() == 3
        assert store.answers(KEY)["one"] == ("a", (0.25, 0.75))


def test_an_answer_that_is_not_unicode_gets_a_sentence_and_its_batch_is_absent(folder):
    with writing(folder) as store:
        with pytest.raises(StoreError, match=r"holds Unicode text only, and was given '\\ud800'"):
            store.write(KEY, MORE | {"four": Answer("\ud800")})
        assert store.answered(KEY) == {"one", "two"}


def test_a_batch_is_whole_or_absent(folder):
    class Broken(dict):
        def items(self):
            yield "three", Answer("c")
            raise KeyboardInterrupt

    with writing(folder) as store:
        with pytest.raises(KeyboardInterrupt):
            store.write(KEY, Broken())
        assert store.answered(KEY) == {"one", "two"}
        store.write(KEY, MORE)
    assert reading(folder).count() == 3


def test_fits_and_facts_are_replaced(folder):
    with writing(folder) as store:
        for steering in ("old", "new"):
            store.remember("m", "ggss", "race", Fit("recipe", "identity", steering, ("careful",), GATES))
            store.tell("plan", {"name": steering})
        assert store.fit("m", "ggss", "race") == Fit("recipe", "identity", "new", ("careful",), GATES)
        store.remember("m", "none", "", Fit("recipe", "identity", "nothing"))
        assert store.fit("m", "none", "") == Fit("recipe", "identity", "nothing", (), None)
        for gates in (None, GATES):
            prompted = Fit("recipe", "identity", "prompted", (), gates, 0.9998)
            store.remember("m", "prompted", "race", prompted)
            assert store.fit("m", "prompted", "race") == prompted
        assert store.about("plan") == {"name": "new"}
        assert store.fit("m", "ggss", "gender") is None
        assert store.about("nothing") is None


def test_it_can_be_read_while_it_is_written(folder):
    with writing(folder) as store:
        reader = reading(folder)
        store.write(KEY, MORE)
        assert reader.count() == 3


def test_two_writers_on_one_folder(folder):
    with writing(folder), pytest.raises(InputError, match="another process is running the study"), writing(folder):
        pass
    code = "import sys; from ggss.study.store import writing\nwith writing(sys.argv[1]): pass"
    with writing(folder):
        other = python(code, folder)
    assert "another process is running the study" in other.stderr
    with writing(folder) as store:
        assert store.count() == 2


def test_a_full_disk(folder):
    with writing(folder) as store:
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match=r"full; free some space and run the same command again"):
            store.write(KEY, {str(n): Answer("x" * 100) for n in range(1000)})
        assert store.answered(KEY) == {"one", "two"}
    assert reading(folder).count() == 2


def test_a_database_that_may_not_be_written(folder):
    store = reading(folder)
    with pytest.raises(StoreError, match=r"readonly database; make the folder writable or choose another"):
        store.write(KEY, MORE)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another folder"), writing(tmp_path / "file" / "study"):
        pass


@pytest.fixture
def with_log(tmp_path):
    """A folder whose last answers are in the write-ahead log alone, as a kill or a copy leaves it."""
    copy = tmp_path / "copy"
    copy.mkdir()
    with writing(tmp_path / "study") as store:
        store.write(KEY, ROWS)
        store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        store.write(KEY, MORE)
        for file in (DATABASE, f"{DATABASE}-wal"):
            shutil.copy(tmp_path / "study" / file, copy)
    return copy


@pytest.fixture
def nothing_can_be_written(monkeypatch):
    """As in a read-only folder, for root too: SQLite cannot make the file it needs beside a write-ahead log."""
    connect = store.connect

    def refusing(path, mode):
        if mode == "ro":
            raise sqlite3.OperationalError("unable to open database file")
        return connect(path, mode)

    monkeypatch.setattr(store, "connect", refusing)


def test_a_write_ahead_log_is_read_where_files_can_be_written(with_log):
    assert reading(with_log).answered(KEY) == {"one", "two", "three"}


def test_a_write_ahead_log_is_read_where_nothing_can_be_written(with_log, nothing_can_be_written):
    files = {file: file.read_bytes() for file in with_log.iterdir()}
    store = reading(with_log)
    assert store.answered(KEY) == {"one", "two", "three"}
    with pytest.raises(StoreError, match="readonly database"):
        store.write(KEY, {"four": Answer("d")})
    assert {file: file.read_bytes() for file in with_log.iterdir()} == files
    (with_log / f"{DATABASE}-wal").unlink()
    assert reading(with_log).answered(KEY) == {"one", "two"}, "the control: the log has the third"


DAMAGE = {
    "header": lambda log: b"\0" * 32 + log[32:],
    "frame": lambda log: log[:60] + b"zz" + log[62:],
    "cut": lambda log: log[:1000],
    "other bytes": lambda log: b"no log" * 1000,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_log_is_the_same_to_those_who_read_and_write(with_log, tmp_path, name, caplog):
    log = with_log / f"{DATABASE}-wal"
    log.write_bytes(DAMAGE[name](log.read_bytes()))
    assert reading(with_log).answered(KEY) == {"one", "two"}, "up to the damage"
    with writing(with_log) as store:
        assert store.answered(KEY) == {"one", "two"}
    assert not caplog.text
    # A study that was never checkpointed: its tables too are in the log alone.
    young = tmp_path / "young"
    young.mkdir()
    with writing(tmp_path / "begun") as store:
        store.write(KEY, ROWS)
        for file in (DATABASE, f"{DATABASE}-wal"):
            shutil.copy(tmp_path / "begun" / file, young)
    log = young / f"{DATABASE}-wal"
    log.write_bytes(DAMAGE[name](log.read_bytes()))
    with pytest.raises(InputError, match=r"is an empty database: .*`ggss study run` begins the study anew") as told:
        reading(young)
    with writing(young) as store:
        store.write(KEY, ROWS)
    assert caplog.messages == [str(told.value)]
    assert reading(young).answered(KEY) == {"one", "two"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(folder, with_log):
    for place, answers in ((folder, 2), (with_log, 3)):
        place.chmod(0o500)
        try:
            with pytest.raises(InputError, match=r"writable|cannot write"), writing(place):
                pass
            assert len(reading(place).answered(KEY)) == answers
        finally:
            place.chmod(0o700)


def test_a_log_that_cannot_be_copied_whole_gets_a_sentence(with_log, nothing_can_be_written, monkeypatch):
    copy = shutil.copyfile

    def growing(source, target):
        copy(source, target)
        with source.open("ab") as file:
            file.write(b"more")

    monkeypatch.setattr(shutil, "copyfile", growing)
    with pytest.raises(InputError, match="is being written: wait until the study has stopped"):
        reading(with_log)
    (with_log / f"{DATABASE}-wal").unlink()
    (with_log / f"{DATABASE}-wal").mkdir()
    with pytest.raises(InputError, match=r"cannot read all of .*: copy its folder to a writable one"):
        reading(with_log)


EDITS = {
    "another answer": ("UPDATE answers SET answer = 'z' WHERE item = 'one'", "the answer to 'one'"),
    "other probabilities": ("UPDATE answers SET probabilities = '[0.75,0.25]' WHERE item = 'one'", "answer to 'one'"),
    "no JSON": ("UPDATE answers SET probabilities = '[0.25' WHERE item = 'one'", "the answer to 'one'"),
    "another item": ("UPDATE answers SET item = 'three' WHERE item = 'one'", "the answer to 'three'"),
    "no text": ("UPDATE answers SET answer = x'ff00' WHERE item = 'one'", "the answer to 'one'"),
    "no UTF-8": ("UPDATE answers SET answer = CAST(x'ff41' AS TEXT) WHERE item = 'one'", "the answer to 'one'"),
    "no checksum": ("UPDATE answers SET checksum = '' WHERE item = 'two'", "the answer to 'two'"),
    "another strength": ("UPDATE runs SET alpha = 0.5 WHERE alpha = 0.75", "the answer to 'two'"),
    "another fit": ("UPDATE fits SET steering = 'other'", "the fit of 'ggss' on 'm'"),
    "other warnings": ("UPDATE fits SET notes = '[]'", "the fit of 'ggss' on 'm'"),
    "gates that are no JSON": ("UPDATE fits SET gates = '{'", "the fit of 'ggss' on 'm'"),
    "another method's fit": ("UPDATE fits SET attribute = 'race' WHERE attribute = 'gender'", "the fit of 'ggss'"),
    "another plan": ("UPDATE about SET value = '{}'", "what it says about 'plan'"),
    "a plan that is no JSON": ("UPDATE about SET value = '{'", "what it says about 'plan'"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_row_that_is_not_as_it_was_written_is_refused(tmp_path, name):
    with writing(tmp_path) as store:
        store.write(Key(**{**vars(KEY), "alpha": 0.75}), {"two": ROWS["two"]})
        if name != "another strength":
            store.write(KEY, ROWS)
        if name != "another method's fit":
            store.remember("m", "ggss", "race", Fit("recipe", "identity", "steering", ("careful",), GATES))
        store.remember("m", "ggss", "gender", Fit("recipe", "identity", "steering", (), None))
        store.tell("plan", {"name": "mine"})

    def read(store):
        return store.answers(KEY), store.fit("m", "ggss", "race"), store.about("plan")

    read(reading(tmp_path))
    sql, named = EDITS[name]
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection, connection:
        assert connection.execute(sql).rowcount
    for opened in (nullcontext(reading(tmp_path)), writing(tmp_path)):
        with (
            opened as store,
            pytest.raises(StoreError, match=f"is damaged: .*{named}.*Restore the folder") as refused,
        ):
            read(store)
    statement = str(refused.value).split("'")[-2]
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection, connection:
        assert connection.execute(statement).rowcount, "what the message says helps"
    read(reading(tmp_path))


def test_a_database_of_another_version(folder, monkeypatch):
    before = (folder / DATABASE).read_bytes()
    monkeypatch.setattr(store, "VERSION", 5)
    for opened in (lambda: reading(folder), lambda: writing(folder).__enter__()):
        with pytest.raises(InputError, match="has version 4 and this ggss reads version 5"):
            opened()
    assert (folder / DATABASE).read_bytes() == before


def test_a_schema_that_is_no_text_gets_a_sentence(folder):
    """SQLite names the damaged part in its message, which is then no text either."""
    whole = (folder / DATABASE).read_bytes()
    (folder / DATABASE).write_bytes(whole.replace(b"CREATE TABLE answers", b"CREATE TABL\x80 answers"))
    for opened in (reading, lambda folder: writing(folder).__enter__()):
        with pytest.raises(StoreError, match="it is damaged or no database"):
            opened(folder)


@pytest.mark.parametrize("kind", ["another program's", "no database"])
def test_a_file_that_is_not_ours_is_left_alone(tmp_path, kind):
    file = tmp_path / DATABASE
    if kind == "no database":
        file.write_bytes(b"my precious notes " * 100)
    else:
        connection = sqlite3.connect(file)
        connection.execute("CREATE TABLE mine (x)")
        connection.commit()
        connection.close()
    before = file.read_bytes()
    for opened in (lambda: reading(tmp_path), lambda: writing(tmp_path).__enter__()):
        with pytest.raises(InputError, match="choose another folder"):
            opened()
    assert file.read_bytes() == before


def test_a_folder_without_a_study(tmp_path):
    with pytest.raises(InputError, match="there is no study"):
        reading(tmp_path)
