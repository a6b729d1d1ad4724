"""Pages that name tests: `test_file::test_name` is a test of that name in that file."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
FOLDERS = (TESTS, TESTS.parent / "tests_serve", TESTS.parent / "tests_eval")


def is_there(name: str) -> bool:
    """Whether there is such a test."""
    file, _, test = name.partition("::")
    found = [folder / f"{file}.py" for folder in FOLDERS if (folder / f"{file}.py").is_file()]
    return bool(test) and any(
        re.search(rf"^(async )?def {test}\(", own.read_text(encoding="utf-8"), re.MULTILINE) for own in found
    )
