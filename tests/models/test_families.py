"""The rows of the table on tiny models of the real classes: site, whose rows, identity, features, steering, leak."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers as hf
from PIL import Image

from conftest import noise
from experiments.tools import tiny_vlms
from experiments.tools.tiny_recipes import RECIPES
from ggss.errors import InputError
from ggss.models import MLP1, MLP2, Vlm, find_site, load_vlm
from ggss.models.families import FAMILIES, known_family
from ggss.steering.doctor import examine
from rounding import assert_same

# PaliGemma's own processor makes numpy arrays of tensors.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

KINDS = tuple(kind for kind in RECIPES if known_family(hf.AutoConfig.for_model(kind)))
DEEPSTACK = ("qwen3_vl", "qwen3_vl_moe")
NAMED = {
    *("llava", "vipllava", "llava_next", "llava_onevision", "mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"),
    *("qwen3_vl_moe", "qwen3_5", "internvl", "gemma3", "paligemma", "idefics3", "smolvlm", "aya_vision", "glm4v"),
    *("janus", "deepseek_vl"),
}
build = cache(tiny_vlms.build)


@pytest.fixture(scope="module")
def shapes() -> list[Image.Image]:
    return [noise(0, 64, 64), noise(1, 64, 190), noise(2, 190, 64)]


@pytest.fixture(params=KINDS)
def vlm(request: pytest.FixtureRequest) -> Vlm:
    """It is shared: leave it as it was."""
    return build(request.param)


def test_no_named_family_is_left_out() -> None:
    assert set(KINDS) >= NAMED


def test_a_family_passes_the_whole_examination(vlm: Vlm) -> None:
    report = examine(vlm)
    assert report.healthy, report.checks
    assert report.moved > 0
    deepstack = vlm.name in DEEPSTACK
    assert (report.leaks[MLP2] > 0.1 * report.moved) == deepstack
    assert report.leaks["all sites" if deepstack else MLP2] < 1e-5 * report.moved


def test_the_search_finds_the_site_of_the_table(vlm: Vlm) -> None:
    assert find_site(vlm.model, vlm.pixels([noise(4, 64, 128)])) == vlm.sites()[MLP2]


def test_rows_are_their_images_in_any_order_and_shape(vlm: Vlm, shapes: list[Image.Image]) -> None:
    sites = list(vlm.family.site_paths(vlm.model.config))
    alone = [vlm.encode([image], sites=sites)[0] for image in shapes]
    for order in ([0, 1, 2], [2, 1, 0, 1]):
        for i, features in zip(order, vlm.encode([shapes[i] for i in order], sites=sites), strict=True):
            for site, rows in alone[i].rows.items():
                torch.testing.assert_close(features.rows[site], rows, atol=1e-5, rtol=1e-4)
    shared = min(len(one.rows[MLP2]) for one in alone)
    assert (alone[0].rows[MLP2][:shared] - alone[1].rows[MLP2][:shared]).abs().max() > 1e-4  # the control


def test_features_answer_as_images_do(vlm: Vlm, shapes: list[Image.Image]) -> None:
    """Two images of different shapes in one prompt, one in the other; from either Linear of the projector."""
    questions = ["is this person a nurse ?", "yes or no ?"]
    live = vlm.logits(questions, [[shapes[1], shapes[0]], [shapes[2]]])
    for sites in [MLP2, MLP1] if MLP1 in vlm.family.site_paths(vlm.model.config) else [MLP2]:
        kept = vlm.encode([shapes[1], shapes[0], shapes[2]], sites=sites)
        assert_same(vlm.logits(questions, [kept[:2], kept[2:]]), live)
        swapped = vlm.logits(questions, [[kept[1], kept[0]], kept[2:]])
    assert (swapped[0] - live[0]).abs().max() > 2e-5 * live[0].abs().max()  # the control: the order of images matters


def test_answers_are_those_to_what_the_own_processor_prepares(vlm: Vlm, shapes: list[Image.Image]) -> None:
    """All that the processor gives counts: Gemma 3 and PaliGemma read images, or prompts, in both directions."""
    question = "is this person a nurse ?"
    inputs = vlm.processor(text=[tiny_vlms.written(vlm, question)], images=[[shapes[1]]], return_tensors="pt")
    inputs.pop("labels", None)
    with torch.inference_mode():
        logits = vlm.model(**inputs, use_cache=False).logits[:, -1]
        written = vlm.model.generate(**inputs, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert_same(vlm.logits([question], [[shapes[1]]]), logits)
    vlm.model.generation_config.min_new_tokens = 4
    try:
        said = vlm.answer([question], [[shapes[1]]], max_new_tokens=4)
    finally:
        vlm.model.generation_config.min_new_tokens = None
    expected = vlm.processor.batch_decode(written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert said == [expected[0].strip()]


def test_paligemma_scores_options_as_answers_after_a_prompt_that_is_read_in_both_directions(
    shapes: list[Image.Image],
) -> None:
    """The reference is the processor's own suffix, which is for training."""
    vlm, question, options = build("paligemma"), "is this person a nurse ?", ["yes", "a red nurse", "no , a doctor"]
    scores = vlm.score([question], [[shapes[0]]], [options])[0]
    for option, score in zip(options, scores, strict=True):
        inputs = vlm.processor(
            text=[f"<image>{question}"], images=[[shapes[0]]], suffix=[option], return_tensors="pt"
        )
        labels, types = inputs.pop("labels")[0], inputs["token_type_ids"][0]
        assert set(types.tolist()) == {0, 1}
        with torch.inference_mode():
            logits = vlm.model(**inputs, use_cache=False).logits[0].log_softmax(-1)
        answer = types.nonzero()[:-1, 0]  # without the end token
        expected = logits[answer - 1, labels[answer]].sum()
        assert score == pytest.approx(float(expected), rel=1e-4)


def test_a_family_is_recognised_once() -> None:
    for kind in KINDS:
        config = build(kind).model.config
        assert len([name for name in FAMILIES.names() if FAMILIES.get(name).recognises(config)]) == 1


def test_lfm2_calls_its_projector_for_each_tile() -> None:
    """Its image processor needs torchvision, so its inputs are made here: two tiles of 4 x 4 and 2 x 4 patches."""
    config = hf.Lfm2VlConfig(
        vision_config={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
        | {"model_type": "siglip2_vision_model", "num_patches": 16, "patch_size": 16, "vision_use_head": False},
        text_config={"model_type": "lfm2", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
        | {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64, "layer_types": ["full_attention"]},
        image_token_id=3,
        projector_hidden_size=48,
    )
    torch.manual_seed(0)
    model = hf.Lfm2VlForConditionalGeneration(config).eval()
    family = known_family(config)
    assert family is not None
    inputs = {
        "pixel_values": torch.randn(2, 16, 16 * 16 * 3),
        "spatial_shapes": torch.tensor([[4, 4], [2, 4]]),
        "pixel_attention_mask": (torch.arange(16) < torch.tensor([[16], [8]])).int(),
    }
    assert find_site(model, inputs) == family.sites(model)[MLP2]
    with pytest.raises(InputError, match="do not say which rows"):
        family.rows_per_image(model, inputs)


@pytest.mark.parametrize("kind", ["qwen2_vl", "internvl", "smolvlm", "mistral3", "gemma3", "llava_onevision"])
def test_a_saved_model_is_loaded_without_torchvision(kind: str, tmp_path: Path, shapes: list[Image.Image]) -> None:
    vlm = build(kind)
    vlm.model.save_pretrained(tmp_path)
    vlm.processor.save_pretrained(tmp_path)
    loaded = load_vlm(tmp_path)
    assert type(loaded.processor).__name__ == type(vlm.processor).__name__
    asked = (["is this person a nurse ?"] * 2, [[image] for image in shapes[:2]])
    assert_same(loaded.logits(*asked), vlm.logits(*asked))


def test_a_processor_for_torchvision_only_says_what_to_install(tmp_path: Path) -> None:
    vlm = build("paligemma")
    vlm.model.save_pretrained(tmp_path)
    vlm.processor.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "lfm2_vl"}')
    file = tmp_path / "processor_config.json"
    told = json.loads(file.read_text())
    told["processor_class"] = "Lfm2VlProcessor"
    told["image_processor"]["image_processor_type"] = "Lfm2VlImageProcessorFast"
    file.write_text(json.dumps(told))
    assert "install the torchvision that fits your torch" in refusal(lambda: load_vlm(tmp_path))


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        ask()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [("mllama", "does not give images to its text model as tokens"), ("blip-2", "does not tell which text stands")],
)
def test_a_class_without_image_tokens_gets_a_sentence(kind: str, sentence: str) -> None:
    vlm = tiny_vlms.build(kind)
    assert sentence in refusal(lambda: vlm.family)
    assert sentence in refusal(lambda: vlm.encode([noise(0)]))
