"""The rows of docs/rivals.md that no plan can fit: asked once, kept, and what they say of themselves."""

import json
from pathlib import Path

import pytest

from experiments.tools import rivals_live
from experiments.tools.rivals_live import BIOPRO, LiveRows
from ggss.analysis import ask
from ggss.analysis.comparison import compare
from ggss.probes import suites
from ggss.probes.steered_model import SteeredModel
from ggss.study.plan import Plan
from ggss_rivals import ala

STUDY = Path(__file__).parents[2] / "studies" / "rivals.yaml"
MODEL = "small-world/llava-vicuna"


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """One model of the plan, two occupations, and few questions of each task."""
    plan = Plan.load(STUDY).model_dump(mode="json") | {"models": [MODEL], "limit": 40}
    plan["steering"]["race"]["discover_on"] = ["cook", "teacher"]
    return LiveRows(Plan.of(plan), tmp_path_factory.mktemp("study"))


def unsteered(live):
    suite = suites.load(live.plan.suite.name, **live.plan.suite.options)
    model = SteeredModel(live._opened(MODEL).cache)
    return {task: ask(model, suite, task, limit=live.plan.limit) for task in live.plan.tasks}


def test_logit_adjustment_changes_what_it_saw_and_keeps_capability(live):
    before, after = unsteered(live), live.runs(MODEL, ala.LABEL)
    assert after["smallstar"].answers == before["smallstar"].answers
    assert after["mcq"].answers != before["mcq"].answers
    compared = compare(before["mcq"], after["mcq"])
    assert compared.after.source.method == ala.LABEL
    assert compared.change().estimate < -20
    sentence = live.learned(MODEL, ala.LABEL)
    counts = {task: len(run.items) for task, run in before.items()}
    assert f"mcq 0 of {counts['mcq']}, 2afc 0 of {counts['2afc']}, smallstar {counts['smallstar']} of" in sentence


def test_biopro_keeps_the_answers_about_people(live):
    before, after = unsteered(live), live.runs(MODEL, BIOPRO)
    for task in ("mcq", "2afc"):
        assert [answer.text for answer in after[task].answers] == [answer.text for answer in before[task].answers]
    assert live.learned(MODEL, BIOPRO).endswith("share of the discovery pictures: projection-mlp2 0%.")


@pytest.mark.parametrize("label", [ala.LABEL, BIOPRO])
def test_answers_are_kept_and_not_asked_again(live, label, monkeypatch):
    first = live.runs(MODEL, label)
    assert live.finished(MODEL, label)

    def refuse(*_):
        raise AssertionError("it was asked again")

    monkeypatch.setattr(SteeredModel, "read_batch", refuse)
    monkeypatch.setattr(rivals_live, "collect", refuse)
    again = LiveRows(live.plan, live.folder).runs(MODEL, label)
    assert {task: run.answers for task, run in again.items()} == {task: run.answers for task, run in first.items()}
    assert json.loads((live._place(MODEL, label) / "mcq.json").read_text())
