"""What docs/fidelity.md says of each setting of the authors' code: measured again, and complete."""

import json
import math
import re

import pytest

from experiments.tools import fidelity
from experiments.tools import release_differences as differences
from named_tests import is_there

MEASURED = json.loads(differences.MEASURED.read_text(encoding="utf-8"))
SWITCHES = {differences.label(*switch) for switch in differences.switches()}
ROWS = pytest.mark.parametrize("row", fidelity.DIFFERENCES, ids=[row.item for row in fidelity.DIFFERENCES])


@pytest.mark.parametrize("name", differences.ON_TOKENS)
def test_the_measured_effect_on_tokens_is_repeated(name):
    measured, effect = MEASURED[name], differences.ON_TOKENS[name]()
    if differences.by_rounding(name):  # and machines round differently
        assert measured["tokens"] / 3 < effect.tokens < measured["tokens"] * 3
    else:
        assert effect.tokens == pytest.approx(measured["tokens"], rel=0.05, abs=1e-6)
        assert effect.cosine == pytest.approx(measured.get("cosine", effect.cosine), abs=0.01)
    assert (effect.paper is None, effect.release is None) == ("paper" not in measured, "release" not in measured)
    if effect.paper is not None:
        assert effect.paper == pytest.approx(measured["paper"], rel=0.05, abs=1e-4)
    if effect.release is not None:
        assert max(measured["release"], effect.release) < 1e-4


def test_the_counts_are_repeated():
    again = differences.question_counts() | differences.picture_counts()
    assert set(again) == {name for name, effect in MEASURED.items() if "counts" in effect}
    for name, effect in again.items():
        assert differences.rounded(effect) == MEASURED[name]
    # What the release prints of itself, and four and sixteen times the tokens.
    assert [after for _, after in MEASURED["questions: all"]["counts"].values()] == [80, 360, 160]
    assert MEASURED["rows of 1024 pixels: max_side"]["counts"]["pixtral"] == [64 * 64, 32 * 32]
    assert MEASURED["rows of 1024 pixels: max_side"]["counts"]["qwen3-vl"] == [32 * 32, 16 * 16]


@pytest.fixture(scope="module")
def worlds():
    return differences.SmallWorlds()


def near(value, measured):
    """Within what a few answers are worth, which may differ between machines."""
    return (measured is None and math.isnan(value)) or value == pytest.approx(measured, abs=0.07)


def assert_repeated(name, worlds):
    measured, effect = MEASURED[name], worlds.effect(name, fits=1)
    assert set(effect.metrics) == set(measured["metrics"])
    for task, (before, *after) in measured["metrics"].items():
        again = effect.metrics[task]
        assert near(again[0], before)
        if differences.by_rounding(name):  # one fit of the five that the range is of, or near to it
            assert min(after) - 0.1 <= again[1] <= max(after) + 0.1
        else:
            assert near(again[1], after[0])
    if "changed" in measured:
        assert effect.changed[1] == measured["changed"][1]
        assert abs(effect.changed[0] - measured["changed"][0]) <= 0.05 * effect.changed[1]


@pytest.mark.release
@pytest.mark.parametrize("name", differences.ANSWERED)
def test_the_measured_effect_on_answers_is_repeated(name, worlds):
    assert_repeated(name, worlds)


def test_a_measured_effect_on_answers_is_repeated(worlds):
    """One of those that `make release` repeats."""
    assert_repeated("pixtral, ggss: layout", worlds)


def test_the_measured_numbers_agree_with_each_other():
    """A setting that is the default of several switches has one number."""
    known = {}
    for name, (model, default, option) in differences.ANSWERED.items():
        effect = MEASURED[name]
        assert set(effect["metrics"]) == set(default.tasks) == set(option.tasks)
        for task, (before, *after) in effect["metrics"].items():
            assert known.setdefault((model, default, task), before) == before
            assert len(after) == (2 if differences.by_rounding(name) else 1)
            assert None in after or after == sorted(after)
        changed, asked = effect.get("changed", (1, 1))
        assert 0 <= changed <= asked
        assert differences.by_rounding(name) == ("changed" not in effect)
        if not changed and option.pairs == 1 and option.parser == "careful":  # the same answers have the same metrics
            assert all(before == after for before, after in effect["metrics"].values())


def test_every_switch_is_measured_and_every_measure_is_on_the_page():
    assert set(SWITCHES) <= set(differences.ON_TOKENS) & set(differences.ANSWERED)
    assert set(MEASURED) == {effect for row in fidelity.DIFFERENCES for effect in row.effects}
    assert all({"tokens", "metrics", "counts"} & set(effect) for effect in MEASURED.values())
    for kind, names in (("tokens", differences.ON_TOKENS), ("metrics", differences.ANSWERED)):
        assert {name for name, effect in MEASURED.items() if kind in effect} == set(names)


@ROWS
def test_every_row_has_a_measured_effect_and_a_test_of_it(row):
    tests = fidelity.tests_of(row)
    assert tests
    assert all(map(is_there, tests)), tests
    assert row.effects or row.note
    if row.effects:
        assert re.search(r"\d|no answer|none on tokens", fidelity.effect_of(row))
