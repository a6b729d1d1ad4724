"""Each request gets its own strengths, whoever else is asked at the same time and whatever is kept from before."""

import asyncio
import itertools

import pytest

from conftest import OPTIONS, QUESTIONS
from ggss.errors import InputError
from ggss.models import prompts
from ggss.steering.attach import NeverFired
from ggss.vllm_plugin.engine import EnginePrompt, EngineReader, ReadPrompt
from ggss.vllm_plugin.steering import ASKED

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)
STRENGTHS = [{}, *({name: alpha} for name in ("race", "gender") for alpha in ALPHAS), {"race": 1.0, "gender": 0.5}]


def test_a_mixed_batch_of_64_equals_64_requests_alone(llava):
    mixed = [
        llava.prompt(llava.pictures[number % 10].image(), strengths, question)
        for number, (strengths, question) in zip(
            range(64), itertools.cycle(itertools.product(STRENGTHS, QUESTIONS)), strict=False
        )
    ]

    async def together() -> list[tuple[ReadPrompt, list[int]]]:
        return await asyncio.gather(*(llava.written(one, 8) for one in mixed))

    batch = [tokens for _, tokens in llava.engine.call(together())]
    assert len({tuple(one.strengths.items()) for one in mixed}) > 10
    # Alone, with nothing kept: what was computed in the batch must not be served again.
    for one, tokens in zip(mixed, batch, strict=True):
        llava.engine.call(llava.engine.host._engine.reset_prefix_cache())
        llava.engine.call(llava.engine.host._engine.reset_encoder_cache())
        llava.engine.call(llava.engine.host._engine.reset_mm_cache())
        assert llava.engine.call(llava.written(one, 8))[1] == tokens


def test_the_same_picture_at_changing_strengths_with_every_cache_on(llava):
    question, pictures = QUESTIONS[0], llava.pictures[:4]
    expected = {alpha: llava.reference(question, pictures, {"race": alpha}) for alpha in (0.0, 1.0)}
    assert [own.text for own in expected[0.0]] != [own.text for own in expected[1.0]]
    for alpha in (0.0, 1.0, 0.0, 1.0):
        for own, right in zip(llava.ask(question, pictures, {"race": alpha}), expected[alpha], strict=True):
            assert own.text == right.text
            assert own.probabilities == pytest.approx(right.probabilities, abs=1e-4)


def test_a_plug_in_that_is_not_told_the_strength_would_fail(llava):
    """The negative control of the test above: without strengths the right answers do not come."""
    question, pictures = QUESTIONS[0], llava.pictures[:4]
    right = [own.text for own in llava.reference(question, pictures, {"race": 1.0})]
    assert [own.text for own in llava.ask(question, pictures, {})] != right


def test_counts_prove_that_each_picture_was_steered(llava):
    one = llava.prompt(llava.pictures[7].image(), {"race": 0.75, "gender": 0.5})
    ready, _ = llava.engine.call(llava.written(one, 8))
    (counts,) = llava.engine.call(llava.engine.host.records([ready]))
    race, gender = (llava.steerers[name] for name in ("race", "gender"))
    assert list(counts) == [race.content_hash, gender.content_hash]
    rows = llava.vlm.encode([llava.pictures[7].image()])[0].rows["projection-mlp2"]
    assert counts[race.content_hash].tokens == len(rows)
    assert counts[race.content_hash].alpha == 0.75
    assert counts[race.content_hash].gate_mean == pytest.approx(float(race.gate(rows).mean()), abs=1e-4)
    # Of a picture that never was encoded at this strength nothing is known, and that is an error.
    unseen = ReadPrompt(ready.engine_input, ready.tokens, [12345], ready.strengths)
    with pytest.raises(NeverFired, match="was to be steered"):
        llava.engine.call(llava.engine.host.records([unseen]))
    plain = llava.engine.call(llava.engine.host.read(llava.prompt(llava.pictures[7].image(), {})))
    wrong = ReadPrompt(plain.engine_input, plain.tokens, plain.keys, ready.strengths)
    with pytest.raises(NeverFired, match="was to be steered"):
        llava.engine.call(llava.engine.host.records([wrong]))


@pytest.mark.parametrize(
    ("strengths", "said"),
    [
        ({"rac": 1.0}, "no steerer 'rac'"),
        ({"race": "1"}, "must be a number"),
        ({"race": True}, "must be a number"),
        ({"race": float("nan")}, "race"),
        ({"race": 1e9}, "race"),
        (["race"], "gives strengths by steerer"),
    ],
)
def test_what_cannot_be_applied_is_refused(llava, strengths, said, monkeypatch):
    monkeypatch.setitem(ASKED.contents, "race", llava.steerers["race"].content_hash)
    with pytest.raises(InputError, match=said):
        ASKED.prompt({"multi_modal_data": {"image": []}, "mm_processor_kwargs": {"ggss": strengths}})


def test_steering_without_an_image_is_refused(llava):
    with pytest.raises(InputError, match="has no image"):
        llava.engine.call(llava.engine.host.read(EnginePrompt([1, 5, 6], [], llava.contents({"race": 1.0}))))
    ready = llava.engine.call(llava.engine.host.read(EnginePrompt([1, 5, 6], [], {})))
    assert ready.keys == []


def test_other_settings_of_the_processor_are_refused_with_steering(llava):
    content = llava.steerers["race"].content_hash
    asked = {"mm_processor_kwargs": {"ggss": {content: 1.0}, "do_resize": False}, "multi_modal_data": {"image": [1]}}
    with pytest.raises(InputError, match="do_resize"):
        ASKED.prompt(asked)


def test_prompts_are_those_of_the_transformers_path(llava):
    picture = llava.pictures[0]
    ready = llava.engine.call(llava.engine.host.read(llava.prompt(picture.image(), {})))
    text = prompts.chat(llava.vlm.processor, QUESTIONS[0], 1)
    (expected,) = prompts.tokens(llava.vlm.processor, [text], [llava.vlm.encode([picture.image()])[0].placeholder])
    assert list(ready.engine_input["prompt_token_ids"]) == expected


def test_options_of_several_tokens_are_scored_as_in_transformers(llava):
    options = ["amber", "amber coral", "coral", "jade pearl amber"]
    picture = llava.pictures[3]
    reader = EngineReader(llava.engine.host, llava.vlm.processor, "llava")
    acting = llava.contents({"gender": 0.5})
    (own,) = llava.engine.call(reader.read([QUESTIONS[0]], [[picture.image()]], [options], acting, 4))
    features = llava.vlm.encode([picture.image()])[0].steered(llava.steerers["gender"], 0.5)
    (right,) = llava.vlm.read([QUESTIONS[0]], [[features]], [options], 4)
    assert own.text == right.text
    assert own.probabilities == pytest.approx(right.probabilities, abs=1e-4)
    assert len(OPTIONS) == 5
