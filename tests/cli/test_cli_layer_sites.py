# ruff: noqa: F811 (fixtures of another file)
"""Sites inside the vision tower and the text model from the command line, on the small world."""

import json

import pytest

from ggss.analysis import records
from ggss.smallworld.painter import town
from ggss.study.results import Results
from test_cli import own_cache, run  # noqa: F401 (fixtures)

PIXTRAL, QWEN, LLAVA = (f"small-world/{name}" for name in ("pixtral", "qwen3-vl", "llava-vicuna"))
FEW = (
    *("--images", "small-world", "--attribute", "race"),
    *("--exclude", "occupation=ceo,doctor,lawyer,nurse,teacher", "--exclude", "identity=02,03,04,05,06,07"),
)
QUESTION = "how much does this person earn ? a low b middle c high d top"
PLAN = """
suite: {{name: small-world, split: evaluation}}
discovery: small-world
threads: 1
models: [{model}]
alphas: [1.0]
steering:
  race: {{discover_on: [cook], tasks: [mcq]}}
methods: [none, {{name: ggss, sites: {site}}}]
limit: 20
"""


@pytest.fixture
def discovered(run, tmp_path):
    def discover(model, site):
        folder = tmp_path / site
        code, out, err = run("discover", model, *FEW, "--sites", site, "-o", folder, "--json")
        assert code == 0, err
        return folder, json.loads(out)

    return discover


@pytest.mark.parametrize(
    ("model", "which", "sites", "other", "why"),
    [
        (PIXTRAL, "lm-layer1", ["lm-layer1"], LLAVA, "text weights"),
        (PIXTRAL, "vision-block1", ["vision-block1"], LLAVA, "vision weights"),
        (QWEN, "all", ["projection-mlp2", "deepstack-0"], PIXTRAL, "site 'deepstack-0': the model has"),
    ],
)
def test_discovered_asked_probed_and_refused_on_another_model(
    run, discovered, tmp_path, model, which, sites, other, why
):
    folder, told = discovered(model, which)
    assert list(told["sites"]) == sites
    face = tmp_path / "face.png"
    town().pictures[0].image().save(face)
    code, out, err = run("ask", model, face, QUESTION, "--steer", folder, "--max-new-tokens", "1", "--json")
    assert code == 0, err
    assert json.loads(out)["calls"] == len(sites)
    runs = {}
    for name, steering in (("before", ()), ("after", ("--steer", folder, "--alpha", "1"))):
        file = tmp_path / f"{name}.jsonl"
        code, _, err = run("probe", model, "--tasks", "mcq", "--limit", "20", *steering, "-o", file)
        assert code == 0, err
        runs[name] = records.load(file)["mcq"]
    assert runs["after"].probabilities != runs["before"].probabilities
    for verb in (("ask", other, face, QUESTION), ("probe", other, "--tasks", "mcq", "--limit", "20")):
        code, _, err = run(*verb, "--steer", folder)
        assert code == 2
        assert why in err
        assert "Traceback" not in err


@pytest.mark.parametrize(
    ("site", "sentence"),
    [
        ("lm-layer4", "it has lm-layer0 to lm-layer3"),
        ("vision-block9", "it has vision-block0 to vision-block2"),
        ("lm-layr1", "has no site 'lm-layr1'"),
    ],
)
def test_a_layer_that_is_not_there_is_refused(run, tmp_path, site, sentence):
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN.format(model=PIXTRAL, site=site))
    for asked in (
        ("discover", PIXTRAL, *FEW, "--sites", site, "-o", tmp_path / "s"),
        ("doctor", PIXTRAL, "--sites", site),
        ("study", "plan", plan),
    ):
        code, _, err = run(*asked)
        assert code == 2, asked
        assert sentence in " ".join(err.split()), asked
        assert "Traceback" not in err


def test_the_doctor_measures_the_leak_of_more_sites(run):
    code, out, err = run("doctor", QWEN, "--sites", "vision-block0, lm-layer1, all", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert set(told["leaks"]) == {"projection-mlp2", "all sites", "vision-block0", "lm-layer1"}
    assert told["leaks"]["vision-block0"] < 0.01 * told["moved"] < told["leaks"]["lm-layer1"]


@pytest.mark.parametrize("site", ["lm-layer1", "vision-block1"])
def test_a_study_at_such_a_site(run, tmp_path, site):
    results = studied(run, tmp_path, site)
    assert differs(results)


@pytest.mark.slow
@pytest.mark.parametrize("site", ["lm-layer1", "vision-block1", "projection-mlp1"])
def test_processes_answer_as_one_does(run, tmp_path, site):
    one = studied(run, tmp_path / "one", site)
    many = studied(run, tmp_path / "many", site, "--executor", "processes", "--workers", "2")
    assert differs(many)
    assert many.hash == one.hash


def studied(run, folder, site, *how):
    folder.mkdir(exist_ok=True)
    (folder / "plan.yaml").write_text(PLAN.format(model=PIXTRAL, site=site))
    code, _, err = run("study", "run", folder / "plan.yaml", "-o", folder / "study", *how)
    assert code == 0, err
    return Results.load(folder / "study")


def differs(results):
    before, after = (results.run(PIXTRAL, method, "mcq", 1.0) for method in ("none", "ggss"))
    return before.probabilities != after.probabilities
