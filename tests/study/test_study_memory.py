"""What a plan needs of a model is known before its weights are: bytes, and prompts that are too long."""

import json
import sys
from contextlib import suppress

import pytest
import torch

from conftest import WORDS
from experiments.training.architectures import build
from ggss import cli
from ggss.cli import arguments
from ggss.errors import InputError
from ggss.models import Vlm
from ggss.models.placement import ModelSize
from ggss.models.prompts import PromptLengths
from ggss.study import checking, runner
from ggss.study.checking import CheckedPlan
from ggss.study.plan import Plan, PlanItems
from ggss.study.worker import Worker

PLAN = {
    "name": "memory",
    "suite": {"name": "small-world", "split": "evaluation"},
    "discovery": "small-world",
    "alphas": [1.0],
    "methods": ["none", "ggss"],
    "steering": {"race": {"discover_on": ["cook"], "tasks": ["mcq", "2afc"]}},
    "limit": 20,
    "batch_size": 8,
    "threads": 1,
}


@pytest.fixture
def saved(tiny, tmp_path):
    """A function that saves a tiny model with a context of so many tokens."""

    def save(context, name="llava-vicuna"):
        vlm = tiny(name)
        vlm.model.config.get_text_config().max_position_embeddings = context
        vlm.model.save_pretrained(tmp_path / name)
        vlm.processor.save_pretrained(tmp_path / name)
        vlm.model.config.get_text_config().max_position_embeddings = 4096
        return str(tmp_path / name)

    return save


def planned(*models, **other):
    return Plan.of(PLAN | {"models": list(models)} | other)


def prompts(plan, vlm):
    """The number of tokens of each prompt, as the model gets them."""
    seen = []
    hook = vlm.model.register_forward_pre_hook(
        lambda _, __, given: seen.append(int(given["attention_mask"].sum())), with_kwargs=True
    )
    try:
        for task in plan.tasks:
            for item in PlanItems(plan).items(task):
                vlm.logits([item.prompt], [[picture.image() for picture in item.images]])
    finally:
        hook.remove()
    return seen


@pytest.mark.parametrize("name", ["llava-vicuna", "qwen3-vl", "pixtral"])
def test_the_footprint_is_that_of_the_model(saved, name, monkeypatch):
    monkeypatch.setattr(checking, "free_memory", lambda device: 10**8)
    plan = planned(saved(4096, name))
    found = checking.footprint(plan, plan.models[0].name, PlanItems(plan))
    vlm = Worker(plan)
    vlm.open(plan.models[0].name)
    model = vlm._unsteered.vlm
    assert found.weights == sum(parameter.nbytes for parameter in model.model.parameters())
    assert found.tokens == max(prompts(plan, model)) + 1  # the small world answers with one token
    features = [model.encode([picture.image()])[0] for picture in PlanItems(plan).pictures()]
    held = sum(rows.nbytes for one in features for rows in one.rows.values())
    assert found.features == pytest.approx(held, rel=0.3)  # LLaVA-NeXT adds tokens after the site, Pixtral row ends
    assert found.batch == 8
    assert found.fits == ModelSize.of(model.model.config).batch(found.tokens, torch.float32, 10**8)
    assert found.too_long == ()


def test_prompts_longer_than_the_context_are_found(saved, tmp_path, monkeypatch, capsys):
    plan = planned(model := saved(80))
    (found,), unknown = checking.footprints(CheckedPlan(plan))
    (two,) = found.too_long  # a prompt with two pictures
    assert unknown == {}
    assert (two.task, two.context) == ("2afc", 80)
    assert two.prompts == two.of == len(PlanItems(plan).items("2afc"))
    assert two.tokens == found.tokens > 80
    (tmp_path / "plan.yaml").write_text(json.dumps(PLAN | {"models": [model]}))
    monkeypatch.setattr(sys, "argv", ["ggss", "study", "plan", str(tmp_path / "plan.yaml"), "--no-forecast"])
    monkeypatch.setenv("COLUMNS", "200")
    with suppress(SystemExit):
        cli.main()
    said = " ".join(capsys.readouterr().out.split())
    assert f"{two.of} of the {two.of} prompts of 2afc are longer than its context of 80 tokens" in said


def test_two_images_are_too_many_for_vicuna():
    """LLaVA-NeXT's real tiles: 336 pixels, patches of 14, up to 2 x 2 tiles; Vicuna was made for 4,096 tokens."""
    _, processor = build("llava-vicuna", WORDS, image_size=336, patch_size=14, width=64, layers=1)
    grids = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    processor.image_processor.image_grid_pinpoints = grids
    lengths = PromptLengths(processor)
    assert lengths.image_tokens((1024, 1024)) == 5 * 576 + 48
    one, two = lengths([("who earns more ?", [(1024, 1024)] * count) for count in (1, 2)])
    assert one < 4096 < two


def test_a_model_that_is_not_here_is_said_to_be_unknown(saved):
    (found,), unknown = checking.footprints(CheckedPlan(planned(saved(4096), "no/such-model")))
    assert found.model.endswith("llava-vicuna")
    assert "no/such-model" in unknown["no/such-model"]


def test_a_batch_of_auto_is_what_fits(saved, monkeypatch):
    plan = planned(saved(4096), batch_size="auto")
    assert plan.questions_together == 64
    size = ModelSize.of
    worker = Worker(plan)
    monkeypatch.setattr("ggss.models.vlm.free_memory", lambda device: 10**7)
    worker.open(plan.models[0].name)
    vlm: Vlm = worker._unsteered.vlm
    longest = checking.longest_prompt(plan, PlanItems(plan), PromptLengths(vlm.processor))
    each = size(vlm.model.config).question(longest, torch.float32)
    assert vlm._asking.most == int(0.9 * 10**7) // each
    assert 1 < vlm._asking.most < 64


def test_a_study_tells_how_long_it_will_take(saved, tmp_path):
    said = []
    plan = planned(saved(4096))
    done = runner.run(plan, tmp_path / "study", say=said.append)
    assert len(said) == 1
    assert "questions are left: about" in said[0]
    runner.run(plan, tmp_path / "study", say=said.append)  # all is answered
    assert len(said) == 1
    assert done.asked > 0


def test_the_estimate_leaves_out_the_first_batch_and_what_was_answered_before():
    clock = iter([100.0, 104.0]).__next__
    said = []
    counts = [(0, 8), (8, 0), (4, 4), (8, 0), (8, 0)]
    seen = list(runner.with_estimate(iter(counts), 40, said.append, clock=clock))
    assert seen == counts
    assert said == ["16 questions are left: about 16 seconds"]


def test_with_two_workers_two_batches_are_measured():
    clock = iter([0.0, 60.0]).__next__
    said = []
    list(runner.with_estimate(iter([(10, 0)] * 5), 10_000, said.append, 2, clock))
    assert said == ["9,970 questions are left: about 8.3 hours"]


@pytest.mark.parametrize(("seconds", "text"), [(20, "20 seconds"), (600, "10 minutes"), (7200, "2.0 hours")])
def test_durations(seconds, text):
    assert runner.duration(seconds) == text


def test_a_probe_may_be_asked_as_fast_as_memory_allows(saved, tmp_path, monkeypatch, capsys):
    limits = []
    monkeypatch.setattr(Vlm, "limit_batch", lambda self, tokens: limits.append(tokens))
    asked = ["--suite", "small-world", "--tasks", "mcq", "--limit", "20", "--batch-size", "auto", "--json"]
    monkeypatch.setattr(sys, "argv", ["ggss", "probe", saved(4096), *asked])
    with suppress(SystemExit):
        cli.main()
    assert json.loads(capsys.readouterr().out)["metrics"]
    assert len(limits) == 1
    assert 40 < limits[0] < 100


def test_a_batch_size_is_a_number_or_auto():
    assert [arguments.batch(text) for text in (None, "12", "auto")] == [None, 12, 64]
    for wrong in ("many", "1.5", "0", "-3"):
        with pytest.raises(InputError, match="batch"):
            arguments.batch(wrong)
