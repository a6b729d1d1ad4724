"""The feature cache: each picture is encoded once, in any order, in memory, from a file, and with a full disk."""

import io
import random
import resource
from collections import Counter
from dataclasses import replace

import pytest
import torch
from PIL import Image

from ggss.errors import InputError
from ggss.models.features import BATCH, ROOM, FeatureCache, FeatureFile, Features
from ggss.probes.steered_model import SteeredModel
from noise_pictures import DECODED, NoisePicture
from test_attachment import SITE, steerer_for

PICTURES = [NoisePicture(seed, size=96 if seed == 5 else 64) for seed in range(2 * BATCH + 3)]


@pytest.fixture(scope="module")
def alone(qwen):
    """What the model makes of each picture by itself."""
    return {picture: qwen.encode([picture.image()])[0] for picture in PICTURES}


@pytest.fixture
def encoded(qwen, monkeypatch):
    """The sizes of the batches in which pictures are encoded."""
    batches, encode = [], qwen.encode
    monkeypatch.setattr(qwen, "encode", lambda images: batches.append(len(images)) or encode(images))
    DECODED.clear()
    return batches


def shuffled(seed):
    """Every picture twice."""
    return random.Random(seed).sample(PICTURES * 2, 2 * len(PICTURES))


def equal(one: Features, other: Features) -> bool:
    assert one.placeholder == other.placeholder
    for mine, theirs in ((one.rows, other.rows), (one.inputs, other.inputs)):
        assert mine.keys() == theirs.keys()
        if not all(torch.equal(mine[name], value) for name, value in theirs.items()):
            return False
    return True


def close(one: Features, other: Features) -> None:
    """The last digit of a feature may depend on its batch."""
    assert one.rows.keys() == other.rows.keys()
    for site, rows in one.rows.items():
        torch.testing.assert_close(other.rows[site], rows, rtol=0, atol=1e-5)


@pytest.mark.parametrize("together", [(), tuple(PICTURES)], ids=["as they come", "in fixed batches"])
@pytest.mark.parametrize("room", [0, 2**30], ids=["on disk", "in memory"])
@pytest.mark.parametrize("seed", range(3))
def test_each_picture_is_encoded_once_whatever_the_order(qwen, encoded, alone, together, room, seed):
    cache, order = FeatureCache(qwen, room, together), shuffled(seed)
    for start in range(0, len(order), 5):
        asked = order[start : start + 5]
        for picture, features in zip(asked, cache.features(asked), strict=True):
            close(alone[picture], features)
    assert Counter({picture.digest: 1 for picture in PICTURES}) == DECODED
    assert sum(encoded) == len(PICTURES)
    assert max(encoded) <= BATCH


def test_two_pictures_of_one_digest_are_one(qwen, encoded):
    one, other = NoisePicture(1), NoisePicture(1, attributes={"race": "jade"})
    first, second = FeatureCache(qwen).see([one, other])
    assert first is second
    assert encoded == [1]


def test_preloading_encodes_what_is_missing_and_nothing_twice(qwen, encoded):
    cache = FeatureCache(qwen)
    cache.see(PICTURES[:3])
    cache.preload([*PICTURES, *PICTURES], show=False)
    assert encoded == [3, BATCH, BATCH]
    cache.see(PICTURES)
    assert sum(encoded) == len(PICTURES)


def test_fixed_batches_give_the_same_bits_whichever_picture_is_asked_first(qwen, alone, monkeypatch):
    batches, encode = [], qwen.encode
    monkeypatch.setattr(
        qwen, "encode", lambda images: batches.append([image.tobytes() for image in images]) or encode(images)
    )
    whole = FeatureCache(qwen, together=PICTURES).features(PICTURES)
    fixed = sorted(batches)
    for seed in range(3):
        batches.clear()
        cache = FeatureCache(qwen, together=PICTURES)
        for picture in shuffled(seed):
            cache.see([picture])
        assert sorted(batches) == fixed
        assert all(equal(*pair) for pair in zip(cache.features(PICTURES), whole, strict=True))
    # Without fixed batches a picture's batch is whoever is asked for with it.
    batches.clear()
    loose = FeatureCache(qwen)
    for picture in PICTURES:
        loose.see([picture])
    assert sorted(batches) != fixed
    for picture, features in zip(PICTURES, whole, strict=True):
        close(alone[picture], features)


def test_a_picture_outside_the_fixed_batches_is_encoded_with_its_like(qwen, encoded):
    cache = FeatureCache(qwen, together=PICTURES[:BATCH])
    stranger = [NoisePicture(100), NoisePicture(101)]
    cache.see([stranger[0], PICTURES[2], stranger[1]])
    assert encoded == [BATCH, 2]


def test_what_memory_has_no_room_for_comes_back_from_the_file_as_it_was(qwen, encoded):
    roomy = FeatureCache(qwen, together=PICTURES)
    expected = roomy.features(PICTURES)
    one = sum(rows.nbytes for rows in (*expected[0].rows.values(), *expected[0].inputs.values()))
    for room in (0, 2 * one, 10 * one):
        encoded.clear()
        tight = FeatureCache(qwen, room, together=PICTURES)
        for features in (tight.features(PICTURES), tight.features(PICTURES[::-1])[::-1]):
            assert all(equal(*pair) for pair in zip(features, expected, strict=True))
        kept = [picture for picture in PICTURES if picture.digest in tight._memory]
        assert len(kept) * one <= room
        assert bool(kept) is (room > 0)
        assert sum(encoded) == len(PICTURES)


def test_a_full_disk_costs_an_encoding_and_nothing_else(qwen, alone):
    """A real limit on the size of files: the first features fit, the others do not or not wholly."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    cache = FeatureCache(qwen, room=0)
    cache.see(PICTURES[:1])
    size = cache._file._open().seek(0, io.SEEK_END)
    assert size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + size // 2, hard))
        for _ in range(2):
            DECODED.clear()
            for picture, features in zip(PICTURES, cache.features(PICTURES), strict=True):
                close(alone[picture], features)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {picture.digest for picture in PICTURES[1:]} == set(DECODED)  # the first is in the file


@pytest.mark.parametrize("family", ["llava-vicuna", "pixtral", "qwen3-vl"])
def test_features_come_back_from_a_file_as_they_were(tiny, family):
    vlm, file = tiny(family), FeatureFile()
    features = vlm.encode([Image.effect_noise((64, 48), 60).convert("RGB"), Image.new("RGB", (64, 64), "red")])
    for name, one in zip("ab", features, strict=True):
        file.put(name, one)
        file.put(name, features[0])  # what is there stays
    for name, one in zip("ba", reversed(features), strict=True):
        assert name in file
        assert equal(file.get(name), one)
    assert "c" not in file


def test_a_family_that_cannot_answer_from_features_keeps_images(tiny):
    vlm = tiny("pixtral")
    vlm.__dict__["family"] = replace(vlm.family, pack=None)
    DECODED.clear()
    cache = FeatureCache(vlm, together=PICTURES)
    assert not cache.from_features
    for _ in range(2):
        seen = cache.see(PICTURES)
        assert [image.tobytes() for image in seen[:2]] == [picture.image().tobytes() for picture in PICTURES[:2]]
        assert all(isinstance(image, Image.Image) for image in seen)
    assert {DECODED[picture.digest] for picture in PICTURES[2:]} == {1}
    with pytest.raises(InputError, match="cannot answer from encoded features: use images"):
        cache.features(PICTURES[:1])
    tight = FeatureCache(vlm, room=0)
    assert [image.size for image in tight.see(PICTURES[:2])] == [(64, 64)] * 2
    assert PICTURES[0].digest not in tight._memory


def test_what_is_encoded_under_a_steerer_is_not_kept(qwen, tmp_path):
    steerer = steerer_for(qwen)
    cache, clean = FeatureCache(qwen), FeatureCache(qwen).features(PICTURES[:3])
    with steerer.attach(qwen, alpha=1.0):
        under = cache.features(PICTURES[:3])
    assert not any(equal(one, other) for one, other in zip(under, clean, strict=True))
    for one, other in zip(cache.features(PICTURES[:3]), clean, strict=True):
        close(one, other)
    with steerer.attach(qwen, alpha=1.0):  # what was kept before is not given out as steered
        again = cache.features(PICTURES[:3])
    for one, other in zip(again, under, strict=True):
        close(one, other)


def test_a_hook_of_another_library_is_not_kept_either(qwen):
    cache, clean = FeatureCache(qwen), FeatureCache(qwen).features(PICTURES[:2])
    module = qwen.model.get_submodule(qwen.sites()[SITE])
    handle = module.register_forward_hook(lambda _, __, output: output * 2)
    try:
        doubled = cache.features(PICTURES[:2])
    finally:
        handle.remove()
    assert not any(equal(one, other) for one, other in zip(doubled, clean, strict=True))
    for one, other in zip(cache.features(PICTURES[:2]), clean, strict=True):
        close(one, other)


@pytest.mark.parametrize("room", [ROOM, 0])
def test_features_of_weights_that_have_changed_are_encoded_anew(tiny, room):
    vlm = tiny("qwen3-vl")
    weight = vlm.model.get_submodule(vlm.sites()[SITE]).weight
    before, cache = weight.detach().clone(), FeatureCache(vlm, room)
    first = cache.features(PICTURES[:2])
    steered = SteeredModel(cache).steered(steerer_for(vlm), 1.0)
    steered_first = steered.see(PICTURES[:2])
    try:
        weight.data.mul_(-1)
        for one, other in zip(
            cache.features(PICTURES[:2]), vlm.encode([p.image() for p in PICTURES[:2]]), strict=True
        ):
            close(one, other)
        assert not equal(cache.features(PICTURES[:1])[0], first[0])
        assert not any(equal(one, two) for one, two in zip(steered.see(PICTURES[:2]), steered_first, strict=True))
    finally:
        weight.data.copy_(before)
    for one, other in zip(cache.features(PICTURES[:2]), first, strict=True):
        close(one, other)
