"""What is wrong with a plan is listed all at once, by `study plan` and by `study run`, before anything is loaded."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from conftest import noise
from ggss.cli import app
from ggss.data.manifests import write_manifest
from ggss.errors import InputError
from ggss.models import vlm
from ggss.study import grid
from ggss.study.checking import CheckedPlan
from ggss.study.plan import DiscoverySet, Plan
from ggss.study.runner import run

PLAN = {
    "suite": {"name": "small-world", "split": "evaluation"},
    "discovery": "small-world",
    "models": ["small-world/qwen3-vl"],
    "methods": ["none", "ggss"],
    "alphas": [1.0],
    "steering": {"race": {"discover_on": ["cook"], "tasks": ["mcq"]}},
    "limit": 20,
}


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch):
    def load(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(vlm.AutoModelForImageTextToText, "from_pretrained", load)


@pytest.fixture
def written(tmp_path):
    """Writes a plan's file."""

    def write(**pieces):
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(PLAN | pieces))
        return tmp_path / "plan.yaml"

    return write


@pytest.fixture
def faces(tmp_path):
    """The manifest of two cooks and two nurses in two races."""
    rows = []
    for work in ("cook", "nurse"):
        for identity in ("1", "2"):
            for race in ("amber", "jade"):
                noise(len(rows), 32, 32).save(tmp_path / f"{work}{identity}{race}.png")
                labels = {"occupation": work, "identity": identity, "race": race}
                rows.append({"path": f"{work}{identity}{race}.png", **labels})
    write_manifest(rows, tmp_path / "faces.csv")
    return tmp_path / "faces.csv"


def refused(file, study) -> str:
    """What both commands say of the plan in a file; nothing is written."""
    said = []
    for command in (["plan", str(file), "--no-forecast"], ["run", str(file), "-o", str(study)]):
        error = CliRunner().invoke(app, ["study", *command]).exception
        assert isinstance(error, InputError), command
        said.append(str(error))
    assert said[0] == said[1]
    assert not study.exists()
    return said[0]


def test_everything_is_listed_together(written, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    (tmp_path / "untyped").mkdir()
    (tmp_path / "untyped" / "config.json").write_text("[]")
    missing = {"name": "reflect", "images": "nowhere.csv"}
    file = written(
        suite=missing,
        discovery="small-world",
        benchmarks={"mmstar": "MMStar.tsv"},
        models=[
            "small-world/qwen3-vl",
            "small-world/qwen4-vl",
            str(tmp_path / "empty"),
            str(tmp_path / "damaged"),
            str(tmp_path / "untyped"),
            {"name": "small-world/pixtral", "dtype": "float33"},
        ],
        methods=["none", "ggss", "ggss", {"name": "ggss", "label": "deep", "sites": "deepstack-7"}],
        steering={
            "race": {"discover_on": ["cook", "baker", "smith"], "tasks": ["mcq"]},
            "age": {"discover_on": ["cook"], "tasks": ["mcq-age"]},
        },
        measures=[{"tasks": ["mmstar"]}],
    )
    said = refused(file, tmp_path / "study")
    for part in (
        "methods: 'ggss' is listed more than once",
        "there is no model 'small-world/qwen4-vl'",
        "it has no config.json",
        f"the model's config '{tmp_path / 'damaged' / 'config.json'}'",
        f"'{tmp_path / 'untyped' / 'config.json'}' has no model_type",
        "small-world/pixtral: there is no dtype 'float33'",
        "'deep' on small-world/qwen3-vl: Qwen3-VL has no site 'deepstack-7'",
        "'deep' on small-world/pixtral: Pixtral has no site 'deepstack-7'",
        "race is discovered on 'baker'",
        "race is discovered on 'smith'",
        "no attribute 'age' varies in the discovery pictures: there are race, gender",
        f"suite: '{tmp_path / 'nowhere.csv'}' is not a file",
        f"task mmstar: no MMStar at '{tmp_path / 'MMStar.tsv'}'",
    ):
        assert part in said, part
    assert "13 problems" in said


def test_tasks_that_the_suite_does_not_have_are_named(written, tmp_path):
    steering = {"race": {"discover_on": ["cook"], "tasks": ["mcq", "mcq-age", "2afc-shoes"]}}
    said = refused(written(steering=steering), tmp_path / "study")
    assert "2 problems" in said
    assert "task mcq-age: suite 'small-world' has no task 'mcq-age'" in said
    assert "'2afc-shoes'" in said


def test_missing_and_damaged_pictures_are_named(written, faces, tmp_path):
    (faces.parent / "cook1jade.png").unlink()
    (faces.parent / "cook2jade.png").write_text("no picture")
    said = refused(written(discovery="faces.csv"), tmp_path / "study")
    assert "2 problems" in said
    assert "cook1jade.png' does not exist" in said
    assert "cook2jade.png' has no known image format" in said


def test_a_discovery_set_without_occupations_is_refused(written, faces, tmp_path):
    faces.write_text(faces.read_text().replace("occupation", "work"))
    assert "has no column 'occupation'" in refused(written(discovery="faces.csv"), tmp_path / "study")


@pytest.fixture
def people(tmp_path):
    """One picture of each of twelve people, with labels and no occupation."""
    rows = []
    for number in range(12):
        noise(100 + number, 32, 32).save(tmp_path / f"person{number}.png")
        labels = {
            "race": ("amber", "jade")[number % 2],
            "gender": ("man", "woman")[number // 2 % 2],
            "age": 20 + number,
        }
        rows.append({"path": f"person{number}.png", **labels})
    write_manifest(rows, tmp_path / "people.csv")


UNPAIRED = {"discovery": "people.csv", "methods": ["none", "pace"], "unpaired": ["race", "gender"]}
RACE, AGE = {"race": {"tasks": ["mcq"]}}, {"age": {"tasks": ["mcq-race"]}}


def test_unpaired_discovery_is_matched_by_the_columns_of_the_plan(written, people):
    plan = Plan.load(written(**UNPAIRED, steering=RACE))
    checked = CheckedPlan(plan)
    pictures = checked.discovery.of("race")
    assert pictures.unpaired
    assert len(pictures) == 12
    assert list(dict(pictures.pictures[0].context)) == ["gender"]  # not by what is steered
    ordered = Plan.load(written(**UNPAIRED, steering=AGE, ordered=["age"]))
    assert DiscoverySet(ordered).of("age").ordered == ("age",)


def test_how_pictures_are_compared_is_part_of_a_fit(written, people):
    plans = [
        Plan.load(written(**UNPAIRED, steering=RACE)),
        Plan.load(written(**UNPAIRED | {"unpaired": ["gender"]}, steering=RACE)),
        Plan.load(written(**UNPAIRED | {"unpaired": []}, steering=RACE)),
    ]
    assert len({grid.recipe(plan, "small-world/qwen3-vl", "pace", "race") for plan in plans}) == 3


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        ({"methods": ["none", "ggss"]}, "methods: ggss compares the versions of a person, and these"),
        ({"unpaired": ["race", "gender", "age"]}, "no two pictures of different 'race' agree"),
        ({"unpaired": ["height"]}, "has no column 'height'"),
        ({"ordered": ["age"]}, "ordered: 'age' is not steered"),
        ({"steering": AGE}, "attribute 'age' has 12 values, all numbers: say that it is ordered"),
        ({"steering": RACE, "ordered": ["race"]}, "'race' is to be ordered, and 2 of its values are no numbers"),
        ({"unpaired": None}, "none of them is occupation or identity"),
    ],
)
def test_what_is_wrong_with_unpaired_discovery_is_said(written, people, tmp_path, pieces, problem):
    assert problem in refused(written(**{"steering": RACE} | UNPAIRED | pieces), tmp_path / "study")


def test_plugins_that_cannot_be_imported_are_all_named(written, tmp_path):
    said = refused(written(plugins=["no_such_one", "no_such_two"], alphas=[-1]), tmp_path / "study")
    for part in ("the plug-in 'no_such_one'", "the plug-in 'no_such_two'", "alphas.0"):
        assert part in said


def test_a_model_of_an_unknown_family_has_one_site(tmp_path, tiny):
    vlm = tiny("llava-vicuna")
    vlm.model.config.save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["model_type"] = "llava_next_video"
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    models = [str(tmp_path / "model")]
    everywhere, hidden = ({"name": "ggss", "label": sites, "sites": sites} for sites in ("all", "projection-mlp1"))
    CheckedPlan(Plan.of(PLAN | {"name": "one", "models": models, "methods": ["none", "ggss", everywhere]}))
    with pytest.raises(InputError, match=r"1 problem\n.*llava_next_video is no known family"):
        CheckedPlan(Plan.of(PLAN | {"name": "one", "models": models, "methods": ["none", hidden]}))


def overlapping(faces):
    steering = {"race": {"discover_on": ["cook"], "tasks": ["mcq"]}}
    return {"discovery": str(faces), "suite": {"name": "reflect", "images": str(faces)}, "steering": steering}


def test_pictures_that_are_fitted_and_scored_are_counted(written, faces):
    measures = [{"tasks": ["recognition-race"]}]
    pieces = overlapping(faces) | {"limit": None, "measures": measures, "models": ["org/model"], "overlap": "warn"}
    for copy in ("cook1amber.png", "cook1jade.png"):  # by content: a copy under another name is the same picture
        shutil.copy(faces.parent / copy, faces.parent / f"copy-{copy}")
    faces.with_name("copied.csv").write_text(faces.read_text().replace("cook1", "copy-cook1"))
    pieces["discovery"] = str(faces.with_name("copied.csv"))
    done = CliRunner().invoke(app, ["study", "plan", str(written(**pieces)), "--no-forecast"])
    assert done.exit_code == 0
    seen = " ".join(done.output.split())
    assert "race steering is scored on pictures that it is fitted on" in seen
    assert "(4 of 8 in mcq, 4 of 8 in recognition-race)" in seen
    assert "on the hub and not checked: org/model" in seen
    told = CliRunner().invoke(app, ["study", "plan", str(written(**pieces)), "--no-forecast", "--json"])
    assert json.loads(told.output)["overlap"] == [
        {"attribute": "race", "task": "mcq", "shared": 4, "shown": 8},
        {"attribute": "race", "task": "recognition-race", "shared": 4, "shown": 8},
    ]
    assert json.loads(told.output)["unchecked"] == ["org/model"]


def test_overlap_is_refused_unless_the_plan_allows_it(written, faces, tmp_path):
    said = refused(written(**overlapping(faces)), tmp_path / "study")
    assert "1 problem\n" in said
    assert "of 8 in mcq" in said
    held_out = overlapping(faces)
    held_out["suite"] = {"name": "small-world", "split": "evaluation"}
    assert CheckedPlan(Plan.of(PLAN | held_out | {"name": "one"})).notes() == []


def test_a_run_says_what_overlaps_and_can_be_silent(faces, tmp_path, capsys):
    pieces = {"name": "one", "models": ["nobody/nothing"], "overlap": "warn"}
    plan = Plan.of(PLAN | overlapping(faces) | pieces)
    for show in (None, False):
        with pytest.raises(InputError, match="none on nobody/nothing"):
            run(plan, tmp_path / f"study-{show}", show=show)
        assert ("overlap: race steering" in capsys.readouterr().err) == (show is None)


def test_the_small_worlds_plans_share_no_picture():
    """Its people of discovery and of evaluation are others."""
    for name in ("small-world", "smoke"):
        plan = Plan.load(Path(__file__).parents[2] / "studies" / f"{name}.yaml")
        assert CheckedPlan(plan).overlaps == []
