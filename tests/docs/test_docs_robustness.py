"""docs/robustness.md: every test that it names for a case exists."""

import re
from pathlib import Path

import pytest

from named_tests import is_there

PAGE = (Path(__file__).parents[2] / "docs" / "robustness.md").read_text(encoding="utf-8")
CASES = re.findall(r"^\| (.+?) \| `(test_\w+::\w+)` \|$", PAGE, re.MULTILINE)
SECTIONS = PAGE[PAGE.index("## Every case has a test") :].split("\n### ")[1:]


def test_there_are_cases_in_every_section():
    assert len(SECTIONS) == 10
    assert sum(section.count("\n| ") - 2 for section in SECTIONS) == len(CASES) > 100
    assert len({case for case, _ in CASES}) == len(CASES)


@pytest.mark.parametrize(("case", "test"), CASES, ids=[case for case, _ in CASES])
def test_the_test_of_a_case_exists(case, test):
    assert is_there(test)


def test_what_does_not_exist_is_noticed():
    assert not is_there("test_docs_robustness::test_nothing")
    assert not is_there("test_docs_robustness")
    assert not is_there("test_nothing::test_there_are_cases_in_every_section")
