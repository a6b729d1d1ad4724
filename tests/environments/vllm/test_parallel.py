"""Tensor parallelism: two processes that share the weights answer as one does."""

import pytest

from conftest import pair


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    made = pair("llava-vicuna", tmp_path_factory.mktemp("two"), ways=2)
    yield made
    made.engine.close()


@pytest.mark.parametrize("strengths", [{}, {"race": 1.0}, {"race": 0.5, "gender": 1.0}])
def test_answers_are_those_of_one_process(two, strengths):
    """Those of one process are those of transformers, by the other tests."""
    two.check_readings(two.pictures[:4], strengths)


def test_both_processes_count(two):
    async def counted():
        ready, _ = await two.written(two.prompt(two.pictures[9].image(), {"race": 0.75}))
        return await two.engine.host._engine.collective_rpc("ggss_records", args=(ready.keys,))

    workers = two.engine.call(counted())
    assert len(workers) == 2
    assert workers[0] == workers[1]
