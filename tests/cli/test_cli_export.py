# ruff: noqa: F811 (fixtures of another file)
"""`ggss export --approximate`, and what every command does with an exported model: it is recognised, its strength is
recommended only once it was measured, and it is not steered twice."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import ggss
from ggss.analysis import records
from ggss.analysis.run import Source
from ggss.data.manifests import write_manifest
from ggss.methods.operator import explained, nearest_map
from ggss.methods.projection import Oblique
from ggss.models import Vlm
from ggss.serve.engine import Load
from ggss.serve.worker import load_model
from ggss.steering.exported_files import RECORD
from ggss.steering.steerer import Steerer
from noise_pictures import noise
from test_cli import own_cache, run  # noqa: F401 (fixtures)

MODEL, SITE = "small-world/pixtral", "projection-mlp2"
NEARLY = "race by ggss at alpha 0.75, an approximation"


@pytest.fixture(scope="module")
def vlm() -> Vlm:
    return ggss.load_vlm(MODEL)


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    """The manifest of a few portraits."""
    folder = tmp_path_factory.mktemp("faces")
    some = {"occupation": "cook", "gender": "woman", "identity": ["00", "01", "02", "03", "04", "05"]}
    rows = []
    for picture in ggss.Counterfactuals.load("small-world", include=some).pictures:
        rows.append({"path": f"{len(rows)}.png", **dict(picture.context), **picture.attributes})
        picture.image().save(folder / rows[-1]["path"])
    write_manifest(rows, folder / "manifest.csv")
    return folder / "manifest.csv"


@pytest.fixture(scope="module")
def activations(vlm, faces, tmp_path_factory):
    pictures = ggss.Counterfactuals.load(faces)
    return ggss.collect(vlm, pictures, keep_tokens=True, cache=tmp_path_factory.mktemp("cache"), show=False)


@pytest.fixture(scope="module")
def gated(activations, tmp_path_factory):
    """The folder of a steerer of the paper's method, which is not affine and recommends a strength."""
    steerer = ggss.fit("ggss", activations, attribute="race").recommending(0.5)
    return steerer.save_pretrained(tmp_path_factory.mktemp("gated"))


@pytest.fixture(scope="module")
def affine(vlm, tmp_path_factory):
    """The folder of a steerer that removes a random direction."""
    width = ggss.models.resolve(vlm.model, vlm.sites()[SITE]).out_features
    direction = torch.randn(width, 1, generator=torch.Generator().manual_seed(0))
    direction /= direction.norm()
    operator = Oblique(torch.ones(width), direction, direction.clone())
    steerer = Steerer("pace", "race", ("amber", "jade"), {SITE: operator}, source=vlm.describe())
    return steerer.save_pretrained(tmp_path_factory.mktemp("affine"))


@pytest.fixture(scope="module")
def exported(affine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "out"
    return ggss.export(MODEL, {"race": Steerer.from_pretrained(affine)}, 1.0, folder).folder


@pytest.fixture(scope="module")
def approximated(gated, activations, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "nearly"
    steerer = Steerer.from_pretrained(gated)
    return ggss.export(MODEL, {"race": steerer}, 0.75, folder, approximate=activations).folder


def record(folder):
    return json.loads((folder / RECORD).read_text())


def one_line(text):
    return " ".join(text.split())


def test_the_command_approximates_and_says_how_near_it_is(run, gated, faces, activations, tmp_path):
    scenes = tmp_path / "scenes"
    scenes.mkdir()
    for number in range(2):
        noise(number).save(scenes / f"{number}.png")
    asked = ("export", MODEL, "--steer", f"race={gated}", "--alpha", "race=0.75", "--approximate", faces)
    code, out, err = run(*asked, "--neutral", scenes, "-o", tmp_path / "out")
    assert code == 0, err
    (steerer,) = record(tmp_path / "out")["steerers"]
    near = steerer["approximation"][SITE]
    # The reference: contexts 0 and 5 of 6 are held out.
    operator = Steerer.from_pretrained(gated).operators[SITE]
    contexts = list(dict.fromkeys(activations.contexts))
    apart = [i for i in range(len(activations)) if activations.contexts[i] in (contexts[0], contexts[5])]
    others = [i for i in range(len(activations)) if i not in apart]
    tokens = activations.at(SITE)
    nearest = nearest_map(operator, tokens.of(others).tokens, 0.75)
    assert near["held_out"] == len(apart) == 10
    assert near["people"] == pytest.approx(explained(operator, nearest, tokens.of(apart).tokens, 0.75), abs=1e-4)
    assert near["people"] > 0.9
    assert near["without_people"] < 0.9, "noise is unlike people"
    said = one_line(out)
    assert f"R^2 {near['people']:.4f} on held-out people, {near['without_people']:.4f} on pictures without" in said
    assert "no strength is recommended before `ggss probe` has measured the result" in said
    assert "**An approximation.**" in (tmp_path / "out" / "README.md").read_text()
    code, out, err = run(*asked, "-o", tmp_path / "other", "--json")
    assert code == 0, err
    other = json.loads(out)["steerers"][0]["approximation"][SITE]
    assert other["people"] == near["people"]
    assert other["without_people"] != near["without_people"], "--neutral decides what that is measured on"


def test_an_approximation_takes_no_strength_that_was_measured_with_the_hook(run, gated, affine, faces, tmp_path):
    out = tmp_path / "out"
    asked = ("export", MODEL, "--steer", f"race={gated}", "-o", out)
    code, _, err = run(*asked, "--approximate", faces)
    assert code == 2
    assert "no strength is recommended for it before `ggss probe` has measured it" in one_line(err)
    assert "--alpha race=0.5" in one_line(err)
    code, _, err = run(*asked)
    assert code == 2
    assert "--approximate IMAGES" in one_line(err)
    code, _, err = run(*asked, "--alpha", "race=1", "--approximate", tmp_path / "none.csv")
    assert code == 2
    assert "none.csv" in err
    assert not out.exists()
    code, _, err = run("export", MODEL, "--steer", f"race={affine}", "--approximate", faces, "-o", out)
    assert code == 0, err
    assert record(out)["steerers"][0]["approximation"] is None, "an affine one is exact, and its strength is its own"


QUICK = ("--suite", "small-world", "--tasks", "mcq,smallstar", "--limit", "8", "--max-new-tokens", "1")


def test_a_strength_is_recommended_only_once_the_exported_model_was_measured(run, approximated, gated, tmp_path):
    folder = tmp_path / "nearly"
    shutil.copytree(approximated, folder)
    before, hook, after = (tmp_path / f"{name}.jsonl" for name in ("before", "hook", "after"))
    hooked = (MODEL, "--steer", gated, "--alpha", "0.75", "-o", hook)
    for words in ((MODEL, "-o", before), hooked, (folder, "-o", after)):
        code, _, err = run("probe", *words, *QUICK)
        assert code == 0, err
    served = tmp_path / "served.jsonl"
    at = {"endpoint": "http://127.0.0.1:1/v1"}
    told = [
        replace(one, source=Source("m", suite="small-world", identity=at)) for one in records.load(after).values()
    ]
    records.write(told, served)
    assert record(folder)["recommended"] is None
    assert "| recommended strength | none" in (folder / "README.md").read_text()
    for file, options, message in (
        (after, (), "--unlike"),
        (hook, (), "was answered under a steerer"),
        (before, ("--unlike",), "was not answered by the model in"),
        (served, ("--unlike",), "a server does not show its weights"),
    ):
        code, _, err = run("recommend", before, file, folder, *options)
        assert (file.name, code) == (file.name, 2)
        assert message in one_line(err)
        assert record(folder)["recommended"] is None
    code, _, err = run("recommend", before, after, gated, "--unlike")
    assert code == 2
    assert "was not answered under one steerer" in one_line(err), "nor is it the strength of the live steerer"
    code, out, err = run("recommend", before, after, folder, "--unlike")
    assert code == 0, err
    assert f"alpha 0.75 of race is now what {folder} recommends" in out.replace("\n", "")
    noted = record(folder)
    assert noted["recommended"] == {"race": 0.75}
    assert [task["task"] for task in noted["measured"]["bias"]] == ["mcq"]
    value = records.load(after)["mcq"].measured().value()
    assert noted["measured"]["bias"][0]["after"] == pytest.approx(value)
    card = (folder / "README.md").read_text()
    assert "| recommended strength | `race` 0.75 |" in card
    before_it = noted["measured"]["bias"][0]["before"]
    assert f"| `mcq` | `mean_race_jsd` | {before_it:.4g} | {value:.4g} |" in card
    assert "bias and capability of this model | measured" in card
    code, _, err = run("probe", folder, *QUICK, "-o", after)
    assert code == 0, f"the model is the one that it was: {err}"
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "language_model" in name)
    save_file(weights | {name: weights[name] * 1.5}, folder / "model.safetensors", {"format": "pt"})
    code, _, err = run("recommend", before, after, folder, "--unlike")
    assert code == 2
    assert "they differ in text weights" in one_line(err)


def test_what_ggss_cannot_load_gets_no_recommendation(run, affine, vlm, tmp_path):
    steerer = Steerer.from_pretrained(affine)
    adapter = ggss.export(MODEL, {"race": steerer}, 1.0, tmp_path / "adapter", form="lora").folder
    file = tmp_path / "before.jsonl"
    assert run("probe", MODEL, *QUICK, "-o", file)[0] == 0
    code, _, err = run("recommend", file, file, adapter)
    assert code == 2
    assert "is an exported lora, which ggss does not load" in one_line(err)
    (adapter / RECORD).write_text('{"written_by": "somebody"}')
    code, _, err = run("recommend", file, file, adapter)
    assert code == 2
    assert "was not written by this version of `ggss export`" in one_line(err)


def test_probe_and_doctor_recognise_an_exported_model(run, approximated, exported, affine, tmp_path, caplog):
    code, out, err = run("doctor", exported)
    assert code == 0, err
    assert "race by pace at alpha 1.0" in one_line(out)
    code, _, err = run("probe", approximated, *QUICK)
    assert code == 0, err
    assert f"{approximated} has steering in its weights ({NEARLY})" in caplog.text
    code, _, err = run("probe", exported, *QUICK, "--steer", affine, "--any-model", "-o", tmp_path / "run.jsonl")
    assert code == 2
    assert "would steer twice" in one_line(err)
    assert not (tmp_path / "run.jsonl").exists()


def plan(models, methods, folder):
    content = {
        "name": "exported",
        "suite": "small-world",
        "discovery": "small-world",
        "models": list(map(str, models)),
        "methods": methods,
        "alphas": [1.0],
        "steering": {"race": {"discover_on": ["cook"], "tasks": ["mcq"]}},
        "limit": 2,
        "threads": 1,
    }
    (folder / "plan.yaml").write_text(json.dumps(content))
    return folder / "plan.yaml"


def test_a_study_recognises_an_exported_model_and_does_not_steer_it_twice(run, exported, tmp_path):
    words = f"models: {exported} has steering in its weights (race by pace at alpha 1.0): always on"
    file = plan([exported, MODEL], ["none", {"name": "pace", "models": [MODEL]}], tmp_path)
    code, out, err = run("study", "plan", file, "--no-forecast")
    assert code == 0, err
    assert words in one_line(out)
    file = plan([exported], ["none"], tmp_path)
    code, _, err = run("study", "run", file, "-o", tmp_path / "study")
    assert code == 0, err
    assert words in one_line(err)
    file = plan([exported, MODEL], ["none", "pace", "ggss"], tmp_path)
    for command in (("study", "plan", file, "--no-forecast"), ("study", "run", file, "-o", tmp_path / "other")):
        code, _, err = run(*command)
        assert code == 2
        assert f"'pace' on {exported}: its steering of race is in the model's weights already" in one_line(err)
        assert "would steer twice: limit it to other models" in one_line(err)
        assert "'ggss' on" not in err
    assert not (tmp_path / "other").exists()
    file = plan([MODEL], ["none", "pace"], tmp_path)
    code, out, err = run("study", "plan", file, "--no-forecast")
    assert code == 0, f"the control: {err}"
    assert "in its weights" not in out


def test_a_server_recognises_an_exported_model_and_does_not_steer_it_twice(
    run, exported, affine, monkeypatch, caplog
):
    """The command as it is, but for the worker: it loads the model in this process, and nothing is served."""

    def load(setup, settings, listener, *_):
        listener.close()
        return load_model(Load(setup))

    monkeypatch.setattr("ggss.serve.app.run", load)
    code, _, err = run("serve", exported, "--port", "0")
    assert code == 0, err
    assert f"{exported} has steering in its weights (race by pace at alpha 1.0)" in caplog.text
    for words in ((), ("--any-model",)):
        code, _, err = run("serve", exported, "--steer", f"race={affine}", "--port", "0", *words)
        assert code == 2
        assert "would steer twice" in one_line(err)
    code, _, err = run("serve", MODEL, "--steer", f"race={affine}", "--port", "0")
    assert code == 0, f"the control: {err}"
