"""The fingerprint of weights that come one after the other is that of the loaded model."""

import pytest
from safetensors.torch import load_file

from ggss.errors import InputError
from ggss.models import load_vlm, locate
from ggss.models.identity import StreamedWeights, skeleton

MODELS = ["small-world/llava-vicuna", "small-world/pixtral", "small-world/qwen3-vl"]


@pytest.mark.parametrize("name", MODELS)
def test_fingerprint_is_that_of_the_loaded_model(name):
    vlm = load_vlm(name, dtype="float32")
    weights = StreamedWeights(skeleton(vlm.model.config))
    stored = load_file(f"{locate(name)}/model.safetensors")
    passed = dict(weights.through(stored.items()))
    assert passed.keys() == stored.keys()
    assert weights.fingerprint == vlm.fingerprint


def test_weights_that_are_held_otherwise_are_named():
    vlm = load_vlm(MODELS[0], dtype="bfloat16")
    weights = StreamedWeights(skeleton(vlm.model.config))
    for _ in weights.through(load_file(f"{locate(MODELS[0])}/model.safetensors").items()):
        pass
    held = dict(vlm.model.named_parameters())
    assert weights.changed(held.items()) == []
    bias = "model.multi_modal_projector.linear_2.bias"
    assert weights.changed((held | {bias: held[bias] + 1}).items()) == [bias]
    assert weights.changed([("fused.qkv.weight", held[bias]), (bias, held[bias][:64] + 1)]) == []


def test_order_does_not_matter_and_values_do():
    name = MODELS[0]
    vlm = load_vlm(name)
    stored = load_file(f"{locate(name)}/model.safetensors")

    def passed(items):
        weights = StreamedWeights(skeleton(vlm.model.config))
        for _ in weights.through(items):
            pass
        return weights

    def fingerprint(items):
        return passed(items).fingerprint

    content = passed(stored.items()).content
    assert fingerprint(reversed(stored.items())) == vlm.fingerprint
    assert passed(reversed(stored.items())).content == content
    changed = stored | {"multi_modal_projector.linear_2.bias": stored["multi_modal_projector.linear_2.bias"] + 1}
    assert fingerprint(changed.items()) != vlm.fingerprint
    text = stored | {"language_model.lm_head.weight": stored["language_model.lm_head.weight"] + 1}
    assert fingerprint(text.items()) == vlm.fingerprint
    assert passed(text.items()).content != content


def test_a_weight_that_did_not_come_is_named():
    vlm = load_vlm(MODELS[0])
    stored = load_file(f"{locate(MODELS[0])}/model.safetensors")
    del stored["multi_modal_projector.linear_1.weight"]
    weights = StreamedWeights(skeleton(vlm.model.config))
    list(weights.through(stored.items()))
    with pytest.raises(InputError, match=r"1 weights of the vision path .*multi_modal_projector.linear_1.weight"):
        _ = weights.fingerprint
