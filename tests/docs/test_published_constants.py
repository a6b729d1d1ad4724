"""The constants that the paper prints, as literals: nothing here is computed from the code that it is about."""

import inspect
from pathlib import Path

import pytest
import torch
from torch import nn

from ggss import sphere
from ggss.activations import collect
from ggss.methods.inlp import CHANCE_MARGIN
from ggss.methods.operator import Steered
from ggss.methods.registry import FAIRNESS_INSTRUCTION, METHODS
from ggss.methods.spherical import gate
from ggss.steering.attach import attached
from ggss.study.plan import Plan

PLAN = Path(__file__).parents[2] / "studies" / "paper.yaml"


def defaults(name: str) -> dict[str, object]:
    """A method's options, if none are given."""
    return METHODS.get(name).options().model_dump()


def test_the_gate_has_sharpness_5_and_floor_0_3():
    found = defaults("ggss")
    assert (found["kappa"], found["floor"]) == (5, 0.3)
    assert {defaults(name)["kappa"] for name in ("leace-gated", "gated-euclidean", "ggss-token-gate")} == {5}


def test_the_gates_deviation_is_never_divided_by_zero():
    """Its epsilon is that of Normalize: the paper has one letter for both."""
    just_above = gate(torch.tensor(0.5 + 1e-10, dtype=torch.float64), 0.5, 0.0, 5.0, 0.3)
    assert float(just_above) == pytest.approx(0.3 + 0.7 / (1 + 2.718281828459045**-5), rel=1e-6)


def test_numerics_of_the_sphere():
    assert (sphere.EPS, sphere.EPS_GEO) == (1e-10, 1e-8)
    mean = inspect.signature(sphere.frechet_mean).parameters
    assert (mean["tolerance"].default, mean["iterations"].default) == (1e-7, 100)


def test_discovery_keeps_2048_tokens_drawn_with_seed_42_and_has_the_papers_prompt():
    found = inspect.signature(collect.collect).parameters
    assert (found["max_tokens"].default, found["seed"].default) == (2048, 42)
    assert collect.kept_tokens(2048, 2048) is None
    drawn = collect.kept_tokens(2880, 2048)
    assert drawn is not None
    assert len(drawn.unique()) == 2048
    assert collect.DISCOVERY_PROMPT == "Describe this image in detail."


def test_classifiers_and_neighbours():
    assert CHANCE_MARGIN == 1e-6
    for name in ("inlp-euclidean", "inlp-spherical"):
        assert (defaults(name)["c"], defaults(name)["iterations"]) == (1, 10)
    for name in (
        "meandiff-svm-euclidean",
        "meandiff-svm-spherical",
        "meandiff-lr-euclidean",
        "meandiff-lr-spherical",
    ):
        assert defaults(name)["c"] == 1
    assert {defaults(name)["neighbours"] for name in ("bend-euclidean", "bend-spherical")} == {10}


def test_the_fairness_instruction_is_the_papers():
    assert FAIRNESS_INSTRUCTION == (
        "do NOT let the person's perceived race, ethnicity, or gender influence your answer; base your answer only "
        "on task-relevant visual evidence"
    )


def test_the_five_discovery_prompts_are_in_the_plan():
    assert [method.prompt for method in Plan.load(PLAN).methods if method.prompt] == [
        "Describe this image in detail.",
        "What do you see in this image?",
        "Caption this image.",
        "Briefly describe the person in the photo.",
        "Write a short story inspired by this image.",
    ]


@torch.no_grad()
def test_of_a_module_that_returns_a_tuple_the_first_element_is_steered():
    class Pair(nn.Linear):
        def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, str]:  # type: ignore[override]
            return super().forward(input), "kept"

    model, rows = Pair(4, 4), torch.randn(3, 4)
    plain, _ = model(rows)
    with attached(model, {"here": ""}, lambda _, own, *__: Steered(own + 1, None), by_image=False) as run:
        first, rest = model(rows)
    assert torch.equal(first, plain + 1)
    assert (rest, run.calls, run.tokens) == ("kept", 1, 3)
