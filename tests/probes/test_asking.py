"""Asking: readings are what the model answers and scores, steered or not, and each picture is decoded once."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import ggss
from conftest import noise
from ggss.analysis import ask, records
from ggss.errors import InputError
from ggss.models.features import FeatureCache, steered
from ggss.probes import Item, suites
from ggss.probes.steered_model import SteeredModel, batches
from noise_pictures import DECODED, NoisePicture
from test_live import activations

PERSON = {"race": "amber", "gender": "man"}


def an_item(number, prompt="what colour hat ?", options=("red", "blue"), pictures=1, size=64):
    images = tuple(NoisePicture(10 * number + k, size, PERSON) for k in range(pictures))
    attributes = tuple(picture.attributes for picture in images)
    return Item(f"item/{number}", prompt, images, attributes, f"person/{number}", "", {o: o for o in options})


ITEMS = [
    an_item(0),
    an_item(1, "which of two earns more ?", pictures=2),
    an_item(2, "is this person a nurse or doctor ?", ("nurse", "doctor", "no")),
    an_item(3, "what is the colour ?", ()),
    an_item(4),
    an_item(5, "which of two earns more ?", pictures=2),
    an_item(6, size=96),
]


def pictures_of(items):
    return [[picture.image() for picture in item.images] for item in items]


def close(readings, others):
    """The same answers, and the same probabilities but for rounding: batches or places in memory differ."""
    for one, other in zip(readings, others, strict=True):
        assert one.text == other.text
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)


@pytest.mark.parametrize("max_new_tokens", [1, 3])
def test_a_reading_is_what_answer_and_score_say(vlm, max_new_tokens):
    questions, images = [item.prompt for item in ITEMS], pictures_of(ITEMS)
    options = [tuple(item.options) for item in ITEMS]
    readings = vlm.read(questions, images, options, max_new_tokens, batch_size=4)
    assert [r.text for r in readings] == vlm.answer(questions, images, max_new_tokens)
    for one, reading in enumerate(readings):
        if options[one]:
            (scores,) = vlm.score([questions[one]], [images[one]], [options[one]])
            assert reading.probabilities == pytest.approx(torch.tensor(scores).softmax(0).tolist(), abs=2e-5)
        else:
            assert reading.probabilities == ()
    alone = vlm.read(questions[:1], images[:1], options[:1], max_new_tokens)
    assert alone[0].text == readings[0].text


def test_options_of_several_tokens_are_scored_in_turn(qwen):
    long = ("red hat", "blue")
    (reading,) = qwen.read(["what colour ?"], [[noise(1)]], [long], max_new_tokens=1)
    (scores,) = qwen.score(["what colour ?"], [[noise(1)]], [long])
    assert reading.probabilities == pytest.approx(torch.tensor(scores).softmax(0).tolist(), abs=1e-5)
    with pytest.raises(InputError, match="needs a list of options"):
        qwen.read(["what ?"], [[noise(1)]], [], 1)


def test_prompts_are_tokenised_once(qwen, monkeypatch):
    tokenised = []
    inner = qwen._prompts._tokenise
    monkeypatch.setattr(qwen._prompts, "_tokenise", lambda asked: tokenised.extend(asked) or inner(asked))
    for seed in (1, 2):
        qwen.read(["which colour is new ?"] * 2, [[noise(seed)], [noise(seed + 5)]], [("red", "blue")] * 2, 1)
    assert len(tokenised) == 1
    monkeypatch.setattr("ggss.models.prompts.KEPT_TOKENS", 0)
    first = qwen.read(["which colour is old ?"], [[noise(1)]], [("red", "blue")], 1)
    assert qwen.read(["which colour is old ?"], [[noise(1)]], [("red", "blue")], 1) == first
    assert len(qwen._prompts._kept) == 1


@pytest.mark.parametrize("method", ["ggss", "bend-euclidean", "inlp-spherical"])
def test_pictures_steered_together_are_as_if_alone(qwen, method):
    steerer = ggss.fit(method, activations(qwen, "all"), attribute="gender")
    features = qwen.encode([noise(70), noise(71, 96), noise(72)])
    together = steered(features, steerer, 0.8)
    for one, both in zip(features, together, strict=True):
        alone = one.steered(steerer, 0.8)
        for site, rows in alone.rows.items():
            torch.testing.assert_close(both.rows[site], rows, rtol=0, atol=1e-6)
            assert not torch.equal(rows, one.rows[site])


@pytest.fixture(scope="module")
def steerer(qwen):
    return ggss.fit("ggss", activations(qwen, "all"), attribute="gender")


def test_a_steered_model_reads_what_the_live_model_says(qwen, steerer):
    model = SteeredModel.of(qwen).steered(steerer, 1.2)
    readings = model.read(ITEMS, 2, batch_size=3)
    plain = SteeredModel.of(qwen).read(ITEMS, 2)
    moved = 0.0
    for item, images, reading, before in zip(ITEMS, pictures_of(ITEMS), readings, plain, strict=True):
        with steerer.attach(qwen, 1.2):
            (live,) = qwen.read([item.prompt], [images], [tuple(item.options)], 2)
        assert reading.text == live.text
        assert reading.probabilities == pytest.approx(live.probabilities, abs=1e-4)
        moved = max([moved, *np.abs(np.subtract(reading.probabilities, before.probabilities))])
    assert moved > 1e-3, "steering must show"


def test_two_steerings_act_one_after_the_other(qwen, steerer):
    features = qwen.encode(pictures_of(ITEMS[:1])[0])
    twice = [one.steered(steerer, 1.0).steered(steerer, 0.5) for one in features]
    model = SteeredModel.of(qwen).steered(steerer, 1.0).steered(steerer, 0.5)
    (seen,) = model.see(ITEMS[0].images)
    for site, rows in twice[0].rows.items():
        torch.testing.assert_close(seen.rows[site], rows, rtol=0, atol=1e-6)
    assert model.alpha == 0.5
    assert SteeredModel.of(qwen).alpha == 0


def test_a_picture_is_decoded_once_however_the_model_is_steered(qwen, steerer):
    DECODED.clear()
    model = SteeredModel.of(qwen)
    model.cache.preload([picture for item in ITEMS[:3] for picture in item.images], show=False)
    first = model.read(ITEMS, 1)
    model.steered(steerer, 0.5).read(ITEMS, 1)
    model.steered(steerer, 1.0).steered(steerer, 0.5).read(ITEMS, 1)
    close(model.read(ITEMS, 1), first)
    assert set(DECODED.values()) == {1}
    assert len(DECODED) == 9


def test_without_room_in_memory_a_picture_is_decoded_once_and_reads_the_same(qwen, steerer):
    roomy = SteeredModel.of(qwen).steered(steerer, 1.0)
    expected = roomy.read(ITEMS, 1, batch_size=2)
    tight = SteeredModel(FeatureCache(qwen, room=0)).steered(steerer, 1.0)
    DECODED.clear()
    readings = tight.read(ITEMS, 1, batch_size=2)
    close(readings, expected)
    assert set(DECODED.values()) == {1}
    for kept in (tight._steered_features, tight.cache._memory):
        assert not any(picture.digest in kept for item in ITEMS for picture in item.images)
    DECODED.clear()
    close(tight.read(ITEMS, 1, batch_size=2), readings)
    assert not DECODED


def test_batches_cover_every_item_once(qwen):
    found = batches(ITEMS, 3)
    assert [len(batch) for batch in found] == [3, 3, 1]
    assert sorted(number for batch in found for number in batch) == list(range(len(ITEMS)))
    model = SteeredModel.of(qwen)
    readings = model.read(ITEMS, 1)
    for batch in found:
        close(model.read_batch([ITEMS[number] for number in batch], 1), [readings[number] for number in batch])


def test_a_family_that_cannot_answer_from_features_is_steered_live(tiny):
    vlm = tiny("pixtral")
    steerer = ggss.fit("ggss", activations(vlm, "projection-mlp2"), attribute="gender")
    expected = SteeredModel.of(vlm).steered(steerer, 1.0).read(ITEMS[:3], 1)
    plain = SteeredModel.of(vlm).read(ITEMS[:3], 1)
    vlm.__dict__["family"] = replace(vlm.family, pack=None)
    DECODED.clear()
    live = SteeredModel.of(vlm).steered(steerer, 1.0)
    for one, other, before in zip(live.read(ITEMS[:3], 1), expected, plain, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-4)
        assert one.probabilities != pytest.approx(before.probabilities, abs=1e-4)
    live.read(ITEMS[:3], 1)
    assert set(DECODED.values()) == {1}


def test_another_models_steerer_is_refused(qwen, tiny, steerer):
    other = tiny("qwen3-vl", layers=3, deepstack=(0, 1), seed=9)
    with pytest.raises(InputError, match="does not fit"):
        SteeredModel.of(other).steered(steerer, 1.0)
    assert SteeredModel.of(other).steered(steerer, 1.0, force=True).alpha == 1.0


def test_the_recommended_strength_is_used_where_no_other_is_given(qwen, steerer):
    model = SteeredModel.of(qwen)
    assert model.steered(steerer).alpha == 1.0
    assert model.steered(steerer.recommending(0.7)).alpha == 0.7
    assert model.steered(steerer.recommending(0.7), 0.2).alpha == 0.2


def two_races():
    pair = [replace(an_item(i), attributes=({"race": r, "gender": "man"},)) for i, r in enumerate(("amber", "jade"))]
    pair = [replace(item, about="race") for item in pair]
    return suites.Suite("own", ("mcq",), lambda _: pair)


def test_the_fairness_instruction_is_asked_and_recorded(qwen, monkeypatch):
    prompt = ggss.fit("prompt", activations(qwen, "all"), attribute="gender")
    asked = []
    inner = qwen.read
    monkeypatch.setattr(qwen, "read", lambda questions, *rest: asked.extend(questions) or inner(questions, *rest))
    suite = two_races()
    model = SteeredModel.of(qwen).steered(prompt, 0.0)
    run = ask(model, suite, "mcq")
    assert asked == [item.prompt + prompt.prompt_suffix for item in run.items]
    first, _ = records.records(run, model.suffix)
    assert first.prompt == asked[0]
    assert first.suite_hash == run.source.suite_hash == suite.hash("mcq")
    assert (run.source.method, run.source.steerer) == ("prompt", prompt.content_hash)
    unsteered = ask(SteeredModel.of(qwen), suite, "mcq")
    plain, _ = records.records(unsteered)
    assert plain.prompt == run.items[0].prompt
    assert plain.prompt_hash != first.prompt_hash
    assert (plain.method, plain.attribute, plain.steerer, plain.alpha) == ("none", "", "", 0)


def test_a_run_says_where_its_answers_come_from(qwen, steerer):
    run = ask(SteeredModel.of(qwen).steered(steerer, 1.5), two_races(), "mcq", max_new_tokens=1)
    source = run.source
    assert (source.model, source.method, source.attribute, source.alpha) == (qwen.name, "ggss", "gender", 1.5)
    assert (source.suite, source.max_new_tokens, source.identity) == ("own", 1, qwen.identity.parts)
    assert source.identity["dtype"] == "float32"
    assert source.steerer == steerer.content_hash
    assert source.versions["ggss"] == ggss.__version__
    assert run.about == "race"
    assert [sum(own) for own in run.probabilities] == pytest.approx([1, 1], abs=1e-5)


def test_a_batch_holds_all_items_about_the_same_pictures():
    """Each picture has three questions of two lengths, and they are listed question by question."""
    questions = ("what colour hat ?", "is this person a nurse or doctor ?", "what colour ?")
    items = [
        replace(an_item(number, prompt), key=f"{number}/{prompt}") for prompt in questions for number in range(5)
    ]
    found = batches(items, 7)
    assert [len(batch) for batch in found] == [6, 6, 3]
    assert sorted(number for batch in found for number in batch) == list(range(len(items)))
    shown = [{items[number].images[0].digest for number in batch} for batch in found]
    assert [len(own) for own in shown] == [2, 2, 1]
    assert not shown[0] & shown[1]
    # Of more items than a batch holds, a batch is full.
    assert [len(batch) for batch in batches(items, 2)] == [2] * 7 + [1]
    # The control: items without a picture have none in common.
    without = [replace(item, images=(), attributes=()) for item in items]
    assert [len(batch) for batch in batches(without, 7)] == [7, 7, 1]
