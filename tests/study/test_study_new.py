"""The plans that come with ggss: listed, copied, in the wheel, and those of the repository."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ggss.cli import app
from ggss.cli.study import MY_PICTURES, PLANS, plans
from ggss.data.manifests import write_manifest
from ggss.errors import InputError
from ggss.study import checking, grid
from ggss.study.checking import CheckedPlan
from ggss.study.plan import Plan
from test_suites import faces

ROOT = Path(__file__).parents[2]
COLUMNS = ("occupation", "identity", "race", "gender")


def drafted(tmp_path, columns=COLUMNS, occupations=("nurse", "doctor"), identities=4, **only):
    """The checked plan for a manifest with these columns, in another folder than the plan, for a small model."""
    (tmp_path / "data").mkdir()
    (tmp_path / "plans").mkdir()
    rows = [row for row in faces(tmp_path / "data", occupations, identities) if only.items() <= row.items()]
    write_manifest(
        [{name: row[name] for name in ("path", *columns)} for row in rows], tmp_path / "data" / "faces.csv"
    )
    file = tmp_path / "plans" / "mine.yaml"
    done = new("--from", "my-pictures", "--images", tmp_path / "data" / "faces.csv", "-o", file)
    if done.exception is not None:
        raise done.exception
    file.write_text(file.read_text().replace("org/model", "small-world/qwen3-vl"))
    return CheckedPlan(Plan.read(file))


def people(pictures):
    return {picture.context for picture in pictures}


def test_a_plan_for_own_pictures_holds_half_of_the_people_out(tmp_path):
    checked = drafted(tmp_path)
    plan = checked.plan
    assert plan.held_out == {"identity": ("1", "3")}
    assert {name: steering.tasks for name, steering in plan.steering.items()} == {
        "race": ("mcq", "2afc"),
        "gender": ("nurse-doctor",),
    }
    assert plan.measures[0].tasks == ("recognition-race", "recognition-gender")
    fitted, asked = people(checked.discovery.pictures()), people(checked.plan_items.pictures())
    assert len(fitted) == len(asked) == 4
    assert not fitted & asked
    assert {dict(context)["occupation"] for context in fitted} == {"nurse", "doctor"}
    assert checked.overlaps == []
    assert checking.MY_PICTURES == MY_PICTURES
    assert "images: ../data/faces.csv" in (tmp_path / "plans" / "mine.yaml").read_text()
    both = plan.model_copy(update={"held_out": {}})
    with pytest.raises(
        InputError, match=r"set `held_out` in the plan, such as `held_out: \{\"identity\": \[\"1\", \"3\"\]"
    ):
        CheckedPlan(both)
    recipes = {grid.recipe(one, plan.models[0].name, "ggss", "race") for one in (plan, both)}
    assert len(recipes) == 2


def test_a_plan_for_own_pictures_follows_their_columns(tmp_path):
    """No occupation, and one attribute of which no task is published; another has one value only."""
    plan = drafted(tmp_path, ("identity", "race", "gender"), ("nurse",), race="asian").plan
    assert list(plan.steering) == ["gender"]
    assert plan.steering["gender"].discover_on == ()
    assert set(plan.steering["gender"].tasks) == {"mcq-gender", "2afc-gender"}
    assert plan.suite.options.keys() == {"images"}


def test_occupations_are_held_out_where_there_are_few_identities(tmp_path):
    plan = drafted(tmp_path, occupations=("cook", "lawyer", "nurse", "teacher"), identities=1).plan
    assert plan.held_out == {"occupation": ("lawyer", "teacher")}
    assert plan.steering["race"].discover_on == ("cook", "nurse")


def test_too_few_people_are_said(tmp_path):
    with pytest.raises(InputError, match="the pictures show 3 people: at least two are needed to fit a method on"):
        drafted(tmp_path, occupations=("nurse",), identities=3)
    assert not (tmp_path / "plans" / "mine.yaml").exists()


def new(*arguments):
    return CliRunner().invoke(app, ["study", "new", *map(str, arguments)])


def test_all_plans_are_listed():
    done = new()
    assert done.exit_code == 0
    assert all(name in done.output for name in ("hair", "paper", "small-world", "smoke"))
    assert [one["name"] for one in json.loads(new("--json").output)] == [*plans(), "my-pictures"]


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
        "--images and --from my-pictures belong together": ("--from", "smoke", "--images", "faces.csv"),
        "give both, or neither": ("--from", "my-pictures"),
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
