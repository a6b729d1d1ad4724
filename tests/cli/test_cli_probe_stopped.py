# ruff: noqa: F811 (fixtures of another file)
"""`ggss probe` stopped by Ctrl-C, by kill -9 in the middle of a line, or by a defect of a parser: nothing is lost."""

import json
import re
import shutil
import signal
from dataclasses import replace

import pytest

from fresh_python import python
from ggss import probes
from ggss.analysis import asking, records
from ggss.probes import suites
from ggss.probes.steered_model import SteeredModel
from ggss.version import ggss_code
from test_cli import model, own_cache, run  # noqa: F401 (fixtures)
from test_cli_probe import manifest, steerer  # noqa: F401 (fixtures)

TASKS = "mcq,recognition-gender"


@pytest.fixture
def asked(model, manifest):
    return ("probe", model, "--images", manifest, "--tasks", TASKS, "--max-new-tokens", "1", "--batch-size", "8")


def counted(monkeypatch, stop_at=None):
    """Counts the batches that are asked; the one with the number `stop_at` is stopped by Ctrl-C."""
    batches, inner = [], SteeredModel.read_batch

    def read_batch(self, items, *rest):
        if len(batches) == stop_at:
            raise KeyboardInterrupt
        batches.append(len(items))
        return inner(self, items, *rest)

    monkeypatch.setattr(SteeredModel, "read_batch", read_batch)
    return batches


def same(one, other):
    """The same answers; the last digits of probabilities may depend on which items share a batch."""
    for task, asked_once in records.load(one).items():
        again = records.load(other)[task]
        assert replace(again, answers=asked_once.answers) == asked_once
        assert again.texts == asked_once.texts
        for own, others in zip(asked_once.probabilities, again.probabilities, strict=True):
            assert own == pytest.approx(others, abs=2e-6)


def test_a_run_of_other_code_is_not_gone_on_with(run, asked, tmp_path, monkeypatch):
    out = tmp_path / "run.jsonl"
    with monkeypatch.context() as patch:
        counted(patch, stop_at=2)
        assert run(*asked, "-o", out)[0] == 130
    edited = dict.fromkeys(ggss_code(), "e" * 64)
    with monkeypatch.context() as patch:
        patch.setattr(asking, "ggss_code", lambda: edited)
        code, _, err = run(*asked, "-o", out)
    assert code == 2
    assert "version of the code of ggss (answering)" in err
    assert "give another file, or --force to begin anew" in err
    assert run(*asked, "-o", out)[0] == 0


def test_ctrl_c_says_what_is_kept_and_the_same_command_goes_on(run, asked, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        batches = counted(patch)
        code, whole, err = run(*asked, "-o", tmp_path / "whole.jsonl", "--json")
        assert code == 0, err
    assert batches == [8] * 9
    out = tmp_path / "run.jsonl"
    with monkeypatch.context() as patch:
        counted(patch, stop_at=7)
        code, said, err = run(*asked, "-o", out)
    assert (code, said) == (130, "")
    assert "56 of 72 answers are kept, and the same command goes on from there" in err
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run.jsonl.part"]
    with monkeypatch.context() as patch:
        batches = counted(patch)
        code, said, err = run(*asked, "-o", out, "--json")
        assert code == 0, err
    assert batches == [8, 8]
    assert "56 of 72 answers are there already: the others are asked now" in err
    same(tmp_path / "whole.jsonl", out)
    assert json.loads(said)["metrics"][0]["asked"] == json.loads(whole)["metrics"][0]["asked"]
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run.jsonl"]
    with monkeypatch.context() as patch:
        batches = counted(patch)
        code, again, err = run(*asked, "-o", out, "--json")
    assert (code, batches) == (0, [])
    assert "72 of 72 answers are there already: nothing is asked again" in err
    assert again == said


KILLED = """
import os, signal
from ggss import cli

synced, times = os.fsync, 0

def killed(number):
    # In the fourth batch, when all of it but its last hundred bytes is written.
    global times
    times += 1
    if times == 4:
        os.ftruncate(number, os.fstat(number).st_size - 100)
        os.kill(os.getpid(), signal.SIGKILL)
    synced(number)

os.fsync = killed
cli.main()
"""


def test_kill_in_the_middle_of_a_line_loses_that_line_alone(run, asked, tmp_path, monkeypatch):
    out = tmp_path / "run.jsonl"
    ended = python(KILLED, *asked, "-o", out)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    part = tmp_path / "run.jsonl.part"
    torn = part.read_bytes()
    assert torn.count(b"\n") == 4 * 8 - 1
    assert not torn.endswith(b"\n")
    assert not out.exists()
    batches = counted(monkeypatch)
    code, _, err = run(*asked, "-o", out)
    assert code == 0, err
    assert "31 of 72 answers are there already" in err
    assert batches == [1, 8, 8, 8, 8, 8]
    kept = {(one["task"], one["item"]): one for one in map(json.loads, torn.split(b"\n")[:-1])}
    now = {(one["task"], one["item"]): one for one in map(json.loads, out.read_bytes().splitlines())}
    assert len(now) == 72
    assert {key: now[key] for key in kept} == kept, "what was there is kept as it was"
    assert not part.exists()


def test_a_parser_that_fails_loses_no_run(run, asked, tmp_path, monkeypatch):
    out, parse = tmp_path / "run.jsonl", probes.get("mcq").parse

    def broken(answer, item):
        raise RuntimeError("a defect of the parser")

    with monkeypatch.context() as patch:
        patch.setitem(probes.base.PROBES._entries, "mcq", replace(probes.get("mcq"), parse=broken))
        code, _, err = run(*asked, "-o", out)
    assert code == 70
    assert "a defect of the parser" in err
    batches = counted(monkeypatch)
    assert probes.get("mcq").parse is parse
    code, said, err = run(*asked, "-o", out)
    assert (code, batches) == (0, []), err
    assert "mean_race_jsd" in said


def test_what_was_asked_otherwise_is_refused_and_force_begins_anew(run, asked, steerer, model, tmp_path, monkeypatch):
    out = tmp_path / "run.jsonl"
    assert run(*asked, "-o", out)[0] == 0
    before = out.read_bytes()
    edited = tmp_path / "edited"
    shutil.copytree(model, edited)
    config = json.loads((edited / "config.json").read_text())
    config["text_config"]["rms_norm_eps"] = 0.01
    (edited / "config.json").write_text(json.dumps(config))
    batches = counted(monkeypatch)
    calls = {
        r"the model's text config: \w+ and \w+": ("probe", edited, *asked[2:]),
        "alpha: 0 and 1.5": (*asked, "--steer", steerer, "--alpha", "1.5"),
        "max_new_tokens: 1 and 2": (*asked, "--max-new-tokens", "2"),
        "the model's dtype: float32 and bfloat16": (*asked, "--dtype", "bfloat16"),
        "answers to recognition-gender, which is not asked now": (*asked, "--tasks", "mcq"),
        r"\d+ answers to mcq that are not asked now": (*asked, "--limit", "20"),
    }
    for told, call in calls.items():
        code, said, err = run(*call, "-o", out)
        assert (code, said) == (2, ""), (told, err)
        assert re.search(told, err), err
        assert "--force" in err
        assert sorted(path.name for path in tmp_path.glob("run*")) == ["run.jsonl"]
    assert (batches, out.read_bytes()) == ([], before), "before the first question"
    code, _, err = run(*asked, "--steer", steerer, "--alpha", "1.5", "-o", out, "--force")
    assert code == 0, err
    assert records.load(out)["mcq"].source.alpha == 1.5


def test_a_limit_asks_the_items_of_a_limited_study_and_the_rest_later(run, asked, manifest, tmp_path, monkeypatch):
    out = tmp_path / "run.jsonl"
    code, _, err = run(*asked, "--limit", "20", "-o", out)
    assert code == 0, err
    suite = suites.load("reflect", images=manifest)
    chosen = suite.items("mcq", 20)
    assert [item.key for item in records.load(out)["mcq"].items] == [item.key for item in chosen]
    assert 12 <= len(chosen) < 48
    assert len({item.cluster for item in chosen}) >= 2
    batches = counted(monkeypatch)
    code, _, err = run(*asked, "-o", out)
    assert code == 0, err
    assert sum(batches) == 72 - len(chosen) - len(suite.items("recognition-gender", 20))
    assert [item.key for item in records.load(out)["mcq"].items] == [item.key for item in suite.items("mcq")]


def test_a_comparison_names_both_sides_and_refuses_what_is_unlike(run, asked, steerer, model, tmp_path):
    before, after, other = tmp_path / "before.jsonl", tmp_path / "after.jsonl", tmp_path / "other.jsonl"
    assert run(*asked, "-o", before)[0] == 0
    assert run(*asked, "--steer", steerer, "--alpha", "1.5", "-o", after)[0] == 0
    code, said, err = run("compare", before, after)
    assert code == 0, err
    flat = " ".join(said.split())
    assert "unsteered; 72 items, 2 tasks of reflect" in flat
    assert "ggss of gender at alpha 1.5, steerer " in flat
    data = json.loads(run("compare", before, after, "--json")[1])
    content = records.load(after)["mcq"].source.steerer
    assert data["before"] | {"said": ""} == {
        "model": str(model),
        "steered": False,
        "method": "none",
        "attribute": "",
        "alpha": 0.0,
        "steerer": "",
        "suites": ["reflect"],
        "tasks": 2,
        "items": 72,
        "said": "",
    }
    assert data["after"] | data["before"] == data["before"]
    assert (data["after"]["alpha"], data["after"]["steerer"], data["after"]["steered"]) == (1.5, content, True)
    assert data["unlike"] == []

    def changed(**change):
        runs = records.load(after)
        records.write([replace(one, source=replace(one.source, **change)) for one in runs.values()], other)
        return other

    identity, nought = dict(records.load(after)["mcq"].source.identity), "0" * 64
    refused = {
        "the first is steered .* and the second is not: give the unsteered one first": (after, before),
        "the model's text weights: [0-9a-f]{12} and 000000000000": {"identity": identity | {"text weights": nought}},
        "the model's dtype: float32 and float16": {"identity": identity | {"dtype": "float16"}},
        "suite_hash: [0-9a-f]{12} and 111111111111": {"suite_hash": "1" * 64},
        "max_new_tokens: 1 and 8": {"max_new_tokens": 8},
    }
    for told, change in refused.items():
        pair = change if isinstance(change, tuple) else (before, changed(**change))
        code, said, err = run("compare", *pair)
        assert (code, said) == (2, ""), told
        assert re.search(told, err), (told, err)
        assert "--unlike" in err
        code, said, err = run("compare", *pair, "--unlike")
        assert code == 0, err
        assert re.search(told, " ".join(said.split())), (told, said)
    assert run("compare", before, changed(model="a copy of it"))[0] == 0
    code, said, _ = run("compare", after, changed(alpha=2.0))
    assert code == 0
    assert "The first run is steered, too" in said


def test_a_file_of_two_runs_is_refused(run, asked, tmp_path):
    file = tmp_path / "run.jsonl"
    assert run(*asked, "-o", file)[0] == 0
    first, second = records.load(file).values()
    records.write([first, replace(second, source=replace(second.source, alpha=0.5))], file)
    code, _, err = run("compare", file, file)
    assert code == 2
    assert "mcq and recognition-gender differ in alpha: 0 and 0.5" in err


def test_an_unfinished_run_is_not_compared(run, asked, tmp_path, monkeypatch):
    out = tmp_path / "run.jsonl"
    with monkeypatch.context() as patch:
        counted(patch, stop_at=2)
        assert run(*asked, "-o", out)[0] == 130
    for file in (out, tmp_path / "run.jsonl.part"):
        code, _, err = run("compare", file, file)
        assert code == 2
        assert "run.jsonl.part' is" in err
        assert "finishes it" in err
