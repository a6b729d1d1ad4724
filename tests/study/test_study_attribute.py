"""A study of a third attribute: nothing in the code knows of it."""

from pathlib import Path

import pytest

from ggss.data.counterfactuals import PICTURE_SETS
from ggss.report.tables import write
from ggss.smallworld.painter import hair_town
from ggss.study.plan import Plan
from ggss.study.results import Results
from ggss.study.runner import run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """studies/hair.yaml with few questions, on the hair colours of some of the painted people."""
    plan = Plan.load(ROOT / "studies" / "hair.yaml").model_copy(update={"limit": 30, "alphas": (1.0,)})
    few = hair_town().chosen(include={"race": ["amber", "coral"]})
    folder = tmp_path_factory.mktemp("hair")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PICTURE_SETS._entries, plan.discovery, lambda: few)
        run(plan, folder)
        yield folder


def test_a_third_attribute_is_discovered_steered_asked_and_compared(study):
    results = Results.load(study)
    model = results.models[0]
    found = results.bias(model, "ggss", 1.0)
    assert list(found) == ["mcq-hair", "2afc-hair", "mcq"]
    assert found["mcq-hair"].before.metric().name == "mean_hair_jsd"
    assert found["2afc-hair"].before.metric().name == "hair_bias_std"
    assert found["mcq"].before.metric().name == "mean_race_jsd"  # published names stay what they are
    assert found["mcq-hair"].after.source.attribute == "hair"
    named = results.comparison(model, "ggss", "recognition-hair", 1.0)
    assert named.before.value() > named.after.value()  # what was removed can no longer be named as well


def test_its_tables_name_it(study, tmp_path):
    written = write(Results.load(study), tmp_path)
    main = (tmp_path / "main_results.md").read_text(encoding="utf-8")
    assert "MCQ ×10³ (hair)" in main
    assert "hair recognition (%)" in (tmp_path / "alpha_dial.md").read_text(encoding="utf-8")
    assert {"main_results", "recognition", "alpha_dial"} <= set(written.tables)
