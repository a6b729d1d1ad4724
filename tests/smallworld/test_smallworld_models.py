"""The embedded models: every line of `ggss world check` is held, and fast reading equals the model's own answers."""

import hashlib

import pytest
import torch
from transformers import AutoModelForImageTextToText

import ggss
from ggss import smallworld
from ggss.probes.steered_model import SteeredModel
from ggss.smallworld.bias_questions import bias_items
from ggss.smallworld.demo import check
from ggss.smallworld.questions import as_item
from ggss.smallworld.suite import smallstar

OFTEN = ("pixtral", "entangled")  # a model and the control: the others are checked by `make test-world`


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.world] * (name not in OFTEN)) for name in smallworld.embedded()],
)
def test_the_model_shows_what_it_should(name):
    lines = check(name)
    assert not [line for line in lines if line.met is False], lines


@pytest.mark.parametrize("name", smallworld.embedded())
def test_plain_transformers_loads_it(name):
    model = AutoModelForImageTextToText.from_pretrained(smallworld.CHECKPOINTS / name)
    assert sum(parameter.numel() for parameter in model.parameters()) < 3_000_000


def test_the_checkpoints_are_small():
    files = [path for path in smallworld.CHECKPOINTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 20 * 2**20
    weights = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.suffix == ".safetensors"]
    assert len(set(weights)) == len(smallworld.embedded())


@pytest.mark.parametrize("name", smallworld.embedded())
def test_fast_reading_equals_answer_and_score(name):
    model = SteeredModel.of(ggss.load_vlm(f"small-world/{name}"))
    pairs = bias_items("evaluation", ("2afc",))[:4]
    questions = [*smallstar()[::300], *pairs, *bias_items("evaluation", ("salary", "race"))[::120]]
    readings = model.read([as_item(question) for question in questions], max_new_tokens=1)
    pictures = [[picture.image() for picture in question.images] for question in questions]
    texts = [question.text for question in questions]
    answers = model.vlm.answer(texts, pictures, max_new_tokens=4)
    assert [reading.text for reading in readings] == answers
    scores = model.vlm.score(texts, pictures, [question.options for question in questions])
    for reading, score in zip(readings, scores, strict=True):
        torch.testing.assert_close(
            torch.tensor(reading.probabilities), torch.tensor(score).softmax(0), atol=2e-4, rtol=0
        )
