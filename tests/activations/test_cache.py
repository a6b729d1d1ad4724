"""`ggss cache` shows and deletes what ggss wrote, and nothing else."""

import json
import os
from functools import partial

import pytest
import torch

from ggss.activations.cache import ABANDONED, FOLDER, POOLED, CacheContents, CacheEntry, delete

NOW = 1_800_000_000.0
DAY = 86_400.0


@pytest.fixture
def folder(tmp_path):
    """Four entries, of 40, 30, 20 and 10 days ago, the first two of one model."""
    place = tmp_path / "cache" / FOLDER
    for number in range(4):
        entry = CacheEntry(
            place, json.dumps({"model": "ab" * 32 if number < 2 else "cd" * 32, "site": "s", "n": number})
        )
        entry.write({POOLED: torch.zeros(250)})
        os.utime(entry.path, (NOW, NOW - (4 - number) * 10 * DAY))
    return tmp_path / "cache"


@pytest.fixture
def foreign(folder):
    """Files that ggss did not write: beside the entries, in their folders, under their kind of name, behind links."""
    place = folder / FOLDER
    entry = CacheContents.read(folder).files[0].path
    precious = folder.parent / "precious.safetensors"
    precious.write_bytes(entry.read_bytes())
    others = [folder / "mine.txt", place / "mine.txt", entry.parent / "notes.txt"]
    others += [place / "ab" / f"{'ab' * 32}.safetensors", entry.parent / f"{entry.stem[:-1]}x.safetensors"]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(entry.read_bytes())  # an entry's bytes under another name are no entry
    link = place / "cd" / f"{'cd' * 32}.safetensors"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(precious)
    (place / "away").symlink_to(folder.parent)
    return [*others, precious, link, place / "away"]


@pytest.fixture
def run(folder, monkeypatch, ggss_command):
    monkeypatch.setenv("GGSS_CACHE", str(folder))
    monkeypatch.setattr("time.time", lambda: NOW)
    return partial(ggss_command, "cache")


def test_list_by_model_and_site(run, folder):
    code, out, _ = run("list", "--json")
    assert code == 0
    said = json.loads(out)
    sizes = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    assert (said["files"], said["bytes"], said["others"]) == (4, sizes, 0)
    assert [(group["model"], group["entries"]) for group in said["groups"]] == [("ab" * 6, 2), ("cd" * 6, 2)]
    assert "ab" * 6 in run("list")[1]


def test_prune_by_age_and_by_size(run, folder):
    size = CacheContents.read(folder).size // 4
    assert json.loads(run("prune", "--older-than", "25d", "--dry-run", "--json")[1])["deleted"] == 2
    assert len(CacheContents.read(folder).files) == 4, "a dry run deletes nothing"
    assert json.loads(run("prune", "--older-than", "35d", "--json")[1])["deleted"] == 1
    assert json.loads(run("prune", "--max-size", f"{size + 1}B", "--json")[1])["deleted"] == 2
    left = CacheContents.read(folder).files
    assert [round((NOW - file.written) / DAY) for file in left] == [10], "the oldest are deleted first"
    assert len(list((folder / FOLDER).iterdir())) == 1, "empty folders are removed"
    assert "1 files" in run("list")[1]


def test_nothing_that_ggss_did_not_write_is_deleted(run, folder, foreign):
    assert CacheContents.read(folder).others == len(foreign) - 2, "all but those outside the folder of activations"
    code, out, _ = run("prune", "--older-than", "0s", "--max-size", "0B")
    assert code == 0
    assert out.startswith("4 files")
    assert "not ours and stay" in out
    assert CacheContents.read(folder).files == ()
    assert [path for path in foreign if not os.path.lexists(path)] == []


def test_an_unfinished_file_is_deleted_when_nobody_can_be_writing_it(folder):
    entry = CacheContents.read(folder).files[0].path
    for number, age in enumerate((ABANDONED + 1, ABANDONED - 1)):
        path = entry.with_name(f".{entry.name}.{number}")
        path.write_bytes(b"half")
        os.utime(path, (NOW, NOW - age))
    chosen = CacheContents.read(folder).expendable(NOW, older_than=None, max_size=0)
    assert sum(not file.key for file in chosen) == 1
    assert delete(chosen)[0] == 5
    assert [file.path.name[-1] for file in CacheContents.read(folder).files] == ["1"]


def test_a_file_that_was_written_again_is_left(folder):
    files = CacheContents.read(folder).files
    os.utime(files[0].path, (NOW, NOW))
    assert delete(files)[0] == 3
    assert files[0].path.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("prune",), "what should be deleted"),
        (("prune", "--older-than", "soon"), "'soon' is not a number and one of s, min, h, d, w"),
        (("prune", "--max-size", "5"), "one of B, kB, MB, GB, TB, such as 30GB"),
    ],
)
def test_bad_input_deletes_nothing(words, said, run, folder):
    code, _, err = run(*words)
    assert code == 2
    assert said in err
    assert len(CacheContents.read(folder).files) == 4


def test_a_cache_that_is_not_there_is_empty(tmp_path):
    assert CacheContents.read(tmp_path / "none") == CacheContents(tmp_path / "none", (), 0)
