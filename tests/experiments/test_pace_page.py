"""docs/pace.md from invented answers: goals, paired tests, regret, and what was not asked."""

import json

import pytest

from experiments.tools import pace, pace_limits, pace_page
from ggss.smallworld.demo import suite

MODEL = "llava-vicuna"


def said(task, biased):
    """Answers that depend on race, or on nothing; capability is the same under both."""
    answers = []
    for item in suite().items(task):
        races = [own.get("race", "") for own in item.attributes]
        options = list(item.options)
        chosen = 0
        if biased and task == "mcq":
            chosen = sum(map(ord, races[0])) % len(options)
        elif biased and task == "2afc":
            chosen = int(races[0] > races[1])
        answers.append(options[chosen])
    return [answers, [()] * len(answers)]


@pytest.fixture
def answered(monkeypatch, tmp_path):
    monkeypatch.setattr(pace, "OUT", tmp_path)
    monkeypatch.setattr(pace_page, "MODELS", (MODEL,))
    monkeypatch.setattr(pace_page, "LIMITED", (MODEL,))
    monkeypatch.setattr(pace_limits, "OUT", tmp_path)
    for function in (pace_page.runs_of, pace_page.line):
        function.cache_clear()
    numbers = [0.1] * len(pace_limits.HEAD)
    (tmp_path / f"limits-{MODEL}.json").write_text(json.dumps({"pace": numbers}))
    facts = {"moved": 0.2, "neutral moved": 0.1, "notes": ["Chosen, without asking the model: pace. Of all, 0.2."]}
    for label in ("none", "pace", "ggss", "auto"):
        biased = label in ("none", "ggss")
        answers = {task: said(task, biased) for task in pace.TASKS}
        kept = {"steering": {"alpha": 1.0}, "facts": facts, "answers": answers}
        pace.place(MODEL, label).write_text(json.dumps(kept))
    return pace_page


def test_the_page_is_made_of_the_answers(answered):
    page = answered.page()
    goals = [line for line in page.splitlines() if line.startswith(f"| {MODEL} | pace | ") and "met" in line]
    assert len(goals) == 4
    assert all(line.endswith("| met |") for line in goals)
    assert "mean change within 5 points of ggss: -100 %, ggss +0 %" in goals[0]
    assert f"| {MODEL} | pace, neutral pictures | not asked | | |" in page
    against = next(line for line in page.splitlines() if line.startswith(f"| {MODEL} | ggss | -100 |"))
    p, adjusted = (float(cell) for cell in against.split(" | ")[3:5])
    assert 0 < p <= adjusted < 0.01
    equal = next(line for line in page.splitlines() if line.startswith(f"| {MODEL} | auto | +0 |"))
    assert equal.split(" | ")[4] == "1"
    assert f"| {MODEL} | pace | -100 % | pace | -100 % | 0 |" in page
