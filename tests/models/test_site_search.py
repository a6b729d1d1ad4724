"""A model of a family that is not in the table: its site, which rows belong to which image, one answer for all."""

import inspect
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers as hf
from PIL import Image
from torch import Tensor, nn

from conftest import noise
from experiments.tools import tiny_vlms
from ggss.errors import InputError
from ggss.methods.spherical import Geodesic
from ggss.models import MLP2, Vlm, family_of, find_site
from ggss.models.families import FAMILIES
from ggss.models.prompts import image_tokens
from ggss.steering.doctor import examine
from ggss.steering.steerer import Steerer
from rounding import assert_same

TILED = ("internvl", "aya_vision")
PLAIN = ("llava", "paligemma", "gemma3", "idefics3", "qwen2_vl")
QUESTION = "is this person a nurse ?"
# PaliGemma's own processor makes numpy arrays of tensors.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(autouse=True)
def no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every family is unknown."""
    monkeypatch.setattr(FAMILIES, "_entries", {})


@pytest.fixture
def shapes() -> list[Image.Image]:
    """Square, wide, tall and wide again: a processor that cuts images into tiles gives each its own number."""
    return [noise(0, 64, 64), noise(1, 64, 190), noise(2, 190, 64), noise(3, 64, 128)]


def alone(vlm: Vlm, images: Sequence[Image.Image]) -> list[Tensor]:
    return [vlm.encode([image])[0].rows[MLP2] for image in images]


def some_steerer(vlm: Vlm, sites: Sequence[str] = (MLP2,)) -> Steerer:
    generator = torch.Generator().manual_seed(0)
    features = vlm.encode([noise(9)])[0]
    operators = {}
    for site in sites:
        frame = torch.linalg.qr(torch.randn(features.rows[site].shape[1], 3, generator=generator))[0]
        operators[site] = Geodesic(frame[:, 0].contiguous(), frame[:, 1:].contiguous(), 0.0, 1.0)
    return Steerer(method="ggss", attribute="race", values=("a", "b"), operators=operators, source=vlm.describe())


@pytest.mark.parametrize("kind", [*TILED, *PLAIN])
def test_each_image_of_a_batch_gets_its_own_rows(kind: str, shapes: list[Image.Image]) -> None:
    vlm = tiny_vlms.build(kind)
    assert vlm.family.batched
    expected = alone(vlm, shapes)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 2, 1]):
        together = vlm.encode([shapes[i] for i in order], batch_size=4)
        for i, features in zip(order, together, strict=True):
            torch.testing.assert_close(features.rows[MLP2], expected[i], atol=1e-5, rtol=1e-4)
    shared = min(map(len, expected[:2]))
    assert (expected[0][:shared] - expected[1][:shared]).abs().max() > 1e-3  # the control: another image's rows
    assert (len(vlm.pixels(shapes)["pixel_values"]) > 4) == (kind in (*TILED, "qwen2_vl"))  # tiles, or patches


def test_rows_that_are_not_the_text_models_tokens_are_encoded_one_image_at_a_time(shapes: list[Image.Image]) -> None:
    vlm = tiny_vlms.build("llava_onevision")  # drops rows and adds newlines after the site
    assert not vlm.family.batched
    for features, rows in zip(vlm.encode(shapes), alone(vlm, shapes), strict=True):
        assert torch.equal(features.rows[MLP2], rows)
    with pytest.raises(InputError, match=r"not known which rows of '.*linear_2' belong to which image"):
        vlm.family.rows_per_image(vlm.model, vlm.pixels(shapes))


def test_a_batch_whose_rows_are_in_another_order_is_not_split(shapes: list[Image.Image]) -> None:
    """The negative control of the proof: swapped rows are seen, and images are encoded one at a time."""
    vlm = tiny_vlms.build("llava")
    vlm.model.model.vision_tower.register_forward_pre_hook(lambda _, args: (args[0].flip(0), *args[1:]))
    assert not vlm.family.batched
    for features, rows in zip(vlm.encode(shapes), alone(vlm, shapes), strict=True):
        assert torch.equal(features.rows[MLP2], rows)


def test_a_model_that_sees_nothing_or_never_the_same_is_refused() -> None:
    blind = tiny_vlms.build("llava")
    blind.model.model.multi_modal_projector.linear_1.register_forward_hook(lambda _, __, output: output * 0)
    with pytest.raises(InputError, match="two different pictures give the same rows"):
        _ = blind.family
    restless = tiny_vlms.build("llava")
    restless.model.model.multi_modal_projector.linear_1.register_forward_hook(
        lambda _, __, output: output + torch.randn_like(output)
    )
    with pytest.raises(InputError, match="other rows each time"):
        _ = restless.family


@pytest.mark.parametrize("kind", ["internvl", "qwen2_vl", "gemma3", "llava_onevision"])
def test_everyone_who_asks_gets_the_same_answer(kind: str) -> None:
    vlm = tiny_vlms.build(kind)
    assert family_of(vlm.model) is vlm.family  # also if the bare model is asked first
    report = examine(vlm)
    assert report.healthy, report.checks
    assert report.sites[MLP2]["path"] == vlm.describe()["paths"][MLP2]
    with some_steerer(vlm).attach(vlm.model) as run:
        vlm.answer([QUESTION], [[noise(1)]], max_new_tokens=1)
    assert run.calls == 1


def test_a_refusal_is_remembered_too() -> None:
    vlm = tiny_vlms.build("llava")
    vlm.model.model.multi_modal_projector.register_forward_hook(lambda _, __, output: output * 0)
    sentences = []
    for ask in (lambda: vlm.family, lambda: family_of(vlm.model), lambda: vlm.encode([noise(0)])):
        with pytest.raises(InputError) as caught:
            ask()
        sentences.append(str(caught.value))
    assert len(set(sentences)) == 1


def test_an_artefact_remembers_where_its_site_is() -> None:
    vlm = tiny_vlms.build("qwen2_vl")
    steerer, inputs = some_steerer(vlm), vlm.pixels([noise(1)])
    bare = tiny_vlms.build("qwen2_vl").model
    bare = type(bare)(bare.config).eval()  # nobody has prepared an image for it
    bare.load_state_dict(vlm.model.state_dict())
    with pytest.raises(InputError, match="neither is its image size"):
        family_of(bare)
    with steerer.attach(bare) as run:
        bare.model.get_image_features(**inputs)
    assert run.calls == 1
    elsewhere = Steerer(**vars(steerer) | {"source": steerer.source | {"paths": {MLP2: "model.visual.merger.mlp.0"}}})
    with pytest.raises(InputError, match=r"made at model.visual.merger.mlp.0, the model has it at .*mlp.2"):
        elsewhere.check(vlm)


def test_strengths_by_image_reach_the_right_tiles(shapes: list[Image.Image]) -> None:
    vlm = tiny_vlms.build("internvl")
    steerer, asked = some_steerer(vlm), [[image] for image in shapes[:3]]
    before = vlm.logits([QUESTION] * 3, asked)
    with steerer.attach(vlm.model, 1.0):
        full = vlm.logits([QUESTION] * 3, asked)
    with steerer.attach(vlm.model, torch.tensor([0.0, 1.0, 0.0])):
        mixed = vlm.logits([QUESTION] * 3, asked)
    assert_same(mixed[[0, 2]], before[[0, 2]])
    assert_same(mixed[1], full[1])
    assert (full - before).abs().amax(1).min() > 1e-4  # the control: every image moves when it is steered
    inputs = {name: value.clone() for name, value in vlm.pixels(shapes).items()}
    assert image_tokens(inputs) is None
    with (
        pytest.raises(InputError, match="do not say which rows belong to which image"),
        steerer.attach(vlm.model, torch.tensor([0.0, 1.0, 0.0, 1.0])),
    ):
        vlm.model.model.get_image_features(**inputs)


def test_the_counts_of_image_tokens_travel_with_the_batch(shapes: list[Image.Image]) -> None:
    vlm = tiny_vlms.build("internvl")
    inputs = vlm.pixels(shapes)
    counts = image_tokens(inputs)
    assert counts == [len(own.rows[MLP2]) for own in vlm.encode(shapes)]
    sent = pickle.loads(pickle.dumps(inputs))
    assert image_tokens(sent) == counts
    alphas = torch.tensor([0.0, 1.0, 0.0, 1.0])
    with some_steerer(vlm).attach(vlm.model, alphas):
        here, there = [vlm.model.model.get_image_features(**own).pooler_output for own in (inputs, sent)]
    assert_same(torch.cat(list(here)), torch.cat(list(there)))
    assert image_tokens(inputs | vlm.pixels(shapes[:1]) | {"other": inputs["pixel_values"]}) is None, "two batches"


# a bare model, and modules that are not at a site


@pytest.fixture
def bare() -> Callable[[str], Any]:
    """Makes a model that no Vlm has prepared images for."""

    def make(kind: str) -> Any:
        made = tiny_vlms.build(kind).model
        return type(made)(made.config).eval()

    return make


def test_the_site_of_a_bare_model_is_found_and_its_images_are_not_told_apart(bare: Callable[[str], Any]) -> None:
    model = bare("llava")
    family = family_of(model)
    assert family.sites(model) == {MLP2: "model.multi_modal_projector.linear_2"}
    assert not family.batched
    with pytest.raises(InputError, match=r"load it with ggss\.load_vlm"):
        family.rows_per_image(model, {"pixel_values": torch.zeros(3, 3, 64, 64)})
    Vlm(model, tiny_vlms.build("llava").processor)
    assert family_of(model).batched  # now it is proved


def test_a_module_that_is_no_linear_may_be_the_site() -> None:
    vlm = tiny_vlms.build("gemma3")
    assert find_site(vlm.model, vlm.pixels([noise(0)])) == "model.multi_modal_projector"


def test_the_last_linear_is_the_site_only_if_nothing_changes_its_rows(bare: Callable[[str], Any]) -> None:
    model = bare("llava")
    projector = model.model.multi_modal_projector
    copying = nn.Linear(32, 32, bias=False)
    torch.nn.init.eye_(copying.weight)
    projector.linear_2 = nn.Sequential(projector.linear_2, copying)
    inputs = {"pixel_values": torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))}
    assert find_site(model, inputs) == "model.multi_modal_projector.linear_2.1"
    projector.register_forward_hook(lambda _, __, output: output * 0.5)
    assert find_site(model, inputs) == "model.multi_modal_projector"  # whose output its own hook has changed


def test_a_model_without_a_site_says_so(bare: Callable[[str], Any]) -> None:
    model = bare("llava")
    encode = model.model.get_image_features

    def halved(**inputs: Any) -> Any:
        output = encode(**inputs)
        output.pooler_output = [tokens * 0.5 for tokens in output.pooler_output]
        return output

    model.model.get_image_features = halved
    halved.__signature__ = inspect.signature(encode)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"no module of this llava model.*linear_2 \[16, 32\]"):
        family_of(model)
    text = hf.LlamaForCausalLM(bare("llava").config.text_config)
    with pytest.raises(InputError, match="get_image_features"):
        family_of(text, {"pixel_values": torch.zeros(1, 3, 32, 32)})
    with pytest.raises(InputError, match="image size"):
        family_of(text)
    with pytest.raises(InputError, match="could not encode"):
        family_of(bare("idefics3"))


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("chameleon", "turns an image into words of its vocabulary"),
        ("ovis2", "is also called for rows that are the same for all pictures"),
    ],
)
def test_a_module_that_does_more_than_images_is_no_site(kind: str, sentence: str) -> None:
    """Chameleon's image tokens are words, and Ovis2 embeds its marks between tiles with the table of its tokens."""
    with pytest.raises(InputError, match=sentence):
        _ = tiny_vlms.build(kind).family


def test_a_mark_that_is_not_the_image_token(shapes: list[Image.Image]) -> None:
    """Qianfan-OCR's processor looks for <image> and writes <IMG_CONTEXT>."""
    vlm = tiny_vlms.build("qianfan_ocr")
    assert len(vlm.encode(shapes[:1])[0].rows[MLP2]) > 0
    for mark in ("<image>", "<IMG_CONTEXT>"):
        with pytest.raises(InputError, match=f"may not contain '{mark}'"):
            vlm.answer([f"what is {mark} ?"], [[shapes[0]]])
