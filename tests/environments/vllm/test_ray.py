"""`ggss study run --executor ray-vllm`: actors of Ray, each with a vLLM of its own, give the rows of one vLLM."""

import os
import signal
import time
from pathlib import Path

import pytest

from experiments.tools.engine_answers import compared
from ggss.study import executors
from ggss.study.plan import Plan
from ggss.study.results import opened
from ggss.study.runner import run

ray = pytest.importorskip("ray", reason="needs the extra ray: make test-vllm installs it")

MODEL = "small-world/llava-vicuna"
PLAN = Plan.of(
    {
        "name": "actors",
        "suite": {"name": "small-world", "split": "evaluation"},
        "discovery": "small-world",
        "models": [{"name": MODEL, "dtype": "float32"}],
        "methods": ["none", "ggss"],
        "alphas": [1.0],
        "steering": {"race": {"discover_on": ["cook"], "tasks": ["mcq"]}},
        "limit": 20,
        "batch_size": 16,
        "threads": 1,
    }
)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (its name)
    ray.init(num_cpus=2, num_gpus=0, log_to_driver=False, include_dashboard=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    run(PLAN, folder, "vllm", show=False)
    return folder


def check_the_same(folder: Path, other: Path) -> None:
    """The same rows of the same model; probabilities hang a little on what vLLM has in a batch at a time."""
    first, second = opened(folder)[1], opened(other)[1]
    assert set(first) == set(second)
    assert first.identity(MODEL) == second.identity(MODEL)
    answers = list(compared(first, second))
    assert len(answers) >= 40
    assert [one for one in answers if one.first != one.second] == []
    assert max(one.apart for one in answers) < 1e-4


def engines() -> set[int]:
    """The living processes of vLLM on this machine, which name themselves."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if name.startswith("VLLM::") and rest.split()[0] != "Z":
            found.add(int(folder.name))
    return found


def test_an_actor_gives_the_rows_of_one_vllm_and_leaves_no_process(expected, tmp_path):
    before = engines()
    assert run(PLAN, tmp_path, "ray-vllm", workers=1, show=False).asked > 0
    check_the_same(tmp_path, expected)
    end = time.monotonic() + 60
    while (left := engines() - before) and time.monotonic() < end:
        time.sleep(0.2)  # a process that was told to end takes a moment
    assert not left


def test_a_vllm_that_dies_in_its_actor_is_replaced(expected, tmp_path, monkeypatch):
    call, killed, before = executors.Actor.call, [], engines()

    def with_a_death(self, name, *args):
        said = call(self, name, *args)
        if not killed and (own := engines() - before):
            killed.extend(own)
            for process in own:
                os.kill(process, signal.SIGKILL)
        return said

    monkeypatch.setattr(executors.Actor, "call", with_a_death)
    run(PLAN, tmp_path, "ray-vllm", workers=1, show=False)
    assert killed
    check_the_same(tmp_path, expected)
