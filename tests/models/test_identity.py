"""The identity of a model: an edited file of its folder makes another model and names a part; a copy is the same."""

import json
import shutil
from functools import reduce
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import noise
from ggss import Counterfactuals, InputError, collect, fit
from ggss.activations import SITE
from ggss.data.manifests import write_manifest
from ggss.models import ModelIdentity, Vlm, load_vlm
from ggss.models.features import FeatureCache
from ggss.models.identity import checksums, mixed_sum
from rounding import assert_same


def edit(file, *path_and_value):
    """Set a value in a JSON file, at a path of keys."""
    *path, last, value = path_and_value
    whole = told = json.loads(file.read_text())
    for key in path:
        told = told[key]
    assert told.get(last) != value
    told[last] = value
    file.write_text(json.dumps(whole))


def swap_words(folder):
    """Two words of the vocabulary change places."""
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    for word, other in (("red", "blue"), ("blue", "red")):
        edit(folder / "tokenizer.json", "model", "vocab", word, words[other])


def end_with_a_word(folder):
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + " red")


def nudge(folder, part):
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in sorted(weights) if part in name)
    weights[name].view(-1)[0] += 1e-6  # less than bfloat16 can tell
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def config(*path_and_value):
    return lambda folder: edit(folder / "config.json", *path_and_value)


def processor(*path_and_value):
    return lambda folder: edit(folder / "processor_config.json", *path_and_value)


VISUAL = {
    "image_mean": ("image processor", processor("image_processor", "image_mean", [0.5, 0.5, 0.5])),
    "image_std": ("image processor", processor("image_processor", "image_std", [1.0, 1.0, 1.0])),
    "vision_feature_layer": ("vision config", config("vision_feature_layer", -2)),
    "layer_norm_eps": ("vision config", config("vision_config", "layer_norm_eps", 0.1)),
}
TEXT = {
    "rms_norm_eps": ("text config", config("text_config", "rms_norm_eps", 0.1)),
    "tokenizer": ("tokenizer", swap_words),
    "special token": ("tokenizer", lambda folder: edit(folder / "tokenizer_config.json", "eos_token", "ASSISTANT:")),
    "chat template": ("chat template", end_with_a_word),
    "generation": (
        "generation settings",
        lambda folder: edit(folder / "generation_config.json", "repetition_penalty", 1.5),
    ),
    "text weights": ("text weights", lambda folder: nudge(folder, "language_model")),
}
EDITS = VISUAL | TEXT | {"vision weights": ("vision weights", lambda folder: nudge(folder, "vision_tower"))}


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    vlm, folder = tiny("llava-vicuna"), tmp_path_factory.mktemp("llava")
    vlm.model.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def first(folder):
    return load_vlm(folder)


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.fixture
def faces(tmp_path):
    rows = []
    for identity, race in ((who, race) for who in range(3) for race in "ab"):
        noise(identity * 10 + ord(race)).save(tmp_path / f"{identity}{race}.png")
        rows.append({"path": f"{identity}{race}.png", "identity": str(identity), "race": race})
    write_manifest(rows, tmp_path / "manifest.csv")
    return Counterfactuals.load(tmp_path / "manifest.csv", attributes="race")


@pytest.mark.parametrize("name", EDITS)
def test_one_edit_changes_one_part(first, copy, name):
    part, change = EDITS[name]
    change(copy)
    edited = load_vlm(copy)
    differences = edited.identity.differences(first.identity)
    assert set(differences) - {"vision modules", "text modules"} == {part}  # some settings are attributes of modules
    assert edited.identity.hash != first.identity.hash
    assert (edited.visual_identity.hash != first.visual_identity.hash) == (name not in TEXT)


def test_a_copy_under_another_name_is_the_same_model(first, copy, pictures):
    edit(copy / "config.json", "_name_or_path", "somewhere/else")
    edit(copy / "config.json", "transformers_version", "4.0.0")
    edit(copy / "generation_config.json", "transformers_version", "4.0.0")
    (copy / "notes.txt").write_text("mine")
    same = load_vlm(copy)
    assert same.identity == first.identity
    # Nor does use change it: tokenizers and processors keep something of their last call.
    same.answer(["what colour is the hat ?"] * 2, [pictures[:1], pictures[:2]], max_new_tokens=3)
    same.processor(text=["<image> red", "<image>"], images=pictures[:2], padding=True, return_tensors="pt")
    same.processor.tokenizer(["red", "red blue"], padding=True, truncation=True, max_length=3)
    assert Vlm(same.model, same.processor).identity == first.identity


def test_dtype_and_attention_are_named(first, folder, copy):
    half = load_vlm(folder, dtype="bfloat16")
    assert half.identity.differences(first.identity) == [
        "vision weights",
        "dtype (float32 before, bfloat16 now)",
        "text weights",
    ]
    edit(copy / "config.json", "attn_implementation", "eager")
    eager = load_vlm(copy)
    assert eager.identity.differences(first.identity) == [
        "vision attention (sdpa before, eager now)",
        "text attention (sdpa before, eager now)",
    ]
    assert len({one.visual_identity.hash for one in (first, half, eager)}) == 3


def test_library_versions_are_named(first, monkeypatch):
    before = first.identity
    monkeypatch.setattr("ggss.models.identity.installed_version", lambda name: "0")
    told = first.identity.differences(before)
    assert len(told) == 1
    assert told[0].startswith("library versions (numpy ")


class SlowTokenizer:
    """Not of the tokenizers library: its files are what it is."""

    special_tokens_map, padding_side = {"eos_token": "</s>"}, "left"

    def __init__(self, words, place):
        self.words, self.init_kwargs = words, {"name_or_path": place}

    def save_pretrained(self, folder):
        Path(folder, "vocab.txt").write_text(self.words)
        Path(folder, "tokenizer_config.json").write_text(folder)


def test_a_slow_tokenizer_is_its_files_wherever_they_lie(first, monkeypatch):
    seen = []
    for words, place in (("red", "here"), ("red", "there"), ("blue", "there")):
        monkeypatch.setattr(first.processor, "tokenizer", SlowTokenizer(words, place))
        seen.append(Vlm(first.model, first.processor).identity)
    assert seen[0] == seen[1]
    assert seen[2].differences(seen[1]) == ["tokenizer"]


def test_weights_that_are_not_in_memory_get_a_sentence(tiny):
    vlm = tiny("llava-vicuna")
    vlm.model.to("meta")
    with pytest.raises(InputError, match="is not in memory"):
        _ = vlm.identity


def test_differences_have_names_on_either_side():
    one, other = ModelIdentity({"dtype": "float32", "old": "1"}), ModelIdentity({"dtype": "float16", "new": "2"})
    assert one.differences(other) == ["dtype (float16 before, float32 now)", "old", "new"]
    assert one.differences(one) == []


def edited_leaves(value, path=()):
    """Every value in a JSON value that holds no other: its path, and what to put in its place."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from edited_leaves(inner, (*path, key))
        return
    yield path, None
    if isinstance(value, bool):
        yield path, not value
    elif isinstance(value, int | float):
        yield from ((path, other) for other in {value + 1, value * 1.5, 0} - {value})
    elif isinstance(value, str):
        yield path, "eager"
    elif isinstance(value, list):
        yield from ((path, other) for other in (value[::-1], []) if other != value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llava-mistral", "pixtral", "qwen3-vl"])
def test_no_edited_setting_of_a_model_gives_other_numbers_under_its_identity(tiny, pictures, tmp_path, name):
    """Each value of each JSON file of the folder in turn: it is refused, it is another model, or nothing changes."""

    def numbers(vlm):
        asked = ["what colour is the hat ?"] * 2, [pictures[:1], pictures[2:3]]
        return vlm.logits(*asked), vlm.answer(*asked, max_new_tokens=3)

    vlm, folder = tiny(name), tmp_path / "model"
    vlm.model.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    whole = load_vlm(folder)
    logits, said = numbers(whole)
    others = same = 0
    for file in (file for file in sorted(folder.glob("*.json")) if file.name != "tokenizer.json"):
        text = file.read_text()
        for path, value in edited_leaves(json.loads(text)):
            told = json.loads(text)
            if reduce(dict.__getitem__, path, told) == value:
                continue
            edit(file, *path, value)
            try:
                edited = load_vlm(folder)
                if edited.identity != whole.identity:
                    others += 1
                    continue
                found = numbers(edited)
            except InputError:
                continue
            finally:
                file.write_text(text)
            assert_same(found[0], logits)
            assert found[1] == said, (file.name, path, value)
            same += 1
    assert others > 50
    assert same > 10, "the control: names of places change nothing"


@pytest.mark.parametrize("name", VISUAL)
def test_discovering_again_after_an_edit_is_discovering_afresh(first, copy, faces, tmp_path, name):
    old = collect(first, faces, cache=tmp_path / "cache").pooled
    VISUAL[name][1](copy)
    edited = load_vlm(copy)
    again = collect(edited, faces, cache=tmp_path / "cache").pooled
    assert_same(again, collect(edited, faces, cache=tmp_path / "fresh").pooled)
    assert (again - old).abs().max() > 1e-3


@pytest.mark.parametrize("name", EDITS)
def test_a_steerer_knows_the_vision_path_it_was_made_with(first, copy, faces, tmp_path, name):
    steerer = fit("ggss", collect(first, faces, cache=tmp_path / "cache"), attribute="race", k=1)
    loaded = type(steerer).from_pretrained(steerer.save_pretrained(tmp_path / "steerer"))
    EDITS[name][1](copy)
    edited = load_vlm(copy)
    if name not in VISUAL:  # the vision weight was changed by less than a bfloat16 can tell
        assert loaded.check(edited)
        return
    with pytest.raises(InputError, match=rf"{name}: the steerer was made with .*, the model has .*force=True"):
        loaded.check(edited)
    assert loaded.check(edited, force=True)
    # Without its processor nobody knows how a model's images are prepared.
    if EDITS[name][0] == "image processor":
        assert loaded.check(edited.model)
    else:
        with pytest.raises(InputError, match=name):
            loaded.check(edited.model)


@pytest.mark.parametrize("name", TEXT)
def test_a_steerer_inside_the_text_model_knows_the_text_path_too(first, copy, faces, tmp_path, name):
    steerer = fit("ggss", collect(first, faces, "lm-layer0", cache=tmp_path / "cache"), attribute="race", k=1)
    loaded = type(steerer).from_pretrained(steerer.save_pretrained(tmp_path / "steerer"))
    assert loaded.check(load_vlm(copy))
    TEXT[name][1](copy)
    edited = load_vlm(copy)
    if name in ("generation", "text weights"):  # it comes after the image's rows; less than a bfloat16 can tell
        assert loaded.check(edited)
        return
    told = {"special token": "tokenizer", "chat template": "chat_template"}.get(name, name)
    with pytest.raises(InputError, match=rf"{told}: the steerer was made with .*, the model has .*force=True"):
        loaded.check(edited)
    assert loaded.check(edited, force=True)
    if name == "rms_norm_eps":
        with pytest.raises(InputError, match=name):
            loaded.check(edited.model)
    else:  # without its processor nobody knows what stands before an image
        assert loaded.check(edited.model)


def test_another_version_of_transformers_may_write_a_tokenizer_otherwise(first, faces, tmp_path):
    steerer = fit("ggss", collect(first, faces, "lm-layer0", cache=tmp_path / "cache"), attribute="race", k=1)
    steerer.source["text_settings"]["tokenizer"] = "0" * 64
    with pytest.raises(InputError, match="tokenizer: the steerer was made with"):
        steerer.check(first)
    steerer.versions["transformers"] = "5.0.0"
    assert steerer.check(first)
    steerer.source["text_settings"]["chat_template"] = "0" * 64
    with pytest.raises(InputError, match="chat_template: the steerer was made with"):
        steerer.check(first)


def test_a_steerer_may_be_used_in_another_dtype_and_with_other_attention(first, folder, copy, faces, tmp_path):
    steerer = fit("ggss", collect(first, faces, cache=tmp_path / "cache"), attribute="race", k=1)
    edit(copy / "config.json", "attn_implementation", "eager")
    assert steerer.check(load_vlm(folder, dtype=torch.bfloat16))
    assert steerer.check(load_vlm(copy))


def test_settings_that_only_one_version_of_transformers_knows_are_not_compared(first, faces, tmp_path):
    steerer = fit("ggss", collect(first, faces, cache=tmp_path / "cache"), attribute="race", k=1)
    del steerer.source["settings"]["config.vision_feature_layer"]
    with pytest.raises(InputError, match="vision_feature_layer: the steerer was made with none"):
        steerer.check(first)
    steerer.versions["transformers"] = "5.0.0"
    assert steerer.check(first)
    steerer.source["settings"]["config.vision_feature_select_strategy"] = "full"
    with pytest.raises(InputError, match="vision_feature_select_strategy: the steerer was made with full"):
        steerer.check(first)


def negate(vlm):
    vlm.model.get_submodule(vlm.sites()[SITE]).weight.data.mul_(-1)  # torch's version counter does not see it


def swap_rows(vlm):
    weight = vlm.model.get_submodule(vlm.sites()[SITE]).weight.data
    weight[[0, 1]] = weight[[1, 0]].clone()


def nudge_one_value(vlm):
    next(vlm.model.base_model.vision_tower.parameters()).data.view(-1)[-1] += 1e-6


def add_lora(vlm):
    peft = pytest.importorskip("peft")
    peft.inject_adapter_in_model(
        peft.LoraConfig(target_modules=["linear_2"], init_lora_weights=False), vlm.model, "added"
    )


def halve(vlm):
    vlm.model.bfloat16()


def other_mean(vlm):
    vlm.processor.image_processor.image_mean = [0.1, 0.2, 0.3]


def other_activation(vlm):
    vlm.model.base_model.multi_modal_projector.act = torch.nn.ReLU()


def other_epsilon(vlm):
    next(m for m in vlm.model.base_model.vision_tower.modules() if isinstance(m, torch.nn.LayerNorm)).eps = 0.5


def other_layer(vlm):
    vlm.model.config.vision_feature_layer = -2


def other_template(vlm):
    vlm.processor.chat_template += " red"


def text_weight(vlm):
    vlm.model.lm_head.weight.data.mul_(-1)


IN_MEMORY = {
    **{own.__name__: own for own in (negate, swap_rows, nudge_one_value, add_lora, halve)},
    **{own.__name__: own for own in (other_mean, other_activation, other_epsilon, other_layer)},
}
TEXT_IN_MEMORY = {own.__name__: own for own in (other_template, text_weight)}


@pytest.mark.parametrize("name", IN_MEMORY | TEXT_IN_MEMORY)
def test_an_edit_in_memory_is_another_identity(folder, name):
    vlm = load_vlm(folder)
    before, visual = vlm.identity, vlm.visual_identity
    assert (vlm.identity, vlm.visual_identity) == (before, visual)  # the control
    (IN_MEMORY | TEXT_IN_MEMORY)[name](vlm)
    assert vlm.identity.hash != before.hash
    assert (vlm.visual_identity.hash != visual.hash) == (name in IN_MEMORY)


@pytest.mark.parametrize("name", IN_MEMORY)
def test_what_is_collected_after_an_edit_in_memory_is_of_the_edited_model(folder, faces, tmp_path, name):
    vlm = load_vlm(folder)
    before = collect(vlm, faces, cache=tmp_path / "cache")
    kept = FeatureCache(vlm)
    kept.features(faces.pictures)
    IN_MEMORY[name](vlm)
    after, afresh = (collect(vlm, faces, cache=tmp_path / place) for place in ("cache", "another"))
    assert torch.equal(after.pooled, afresh.pooled)
    assert not torch.equal(after.pooled, before.pooled)
    assert torch.equal(collect(vlm, faces, features=kept).pooled, afresh.pooled)  # the cache in memory too
    steerer = fit("ggss", after, attribute="race", k=1)
    assert steerer.source["identity"] == dict(vlm.visual_identity.parts)
    steerer.check(vlm)


def test_a_changed_template_writes_other_prompts_at_once(folder):
    vlm, image = load_vlm(folder), noise(1)
    question = "which colour ?"
    before = vlm.logits([question], [[image]])
    assert torch.equal(vlm.logits([question], [[image]]), before)
    other_template(vlm)
    vlm.read([question], [[image]], [("red", "blue")])
    assert vlm.logits([question], [[image]]).sub(before).abs().max() > 1e-3
    assert torch.equal(vlm.logits([question], [[image]]), Vlm(vlm.model, vlm.processor).logits([question], [[image]]))


def on_cpu(values):
    return checksums({"": values})[""][-1]  # not the address and the version


def on_other_devices(values):
    return int(mixed_sum(values.contiguous().view(-1).view(torch.uint8)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5,), (700,), (130, 65), (1024, 1030)])
@pytest.mark.parametrize("checksum", [on_cpu, on_other_devices])
def test_a_checksum_sees_every_value_its_sign_and_its_place(shape, dtype, checksum, monkeypatch):
    monkeypatch.setattr("ggss.models.identity._BLOCK", 2**20)  # so that the largest has several
    flat = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype).view(-1)
    last = len(flat) - 1

    def edited(places, values):
        """A copy with other values at some places."""
        changed = flat.clone()
        changed[places] = values
        return changed

    before = checksum(flat.clone())
    assert checksum(flat.clone()) == before
    assert checksum(torch.cat([flat[:1], flat])[1:]) == before, "wherever it is in memory"
    numbers = [*range(0, len(flat), 1 + len(flat) // 50), last]
    assert all(checksum(edited(n, -flat[n])) != before for n in numbers)
    assert all(checksum(edited(n, flat[n] * 1.01)) != before for n in numbers)
    block = 2**20 // flat.element_size()
    for apart in {1, 2, 4, min(64, last), min(block, last), last}:  # neighbours, in the next word or block, the ends
        for first in {0, (last - apart) // 2, last - apart}:
            pair = [first, first + apart]
            assert checksum(edited(pair, -flat[pair])) != before, "two signs"
            assert checksum(edited(pair, flat[pair[::-1]])) != before, "two values that change places"
    moved = [flat.flip(0), flat.roll(1), flat.roll(2), flat.roll(4)]
    assert all(checksum(other) != before for other in (-flat, *moved))
