"""The plans that come with ggss: listed, copied, in the wheel, and those of the repository."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ggss.cli import app
from ggss.cli.study import PLANS, plans
from ggss.errors import InputError
from ggss.study.plan import Plan

ROOT = Path(__file__).parents[2]


def new(*arguments):
    return CliRunner().invoke(app, ["study", "new", *map(str, arguments)])


def test_all_plans_are_listed():
    done = new()
    assert done.exit_code == 0
    assert all(name in done.output for name in ("hair", "paper", "small-world", "smoke"))
    assert [one["name"] for one in json.loads(new("--json").output)] == list(plans())


@pytest.mark.parametrize("name", ["hair", "paper", "small-world", "smoke"])
def test_a_plan_is_copied_and_is_one(name, tmp_path):
    done = new("--from", name, "-o", tmp_path / "my-study.yaml")
    assert done.exit_code == 0
    copied = Plan.load(tmp_path / "my-study.yaml")
    assert copied.name == "my-study"
    assert copied.model_copy(update={"name": name}).models == Plan.load(PLANS / f"{name}.yaml").models


def test_a_copy_has_the_plans_name_unless_another_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert json.loads(new("--from", "smoke", "--json").output) == {"plan": "smoke", "file": "smoke.yaml"}
    assert (tmp_path / "smoke.yaml").read_bytes() == (PLANS / "smoke.yaml").read_bytes()


def test_what_cannot_be_copied_is_refused_and_nothing_replaced(tmp_path):
    (tmp_path / "mine.yaml").write_text("name: mine")
    refused = {
        "there is no plan 'large-world': did you mean 'small-world'? there are discovery-prompts": (
            "--from",
            "large-world",
        ),
        "which plan should become": ("-o", tmp_path / "new.yaml"),
        "--force to replace it": ("--from", "smoke", "-o", tmp_path / "mine.yaml"),
    }
    for sentence, arguments in refused.items():
        error = new(*arguments).exception
        assert isinstance(error, InputError), arguments
        assert sentence in str(error)
    assert (tmp_path / "mine.yaml").read_text() == "name: mine"
    assert not (tmp_path / "new.yaml").exists()
    assert new("--from", "smoke", "-o", tmp_path / "mine.yaml", "--force").exit_code == 0


def test_the_repositorys_studies_are_the_same_files():
    assert {file.stem: file.resolve() for file in (ROOT / "studies").glob("*.yaml")} == {
        name: file.resolve() for name, file in plans().items()
    }


def test_the_plans_are_in_the_wheel():
    """The wheel has all files of the folder that the plans are in."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert packages == {"packages": ["src/ggss", "src/ggss_rivals"]}
    assert plans()
    assert all(file.is_relative_to(ROOT / "src" / "ggss") and not file.is_symlink() for file in plans().values())
