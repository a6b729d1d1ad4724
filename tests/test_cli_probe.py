# ruff: noqa: F811 (fixtures of another file)
"""`ggss probe` as a user runs it: tables, JSON lines, comparisons, and one sentence for bad input."""

import json
import math
import re
import shutil
from dataclasses import replace

import pytest

import ggss
from ggss import Steerer
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
    plain = records.load(before)
    assert {task: len(one.items) for task, one in plain.items()} == {
        "mcq": 2 * 24,
        "recognition-gender": 24,
        "nurse-doctor": 24,
    }
    assert told["alpha"] == 0
    assert list(dict.fromkeys(row["task"] for row in told["metrics"])) == list(plain)
    assert {(one.source.method, one.source.steerer, one.source.alpha) for one in plain.values()} == {("none", "", 0)}
    for row in told["metrics"]:
        again = plain[row["task"]].measured()
        value, interval = again.value(row["metric"]), again.interval(row["metric"])
        assert row["interval"]["estimate"] == (None if math.isnan(value) else value)
        assert row["interval"]["low"] == (None if math.isnan(interval.low) else interval.low)
    code, out, err = run(*asked, "--steer", steerer, "--alpha", "1.5", "-o", after)
    assert code == 0, err
    assert "ggss at alpha 1.5" in out
    assert "mean_race_jsd" in out
    assert "as the steerer recommends" not in out, "only where --alpha is left out"
    steered = records.load(after)
    assert {(one.source.method, one.source.alpha) for one in steered.values()} == {("ggss", 1.5)}
    assert {one.source.steerer for one in steered.values()} == {Steerer.from_pretrained(steerer).content_hash}
    assert [one.probabilities for one in steered.values()] != [one.probabilities for one in plain.values()]
    code, out, err = run("probe", "--compare", before, after)
    assert code == 0, err
    assert "recognition-gender" in out
    code, out, _ = run("probe", "--compare", before, after, "--json")
    assert [row["task"] for row in json.loads(out)["capability"]] == ["recognition-gender"]
    assert [row["task"] for row in json.loads(out)["bias"]] == ["mcq", "nurse-doctor"]
    assert "recommended_alpha" not in json.loads(out)


def under_steering(file, alpha, content, out):
    """The run of a file, as if its answers had been given under a steerer of that content."""
    runs = records.load(file)
    source = {"method": "ggss", "attribute": "gender", "alpha": alpha, "steerer": content}
    records.write([replace(one, source=replace(one.source, **source)) for one in runs.values()], out)
    return out


def test_a_comparison_recommends_its_strength_to_its_own_steerer_alone(run, model, manifest, steerer, tmp_path):
    before, folder = tmp_path / "before.jsonl", tmp_path / "steerer"
    asked = ("probe", model, "--images", manifest, "--tasks", "mcq", "--max-new-tokens", "1")
    assert run(*asked, "-o", before)[0] == 0
    shutil.copytree(steerer, folder)
    code, out, err = run(*asked, "--steer", folder)
    assert code == 0, err
    assert "ggss at alpha 1" in out
    assert "alpha 1, because the steerer recommends none" in out
    content = Steerer.from_pretrained(folder).content_hash
    after = under_steering(before, 1.25, content, tmp_path / "after.jsonl")
    code, out, err = run("probe", "--compare", before, after, "--recommend", folder)
    assert code == 0, err
    assert f"alpha 1.25 is now what {folder} recommends" in out.replace("\n", "")
    assert Steerer.from_pretrained(folder).recommended_alpha == 1.25
    assert Steerer.from_pretrained(folder).content_hash == content
    assert "1.25" in (folder / "README.md").read_text()

    code, out, err = run(*asked, "--steer", folder, "-o", tmp_path / "steered.jsonl")
    assert code == 0, err
    assert "ggss at alpha 1.25" in out
    assert "alpha 1.25, as the steerer recommends; --alpha chooses another" in out
    assert records.load(tmp_path / "steered.jsonl")["mcq"].source.alpha == 1.25
    assert json.loads(run(*asked, "--steer", folder, "--json")[1])["alpha"] == 1.25
    assert json.loads(run(*asked, "--steer", folder, "--alpha", "0.5", "--json")[1])["alpha"] == 0.5

    gentler = under_steering(before, 0.75, content, tmp_path / "gentler.jsonl")
    code, out, err = run("probe", "--compare", before, gentler, "--recommend", folder, "--json")
    assert code == 0, err
    assert json.loads(out)["recommended_alpha"] == Steerer.from_pretrained(folder).recommended_alpha == 0.75

    other = under_steering(before, 0.5, "0" * 64, tmp_path / "other.jsonl")
    zero = under_steering(before, 0.0, content, tmp_path / "zero.jsonl")
    refused = {
        "is not the steerer of the second file": (before, other, folder),
        "no single steering whose strength": (before, before, folder),
        "give the unsteered one first": (after, before, folder),
        "no steerer at": (before, after, tmp_path / "nowhere"),
        "above 0": (before, zero, folder),
    }
    for message, (one, two, where) in refused.items():
        code, out, err = run("probe", "--compare", one, two, "--recommend", where)
        assert (code, out) == (2, ""), (message, out, err)
        assert re.search(message, err), (message, err)
    assert Steerer.from_pretrained(folder).recommended_alpha == 0.75


def test_the_small_world_is_the_default_of_its_models(run, tmp_path):
    file = tmp_path / "run.jsonl"
    code, out, err = run("probe", "small-world/qwen3-vl", "--tasks", "nurse-doctor", "-o", file)
    assert code == 0, err
    assert "nurse_gap" in out
    assert "doctor_gap" in out
    asked = records.load(file)["nurse-doctor"]
    assert asked.source.suite == "small-world"
    assert set(asked.parsed.parsed) == {"nurse", "doctor"}


def test_the_small_world_asks_about_your_pictures_in_its_own_words(run, manifest, tmp_path):
    file = tmp_path / "run.jsonl"
    code, _, err = run("probe", "small-world/qwen3-vl", "--images", manifest, "--tasks", "mcq", "-o", file)
    assert code == 0, err
    asked = records.load(file)["mcq"]
    assert {(item.context["occupation"], item.attributes[0]["race"]) for item in asked.items} == {
        (work, race) for work in ("nurse", "doctor") for race in ("asian", "black", "white")
    }
    assert asked.items[0].prompt.startswith("how much does this person earn ?")


def test_a_task_may_name_an_attribute_of_the_pictures(run, model, tmp_path):
    write_manifest(faces(tmp_path, ("nurse",), ages=("young", "middle", "old")), tmp_path / "manifest.csv")
    asked = ("probe", model, "--images", tmp_path / "manifest.csv", "--max-new-tokens", "1")
    code, out, err = run(*asked, "--tasks", "mcq-age,recognition-age", "--json")
    assert code == 0, err
    metrics: dict[str, list[str]] = {}
    for row in json.loads(out)["metrics"]:
        metrics.setdefault(row["task"], []).append(row["metric"])
    assert metrics["mcq-age"][:2] == ["mean_age_jsd", "mean_age_jsd_education"]
    assert metrics["recognition-age"] == ["accuracy"]


def bad_calls(model, manifest, steerer, tmp_path):
    out = tmp_path / "out.jsonl"
    asked = ("probe", model, "--images", manifest, "-o", out)
    note = tmp_path / "note.jsonl"
    note.write_text("{}\n")
    short = manifest.with_name("short.csv")
    short.write_text("\n".join(manifest.read_text().splitlines()[:-1]))
    world = ("probe", "small-world/qwen3-vl", "-o", out)
    return {
        "a model is needed": ("probe",),
        "give --images": ("probe", model, "-o", out),
        "cannot ask mcqq: did you mean .mcq.. there are mcq": (*asked, "--tasks", "mcqq"),
        "cannot ask ceo": (*asked, "--tasks", "ceo"),
        "--tasks ',' names no task": (*asked, "--tasks", ","),
        "no suite 'big'": (*asked, "--suite", "big"),
        "missing white": ("probe", model, "--images", short, "-o", out),
        "is not a file": (*world, "--images", tmp_path / "nothing.csv"),
        "--alpha 2 is the strength of a steerer: give --steer": (*asked, "--alpha", "2"),
        "give --compare": (*asked, "--recommend", steerer),
        "would amplify": (*asked, "--steer", steerer, "--alpha", "-1"),
        "no steerer at": (*asked, "--steer", tmp_path / "none"),
        "does not fit": (*world, "--tasks", "mcq", "--steer", steerer),
        "is a folder": (*asked[:-1], tmp_path),
        "--unlike allows more of a comparison": (*asked, "--unlike"),
        "leave out": ("probe", model, "--compare", out, out),
        "there is no file": ("probe", "--compare", out, out),
        "was not written by this version of `ggss probe`": ("probe", "--compare", note, note),
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
