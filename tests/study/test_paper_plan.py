"""The paper's plan as it ships: what it says, and a run of all of it on a small mock of its material.

`make paper-mock` is the same on material of the true size, with models that read and write.
"""

from pathlib import Path

import pytest
import torch
import yaml

from experiments.tools import mock_paper
from ggss.analysis.selection import folds_of
from ggss.data.layouts import FOCUS
from ggss.errors import InputError
from ggss.models.features import Features
from ggss.models.reading import Answer
from ggss.models.sites import MLP2
from ggss.models.vlm import Vlm
from ggss.report import cells, tables
from ggss.steering import fitting
from ggss.study import runner
from ggss.study.checking import CheckedPlan
from ggss.study.grid import at_best, sweep, units
from ggss.study.plan import Plan, SteeringPlan
from ggss.study.results import Results

QWEN = "Qwen/Qwen3-VL-4B-Instruct"
HELD_OUT = {"mcq": {"ceo"}, "2afc": {"ceo"}, "ceo": {"ceo"}, "nurse-doctor": {"nurse", "doctor"}}
HELD_OUT |= {"recognition-race": {"ceo"}, "recognition-gender": {"ceo"}}
LIKED = torch.randn(8, 48, generator=torch.Generator().manual_seed(0))  # by option


def said_of(question: str, seen: list[Features], options: tuple[str, ...]) -> Answer:
    """In place of the text model, which takes most of the time: what is seen decides between the words that fit."""
    fitting = [words for asked, words in mock_paper.SUGGESTED.items() if asked in question.lower()]
    words = options or (fitting[0] if fitting else ("yes", "no"))
    sight = sum((k + 1) * one.rows[MLP2].mean(0) for k, one in enumerate(seen))
    scores = (9 * (LIKED[: len(words)] @ (sight / sight.norm())).cos()).softmax(0)  # much depends on little
    return Answer(words[int(scores.argmax())], tuple(scores.tolist()) if options else ())


def read(self, questions, images, options, max_new_tokens=8, batch_size=16):
    return [said_of(*one) for one in zip(questions, images, options, strict=True)]


@pytest.fixture(scope="module")
def mock(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mock")
    amount = mock_paper.Amount(people=("1", "5"), questions=12, pictures=2, models=[QWEN], width=48)
    mock_paper.main(folder, None, amount)
    said = yaml.safe_load((folder / "paper.yaml").read_text())
    fewer = {"alphas": [0.5, 1.0], "statistics": {"resamples": 100, "permutations": 100}, "batch_size": 256}
    (folder / "paper.yaml").write_text(yaml.safe_dump(said | fewer))
    return folder


@pytest.fixture(scope="module")
def results(mock: Path) -> Results:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Vlm, "read", read)
        patch.setattr(fitting, "probe_tokens", lambda *tokens, **how: None)  # a diagnostic that decides no number
        runner.run(Plan.load(mock / "paper.yaml"), mock / "study", show=False)
    return Results.load(mock / "study")


def test_the_mock_plan_is_the_shipped_one_but_for_material(mock):
    shipped, run = (yaml.safe_load(path.read_text()) for path in (mock_paper.PLAN, mock / "paper.yaml"))
    assert mock_paper.PLAN.samefile(Path(__file__).parents[2] / "studies" / "paper.yaml")
    assert [m["name"] if isinstance(m, dict) else m for m in run["methods"]] == [
        m["name"] if isinstance(m, dict) else m for m in shipped["methods"]
    ]
    assert {name: run[name] for name in ("steering", "measures", "seed")} == {
        name: shipped[name] for name in ("steering", "measures", "seed")
    }
    assert set(run["benchmarks"]) == set(shipped["benchmarks"])


def test_the_plan_is_the_papers():
    plan = Plan.load(mock_paper.PLAN)
    assert [model.name for model in plan.models] == list(mock_paper.CLASSES)
    assert {(model.dtype, model.device_map) for model in plan.models} == {("bfloat16", "auto")}
    assert plan.alphas == (0.25, 0.5, 0.75, 1.0, 1.5)
    assert (plan.seed, plan.statistics.resamples, plan.statistics.permutations) == (42, 10_000, 10_000)
    assert plan.steering["race"] == SteeringPlan(
        discover_on=("cook", "doctor", "lawyer", "nurse", "teacher"), tasks=("mcq", "2afc")
    )
    assert plan.steering["gender"] == SteeringPlan(discover_on=("cook", "lawyer", "teacher"), tasks=("nurse-doctor",))
    assert set(plan.tasks) == {*HELD_OUT, "mmstar", "mme"}
    assert plan.limit is None


def test_the_plan_for_focus_alone_is_the_papers_without_benchmarks():
    whole, focus = (
        yaml.safe_load((mock_paper.PLAN.parent / f"{name}.yaml").read_text()) for name in ("paper", "focus")
    )
    del whole["benchmarks"], whole["description"], focus["description"]
    whole["measures"] = [one for one in whole["measures"] if one["tasks"] not in (["mmstar"], ["mme"])]
    assert focus == whole


def test_no_picture_that_is_asked_about_takes_part_in_discovery(mock):
    plan = Plan.load(mock / "paper.yaml")
    checked = CheckedPlan(plan)
    assert checked.overlaps == []
    for task, occupations in HELD_OUT.items():
        shown = {item.context["occupation"] for item in checked.plan_items.items(task)}
        assert shown == occupations, task
    for steering in plan.steering.values():
        for task in steering.tasks:
            assert set(steering.discover_on) == set(FOCUS.fixed["occupation"]) - {"ceo"} - HELD_OUT[task]
    leaking = plan.model_copy(update={"steering": {"race": SteeringPlan(discover_on=("ceo",), tasks=("mcq",))}})
    with pytest.raises(InputError, match="ceo"):
        CheckedPlan(leaking)


def test_every_cell_of_the_plan_was_asked(results):
    plan, missing = results.plan, []
    for unit in units(plan):
        best = results.best_alpha(*unit) if plan.method(unit.method).steers else None
        cells = [*sweep(plan, unit), *(() if best is None else at_best(plan, unit, best))]
        missing += [c for c in cells if not results.run(c.model, c.method, c.task, c.alpha, c.attribute or None)]
    assert not missing
    assert {method.label for method in plan.methods} == {unit.method for unit in units(plan)}


def test_folds_are_the_papers(results):
    first, second = folds_of(results.everyone(results.models[0]))
    assert {cluster.rsplit("/")[-1] for cluster in first} == {"1"}
    assert {cluster.rsplit("/")[-1] for cluster in second} == {"5"}
    turns = results.held_out(results.models[0], "ggss")
    assert [turn.fold for turn in turns] == [first, second]
    assert all(turn.change is not None for turn in turns)


def test_every_table_comes_out_with_every_method(results, tmp_path):
    written = tables.write(results, tmp_path, show=False)
    absent = {"control", "pace_against"}  # the paper has no model on which steering should fail, and no PACE
    assert set(written.left_out) == absent
    assert set(written.tables) == {*tables.TABLES.names(), tables.REPORT} - absent
    # All strengths of all methods: some tasks are measured at the best one only; and a method that was not run on a
    # task about an attribute has no spill-over of it.
    partly = {f"{tables.REPORT}.csv", "spillover.csv"}
    missing = {path.name for path in tmp_path.glob("*.csv") if "not run" in path.read_text()}
    assert missing == partly
    shown = "\n".join(path.read_text() for path in tmp_path.glob("*.csv"))
    assert [label for label in results.methods if cells.method_title(label) not in shown] == []
