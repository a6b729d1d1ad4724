"""The store: nothing doubled, nothing half written, a sentence for everything that can be wrong with a folder."""

import os
import sqlite3
import subprocess
import sys

import pytest

from ggss.errors import InputError
from ggss.steering.gates import Gates
from ggss.study import store as stores
from ggss.study.store import DATABASE, Fit, Key, StoreError, reading, writing

GATES = Gates(0.1, 0.05, 0.2, 0.8, 0.7, 0.1)
KEY = Key("weights", "steering", 0.5, "suite")
ROWS = [("one", "a", (0.25, 0.75)), ("two", "b", ())]


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


@pytest.mark.parametrize("part", ["weights", "steering", "alpha", "suite"])
def test_every_part_of_the_key_counts(folder, part):
    other = Key(**{**vars(KEY), part: 0.75 if part == "alpha" else "other"})
    assert reading(folder).answers(other) == {}


def test_an_answer_is_kept_once_and_never_replaced(folder):
    with writing(folder) as store:
        store.write(KEY, [("one", "changed", ()), ("three", "c", ())])
        assert store.count() == 3
        assert store.answers(KEY)["one"] == ("a", (0.25, 0.75))


def test_a_batch_is_whole_or_absent(folder):
    def broken():
        yield "three", "c", ()
        raise KeyboardInterrupt

    with writing(folder) as store:
        with pytest.raises(KeyboardInterrupt):
            store.write(KEY, broken())
        assert store.answered(KEY) == {"one", "two"}
        store.write(KEY, [("three", "c", ())])
    assert reading(folder).count() == 3


def test_fits_and_facts_are_replaced(folder):
    with writing(folder) as store:
        for steering in ("old", "new"):
            store.remember("m", "ggss", "race", Fit("recipe", "weights", steering, ("careful",), GATES))
            store.tell("plan", {"name": steering})
        assert store.fit("m", "ggss", "race") == Fit("recipe", "weights", "new", ("careful",), GATES)
        store.remember("m", "none", "", Fit("recipe", "weights", "nothing"))
        assert store.fit("m", "none", "") == Fit("recipe", "weights", "nothing", (), None)
        assert store.about("plan") == {"name": "new"}
        assert store.fit("m", "ggss", "gender") is None
        assert store.about("nothing") is None


def test_it_can_be_read_while_it_is_written(folder):
    with writing(folder) as store:
        reader = reading(folder)
        store.write(KEY, [("three", "c", ())])
        assert reader.count() == 3


def test_two_writers_on_one_folder(folder):
    with writing(folder), pytest.raises(InputError, match="another process is running the study"), writing(folder):
        pass
    code = "import sys; from ggss.study.store import writing\nwith writing(sys.argv[1]): pass"
    with writing(folder):
        other = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert "another process is running the study" in other.stderr
    with writing(folder) as store:
        assert store.count() == 2


def test_a_full_disk(folder):
    with writing(folder) as store:
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match=r"full; free some space and run the same command again"):
            store.write(KEY, [(str(n), "x" * 100, ()) for n in range(1000)])
        assert store.answered(KEY) == {"one", "two"}
    assert reading(folder).count() == 2


def test_a_database_that_may_not_be_written(folder):
    store = reading(folder)
    with pytest.raises(StoreError, match=r"readonly database; make the folder writable or choose another"):
        store.write(KEY, [("three", "c", ())])


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another folder"), writing(tmp_path / "file" / "study"):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(folder):
    folder.chmod(0o500)
    try:
        with pytest.raises(InputError, match=r"writable|cannot write"), writing(folder):
            pass
        assert reading(folder).count() == 2
    finally:
        folder.chmod(0o700)


def test_a_database_of_another_version(folder, monkeypatch):
    before = (folder / DATABASE).read_bytes()
    monkeypatch.setattr(stores, "VERSION", 4)
    for opened in (lambda: reading(folder), lambda: writing(folder).__enter__()):
        with pytest.raises(InputError, match="has version 3 and this ggss reads version 4"):
            opened()
    assert (folder / DATABASE).read_bytes() == before


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
