# ruff: noqa: F811 (fixtures of another file)
"""`ggss gate` as a release runs it: exit codes, one table, JSON, JUnit XML."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from ggss.analysis import records
from test_cli import run  # noqa: F401 (fixtures)
from test_comparison import STEERED, runs

TASKS = ("mcq", "smallstar")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    before = runs(0.9, tasks=TASKS)
    after = runs(0.0, seed=1, tasks=TASKS, source=STEERED)
    after["smallstar"] = replace(before["smallstar"], source=STEERED)
    unchanged = {task: replace(one, source=STEERED) for task, one in before.items()}
    for name, some in (("before", before), ("after", after), ("unchanged", unchanged)):
        records.write(some.values(), folder / f"{name}.jsonl")
    (folder / "policy.yaml").write_text("capability_margin_points: 5\ntasks:\n  mcq: {max_bias: 50}\n")
    return folder


def gate(run, folder, *more, after="after"):
    return run("gate", folder / "before.jsonl", folder / f"{after}.jsonl", *more)


def test_a_run_that_fulfils_its_policy_is_exit_code_0_with_one_table(run, files):
    code, out, err = gate(run, files, "--policy", files / "policy.yaml")
    assert (code, err) == (0, "")
    assert "passed all 5 checks" in out
    assert "FAILED" not in out
    assert "decrease, p <= 0.05" in out
    assert "same within 5 points" in out
    assert "max_unreadable_percent: 5.0" in out, "a default that the policy leaves out is printed"
    assert "mcq: max_bias: 50.0" in out
    assert "m, ggss of race at alpha 1" in out


def test_the_defaults_are_printed_and_a_failure_is_exit_code_1(run, files):
    code, out, err = gate(run, files, after="unchanged")
    assert (code, err) == (1, "")
    words = " ".join(out.split())
    assert "Policy (ggss's defaults): max_bias: null, max_flip_percent: null, change: decrease" in words
    assert "significance: 0.05, capability_margin_points: 1.5, max_unreadable_percent: 5.0" in words
    assert "FAILED 2 of 4 checks: change of mcq, capability of smallstar" in out


def test_json_has_every_check_and_the_policy(run, files):
    for after, passed in (("after", True), ("unchanged", False)):
        code, out, _ = gate(run, files, "--policy", files / "policy.yaml", "--json", after=after)
        told = json.loads(out)
        assert (told["passed"], code) == (passed, 0 if passed else 1)
        assert told["policy"]["tasks"]["mcq"]["max_bias"] == 50
        assert [(one["task"], one["rule"]) for one in told["checks"]][:2] == [("mcq", "bias"), ("mcq", "change")]
        assert told["checks"][1]["passed"] is passed
        assert told["after"]["method"] == "ggss"
        assert told["checks"][0]["p"] is None, "JSON has no NaN"


def test_junit_has_a_case_for_each_rule(run, files, tmp_path):
    file = tmp_path / "gate.xml"
    code, _, _ = gate(run, files, "--policy", files / "policy.yaml", "--junit", file, after="unchanged")
    assert code == 1
    root = ElementTree.parse(file).getroot()
    assert (root.tag, root.get("tests"), root.get("failures")) == ("testsuites", "5", "2")
    assert [(one.get("name"), one.get("tests"), one.get("failures")) for one in root] == [
        ("mcq", "3", "2"),
        ("smallstar", "2", "0"),
    ]
    bias, change = (failure.get("message", "") for failure in root.iter("failure"))
    assert bias == "before 135.35 ×10³, after 135.35 ×10³; required: at most 50 ×10³"
    assert "change +0 % [+0, +0], p 1; required: decrease, p <= 0.05" in change
    assert gate(run, files, "--junit", file)[0] == 1, "a file of its own is replaced"
    file.write_text("my notes")
    code, out, err = gate(run, files, "--junit", file)
    assert (code, out) == (2, "")
    assert "does not say that `ggss gate` wrote it" in err
    assert file.read_text() == "my notes"
    assert gate(run, files, "--junit", file, "--force")[0] == 1


def test_bad_input_is_exit_code_2_and_nothing_is_written(run, files, tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("tasks: {mcqq: {}}")
    file = tmp_path / "gate.xml"
    refused = {
        "did you mean 'mcq'": ("--policy", wrong),
        "the policy": ("--policy", tmp_path / "none.yaml"),
        "is no rule by which answers are read": ("--parser", "relese"),
    }
    for message, more in refused.items():
        code, out, err = gate(run, files, *more, "--junit", file)
        assert (code, out) == (2, "")
        assert message in err
    code, _, err = run("gate", files / "after.jsonl", files / "before.jsonl")
    assert code == 2
    assert "give the unsteered one first" in err
    assert not file.exists()
    assert gate(run, files, "--policy", files / "policy.yaml", after="before")[0] == 1, (
        "unsteered twice can be judged"
    )
