"""Downloads, from a hub that is no network: what is shown first, what is checked, and what is said offline."""

import json
import sys
from types import SimpleNamespace

import pytest

from ggss import cli
from ggss.cli import data as commands
from ggss.data import hub as hub_module
from ggss.data.hub import MME, MMSTAR, RECORD, SOCIAL_COUNTERFACTUALS, download, offered, revision_of
from ggss.errors import InputError
from ggss.probes import suites
from ggss.probes.benchmarks import load_mmstar
from test_mmstar import row, write


class FakeHub:
    """A repository as a mapping of names to bytes. Nothing here reaches a network."""

    def __init__(self, files, sha="a" * 40, licence="mit"):
        self.files, self.sha, self.licence, self.calls = files, sha, licence, []

    def HfApi(self):
        return self

    def dataset_info(self, repository, files_metadata, timeout):
        assert files_metadata
        assert timeout > 0
        siblings = [SimpleNamespace(rfilename=name, size=len(content)) for name, content in self.files.items()]
        card = None if self.licence is None else {"license": self.licence}
        return SimpleNamespace(sha=self.sha, siblings=siblings, card_data=card)

    def snapshot_download(self, repository, repo_type, revision, allow_patterns, local_dir):
        self.calls.append((repository, repo_type, revision))
        for name in allow_patterns:
            (local_dir / name).parent.mkdir(parents=True, exist_ok=True)
            (local_dir / name).write_bytes(self.files[name])


@pytest.fixture
def table(tmp_path):
    return write(tmp_path / "MMStar.tsv", [row(index) for index in range(6)]).read_bytes()


@pytest.fixture
def run(monkeypatch, capsys):
    def call(hub, *arguments):
        monkeypatch.setattr(hub_module, "_hub", lambda: hub)
        monkeypatch.setattr(sys, "argv", ["ggss", "data", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return (code, *capsys.readouterr())

    return call


def test_a_download_has_the_files_that_are_needed_and_a_record(tmp_path, table):
    hub = FakeHub({"MMStar.tsv": table, "mmstar.parquet": b"x" * 99, "README.md": b"card"})
    offer = offered(MMSTAR, tmp_path, hub)
    assert (offer.files, offer.size, offer.licence) == ({"MMStar.tsv": len(table)}, len(table), "mit")
    download(offer, tmp_path / "d" / "MMStar", hub)
    assert hub.calls == [("Lin-Chen/MMStar", "dataset", "a" * 40)]
    assert sorted(path.name for path in (tmp_path / "d" / "MMStar").iterdir()) == ["MMStar.tsv", RECORD]
    assert revision_of(tmp_path / "d" / "MMStar" / "MMStar.tsv") == "Lin-Chen/MMStar@" + "a" * 40
    assert offered(MMSTAR, tmp_path, FakeHub({"MMStar.tsv": b""}, licence=None)).licence == "not stated"
    assert offered(MMSTAR, tmp_path, FakeHub({"MMStar.tsv": b""}, licence=["mit", "other"])).licence == "mit, other"


def test_the_revision_is_a_part_of_what_is_asked(tmp_path, table, monkeypatch):
    (tmp_path / "by_hand").mkdir()
    (tmp_path / "by_hand" / "MMStar.tsv").write_bytes(table)
    hashes = [suites.benchmark("mmstar", str(tmp_path / "by_hand")).hash("mmstar")]
    for sha in "ab":
        hub = FakeHub({"MMStar.tsv": table}, sha * 40)
        download(offered(MMSTAR, tmp_path, hub), tmp_path / sha / "MMStar", hub)
        hashes.append(suites.benchmark("mmstar", str(tmp_path / sha)).hash("mmstar"))
        assert load_mmstar(tmp_path / sha)[0].context["revision"] == f"Lin-Chen/MMStar@{sha * 40}"
    assert len(set(hashes)) == 3
    file = tmp_path / "a" / "MMStar" / "MMStar.tsv"
    file.write_bytes(table + b"\n")  # no longer what was downloaded
    assert revision_of(file) == ""
    assert "revision" not in load_mmstar(tmp_path / "a")[0].context


def test_another_revision_replaces_the_files_of_the_last_one_and_nothing_else(tmp_path):
    old = FakeHub({"data/test-0-old.parquet": b"old", "data/test-1.parquet": b"same"}, "a" * 40)
    new = FakeHub({"data/test-0-new.parquet": b"new", "data/test-1.parquet": b"same"}, "b" * 40)
    for hub in (old, new):
        download(offered(MME, tmp_path, hub), tmp_path / "MME", hub)
        (tmp_path / "MME" / "data" / "mine.parquet").write_bytes(b"mine")
    names = sorted(path.name for path in (tmp_path / "MME" / "data").iterdir())
    assert names == ["mine.parquet", "test-0-new.parquet", "test-1.parquet"]
    assert revision_of(tmp_path / "MME") == "lmms-lab/MME@" + "b" * 40


def test_what_did_not_arrive_whole_or_has_no_room_is_refused(tmp_path, monkeypatch):
    hub = FakeHub({"MMStar.tsv": b"questions"})
    offer = offered(MMSTAR, tmp_path, hub)
    hub.files["MMStar.tsv"] = b"quest"
    with pytest.raises(InputError, match=r"MMStar\.tsv did not arrive as the hub describes it"):
        download(offer, tmp_path / "MMStar", hub)
    assert not (tmp_path / "MMStar" / RECORD).exists()
    monkeypatch.setattr(hub_module.shutil, "disk_usage", lambda folder: SimpleNamespace(free=3))
    calls = len(hub.calls)
    with pytest.raises(InputError, match=r"GB free, and 0\.0 GB are needed"):
        download(offer, tmp_path / "other", hub)
    assert len(hub.calls) == calls
    with pytest.raises(InputError, match=r"has no MMStar\.tsv at revision"):
        offered(MMSTAR, tmp_path, FakeHub({"README.md": b""}))


def test_offline_it_says_what_to_fetch_by_hand(tmp_path, run):
    class Offline:
        def HfApi(self):
            raise ConnectionError("no route to host\nmore")

    code, out, err = run(Offline(), "mmstar", "--download", "--to", tmp_path)
    assert (code, out) == (2, "")
    assert "MMStar cannot be downloaded (no route to host): where there is a network, get MMStar.tsv from " in err
    assert "https://huggingface.co/datasets/Lin-Chen/MMStar, and put them into" in err
    assert list(tmp_path.iterdir()) == []


def test_the_command_shows_size_and_licence_first_and_checks_what_came(tmp_path, run, table, monkeypatch):
    monkeypatch.delenv("GGSS_DATA", raising=False)
    hub = FakeHub({"MMStar.tsv": table})
    code, out, err = run(hub, "mmstar", "--download", "--to", tmp_path / "data")
    assert code == 0, err
    first, second, third = out.splitlines()
    assert first.startswith("MMStar: 1 files, 0.00 GB, licence: mit, from https://huggingface.co/datasets/Lin-Chen/")
    assert second == f"MMStar: 6 questions about 6 pictures, Lin-Chen/MMStar@{'a' * 40}"
    assert third == f"`export GGSS_DATA={tmp_path / 'data'}` lets every command find it"
    monkeypatch.setenv("GGSS_DATA", str(tmp_path / "data"))
    code, out, _ = run(None, "mmstar")
    assert (code, len(out.splitlines())) == (0, 1)
    monkeypatch.delenv("GGSS_DATA")
    code, _, err = run(hub, "mmstar")
    assert code == 2
    assert "Give --to DIR, or set GGSS_DATA" in err


def test_a_person_is_asked_before_the_download(tmp_path, monkeypatch, table, capsys):
    hub = FakeHub({"MMStar.tsv": table})
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(commands.typer, "confirm", lambda question: False)
    with pytest.raises(commands.typer.Exit):
        commands.fetch(MMSTAR, tmp_path, hub)
    assert not hub.calls
    assert "licence: mit" in capsys.readouterr().out
    monkeypatch.setattr(commands.typer, "confirm", lambda question: True)
    commands.fetch(MMSTAR, tmp_path, hub)
    assert hub.calls


def test_parquet_that_could_not_be_read_is_not_downloaded(tmp_path, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    hub = FakeHub({"data/test-0.parquet": b"x", "data/train-0.parquet": b"x"})
    for arguments in (("mme", "--to", tmp_path), ("social-counterfactuals", tmp_path, "-o", tmp_path / "faces.csv")):
        code, _, err = run(hub, *arguments, "--download")
        assert code == 2
        assert "on the hub is parquet, and reading it needs pyarrow: pip install 'ggss[parquet]'" in err
    assert not hub.calls


def test_a_record_that_is_not_json_is_said(tmp_path):
    (tmp_path / RECORD).write_text("{")
    with pytest.raises(InputError, match=RECORD):
        revision_of(tmp_path / "x.tsv")
    (tmp_path / RECORD).write_text(json.dumps([]))
    assert revision_of(tmp_path / "x.tsv") == ""
    assert SOCIAL_COUNTERFACTUALS.address == "https://huggingface.co/datasets/Intel/SocialCounterfactuals"
