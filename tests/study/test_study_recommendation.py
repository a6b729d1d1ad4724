"""`ggss study recommend`: the strength a study chose goes into the steerer it measured, and into no other."""

import pytest
from typer.testing import CliRunner

import ggss
from ggss import Steerer
from ggss.activations.collect import collect
from ggss.cli import app
from ggss.errors import InputError
from ggss.models.features import FeatureCache
from ggss.smallworld.painter import town
from ggss.study import results
from ggss.study.plan import Plan
from ggss.study.results import Results, StoredRuns, opened, recommended_alpha
from ggss.study.runner import run

MODEL = "small-world/qwen3-vl"
PLAN = {
    "name": "tiny",
    "suite": "small-world",
    "discovery": "small-world",
    "models": [MODEL],
    "methods": ["none", "ggss", {"name": "ggss", "label": "sharp", "options": {"kappa": 10}, "alphas": [0.5]}],
    "alphas": [0.5, 1.0],
    "steering": {"race": {"discover_on": ["cook"], "tasks": ["mcq"]}},
    "limit": 20,
    "threads": 1,
}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    run(Plan.of(PLAN), folder)
    return folder


@pytest.fixture(scope="module")
def cache():
    return FeatureCache(ggss.load_vlm(MODEL))


@pytest.fixture(scope="module")
def fit(cache):
    """Fits a steerer: by default the one of the study."""

    def made(occupation="cook", attribute="race", sites="projection-mlp2", **options):
        pictures = town().chosen(include={"occupation": occupation})
        acts = collect(cache.vlm, pictures, sites, features=cache, show=False)
        return ggss.fit("ggss", acts, attribute=attribute, **options)

    return made


def test_the_chosen_strength_is_written_into_the_steerer(study, fit, tmp_path):
    folder = fit().save_pretrained(tmp_path / "steerer")
    expected = Results.load(study).best_alpha(MODEL, "ggss")
    assert expected in (0.5, 1.0)
    done = CliRunner().invoke(app, ["study", "recommend", str(study), str(folder)])
    assert done.exit_code == 0, done.output
    assert f"alpha {expected:g}, best-avg-alpha of {study}" in done.output
    written = Steerer.from_pretrained(folder)
    assert written.recommended_alpha == written.strength() == expected


def test_a_method_may_be_named_by_its_label(study, fit):
    assert recommended_alpha(study, fit(kappa=10), "sharp") == 0.5
    with pytest.raises(InputError, match="the plan has no method 'blunt': there are none, ggss, sharp"):
        recommended_alpha(study, fit(), "blunt")


def test_another_steerer_is_refused_with_every_difference(study, fit, tmp_path):
    with pytest.raises(
        InputError, match=r"did not measure this steerer: 1 problem\n.*it steers 'gender', the study race"
    ):
        recommended_alpha(study, fit(attribute="gender"))
    with pytest.raises(InputError, match=r"2 problems\n(.|\n)*options: .*'kappa': 2(.|\n)*discovery pictures"):
        recommended_alpha(study, fit("nurse", kappa=2.0))
    with pytest.raises(InputError, match=r"1 problem\n.*sites: it has projection-mlp2, deepstack"):
        recommended_alpha(study, fit(sites="all"))
    other = fit()
    other.source["model"] = "small-world/pixtral"
    with pytest.raises(InputError, match="it is for small-world/pixtral, the study has small-world/qwen3-vl"):
        recommended_alpha(study, other)
    folder = fit(kappa=2.0).save_pretrained(tmp_path / "steerer")
    done = CliRunner().invoke(app, ["study", "recommend", str(study), str(folder)])
    assert isinstance(done.exception, InputError)
    assert Steerer.from_pretrained(folder).recommended_alpha is None


@pytest.mark.parametrize("part", results.COMPARED)
def test_a_model_of_the_same_name_may_be_another_one(study, fit, part):
    steerer = fit()
    assert recommended_alpha(study, steerer)
    steerer.source["identity"][part] = "other"
    with pytest.raises(InputError, match=rf"1 problem\n.*the model: it was made with another {part}"):
        recommended_alpha(study, steerer)


def test_a_steerer_that_does_not_say_what_its_model_was_is_refused(study, fit):
    steerer = fit()
    del steerer.source["identity"]
    with pytest.raises(InputError, match="it was made with another vision weights"):
        recommended_alpha(study, steerer)


def test_all_sites_are_all_of_the_model(study, fit):
    plan, runs = opened(study)
    plan = Plan.of(PLAN | {"methods": ["none", {"name": "ggss", "sites": "all"}]})
    whole = fit(sites="all")
    assert results._differences(plan, plan.method("ggss"), whole, runs) == []
    found = results._differences(plan, plan.method("ggss"), fit(), runs)
    assert found == ["sites: it has projection-mlp2, the study projection-mlp2, deepstack-0"]


def test_a_study_that_has_not_chosen_yet_says_so(fit, tmp_path):
    with pytest.raises(InputError, match=r"none on nobody/nothing"):
        run(Plan.of(PLAN | {"models": ["nobody/nothing"]}), tmp_path)
    steerer = fit()
    steerer.source["model"] = "nobody/nothing"
    with pytest.raises(InputError, match="has chosen no alpha for 'ggss' yet: run it further"):
        recommended_alpha(tmp_path, steerer)


def test_answers_of_a_study_are_read_by_the_rule_of_its_plan(study):
    plan, runs = opened(study)
    assert {run.parser for run in runs.values()} == {"careful"}
    released = StoredRuns(Plan.of(PLAN | {"parser": "release"}), runs.store, runs.plan_items)
    assert {run.parser for run in released.values()} == {"release"}  # the same answers: nothing is asked again
    assert len(released) == len(runs) > 0
    assert plan.parser == "careful"
