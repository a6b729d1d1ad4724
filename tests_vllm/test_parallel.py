"""Tensor parallelism: two processes that share the weights answer as one does."""

import pytest
from vllm import SamplingParams

from conftest import QUESTIONS, pair
from ggss.models import prompts
from ggss.vllm_plugin.engine_host import EnginePrompt


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    made = pair("llava-vicuna", tmp_path_factory.mktemp("two"), ways=2)
    yield made
    made.engine.close()


@pytest.mark.parametrize("strengths", [{}, {"race": 1.0}, {"race": 0.5, "gender": 1.0}])
def test_answers_are_those_of_one_process(two, strengths):
    """Those of one process are those of transformers, by the other tests."""
    pictures = two.pictures[:4]
    for question in QUESTIONS:
        own, right = two.ask(question, pictures, strengths), two.reference(question, pictures, strengths)
        assert [one.answer for one in own] == [one.answer for one in right]
        for one, other in zip(own, right, strict=True):
            assert one.probabilities == pytest.approx(other.probabilities, abs=2e-4)


def test_both_processes_count(two):
    async def counted():
        text = prompts.chat(two.vlm.processor, QUESTIONS[0], 1)
        (ids,) = prompts.tokens(two.vlm.processor, [text], [prompts.image_mark(two.vlm.processor)])
        prompt = EnginePrompt(ids, [two.pictures[9].image()], two.contents({"race": 0.75}))
        ready = await two.engine.host.read(prompt)
        async for _ in two.engine.host.write(ready, SamplingParams(temperature=0, max_tokens=1)):
            pass
        return await two.engine.host._engine.collective_rpc("ggss_counts", args=(ready.keys,))

    workers = two.engine.call(counted())
    assert len(workers) == 2
    assert workers[0] == workers[1]
