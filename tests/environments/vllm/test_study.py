"""`ggss study run --executor vllm`: the same plan, store and rows; answers differ from transformers' at ties only."""

import pytest

from experiments.tools.engine_answers import compared
from ggss.errors import InputError
from ggss.study import executors
from ggss.study.plan import Plan
from ggss.study.results import opened
from ggss.study.runner import run

TIE = 2e-3  # in probability: the engines' own differ by less
PLAN = Plan.of(
    {
        "name": "both-engines",
        "suite": {"name": "small-world", "split": "evaluation"},
        "discovery": "small-world",
        "models": [{"name": "small-world/qwen3-vl", "dtype": "float32"}],
        "methods": ["none", "prompt", {"name": "ggss", "sites": "all"}],
        "alphas": [0.5, 1.0],
        "steering": {"race": {"discover_on": ["cook"], "tasks": ["mcq"]}},
        "measures": [{"tasks": ["smallstar"]}],
        "limit": 20,
        "batch_size": 16,
        "threads": 1,
    }
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    own, other = (tmp_path_factory.mktemp(name) for name in ("transformers", "vllm"))
    run(PLAN, own, show=False)
    summary = run(PLAN, other, "vllm", show=False)
    assert summary.asked > 0
    return own, other


def test_the_same_rows_with_the_same_answers(folders):
    first, second = (opened(folder)[1] for folder in folders)
    assert set(first) == set(second)
    answers = list(compared(first, second))
    assert len(answers) >= 100
    assert max(one.apart for one in answers) < TIE
    differing = [one for one in answers if one.first != one.second]
    assert all(one.lead is not None and abs(one.lead) < TIE for one in differing), differing
    print(f"{len(answers)} answers, {len(differing)} differ at a tie")


def test_steering_acted(folders):
    """Without this the test above would say nothing."""
    runs = opened(folders[1])[1]
    at = {
        cell.alpha: runs[cell].probabilities
        for cell in runs
        if cell.method in ("none", "ggss") and cell.task == "mcq"
    }
    assert at[0.0] != at[0.5] != at[1.0]


def test_a_finished_study_starts_no_engine(folders):
    assert run(PLAN, folders[1], "vllm", show=False).asked == 0


def test_answers_of_two_engines_are_never_mixed(folders):
    identities = [opened(folder)[1].identity("small-world/qwen3-vl") for folder in folders]
    assert identities[0].hash != identities[1].hash
    (changed,) = identities[1].differences(identities[0])
    assert changed.startswith("engine (none before, vllm ")


def test_one_worker_only():
    with pytest.raises(InputError, match="vllm is one worker"):
        executors.executor("vllm", PLAN, 2)
