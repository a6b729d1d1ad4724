"""How long a plan will take is measured with a few tokens and within a budget, whatever the plan asks."""

import json

import pytest
from typer.testing import CliRunner

import ggss
from ggss.cli import app
from ggss.probes.steered_model import SteeredModel
from ggss.study import status
from ggss.study.checking import CheckedPlan
from ggss.study.plan import Plan
from ggss.study.status import FEW_TOKENS, forecast

MODELS = ["small-world/qwen3-vl", "small-world/pixtral"]
PLAN = {
    "name": "long",
    "suite": {"name": "small-world", "split": "evaluation"},
    "discovery": "small-world",
    "models": MODELS,
    "methods": ["none", "ggss"],
    "alphas": [1.0],
    "steering": {"race": {"discover_on": ["cook"], "tasks": ["mcq", "2afc"]}},
    "limit": 20,
    "threads": 1,
}


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass with the tokens of answers alone: three seconds for a prompt, and one for each token."""

    class Clock:
        def __init__(self):
            self.now, self.read = 0.0, []

        def __call__(self):
            return self.now

    told = Clock()
    inner = SteeredModel.read_batch

    def read_batch(model, items, max_new_tokens):
        told.now += len(items) * (3 + max_new_tokens)
        told.read.append((model.vlm.name, len(items), max_new_tokens))
        return inner(model, items, 1)  # these models know answers of one token

    monkeypatch.setattr(SteeredModel, "read_batch", read_batch)
    monkeypatch.setattr("ggss.study.plan.PlanItems.max_new_tokens", lambda *_: 2048)
    return told


def test_long_answers_are_foretold_from_a_few_tokens(clock):
    checked = CheckedPlan(Plan.of(PLAN | {"models": MODELS[:1]}))
    (found,) = forecast(checked, budget=1e6, clock=clock)
    assert max(tokens for _, _, tokens in clock.read) == FEW_TOKENS
    assert found.at_most
    assert found.seconds == pytest.approx(found.questions * (3 + 2048))


def test_a_forecast_ends_with_its_budget(clock, monkeypatch):
    loaded, load = [], ggss.models.load_vlm
    monkeypatch.setattr("ggss.models.load_vlm", lambda name, *how: loaded.append(name) or load(name, *how))
    first, second = forecast(CheckedPlan(Plan.of(PLAN)), budget=30.0, clock=clock)
    assert loaded == MODELS[:1], "the second is not even loaded"
    assert clock.now < 60
    assert first.seconds == pytest.approx(first.questions * (3 + 2048))
    assert (second.seconds, second.why) == (None, "the 30 s of the forecast were over")


def test_a_task_that_is_not_reached_counts_like_the_slowest(clock):
    checked = CheckedPlan(Plan.of(PLAN | {"models": MODELS[:1]}))
    (estimate,) = forecast(checked, budget=10.0, clock=clock)
    assert clock.read == [(MODELS[0], 1, tokens) for tokens in (FEW_TOKENS, 1, FEW_TOKENS)], "of one task"
    assert estimate.seconds == pytest.approx(estimate.questions * (3 + 2048))
    assert estimate.at_most


def test_what_would_take_too_long_to_load_is_not_loaded(monkeypatch):
    monkeypatch.setattr(status, "READ_BYTES", 1.0)
    monkeypatch.setattr("ggss.models.load_vlm", lambda *_: pytest.fail("it was loaded"))
    for found in forecast(CheckedPlan(Plan.of(PLAN))):
        assert found.seconds is None
        assert "GB may take longer than the 30 s of a forecast" in found.why


def test_the_command_says_how_long_it_measures(tmp_path, monkeypatch):
    (tmp_path / "plan.yaml").write_text(json.dumps(PLAN))
    monkeypatch.setattr(status, "READ_BYTES", 1.0)
    done = CliRunner().invoke(app, ["study", "plan", str(tmp_path / "plan.yaml")])
    assert done.exit_code == 0
    assert "for at most about 30 s; --no-forecast leaves it out" in done.stderr
    assert f"{MODELS[0]}: its time was not measured: loading its" in " ".join(done.stdout.split())
    done = CliRunner().invoke(app, ["study", "plan", str(tmp_path / "plan.yaml"), "--no-forecast"])
    assert "its time was not measured" not in done.stdout
    assert "--no-forecast" not in done.stderr
