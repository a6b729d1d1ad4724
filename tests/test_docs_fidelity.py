"""docs/fidelity.md is up to date, and every place, test and table that it names exists."""

import importlib.util
from importlib import import_module
from pathlib import Path

import pytest

from ggss.report.tables import TABLES
from named_tests import is_there

ROOT = Path(__file__).resolve().parent.parent


def _tool():
    spec = importlib.util.spec_from_file_location("fidelity", ROOT / "tools" / "fidelity.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fidelity = _tool()
ROWS = [row for rows in fidelity.SECTIONS.values() for row in rows]


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8") == fidelity.page()


@pytest.mark.parametrize("row", ROWS, ids=[row.what for row in ROWS])
def test_every_place_and_test_exists(row):
    assert row.basis in ("paper", "release", "ours")
    if row.place.startswith("ggss."):
        module = "ggss"
        for name in row.place.split(".")[1:]:
            if not any(
                (ROOT / "src" / module.replace(".", "/") / name).with_suffix(end).exists() for end in ("", ".py")
            ):
                break
            module = f"{module}.{name}"
        found = import_module(module)
        for name in row.place.removeprefix(module).strip(".").split("."):
            found = getattr(found, name)
    else:
        assert (ROOT / row.place).is_file()
    assert is_there(row.test), row.test


def test_every_table_exists():
    assert set(fidelity.TABLES.values()) <= set(TABLES.names())
