"""docs/fidelity.md is up to date, and every place, test and table that it names exists."""

import importlib.util
import re
from importlib import import_module
from pathlib import Path

import pytest

from ggss.report.tables import REPORT, TABLES
from named_tests import is_there

ROOT = Path(__file__).parents[2]


def _tool():
    spec = importlib.util.spec_from_file_location("fidelity", ROOT / "experiments" / "tools" / "fidelity.py")
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
    assert {table.file for table in fidelity.TABLES} <= {*TABLES.names(), REPORT}
    for table in fidelity.TABLES:
        assert is_there(table.test), table.test


# What has a number in the paper, by its label there.
EQUATIONS = (
    *("ggss-svd-basis", "ggss-projection", "ggss-gate", "ggss-slerp-update", "ggss-norm-restore"),
    *("ggss-projection-norm", "appendix_karcher", "appendix_pooled_shift"),
)
PRINTED = (
    *("main_results", "mmstar", "component_ablation", "sensitivity_ablation", "significance", "added_baselines"),
    *("svd_ablation", "hparams", "alpha_choices", "heldout_alpha", "mmstar_dims", "recognition", "alpha_dial"),
    *("prompt_baseline", "geometry_ablation", "prompt_invariance"),
)


def test_every_numbered_equation_and_table_of_the_paper_is_on_the_page():
    told = " ".join(row.what for row in fidelity.EQUATIONS)
    assert [label for label in EQUATIONS if not re.search(rf"\b(eq|prop)\. {label}(?![\w-])", told)] == []
    assert {f"tab:{label}" for label in PRINTED} == {
        table.label for table in fidelity.TABLES if table.label.startswith("tab:")
    }
