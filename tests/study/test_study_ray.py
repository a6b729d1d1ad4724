"""The Ray executor on a cluster of this machine: `make test-ray` runs this where Ray is installed."""

import os
import signal

import pytest

from conftest import exported
from ggss.errors import InputError
from ggss.study import executors
from ggss.study.plan import Plan
from ggss.study.runner import run

ray = pytest.importorskip("ray", reason="needs the extra ray: make test-ray")

PLAN = Plan.of(
    {
        "name": "tiny",
        "suite": {"name": "small-world", "split": "evaluation"},
        "discovery": "small-world",
        "models": ["small-world/qwen3-vl", "small-world/pixtral"],
        "methods": ["none", "ggss"],
        "alphas": [0.5, 1.0],
        "steering": {"race": {"discover_on": ["cook"], "tasks": ["mcq"]}},
        "measures": [{"tasks": ["smallstar"]}],
        "limit": 20,
        "batch_size": 8,
        "threads": 1,
    }
)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Actors are as important as other processes here: on a busy machine they would wait for ever."""
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (its name)
    ray.init(num_cpus=2, num_gpus=0, log_to_driver=False, include_dashboard=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("in-process")
    run(PLAN, folder)
    return exported(folder)


@pytest.mark.parametrize("workers", [1, 2])
def test_actors_give_the_same_rows(expected, tmp_path, workers):
    assert run(PLAN, tmp_path, "ray", workers=workers).reused == 0
    assert exported(tmp_path) == expected


def test_a_killed_actor_is_replaced_and_nothing_changes(expected, tmp_path, monkeypatch):
    call, calls, killed = executors.Actor.call, [], []

    def killed_at_the_fifth(self, name, *args):
        calls.append(name)
        if len(calls) == 5:
            killed.append(ray.get(self.handle.__ray_call__.remote(lambda _: os.getpid())))
            os.kill(killed[0], signal.SIGKILL)
        return call(self, name, *args)

    monkeypatch.setattr(executors.Actor, "call", killed_at_the_fifth)
    run(PLAN, tmp_path, "ray", workers=1)
    assert len(killed) == 1
    assert exported(tmp_path) == expected


def test_bad_input_to_an_actor_is_one_sentence_here(tmp_path):
    plan = PLAN.model_copy(update={"models": PLAN.models[:1]})
    lost = Plan.of(
        plan.model_dump(mode="json")
        | {"methods": ["none", {"name": "svd-token-euclidean", "label": "lost", "options": {"k": 1000}}]}
    )
    with pytest.raises(InputError, match="lost on small-world/qwen3-vl"):
        run(lost, tmp_path, "ray", workers=1)


def test_more_workers_than_the_cluster_has_room_for_are_refused():
    with pytest.raises(InputError, match="3 workers need as many CPUs, and the Ray cluster has 2"):
        executors.executor("ray", PLAN, 3)
