# ruff: noqa: F811 (fixtures of another file)
"""Nothing that ggss did not write is replaced, by any command, unless it is told to; and that is known early."""

import json
import os

import pytest
import typer

from experiments.training import card
from ggss import files, smallworld
from ggss.cli import app
from ggss.errors import InputError
from ggss.report import tables
from ggss.smallworld import painter
from ggss.smallworld.demo import HELD_OUT, check_place
from ggss.study import results
from test_cli import faces, model, own_cache, run  # noqa: F401 (fixtures)
from test_cli_convert import contents
from test_results import RESULTS

CONTINUES = {("study", "run")}  # its database is never replaced: a study that is there is continued
NEVER_REPLACED = {("export",)}  # a model is written to a new folder


def commands(group, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), {parameter.name for parameter in command.params}


def test_every_command_that_writes_can_be_forced_and_force_means_nothing_else():
    found = dict(commands(typer.main.get_command(app)))
    writing = {path for path, parameters in found.items() if "out" in parameters} - CONTINUES - NEVER_REPLACED
    assert {("discover",), ("probe",), ("demo",), ("convert",), ("study", "tables")} <= writing
    others = {("world", "paint"), ("gate",)}  # these have a folder, and --junit
    assert {path for path, parameters in found.items() if "force" in parameters} == writing | others
    steered = {("ask",), ("play",), ("probe",), ("serve",)}
    assert {path for path, parameters in found.items() if "any_model" in parameters} == steered


def precious(folder):
    """A folder of somebody else, with every name that ggss could write."""
    for name in (
        "config.json",
        "README.md",
        "run.jsonl",
        "run.jsonl.part",
        "report.html",
        "demo.png",
        "old.pt",
        "a.jsonl",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"model_type": "llava"}')
    for attribute in HELD_OUT:
        (folder / f"{attribute}-steerer").mkdir()
        (folder / f"{attribute}-steerer" / "notes.txt").write_text("precious")
    return folder


def test_what_is_not_ours_is_refused_before_any_work(run, model, faces, tmp_path, monkeypatch):
    def loaded(*args, **kwargs):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("ggss.cli.arguments.Loading.load", loaded)
    monkeypatch.setattr("ggss.smallworld.demo.load_model", loaded)
    there = precious(tmp_path / "there")
    before = contents(there)
    manifest = faces / "manifest.csv"
    calls = {
        "README.md": ("discover", model, "--images", manifest, "--attribute", "race", "-o", there),
        "run.jsonl": ("probe", "small-world/qwen3-vl", "-o", there / "run.jsonl"),
        "run.jsonl.part": ("probe", "small-world/qwen3-vl", "-o", there / "run.jsonl"),
        "race-steerer": ("demo", "-o", there),
        "old.pt": ("convert", there, "-o", there / "old.pt"),
        "there": ("study", "tables", tmp_path, "-o", there),
        "a.jsonl": ("study", "export", tmp_path, "-o", there / "a.jsonl"),
    }
    for name, arguments in calls.items():
        if name == "run.jsonl.part":
            (there / "run.jsonl").unlink()
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), (name, err)
        assert name in err or name == "config", (name, err)
        assert "--force" in err, (name, err)
        (there / "run.jsonl").write_text('{"model_type": "llava"}')
        assert contents(there) == before, name
    code, _, err = run("world", "paint", there)
    assert code == 2
    assert "not part of a painted set" in err
    assert contents(there) == before
    for attribute in HELD_OUT:
        (there / f"{attribute}-steerer" / "notes.txt").unlink()
    for name in ("demo.png", "report.html"):
        with pytest.raises(InputError, match=f"{name}.*--force"):
            check_place(there)
        (there / name).unlink()
    check_place(there)
    check_place(precious(tmp_path / "more"), force=True)


def test_discover_replaces_its_own_steerer_and_with_force_anything(run, model, faces, tmp_path):
    there = precious(tmp_path / "there")
    find = ("discover", model, "--images", faces / "manifest.csv", "--attribute", "race")
    for arguments in (("-o", tmp_path / "new"), ("-o", tmp_path / "new"), ("-o", there, "--force")):
        code, _, err = run(*find, *arguments)
        assert code == 0, err
    assert (there / "old.pt").read_text() == '{"model_type": "llava"}', "what has another name stays"
    assert json.loads((there / "config.json").read_text())["method"] == "ggss"


@pytest.mark.parametrize("size", [0, 1])
def test_files_new_ours_and_of_others(tmp_path, size):
    file = tmp_path / "folder" / "file"
    files.check_file(file, "ggss probe", files.never)
    assert not file.parent.exists(), "checking writes nothing"
    file.parent.mkdir()
    file.write_text(f"<!-- {files.mark('ggss probe')} -->" if size else "")
    files.check_file(file, "ggss probe", files.marked("ggss probe"))
    if size:
        for command in ("ggss demo", "ggss prob"):
            with pytest.raises(InputError, match=f"does not say that `{command}` wrote it.*--force"):
                files.check_file(file, command, files.marked(command))
    files.check_file(file, "ggss probe", files.never, force=True)


def test_what_force_does_not_allow(tmp_path):
    (tmp_path / "file").write_text("precious")
    os.mkfifo(tmp_path / "fifo")
    for message, call in {
        "is a folder: name a file": lambda: files.check_file(tmp_path, "x", files.never, force=True),
        "is a file: give a folder": lambda: files.check_folder(tmp_path / "file", "x", files.never, force=True),
        "not an ordinary file": lambda: files.check_file(tmp_path / "fifo", "x", files.never, force=True),
        "cannot write .*Not a directory": lambda: files.check_file(tmp_path / "file" / "run", "x", files.never),
    }.items():
        with pytest.raises(InputError, match=message):
            call()


def test_a_place_that_cannot_be_written_is_told_early(tmp_path, monkeypatch):
    """Root may write everywhere, so that a refusal of the system is put in its place."""

    def refused(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    with pytest.raises(InputError, match=r"cannot write to '.*' \(Permission denied\): choose another place"):
        files.check_file(tmp_path / "a" / "b" / "run.jsonl", "ggss probe", files.never)
    with pytest.raises(InputError, match="Permission denied"):
        files.check_folder(tmp_path / "a", "ggss demo", files.never)
    with pytest.raises(InputError, match="Permission denied"):
        painter.check_paintable(tmp_path / "faces")
    assert list(tmp_path.iterdir()) == []


def test_the_committed_tables_and_models_are_ours():
    """`make study` and `make world` write them again."""
    files.check_folder(RESULTS, tables.COMMAND, files.marked(tables.COMMAND, "README.md"))
    for folder in {path.parent for path in smallworld.CHECKPOINTS.glob("*/config.json")}:
        command = card.COMMAND
        files.check_folder(folder, command, files.marked(command, card.CARD))


def test_training_that_was_stopped_can_begin_again(tmp_path):
    card.begin_card(tmp_path / "model", "pixtral")
    assert files.marked(card.COMMAND, card.CARD)(tmp_path / "model")
    card.write_card(tmp_path / "model", "pixtral", {}, {})
    assert files.marked(card.COMMAND, card.CARD)(tmp_path / "model")


def test_a_manifest_of_others_is_not_a_painted_set(tmp_path):
    """The folder would be replaced whole."""
    (tmp_path / "manifest.csv").write_text("path,occupation,identity,race\nmine.png,nurse,1,a\n")
    with pytest.raises(InputError, match=r"such as 'manifest\.csv'"):
        painter.check_paintable(tmp_path)


def test_a_contact_sheet_is_known_again(run, tmp_path):
    sheet = tmp_path / "contact-sheet.png"
    sheet.write_bytes(b"mine")
    code, _, err = run("world", "paint", tmp_path / "faces", "--sheet")
    assert code == 2
    assert "contact-sheet.png" in err
    assert "--force" in err
    assert not (tmp_path / "faces").exists()
    painter.write_contact_sheet(sheet)
    assert files.marked(painter.COMMAND)(sheet)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "{", '{"model": 1}', "[" * 100_000])
def test_an_export_is_known_by_its_columns(tmp_path, text):
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    assert not results.holds_export(file)
    file.write_text(json.dumps(dict.fromkeys(results.COLUMNS, "")) + "\nmore")
    assert results.holds_export(file)
