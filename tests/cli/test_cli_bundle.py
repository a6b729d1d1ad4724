# ruff: noqa: F811 (fixtures of another file)
"""`ggss bundle`, `ggss verify` and `ggss report --template` as a user calls them."""

import json
import re
import zipfile
from hashlib import sha256

import pytest
import yaml

import ggss
from ggss.analysis import records
from ggss.study.plan import Plan
from ggss.study.runner import run as run_study
from planted import planted
from test_bundle import changed, edited_table, files_of, zipped
from test_cli import run  # noqa: F401 (fixtures)
from test_comparison import STEERED, runs

MODEL = "small-world/qwen3-vl"
PLAN = {
    "name": "tiny",
    "suite": "small-world",
    "discovery": "small-world",
    "models": [MODEL],
    "methods": ["none", "ggss"],
    "alphas": [1.0],
    "steering": {"race": {"discover_on": ["cook"], "tasks": ["mcq"]}},
    "limit": 10,
    "threads": 1,
    "statistics": {"resamples": 100, "permutations": 100},
}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies") / "my-study"
    (folder.parent / "plan.yaml").write_text(yaml.safe_dump(PLAN))
    run_study(Plan.read(folder.parent / "plan.yaml"), folder, show=False)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    records.write(runs(0.9, tasks=("mcq",)).values(), folder / "before.jsonl")
    records.write(runs(0.1, seed=1, tasks=("mcq",), source=STEERED).values(), folder / "after.jsonl")
    return folder


def test_a_study_is_bundled_and_verified(run, study, tmp_path):
    path = tmp_path / "evidence.zip"
    code, out, err = run("bundle", study, "-o", path, "--licence", f"model {MODEL}=Apache-2.0")
    assert (code, err) == (0, "")
    assert re.search(r"has \d+ files", out)
    assert "Licences that are not known" not in out, "the small world says that of its pictures"
    code, out, err = run("verify", path)
    assert code == 0, out + err
    assert "All equal" in out
    assert f"sha256 of its manifest {sha256(files_of(path)['manifest.json']).hexdigest()}" in out
    assert b"data:image" not in files_of(path)["report.html"]
    before = path.read_bytes()
    assert run("bundle", study, "-o", path, "--licence", f"model {MODEL}=Apache-2.0")[0] == 0, "it is its own"
    assert path.read_bytes() == before


def test_pictures_are_put_in_when_they_are_asked_for(run, study, tmp_path):
    path = tmp_path / "evidence.zip"
    assert run("bundle", study, "-o", path, "--pictures")[0] == 0
    assert b"data:image" in files_of(path)["report-with-pictures.html"]
    assert b"data:image" not in files_of(path)["report.html"]
    code, out, _ = run("verify", path)
    assert code == 0
    assert "Only its hash was checked: report-with-pictures.html" in out


def test_a_study_that_did_not_measure_a_steerer_does_not_take_its_card(run, study, tmp_path):
    steerer = tmp_path / "race"
    ggss.fit("ggss", planted()[0], attribute="race").save_pretrained(steerer)
    code, _, err = run("bundle", study, "-o", tmp_path / "evidence.zip", "--steerer", steerer)
    assert code == 2
    assert "does not belong here" in err
    assert not (tmp_path / "evidence.zip").exists()


def test_what_differs_is_named_and_is_exit_code_1(run, files, tmp_path):
    path = tmp_path / "evidence.zip"
    assert run("bundle", files / "before.jsonl", files / "after.jsonl", "-o", path)[0] == 0
    data, column, old = edited_table(files_of(path)["tables/bias.csv"], "12.5")
    edited = changed(path, tmp_path / "edited.zip", {"tables/bias.csv": data})
    code, out, err = run("verify", edited)
    assert (code, err) == (1, "")
    assert "DIFFERS  tables/bias.csv: its sha256 is" in out
    assert f"column {column!r}: '12.5' in the bundle, {old!r} computed again" in out
    assert "2 differences" in out
    code, out, _ = run("verify", edited, "--json")
    told = json.loads(out)
    assert (code, told["equal"]) == (1, False)
    assert told["differences"][1]["expected"] == old


@pytest.mark.parametrize("content", [b"", b"no zip", None])
def test_what_is_no_bundle_is_exit_code_2(run, tmp_path, content):
    path = tmp_path / "evidence.zip"
    if content is None:
        zipped(path, {"../../etc/passwd": b"x"})
    else:
        path.write_bytes(content)
    code, out, err = run("verify", path)
    assert (code, out) == (2, "")
    assert err.startswith("ggss: the bundle ")
    assert len(err.splitlines()) == (2 if content is None else 1)


def test_a_file_of_somebody_else_is_not_replaced(run, files, tmp_path):
    path = zipped(tmp_path / "holiday.zip", {"beach.jpg": b"sand"})
    code, _, err = run("bundle", files / "before.jsonl", "-o", path)
    assert code == 2
    assert "--force" in err
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["beach.jpg"]
    assert run("bundle", files / "before.jsonl", "-o", path, "--force")[0] == 0
    assert "manifest.json" in files_of(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{study}", "{before}"), "is a study, which has all its runs"),
        (("{study}", "--seed", "3"), "the plan of a study has statistics.seed"),
        (("{before}", "--pictures"), "a file of answers has none"),
        (("{before}", "--licence", "CC0"), "is not NAME=VALUE"),
        (("{before}", "--licence", "model foo=MIT"), "the bundle has no 'model foo' to have a licence: "),
        (("{study}", "--licence", "picture=CC0"), "to have a licence: did you mean 'pictures'?"),
    ],
)
def test_arguments_that_do_not_belong_together(run, study, files, tmp_path, words, message):
    given = [word.format(study=study, before=files / "before.jsonl") for word in words]
    code, _, err = run("bundle", *given, "-o", tmp_path / "e.zip")
    assert code == 2
    assert message in err


def test_a_report_after_a_template_is_markdown_and_is_not_replaced(run, study, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("report", study, "--template", "annex-iv")
    assert (code, err) == (0, "")
    assert "no legal advice" in out
    text = (tmp_path / "annex-iv.md").read_text()
    assert text.startswith("# Technical documentation of tiny\n")
    (tmp_path / "annex-iv.md").write_text(text + "My own words.\n")
    code, _, err = run("report", study, "--template", "annex-iv")
    assert code == 2
    assert "--force" in err
    assert (tmp_path / "annex-iv.md").read_text().endswith("My own words.\n")
    out_file = tmp_path / "runs.md"
    code, out, _ = run(
        "report", files / "before.jsonl", files / "after.jsonl", "--template", "annex-iv", "-o", out_file, "--json"
    )
    assert json.loads(out)["files"] == [str(out_file)]
    assert "less bias" in out_file.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--template", "annex-5"), "did you mean 'annex-iv'"),
        (("--template", "annex-iv", "--public"), "are of the page"),
    ],
)
def test_a_template_that_cannot_be_used(run, study, words, message):
    code, _, err = run("report", study, *words)
    assert code == 2
    assert message in err
