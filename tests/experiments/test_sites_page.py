"""docs/sites.md: what is on the page is what the study has, and what is missing is named."""

import pytest

import invented_study
from experiments.tools import sites
from ggss import smallworld
from ggss.models.sites import layer_counts
from ggss.models.vlm import load_description
from ggss.smallworld.bias_questions import HABITS
from ggss.study.plan import Plan
from invented_study import CONTROL, QWEN

PLACES = ("vision-block0", "projection-mlp2", "lm-layer0")
METHODS = [{"name": "ggss", "label": f"ggss at {site}", "sites": site} for site in PLACES]
MEASURED = {model: dict(zip(PLACES, (0.0, 0.5, 0.75), strict=True)) for model in (QWEN, CONTROL)}


@pytest.fixture
def study(monkeypatch):
    monkeypatch.setattr(sites, "CAPABILITY", "mmstar")
    steering = {"race": invented_study.STEERING["race"]}
    measures = [{"tasks": ["mmstar"], "at": "all"}]
    plan = invented_study.plan(methods=["none", *METHODS], alphas=[1.0], steering=steering, measures=measures)
    return lambda **kept: invented_study.results(plan, **kept)


def test_every_number_is_that_of_its_comparison(study):
    results = study()
    text = sites.page(results, MEASURED)
    for model in (QWEN, CONTROL):
        for site, leak in MEASURED[model].items():
            found = [results.comparison(model, f"ggss at {site}", task, 1.0) for task in ("mcq", "2afc")]
            mcq, pairs = (own.change() for own in found)
            assert (
                f"| `{site}` | {leak:.0%} | ggss | {mcq.estimate:+.0f} % [{mcq.low:+.0f}, {mcq.high:+.0f}] |" in text
            )
            assert f"{pairs.estimate:+.0f} % [{pairs.low:+.0f}, {pairs.high:+.0f}] |" in text
    assert "there 75% to 75% of what an image does" in text
    assert "Missing" not in text


def test_a_mean_is_of_the_models_that_are_no_controls(study):
    results = study()
    own = [results.comparison(QWEN, "ggss at lm-layer0", task, 1.0).change().estimate for task in ("mcq", "2afc")]
    assert sites.mean_change(results, "ggss at lm-layer0") == pytest.approx(sum(own) / 2)


def test_what_is_missing_is_named(study):
    results = study(keep=lambda cell: not (cell.method == "ggss at lm-layer0" and cell.task == "2afc"))
    text = sites.page(results, MEASURED)
    assert f"- {QWEN}: ggss at lm-layer0\n- {CONTROL}: ggss at lm-layer0\n" in text
    assert sites.missing(study()) == []


def test_the_plan_has_the_sites_that_the_models_have():
    plan = Plan.load("studies/sites.yaml")
    names = [name for name in smallworld.embedded() if name not in HABITS]
    assert {model.name for model in plan.models} == {f"small-world/{name}" for name in names}
    assert all(method.label in ("none", f"{method.name} at {method.sites}") for method in plan.methods)
    for model in plan.models:
        assert layer_counts(load_description(model.name)[0]) == {"lm-layer": 4, "vision-block": 3}
