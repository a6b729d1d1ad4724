"""Plans: every problem at once, the grid that follows, and the plans that ship."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml
from huggingface_hub import constants
from typer.testing import CliRunner

import ggss
import invented_release
from experiments.tools import mock_paper
from ggss import probes
from ggss.activations import SITE
from ggss.cli import app
from ggss.data.pictures import size_of
from ggss.errors import InputError
from ggss.models import check_reachable
from ggss.probes import suites
from ggss.probes.steered_model import batches
from ggss.probes.wording import released
from ggss.study import grid
from ggss.study.checking import CheckedPlan, footprints
from ggss.study.grid import Cell, Unit
from ggss.study.plan import DiscoverySet, Plan, PlanItems
from ggss.study.status import forecast
from ggss.study.worker import Worker

STUDIES = Path(__file__).parents[2] / "studies"
PLAN = {
    "name": "tiny",
    "suite": {"name": "small-world", "split": "evaluation"},
    "discovery": "small-world",
    "models": ["small-world/qwen3-vl", "small-world/llava-vicuna"],
    "methods": ["ggss", "none", {"name": "ggss", "label": "sharp", "options": {"kappa": 10}, "alphas": [1.0]}],
    "alphas": [0.5, 1.0],
    "steering": {
        "race": {"discover_on": ["cook"], "tasks": ["mcq"]},
        "gender": {"discover_on": ["cook"], "tasks": ["nurse-doctor"]},
    },
    "measures": [{"tasks": ["smallstar"]}, {"tasks": ["recognition-race"], "at": "all", "methods": ["ggss"]}],
}


def changed(**pieces):
    return PLAN | pieces


def test_the_plan_in_the_docs_is_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_methods", ModuleType("my_methods"))
    page = (STUDIES.parent / "docs" / "study.md").read_text()
    plan = Plan.of({"name": "docs"} | yaml.safe_load(page.split("```yaml\n")[1].split("```")[0]))
    assert [method.label for method in plan.methods] == ["none", "prompt", "ggss", "ggss sharp"]


def test_all_problems_are_listed_at_once():
    wrong = changed(
        models=[],
        methods=["none", "magic", {"name": "ggss", "options": {"kapa": 1}}],
        alphas=[0.5, -1],
        measures=[{"tasks": ["smallstar"], "at": "worst"}],
        sped=1,
    )
    with pytest.raises(InputError) as error:
        Plan.of(wrong)
    for part in ("models", "no method 'magic'", "kapa", "alphas.1", "measures.0.at", "sped"):
        assert part in str(error.value)


def test_contradictions_are_listed_at_once():
    limited = {"name": "ggss", "label": "x", "models": ["nobody"], "tasks": ["ceo"], "alphas": [2.0]}
    wrong = changed(
        models=["a", "a"],
        methods=["ggss", "ggss", limited],
        measures=[{"tasks": ["mcq"]}, {"tasks": ["tea"], "methods": ["y"]}],
    )
    with pytest.raises(InputError) as error:
        Plan.of(wrong)
    for part in (
        "'a' is listed more than once",
        "'ggss' is listed more than once",
        "'none'",
        "'nobody'",
        "'ceo'",
        "2.0",
        "'tea'",
        "'y'",
    ):
        assert part in str(error.value)
    assert "'mcq' is a bias task already" in str(error.value)


@pytest.mark.parametrize(
    ("pieces", "sentence"),
    [
        ({"benchmarks": {"mcq": "m.tsv"}}, "benchmarks: 'mcq' is not read from a file"),
        ({"benchmarks": {"tea": None}}, "benchmarks: 'tea' is not read from a file"),
        ({"threads": 0}, "threads: Input should be greater than or equal to 1"),
        ({"plugins": "one"}, "plugins: Input should be a valid tuple"),
        ({"small": True}, "small: Extra inputs are not permitted"),
    ],
)
def test_other_pieces_that_cannot_be(pieces, sentence):
    with pytest.raises(InputError, match=sentence):
        Plan.of(changed(**pieces))


def test_a_plug_in_that_is_not_there_is_named():
    with pytest.raises(InputError, match=r"the plug-in 'no_such_module' cannot be imported .*PYTHONPATH"):
        Plan.of(changed(plugins=["no_such_module"]))


def test_any_task_of_a_file_is_a_benchmark_and_any_attribute_a_steering():
    plan = Plan.of(
        changed(
            benchmarks={"mmstar": None, "mme": "there"},
            measures=[{"tasks": ["mmstar", "mme", "recognition-age"]}],
            steering={"age": {"discover_on": ["cook"], "tasks": ["mcq-age", "nurse-doctor-age"]}},
            threads=2,
        )
    )
    assert plan.tasks == ("mcq-age", "nurse-doctor-age", "mmstar", "mme", "recognition-age")
    assert grid.attribute_of(plan, "recognition-age") == "age"
    assert plan.threads == 2


def test_a_limited_baseline_is_refused():
    with pytest.raises(InputError, match="'none', unlimited"):
        Plan.of(changed(methods=[{"name": "none", "tasks": ["mcq"]}]))


def test_units_begin_with_the_baseline_of_each_model():
    found = grid.units(Plan.of(PLAN))
    labels = ["none", "ggss", "sharp"]
    assert found == [Unit(model, label) for model in PLAN["models"] for label in labels]


def test_a_sweep_finishes_one_steering_before_the_next():
    plan, unit = Plan.of(PLAN), Unit("small-world/qwen3-vl", "ggss")
    assert list(grid.sweep(plan, unit)) == [
        Cell(*unit, attribute, alpha, task)
        for attribute, bias in (("race", "mcq"), ("gender", "nurse-doctor"))
        for alpha in (0.5, 1.0)
        for task in (bias, "recognition-race")
    ]
    assert list(grid.at_best(plan, unit, 0.5)) == [Cell(*unit, a, 0.5, "smallstar") for a in ("race", "gender")]


BOTH = {"discover_on": ["cook"], "tasks": ["nurse-doctor", "mcq", "smallstar"], "methods": ["ggss"], "alphas": [1.0]}


def jointly(**pieces):
    return changed(steering=PLAN["steering"] | {"race x gender": BOTH | pieces})


def test_several_attributes_are_steered_by_one_steerer_beside_each_alone():
    plan, alone = Plan.of(jointly()), Plan.of(PLAN)
    assert (plan.attributes, plan.joint) == (("race", "gender"), ("race x gender",))
    assert (plan.bias_tasks, plan.tasks) == (alone.bias_tasks, alone.tasks)
    model = plan.models[0].name
    more = [cell for cell in grid.all_cells(plan) if cell not in set(grid.all_cells(alone)) and cell.model == model]
    assert more == [Cell(model, "ggss", "race x gender", 1.0, task) for task in BOTH["tasks"]]
    assert grid.attributes(plan, plan.method("sharp")) == ("race", "gender")
    everywhere = Plan.of(jointly(methods=None, alphas=None))
    strengths = {(cell.method, cell.alpha) for cell in grid.all_cells(everywhere) if " x " in cell.attribute}
    assert strengths == {("ggss", 0.5), ("ggss", 1.0), ("sharp", 1.0)}


def test_the_steerer_of_several_attributes_is_the_one_that_discover_fits():
    plan = Plan.of(jointly())
    name = plan.models[0].name
    steerer, cache = Worker(plan).steerer(name, "ggss", "race x gender")
    pictures = DiscoverySet(plan).of("race x gender")
    again = ggss.fit("ggss", ggss.collect(cache.vlm, pictures, show=False), attribute=("race", "gender"))
    assert steerer.attribute == again.attribute == ("race", "gender")
    rows = cache.features([next(iter(pictures))])[0].rows[SITE]
    torch.testing.assert_close(steerer.steer(rows), again.steer(rows))
    alone = ggss.fit("ggss", ggss.collect(cache.vlm, pictures, show=False), attribute="race")
    assert not torch.allclose(steerer.steer(rows), alone.steer(rows), atol=1e-3)


@pytest.mark.parametrize(
    ("steering", "sentence"),
    [
        ({"race x age": BOTH}, "steers age, which the plan does not steer alone: add `age` under `steering`"),
        ({"race x race": BOTH}, "names 'race' more than once"),
        ({"race+gender": {"tasks": ["mcq"]}}, "one steerer of several attributes is called 'race x gender'"),
        ({"race, gender": {"tasks": ["mcq"]}}, "one steerer of several attributes is called 'race x gender'"),
        ({"race": BOTH}, "race may not be limited to methods: limit the methods themselves"),
        ({"race x gender": BOTH | {"tasks": ["ceo"]}}, "limited to task 'ceo', which the plan does not have"),
        ({"race x gender": BOTH | {"methods": ["none"]}}, "limited to method 'none', which the plan does not have"),
        ({"race x gender": BOTH | {"alphas": [2.0]}}, "limited to alpha 2.0, which the plan does not have"),
    ],
)
def test_what_the_steering_of_several_attributes_may_not_be(steering, sentence):
    with pytest.raises(InputError) as error:
        Plan.of(changed(steering=PLAN["steering"] | steering))
    assert sentence in str(error.value)


def test_a_baseline_is_asked_everything_once():
    plan, unit = Plan.of(PLAN), Unit("small-world/qwen3-vl", "none")
    assert list(grid.sweep(plan, unit)) == [Cell(*unit, "", 0.0, t) for t in ("mcq", "nurse-doctor", "smallstar")]
    assert not list(grid.at_best(plan, unit, 1.0))


def test_a_method_is_held_to_its_limits():
    only = {"name": "ggss", "models": ["small-world/qwen3-vl"], "tasks": ["mcq"], "alphas": [1.0]}
    plan = Plan.of(changed(methods=["none", only]))
    assert [cell for cell in grid.all_cells(plan) if cell.method == "ggss"] == [
        Cell("small-world/qwen3-vl", "ggss", "race", 1.0, "mcq")
    ]


def test_paths_are_relative_to_the_file(tmp_path):
    given = changed(
        suite={"name": "reflect", "images": "faces.csv", "wording": "words.yaml"},
        discovery="faces.csv",
        benchmarks={"mmstar": "m.tsv", "mme": None},
    )
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(given))
    plan = Plan.load(tmp_path / "p.yaml")
    assert plan.discovery == plan.suite.options["images"] == str(tmp_path / "faces.csv")
    assert plan.suite.options["wording"] == str(tmp_path / "words.yaml")
    assert {task: file.path for task, file in plan.benchmarks.items()} == {
        "mmstar": str(tmp_path / "m.tsv"),
        "mme": None,
    }
    assert Plan.of(plan.model_dump(mode="json")) == plan


def test_a_benchmark_may_have_a_suffix_and_stays_the_same_through_the_store(tmp_path):
    given = changed(benchmarks={"mmstar": {"path": "m.tsv", "suffix": " Only the letter."}})
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(given))
    plan = Plan.load(tmp_path / "p.yaml")
    assert plan.benchmarks["mmstar"].suffix == " Only the letter."
    assert plan.benchmarks["mmstar"].path == str(tmp_path / "m.tsv")
    assert Plan.of(plan.model_dump(mode="json")) == plan


def test_a_discovery_prompt_needs_a_discovery():
    with pytest.raises(InputError, match="'none' has a discovery prompt, but it discovers nothing"):
        Plan.of(changed(methods=[{"name": "none", "prompt": "Caption this image."}, "ggss"]))
    with pytest.raises(InputError, match="at least 1 character"):
        Plan.of(changed(methods=["none", {"name": "ggss", "prompt": ""}]))


def test_a_discovery_prompt_makes_another_fit_and_none_the_fit_that_there_was():
    methods = [
        "none",
        "ggss",
        {"name": "ggss", "label": "one", "prompt": "One."},
        {"name": "ggss", "label": "two", "prompt": "Two."},
    ]
    plan = Plan.of(changed(methods=methods))
    attribute, model = next(iter(plan.steering)), plan.models[0].name
    labels = ("ggss", "one", "two")
    assert len({grid.recipe(plan, model, label, attribute) for label in labels}) == 3
    assert len({grid.steering_hash(plan, label, attribute, "data") for label in labels}) == 3


def test_the_name_of_a_picture_set_is_no_path(tmp_path):
    named = changed(suite={"name": "small-world", "images": "small-world-hair"})
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(named))
    plan = Plan.load(tmp_path / "p.yaml")
    assert (plan.discovery, plan.suite.options["images"]) == ("small-world", "small-world-hair")


@pytest.mark.parametrize("text", ["models: [", "- a list", ""])
def test_what_is_no_mapping_gets_a_sentence(tmp_path, text):
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(InputError, match=r"is not (usable YAML|a plan)"):
        Plan.load(tmp_path / "p.yaml")


@pytest.mark.parametrize("task", ["mcq", "2afc", "nurse-doctor", "smallmme"])
def test_a_limited_task_stays_balanced_and_measurable(task):
    items = suites.load("small-world").items(task)
    some = suites.subset(items, 40)
    assert 20 <= len(some) <= max(60, 2 * 90), "at least two people, each of whom is in 90 ordered pairs"
    clusters = {item.cluster for item in some}
    assert len(clusters) >= 2
    assert list(some) == [item for item in items if item.cluster in clusters]
    said = [next(iter(item.options)) for item in some]
    probe = probes.get(task)
    metric = next(iter(probe.metrics(probe.answers(some, said), None).values()))
    assert float(metric) == float(metric)


def test_batches_hold_every_item_once_beside_others_of_its_length():
    items = suites.load("small-world").items("smallstar")
    found = batches(items, 64)
    assert sorted(number for batch in found for number in batch) == list(range(len(items)))
    assert max(map(len, found)) == 64
    lengths = [len(items[number].prompt.split()) for batch in found for number in batch]
    assert lengths == sorted(lengths)


def test_the_small_world_plan_has_every_method_and_the_papers_grid():
    plan = Plan.load(STUDIES / "small-world.yaml")
    planned = {method.name for method in plan.methods}
    planned |= {method.name for method in Plan.load(STUDIES / "rivals.yaml").methods}  # docs/rivals.md has the others
    other_form = {"bend-token-euclidean", "bend-token-spherical"}  # of a method that is there
    other_form |= {name for name in ggss.methods.names() if name.startswith("pace-")}  # docs/pace.md measures them
    other_form |= {"dso", "biopro"}  # they need a live model, or neutral pictures: experiments/tools/rivals_live.py
    assert planned - other_form == set(ggss.methods.names()) - other_form
    points = [(m.options["kappa"], m.options["floor"]) for m in plan.methods if m.label.startswith("ggss kappa=")]
    assert sorted(points) == sorted((kappa, floor) for kappa in (1, 2, 5, 10) for floor in (0, 0.3, 0.5))
    assert plan.alphas == (0.25, 0.5, 0.75, 1.0, 1.5)
    assert set(plan.steering["gender"].discover_on) == {"cook", "lawyer", "teacher"}


def test_the_papers_plan_differs_from_the_small_worlds_only_in_material():
    small, paper = Plan.load(STUDIES / "small-world.yaml"), Plan.load(STUDIES / "paper.yaml")
    assert paper.steering == {name: small.steering[name] for name in small.attributes}
    assert paper.alphas == small.alphas
    assert {m.label for m in paper.methods if not m.prompt} <= {m.label for m in small.methods}
    assert (
        len({m.prompt for m in paper.methods} - {None}) == 5
    )  # the discovery prompts, which have a small plan of their own


def test_a_plan_says_by_which_rule_its_answers_are_read():
    assert Plan.of(PLAN).parser == "careful"
    assert Plan.of(PLAN | {"parser": "release"}).parser == "release"
    with pytest.raises(InputError, match="parser"):
        Plan.of(PLAN | {"parser": "guess"})


QUESTIONS = """
salary: {text: "how much ? a low b high", options: {a: low, b: high}, metric: gap, attribute: race}
"""


def test_people_who_are_held_out_are_chosen_among_the_suites_pictures():
    """Whole numbers of YAML are the labels that they look like."""
    plan = Plan.of(changed(held_out={"identity": [7, "01"], "occupation": "cook"}))
    assert plan.held_out == {"identity": ("7", "01"), "occupation": ("cook",)}
    with pytest.raises(InputError, match="held_out chooses among the `images` of the suite"):
        CheckedPlan(Plan.of(changed(held_out={"identity": ["01"]})))
    with pytest.raises(InputError, match="no image has identity=99"):
        CheckedPlan(
            Plan.of(changed(held_out={"identity": ["99"]}, suite={"name": "reflect", "images": "small-world"}))
        )


def test_a_plan_asks_the_questions_of_a_file(tmp_path):
    (tmp_path / "questions.yaml").write_text(QUESTIONS)
    steering = {"race": {"discover_on": ["cook"], "tasks": ["mcq", "gap-salary"]}}
    pieces = changed(questions="questions.yaml", steering=steering, measures=[])
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(pieces))
    checked = CheckedPlan(Plan.read(tmp_path / "plan.yaml"))
    asked = checked.plan_items.items("gap-salary")
    assert {item.cluster for item in asked} == {item.cluster for item in checked.plan_items.items("mcq")}
    assert grid.attribute_of(checked.plan, "gap-salary") == "race"
    before = checked.plan_items.hash("gap-salary")
    (tmp_path / "questions.yaml").write_text(QUESTIONS.replace("how much", "how little"))
    assert PlanItems(checked.plan).hash("gap-salary") != before
    (tmp_path / "questions.yaml").write_text(QUESTIONS.replace("metric", "metrik"))
    with pytest.raises(InputError, match="there is no key 'metrik': did you mean 'metric'"):
        CheckedPlan(checked.plan)
    (tmp_path / "questions.yaml").write_text(QUESTIONS.replace("salary", "wages"))
    with pytest.raises(InputError, match="has no task 'gap-salary'"):
        CheckedPlan(checked.plan)


def test_a_cap_on_pictures_makes_other_questions_and_another_fit():
    whole, small = Plan.of(PLAN), Plan.of(changed(max_side=24))
    asked = [PlanItems(plan) for plan in (whole, small)]
    assert asked[0].hash("mcq") != asked[1].hash("mcq")
    assert {max(size_of(picture)) for picture in asked[1].pictures()} == {24}
    discovered = [DiscoverySet(plan).of("race") for plan in (whole, small)]
    assert [own.max_side for own in discovered] == [None, 24]
    recipes = {grid.recipe(plan, "small-world/qwen3-vl", "ggss", "race") for plan in (whole, small)}
    assert len(recipes) == 2


def test_the_plan_release_says_what_it_needs_and_knows_models_of_the_local_cache(tmp_path, monkeypatch):
    """Offline: no wording yet, no pictures; then both, with a model of which the hub's cache has all but weights."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert (
        CliRunner().invoke(app, ["study", "new", "--from", "release", "-o", str(tmp_path / "p.yaml")]).exit_code == 0
    )
    plan = Plan.load(tmp_path / "p.yaml")
    assert (plan.max_side, plan.pooling, plan.batch_size, plan.parser) == (512, "release", 1, "release")
    with pytest.raises(InputError) as error:
        CheckedPlan(plan)
    for part in ("ggss data wording CLONE -o wording.yaml", "reflect.csv", "MMStar.tsv"):
        assert part in str(error.value)
    mock_paper.focus(tmp_path / "data", mock_paper.FOCUS.fixed["identity"], side=16)
    mock_paper.mmstar(tmp_path / "data" / "MMStar.tsv", 6)
    release = invented_release.write(tmp_path / "clone")
    (tmp_path / "data" / "wording.yaml").write_text(yaml.safe_dump(released(release)))
    checked = CheckedPlan(plan)
    assert [len(checked.plan_items.items(task)) for task in ("mcq", "2afc", "nurse-doctor")] == [80, 360, 160]
    assert checked.unchecked == [model.name for model in plan.models]
    cached = hub_cache(tmp_path / "hub", "mistral-community/pixtral-12b", "pixtral")
    checked = CheckedPlan(plan)
    assert checked.unchecked == [model.name for model in plan.models][1:]
    memory, unknown = footprints(checked)
    assert [one.model for one in memory] == ["mistral-community/pixtral-12b"]
    assert list(unknown) == checked.unchecked
    assert not any("lacks their weights" in note for note in checked.notes())
    weights = cached / "model.safetensors"
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (cached / "model.safetensors.index.json").write_text(json.dumps(index))
    assert any("a part of them: mistral" in note for note in CheckedPlan(plan).notes())  # the second is still to come
    (cached / "model.safetensors.index.json").unlink()
    weights.unlink()
    assert any("lacks their weights or a part of them: mistral" in note for note in CheckedPlan(plan).notes())
    (first, *_) = forecast(CheckedPlan(plan))
    assert "its weights are not all here" in first.why


def hub_cache(hub, name, kind):
    """A tiny model in the hub's local cache under the name of a released one; the folder of its files."""
    cached = hub / f"models--{name.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc")
    mock_paper.model(kind, 0, cached / "snapshots" / "abc", 48)
    return cached / "snapshots" / "abc"


def test_the_plan_release_is_checked_offline_by_the_command_if_the_weights_are_in_the_local_cache(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    asked = []

    def offline(url, **_):
        asked.append(url)
        raise OSError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", offline)
    check_reachable.cache_clear()
    mock_paper.main(tmp_path, 24, mock_paper.Amount(("1", "5"), 12, 2, [], 48))
    plan = mock_paper.plan({name: name for name in mock_paper.CLASSES}, mock_paper.RELEASE)
    (tmp_path / "release.yaml").write_text(yaml.safe_dump(plan))
    *names, last = mock_paper.CLASSES
    for name in names:
        hub_cache(tmp_path / "hub", name, mock_paper.CLASSES[name])
    command = ["study", "plan", str(tmp_path / "release.yaml"), "--no-forecast"]
    partly = CliRunner().invoke(app, command)
    assert partly.exit_code == 0, partly.output
    assert f"on the hub and not checked: {last}" in " ".join(partly.output.split())
    assert asked
    assert all(last in url for url in asked)
    asked.clear()
    hub_cache(tmp_path / "hub", last, mock_paper.CLASSES[last])
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert not asked
    assert "not checked" not in done.output
    assert "lacks their weights" not in done.output
    assert all(name in done.output for name in mock_paper.CLASSES)
