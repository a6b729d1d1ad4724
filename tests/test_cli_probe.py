# ruff: noqa: F811 (fixtures of another file)
"""`ggss probe` as a user runs it: tables, JSON lines, comparisons, and one sentence for bad input."""

import json
import math
import re

import pytest

import ggss
from ggss.analysis import records
from ggss.data.manifests import write_manifest
from ggss.models import Vlm
from test_cli import model, own_cache, run  # noqa: F401 (fixtures)
from test_methods_live import activations
from test_probes_suites import faces

QUICK = ("--tasks", "mcq,recognition-gender,nurse-doctor", "--max-new-tokens", "1")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faces")
    write_manifest(faces(folder, ("nurse", "doctor")), folder / "manifest.csv")
    return folder / "manifest.csv"


@pytest.fixture(scope="module")
def steerer(model, tmp_path_factory):
    vlm: Vlm = ggss.load_vlm(model)
    fitted = ggss.fit("ggss", activations(vlm, "projection-mlp2"), attribute="gender")
    return fitted.save_pretrained(tmp_path_factory.mktemp("steerer"))


def test_a_run_a_steered_run_and_their_comparison(run, model, manifest, steerer, tmp_path):
    before, after = tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    asked = ("probe", model, "--images", manifest, *QUICK)
    code, out, err = run(*asked, "-o", before, "--json")
    assert code == 0, err
    told = json.loads(out)
    lines = records.load(before)
    assert len(lines) == 2 * 24 + 24 + 24
    assert told["alpha"] == 0
    assert {row["task"] for row in told["metrics"]} == {"mcq", "recognition-gender", "nurse-doctor"}
    assert {line.steerer for line in lines} == {None}
    again = records.rescored(lines)
    for row in told["metrics"]:
        value = float(again[row["task"]][row["metric"]])
        assert row["interval"]["estimate"] == (None if math.isnan(value) else value)
    code, out, err = run(*asked, "--steer", steerer, "--alpha", "1.5", "-o", after)
    assert code == 0, err
    assert "ggss at alpha 1.5" in out
    assert "mean_race_jsd" in out
    steered = records.load(after)
    assert {(line.steerer.method, line.alpha) for line in steered} == {("ggss", 1.5)}
    assert len({line.steerer.hash for line in steered}) == 1
    assert [line.probabilities for line in steered] != [line.probabilities for line in lines]
    code, out, err = run("probe", "--compare", before, after)
    assert code == 0, err
    assert "recognition-gender" in out
    code, out, _ = run("probe", "--compare", before, after, "--json")
    assert [row["task"] for row in json.loads(out)["capability"]] == ["recognition-gender"]
    assert [row["task"] for row in json.loads(out)["bias"]] == ["mcq", "nurse-doctor"]


def test_the_small_world_is_the_default_of_its_models(run, tmp_path):
    file = tmp_path / "run.jsonl"
    code, out, err = run("probe", "small-world/qwen3-vl", "--tasks", "nurse-doctor", "-o", file)
    assert code == 0, err
    assert "nurse_gap" in out
    assert "doctor_gap" in out
    lines = records.load(file)
    assert {line.suite for line in lines} == {"small-world"}
    assert {line.parsed for line in lines} == {"nurse", "doctor"}


def bad_calls(model, manifest, steerer, tmp_path):
    out = tmp_path / "out.jsonl"
    asked = ("probe", model, "--images", manifest, "-o", out)
    (tmp_path / "note.jsonl").write_text("{}\n")
    short = manifest.with_name("short.csv")
    short.write_text("\n".join(manifest.read_text().splitlines()[:-1]))
    world = ("probe", "small-world/qwen3-vl", "-o", out)
    return {
        "a model is needed": ("probe",),
        "give --images": ("probe", model, "-o", out),
        "cannot ask mcqq: choose from mcq": (*asked, "--tasks", "mcqq"),
        "cannot ask ceo": (*asked, "--tasks", "ceo"),
        "nothing, as in --tasks": (*asked, "--tasks", ","),
        "no suite 'big'": (*asked, "--suite", "big"),
        "missing white": ("probe", model, "--images", short, "-o", out),
        "paints its own": (*world, "--images", manifest),
        "would amplify": (*asked, "--steer", steerer, "--alpha", "-1"),
        "no steerer at": (*asked, "--steer", tmp_path / "none"),
        "does not fit": (*world, "--tasks", "mcq", "--steer", steerer),
        "is a folder": (*asked[:-1], tmp_path),
        "leave out": ("probe", model, "--compare", out, out),
        "cannot be read": ("probe", "--compare", out, out),
        "is no run of `ggss probe`": ("probe", "--compare", tmp_path / "note.jsonl", tmp_path / "note.jsonl"),
        "MMStar": (*asked, "--tasks", "mmstar"),
    }


def test_bad_input_is_one_message_exit_2_and_nothing_written(
    run,
    model,
    manifest,
    steerer,
    tmp_path,
    monkeypatch,
):
    monkeypatch.delenv("GGSS_DATA", raising=False)
    for message, arguments in bad_calls(model, manifest, steerer, tmp_path).items():
        code, out, err = run(*arguments)
        assert code == 2, (arguments, out, err)
        assert err.startswith("ggss: "), err
        assert re.search(message, err), (message, err)
        assert "Traceback" not in err
    assert not (tmp_path / "out.jsonl").exists()


def test_help_teaches_with_an_example(run):
    code, out, _ = run("probe", "--help")
    assert code == 0
    assert "ggss probe small-world/qwen3-vl -o before.jsonl" in out
    assert "--compare" in out
