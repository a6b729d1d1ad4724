"""The fuzz harness itself: what it must notice. `make fuzz` runs it."""

import pytest
from hypothesis import strategies as st

from experiments.fuzz import harness
from experiments.fuzz.__main__ import TARGETS
from experiments.fuzz.harness import Target, TooSlow, run
from experiments.fuzz.options import LINES, number_options
from ggss.errors import InputError


def target(read):
    return Target("a reader", 1.0, lambda folder: (st.integers(0, 9), read), failed_once=(7,))


def test_refusals_and_acceptances_are_counted(tmp_path):
    def read(case):
        if case % 2:
            raise InputError("it is odd: give an even one")

    outcome = run(target(read), 5, tmp_path)
    assert not outcome.failures
    assert outcome.refused >= 1
    assert outcome.accepted >= 1


def test_any_other_error_is_a_failure_with_its_case(tmp_path):
    def read(case):
        {}[case]

    (failure,) = run(target(read), 5, tmp_path).failures
    assert isinstance(failure, KeyError)
    assert "case: 7" in failure.__notes__[0]


def test_a_refusal_without_a_sentence_is_a_failure(tmp_path):
    def read(case):
        raise InputError(" ")

    outcome = run(target(read), 5, tmp_path)
    assert len(outcome.failures) == 1
    assert not outcome.refused


def test_a_case_that_does_not_end_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "LIMIT", 0.05)

    def read(case):
        while True:
            pass

    (failure,) = run(target(read), 1, tmp_path).failures
    assert isinstance(failure, TooSlow)


def test_the_same_seed_gives_the_same_cases(tmp_path):
    def seen(seed):
        found = []
        run(Target("a reader", 1.0, lambda folder: (st.text(), found.append)), 30, tmp_path, seed)
        return found

    assert seen(1) == seen(1) != seen(2)


def test_shares_are_of_one_whole():
    assert sum(one.share for one in TARGETS) == pytest.approx(1)


def test_every_verb_with_numbers_has_a_line():
    options = number_options()
    assert {verb for verb, _ in options} == set(LINES)
    assert ("probe", "--alpha") in options
    assert ("study run", "--workers") in options
