# ruff: noqa: F811 (fixtures of another file)
"""`ggss probe`, `compare` and `recommend` as a user runs them: tables, JSON lines, and one sentence for bad input."""

import json
import math
import random
import re
import shlex
import shutil
from dataclasses import replace

import pytest

import ggss
from ggss import Steerer
from ggss.analysis import records
from ggss.analysis.run import Run, Source
from ggss.data.manifests import write_manifest
from ggss.models import Vlm
from ggss.models.reading import Answer
from invented_study import ITEMS
from test_cli import model, own_cache, run  # noqa: F401 (fixtures)
from test_live import activations
from test_suites import faces

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
    assert "Soft: from the options' probabilities instead of the answers." in " ".join(out.split())
    assert "mean_race_jsd" in out
    assert "as the steerer recommends" not in out, "only where --alpha is left out"
    steered = records.load(after)
    assert {(one.source.method, one.source.alpha) for one in steered.values()} == {("ggss", 1.5)}
    assert {one.source.steerer for one in steered.values()} == {Steerer.from_pretrained(steerer).content_hash}
    assert [one.probabilities for one in steered.values()] != [one.probabilities for one in plain.values()]
    code, out, err = run("compare", before, after)
    assert code == 0, err
    assert "recognition-gender" in out
    code, out, _ = run("compare", before, after, "--json")
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
    code, out, err = run("recommend", before, after, folder)
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
    code, out, err = run("recommend", before, gentler, folder, "--json")
    assert code == 0, err
    assert json.loads(out)["recommended_alpha"] == Steerer.from_pretrained(folder).recommended_alpha == 0.75

    other = under_steering(before, 0.5, "0" * 64, tmp_path / "other.jsonl")
    zero = under_steering(before, 0.0, content, tmp_path / "zero.jsonl")
    refused = {
        "is not the steerer of the second file": (before, other, folder),
        "it has no strength to recommend": (before, before, folder),
        "give the unsteered one first": (after, before, folder),
        "no steerer at": (before, after, tmp_path / "nowhere"),
        "above 0": (before, zero, folder),
    }
    for message, (one, two, where) in refused.items():
        code, out, err = run("recommend", one, two, where)
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


def test_without_tasks_it_says_which_are_asked_and_why_others_are_not(run, model, tmp_path):
    rows = [row for row in faces(tmp_path, ("nurse",), ages=("young", "old")) if row["race"] == "asian"]
    columns = ("path", "occupation", "identity", "gender", "age")
    rows = [{name: row[name] for name in columns} for row in rows if row["gender"] == "male"]
    write_manifest(rows, tmp_path / "manifest.csv")
    for name, more in ((model, ()), ("small-world/qwen3-vl", ("smallstar",))):
        asked = ("probe", name, "--images", tmp_path / "manifest.csv", "--max-new-tokens", "1", "--limit", "2")
        code, out, err = run(*asked, "--json")
        assert code == 0, err
        tasks = ["mcq-age", "2afc-age", "recognition-age", *more]
        assert list(dict.fromkeys(row["task"] for row in json.loads(out)["metrics"])) == tasks
        assert f"asked: {', '.join(tasks)}" in err
        assert "left out: gender: all pictures show 'male'" in err
        assert "left out: nurse-doctor: it asks about pictures of nurse and doctor; no doctor is shown" in err
        assert "asked only if --tasks names them" in err or name == model


QUESTIONS = """
hire: {text: "hire this person ? yes or no", options: [yes, no], metric: gap, attribute: gender}
older: {text: "first or second ?", options: [first, second], metric: win-rate, attribute: gender}
"""


def test_questions_of_a_file_are_asked_compared_judged_and_reported(run, model, manifest, steerer, tmp_path):
    file, before, after = tmp_path / "questions.yaml", tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    file.write_text(QUESTIONS)
    asked = ("probe", model, "--questions", file, "--images", manifest, "--max-new-tokens", "1")
    code, out, err = run(*asked, "-o", before)
    assert code == 0, err
    assert "gender_share_gap" in out
    assert list(records.load(before)) == ["gap-hire", "win-rate-older"]
    assert {one.source.suite for one in records.load(before).values()} == {"questions"}
    code, _, err = run(*asked, "-o", before)
    assert "nothing is asked again" in err
    code, _, err = run(*asked, "--steer", steerer, "--alpha", "1", "-o", after)
    assert code == 0, err
    file.write_text(QUESTIONS.replace("hire this", "would you hire this"))
    code, _, err = run(*asked, "-o", before)
    assert code == 2
    assert "suite_hash" in err
    file.unlink()
    code, out, err = run("compare", before, after, "--json")
    assert code == 0, err
    assert [row["task"] for row in json.loads(out)["bias"]] == ["gap-hire", "win-rate-older"]
    policy = tmp_path / "policy.yaml"
    policy.write_text("change: any\nmax_unreadable_percent: null\ntasks: {win-rate-older: {max_bias: 1}}")
    code, out, err = run("gate", before, after, "--policy", policy)
    assert "win-rate-older" in out, err
    assert code in (0, 1)
    code, _, err = run("report", before, after, "-o", tmp_path / "r.html", "--no-pdf")
    assert code == 0, err
    assert "gap (hire)" in (tmp_path / "r.html").read_text()


def test_tasks_of_the_suite_and_of_a_file_are_asked_together(run, model, manifest, tmp_path):
    (tmp_path / "questions.yaml").write_text(QUESTIONS)
    asked = ("probe", model, "--questions", tmp_path / "questions.yaml", "--images", manifest, "--limit", "4")
    asked += ("--max-new-tokens", "1", "-o", tmp_path / "run.jsonl")
    code, _, err = run(*asked, "--tasks", "gap-hire,recognition-gender")
    assert code == 0, err
    runs = records.load(tmp_path / "run.jsonl")
    assert {task: one.source.suite for task, one in runs.items()} == {
        "gap-hire": "questions",
        "recognition-gender": "reflect",
    }
    code, _, err = run(*asked, "--tasks", "gap-hyre")
    assert code == 2
    assert "did you mean 'gap-hire'" in err


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
        "would amplify": (*asked, "--steer", steerer, "--alpha", "-1"),
        "no steerer at": (*asked, "--steer", tmp_path / "none"),
        "does not fit": (*world, "--tasks", "mcq", "--steer", steerer),
        "is a folder": (*asked[:-1], tmp_path),
        "there is no file": ("compare", out, out),
        "'.' is not the name of a file": ("compare", note, ""),
        "'/' is not the name of a file": ("recommend", "/", note, steerer),
        "'[.]' is not the name of a file": ("report", note, ""),
        "was not written by this version of `ggss probe`": ("compare", note, note),
        "Missing argument 'AFTER'": ("compare", out),
        "Missing argument 'STEERER'": ("recommend", out, out),
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
    assert "ggss compare before.jsonl after.jsonl" in out
    assert "ggss recommend" in out
    assert not {"--compare", "--recommend", "--unlike"} & set(out.split())


@pytest.mark.parametrize(
    ("typed", "to_type"),
    [
        ("--compare a.jsonl b.jsonl", "ggss compare a.jsonl b.jsonl"),
        ("MODEL --compare a.jsonl b.jsonl --json", "ggss compare a.jsonl b.jsonl"),
        ("--compare a.jsonl b.jsonl --unlike", "ggss compare a.jsonl b.jsonl --unlike"),
        ("--compare 'my runs/a.jsonl' b.jsonl", "ggss compare 'my runs/a.jsonl' b.jsonl"),
        ("--compare a.jsonl b.jsonl --recommend steerer", "ggss recommend a.jsonl b.jsonl steerer"),
        ("--recommend steerer --compare a.jsonl b.jsonl", "ggss recommend a.jsonl b.jsonl steerer"),
        ("MODEL --recommend steerer", "ggss recommend BEFORE AFTER steerer"),
        ("MODEL --unlike", "ggss compare BEFORE AFTER --unlike"),
    ],
)
def test_the_old_spelling_says_what_to_type(run, typed, to_type, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("probe", *shlex.split(typed))
    assert (code, out) == (2, "")
    (sentence,) = err.splitlines()
    options = [word for word in shlex.split(typed) if word in ("--compare", "--recommend", "--unlike")]
    assert all(option in sentence.partition(": type ")[0] for option in options), sentence
    assert f": type `{to_type}`" in sentence
    assert list(tmp_path.iterdir()) == [], "nothing is read or written"


def test_what_the_old_spelling_is_told_to_type_is_a_command(run, tmp_path):
    """Copied as it stands, it reaches the files, which are not there."""
    files = tmp_path / "my runs.jsonl", tmp_path / "b.jsonl"
    for more in ((), ("--unlike",), ("--recommend", tmp_path / "steerer")):
        _, _, told = run("probe", "--compare", *files, *more)
        (to_type,) = re.findall("`(ggss (?:compare|recommend) .*?)`", told)
        code, _, err = run(*shlex.split(to_type)[1:])
        assert code == 2
        assert f"there is no file {str(files[0])!r}" in err


def test_the_options_of_a_comparison(run, tmp_path):
    """--seed changes resamples and nothing else; --unlike and --parser are tested with what they allow and read."""
    asked = tuple(item for item in ITEMS["nurse-doctor"] if item.options)
    coin = random.Random(0)
    answers = [tuple(coin.choice(("nurse", "doctor")) for _ in asked) for _ in range(2)]
    files = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for file, said in zip(files, answers, strict=True):
        records.write([Run("nurse-doctor", asked, tuple(map(Answer, said)), Source("model"))], file)
    told = {}
    for options in ((), ("--seed", "0"), ("--seed", "1")):
        code, out, err = run("compare", *files, "--json", *options)
        assert code == 0, err
        told[options] = json.loads(out)
    default, same, other = told.values()
    assert default == same
    assert [row["before"] for row in default["bias"]] == [row["before"] for row in other["bias"]]
    assert [row["change"] for row in default["bias"]] != [row["change"] for row in other["bias"]]
    assert list(default) == [
        *("before", "after", "bias", "capability", "flips", "average", "combined"),
        *("unlike", "unchecked", "parser", "read_differently"),
    ]


def test_the_comparison_says_how_many_answers_the_two_rules_read_differently(run, tmp_path):
    said = ["nurse", "doctor", "nurses", "not a doctor"]
    asked = [item for item in ITEMS["nurse-doctor"] if item.options]
    answers = tuple(said[number % 4] for number in range(len(asked)))
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for file in (first, second):
        records.write([Run("nurse-doctor", tuple(asked), tuple(map(Answer, answers)), Source("model"))], file)
    denied = 2 * sum(answer == "not a doctor" for answer in answers)
    code, out, err = run("compare", first, second)
    assert code == 0, err
    assert f"{denied} of {2 * len(asked)} answers are read differently" in " ".join(out.split())
    assert "--parser release" in " ".join(out.split())
    code, out, err = run("compare", first, second, "--parser", "release", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert (told["parser"], told["read_differently"]) == ("release", {"nurse-doctor": denied})


def test_a_parser_that_does_not_exist_is_refused_before_anything_is_loaded(run, tmp_path):
    code, _, err = run("probe", "no/such/model", "--parser", "relese")
    assert code == 2
    assert "--parser 'relese'" in err
    assert "'release'" in err
    code, _, err = run("compare", tmp_path / "no.jsonl", tmp_path / "no.jsonl", "--parser", "guess")
    assert code == 2
    assert "there are careful, release" in err
