"""docs/howto-deploy.md: its table is what the page's commands gave, and is written by a command."""

import json

import pytest

from experiments.tools import deploy

PAGE = deploy.PAGE.read_text(encoding="utf-8")
NUMBERS = json.loads(deploy.MEASURED.read_text(encoding="utf-8"))


def test_the_table_is_what_the_commands_of_the_page_gave():
    assert deploy.with_section(PAGE, NUMBERS) == PAGE, "python -m experiments.tools.deploy --write"
    assert deploy.commands(PAGE) == NUMBERS["commands"], "other commands: python -m experiments.tools.deploy"


def test_hook_and_export_have_the_same_numbers():
    assert NUMBERS["same"] == NUMBERS["answers"] > 300
    for cells in NUMBERS["tasks"].values():
        assert cells["hook"] == cells["export"]
    assert any(cells["unsteered"] != cells["hook"] for cells in NUMBERS["tasks"].values())


def test_another_number_is_another_page():
    other = NUMBERS | {"same": NUMBERS["same"] - 1}
    assert deploy.with_section(PAGE, other) != PAGE
    with pytest.raises(AssertionError, match="no place for the table"):
        deploy.with_section(PAGE.replace(deploy.END, ""), NUMBERS)
