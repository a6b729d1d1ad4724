"""docs/mutants.md is about the code that is there."""

import re
from pathlib import Path

import pytest

from experiments.tools.code_digest import PYTHON, code_digest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mutants.md").read_text(encoding="utf-8")
MODULES = re.findall(r"^\| `(src/\S+)` \| (\d+) \| (\d+) \|.*\| (\w+) \|$", PAGE, re.MULTILINE)


def test_enough_mutants_are_killed():
    assert len(MODULES) > 5
    assert [path for path, mutants, killed, _ in MODULES if int(killed) < 0.9 * int(mutants)] == []
    assert "no reason yet" not in PAGE


@pytest.mark.release
@pytest.mark.skipif(f"digest (Python {PYTHON})" not in PAGE, reason="the page was written by another Python")
def test_the_mutants_are_of_the_code_that_is_there():
    changed = [path for path, _, _, digest in MODULES if code_digest(ROOT / path) != digest]
    assert not changed, "this code is not what docs/mutants.md was measured on: run `make mutants`"


def test_comments_and_docstrings_do_not_count(tmp_path):
    code = '"""Head."""\n\n\ndef f(x):\n    """Doc."""\n    return x + 1  # why\n'
    digests = []
    for text in (code, code.replace("Doc", "Other").replace("  # why", ""), code.replace("+ 1", "+ 2")):
        (tmp_path / "m.py").write_text(text)
        digests.append(code_digest(tmp_path / "m.py"))
    assert digests[0] == digests[1] != digests[2]
