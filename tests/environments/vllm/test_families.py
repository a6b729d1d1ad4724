"""LLaVA-NeXT, Pixtral and Qwen3-VL with deepstack: what vLLM's text model sees is what transformers' sees."""

import asyncio
from dataclasses import replace

import pytest
import torch

from conftest import QUESTIONS, pair
from ggss.errors import InputError

NAMES = {"llava-vicuna": "projection-mlp2", "pixtral": "projection-mlp2", "qwen3-vl": "all"}


@pytest.fixture(scope="module", params=NAMES)
def both(request, tmp_path_factory):
    made = pair(request.param, tmp_path_factory.mktemp(request.param), NAMES[request.param])
    yield made
    made.engine.close()


@pytest.mark.parametrize("strengths", [{}, {"race": 0.5}, {"race": 1.0, "gender": 1.0}])
def test_answers_and_probabilities_are_those_of_transformers(both, strengths):
    both.check_readings(both.pictures[:6], strengths)


def test_steering_changes_answers(both):
    """Without this the test above would say nothing."""
    pictures = both.pictures[:6]
    plain, steered = (both.ask(QUESTIONS[0], pictures, own) for own in ({}, {"race": 1.0}))
    assert [one.text for one in plain] != [one.text for one in steered]


def test_features_are_those_of_transformers(both):
    """The rows that vLLM's text model gets for pictures of two sizes, each at its own strengths."""
    images = [both.pictures[0].image().resize((96, 64)), both.pictures[1].image(), both.pictures[2].image()]
    strengths = [{"race": 1.0}, {}, {"race": 0.25, "gender": 0.5}]
    found = both.engine.call(embedded(both, images, strengths))
    for own, image, acting in zip(found, both.vlm.encode(images), strengths, strict=True):
        plain = expected(both, image)
        for name, alpha in acting.items():
            image = image.steered(both.steerers[name], alpha)
        assert torch.allclose(own, expected(both, image), atol=1e-4, rtol=1e-4)
        assert torch.allclose(own, plain, atol=1e-4, rtol=1e-4) == (not acting)


def expected(both, image):
    """What transformers' text model gets, with vLLM's layout: the levels of deepstack side by side."""
    inputs = {key: value[None] for key, value in image.inputs.items()}
    output = both.vlm.family.encoder_output(both.vlm.model, [image.rows], inputs)
    return torch.cat([output["pooler_output"][0], *(level[0] for level in output.get("deepstack_features", ()))], -1)


async def embedded(both, images, strengths):
    async def one(image, acting):
        ready, _ = await both.written(both.prompt(image, acting))
        (known,) = ready.engine_input["mm_hashes"]["image"]
        ((rows,),) = await both.engine.host._engine.collective_rpc("kept_rows", args=([known],))
        return torch.tensor(rows)

    return await asyncio.gather(*map(one, images, strengths))


def test_a_steerer_of_another_model_is_refused(both, tmp_path):
    folder = tmp_path / "other"
    steerer = both.steerers["race"]
    replace(steerer, source=steerer.source | {"fingerprint": "0" * 64}).save_pretrained(folder)
    with pytest.raises(InputError, match="vision weights: the steerer was made with 0000"):
        both.engine.call(both.engine.host.load(str(folder)))
