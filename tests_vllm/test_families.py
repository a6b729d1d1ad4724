"""LLaVA-NeXT, Pixtral and Qwen3-VL with deepstack: what vLLM's text model sees is what transformers' sees."""

import pytest
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
    pictures = both.pictures[:6]
    for question in QUESTIONS:
        own, right = both.ask(question, pictures, strengths), both.reference(question, pictures, strengths)
        assert [one.answer for one in own] == [one.answer for one in right]
        for one, other in zip(own, right, strict=True):
            assert one.probabilities == pytest.approx(other.probabilities, abs=2e-4)


def test_steering_changes_answers(both):
    """Without this the test above would say nothing."""
    pictures = both.pictures[:6]
    plain, steered = (both.ask(QUESTIONS[0], pictures, own) for own in ({}, {"race": 1.0}))
    assert [one.answer for one in plain] != [one.answer for one in steered]


def test_features_are_those_of_transformers(both):
    """The rows that vLLM's model makes of pictures of two sizes, each at its own strengths."""
    wide = both.pictures[0].image().resize((96, 64))
    images = [wide, both.pictures[1].image(), both.pictures[2].image()]
    strengths = [{"race": 1.0}, {}, {"gender": 0.5, "race": 0.25}]
    rows = both.engine.call(embedded(both, images, strengths))
    features = both.vlm.encode(images)
    for own, image, acting in zip(rows, features, strengths, strict=True):
        for name, alpha in acting.items():
            image = image.steered(both.steerers[name], alpha)
        inputs = {key: value[None] for key, value in image.inputs.items()}
        output = both.vlm.family.encoder_output(both.vlm.model, [image.rows], inputs)
        expected = output["pooler_output"][0]
        assert own[:, : expected.shape[1]].tolist() == pytest.approx_rows(expected)


async def embedded(both, images, strengths):
    raise NotImplementedError


def test_a_steerer_of_another_model_is_refused(both, tmp_path):
    folder = tmp_path / "other"
    steerer = both.steerers["race"]
    from dataclasses import replace

    replace(steerer, source=steerer.source | {"fingerprint": "0" * 64}).save_pretrained(folder)
    with pytest.raises(InputError, match="vision weights: the steerer was made with 0000"):
        both.engine.call(both.engine.host.load(str(folder)))
