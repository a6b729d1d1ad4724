"""The committed tables of the small-world study: whole, of this plan, and the ones that the pages show."""

import re

import pytest

from experiments.tools import readme, results
from ggss.report.tables import TABLES
from ggss.study.plan import Plan

RESULTS = readme.RESULTS
INDEX = (RESULTS / "README.md").read_text(encoding="utf-8")


def test_the_index_is_of_the_plan_and_names_the_answers() -> None:
    plan = Plan.load(readme.ROOT / "studies" / "small-world.yaml")
    assert re.search(r"sha256 `[0-9a-f]{64}`", INDEX)
    assert f"models: {', '.join(model.name for model in plan.models)}" in INDEX


@pytest.mark.parametrize("name", [name for name in TABLES.names() if TABLES.package(name) == "ggss"])
def test_every_table_is_there_in_two_forms_or_left_out_with_a_reason(name: str) -> None:
    there = [form for form in ("md", "csv") if (RESULTS / f"{name}.{form}").exists()]
    assert there == ["md", "csv"] if f"| {name} |" in INDEX else f"- {name}: " in INDEX


def test_the_readme_shows_the_rows_of_the_tables() -> None:
    shown = readme.README.read_text(encoding="utf-8").split("<!-- results: written by `make readme` -->")[1]
    assert shown.split("<!-- /results -->")[0].strip() == readme.result_rows()


def test_the_readme_shows_the_output_of_the_commands_that_it_has() -> None:
    """Not of those that it once had: what was discovered, where it was written to, as many answers as questions."""
    commands = readme.five_commands()
    discover = next(command for command in commands if command[0] == "discover")
    attributes, out, method = (discover[discover.index(name) + 1] for name in ("--attribute", "-o", "--method"))
    shown = readme.README.read_text(encoding="utf-8").split("<!-- commands: written by `make readme` -->")[1]
    lines = shown.split("<!-- /commands -->")[0].splitlines()
    assert f"{method} steerer for {attributes.replace(',', ' and ')} written to {out}" in lines
    assert sum(line.startswith("│") for line in lines) == sum(command[0] == "ask" for command in commands)
    verdicts = [line for line in lines if any(f"depends less on {name}" in line for name in attributes.split(","))]
    assert {line.split("depends less on ")[1] for line in verdicts} == set(attributes.split(","))


def test_the_page_that_reads_the_tables_has_their_numbers() -> None:
    assert results.PAGE.read_text(encoding="utf-8") == results.page()


def test_the_main_table_has_every_method_on_every_backbone() -> None:
    rows = readme.table("main_results").values()
    averages = [float(value) for row in rows for name, value in row.items() if name.endswith(readme.AVERAGE)]
    assert len(averages) == 4 * len(rows)
    assert min(averages) < -50  # something was steered away
