"""Pages that name tests: `test_file::test_name` is a test of that name in that file."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def is_there(name: str) -> bool:
    """Whether there is such a test."""
    file, _, test = name.partition("::")
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob(f"{file}.py")] if test else []
    return any(re.search(rf"^(async )?def {test}\(", text, re.MULTILINE) for text in texts)
