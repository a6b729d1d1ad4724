"""From images to activations: the cap, the cache, and what it survives."""

from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import parametrize

import ggss
from conftest import noise
from ggss import Counterfactuals, InputError, collect
from ggss.activations import statistics
from ggss.activations.cache import CacheEntry
from ggss.activations.collect import kept_tokens
from ggss.activations.statistics import gather
from ggss.data.manifests import write_manifest
from ggss.models import Vlm
from ggss.models.features import FeatureCache
from ggss.steering.attach import compare_sizes
from rounding import assert_same

MLP1, SITE = "projection-mlp1", "projection-mlp2"


@pytest.fixture
def faces(tmp_path):
    rows = []
    for identity in range(3):
        for race in "ab":
            name = f"{identity}{race}.png"
            noise(identity * 10 + ord(race)).save(tmp_path / name)
            rows.append({"path": name, "identity": str(identity), "race": race})
    write_manifest(rows, tmp_path / "manifest.csv")
    return Counterfactuals.load(tmp_path / "manifest.csv", attributes="race")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def encoded(vlm, monkeypatch):
    """How many images the model has encoded so far."""
    count = [0]
    encode = vlm.encode

    def counting(images, **options):
        count[0] += len(images)
        return encode(images, **options)

    monkeypatch.setattr(vlm, "encode", counting)
    return count


def test_pooled_rows_are_the_means_of_the_sites_tokens(vlm, faces, cache):
    acts = collect(vlm, faces, cache=cache)
    for i, variant in enumerate(faces):
        rows = vlm.encode([variant.image()])[0].rows[SITE]
        torch.testing.assert_close(acts.pooled[i], rows.mean(0), rtol=1e-5, atol=1e-6)
        assert acts.attributes[i] == variant.attributes
    assert acts.groups("race").index.shape == (3, 2)
    assert acts.source["data_hash"] == faces.content_hash
    assert acts.source["fingerprint"] == vlm.fingerprint


def test_a_second_run_computes_nothing(vlm, faces, cache, encoded):
    first = collect(vlm, faces, cache=cache)
    assert encoded[0] == len(faces)
    second = collect(vlm, faces, cache=cache)
    assert encoded[0] == len(faces)
    assert torch.equal(first.pooled, second.pooled)


def test_other_settings_and_other_weights_are_other_entries(vlm, tiny, faces, cache, encoded):
    collect(vlm, faces, cache=cache)
    collect(vlm, faces, cache=cache, max_tokens=3)
    collect(vlm, faces, "projection-mlp1", cache=cache)
    assert encoded[0] == 3 * len(faces)
    other = tiny(vlm.name, seed=9)
    assert not torch.equal(collect(other, faces, cache=cache).pooled, collect(vlm, faces, cache=cache).pooled)


def test_an_entry_cut_short_is_redone(vlm, faces, cache, encoded):
    whole = collect(vlm, faces, cache=cache)
    entries = sorted(cache.rglob("*.safetensors"))
    assert len(entries) == len(faces)
    entries[0].write_bytes(entries[0].read_bytes()[:-5])
    entries[1].write_bytes(b"")
    again = collect(vlm, faces, cache=cache)
    assert encoded[0] == len(faces) + 2
    assert_same(again.pooled, whole.pooled)  # the two were encoded without the others of their batch


def test_an_entry_that_is_not_as_it_was_written_is_redone(vlm, faces, cache, encoded):
    whole = collect(vlm, faces, cache=cache)
    flipped, swapped, other, narrow, *_ = sorted(cache.rglob("*.safetensors"))
    data = bytearray(flipped.read_bytes())
    data[-3] ^= 1
    flipped.write_bytes(data)
    swapped.write_bytes(other.read_bytes())
    with safe_open(narrow, "pt") as entry:
        told = entry.metadata()
    save_file({"pooled": torch.zeros(3)}, narrow, told)
    again = collect(vlm, faces, cache=cache)
    assert encoded[0] == len(faces) + 3
    assert_same(again.pooled, whole.pooled)


def test_tokens_that_are_damaged_are_redone_or_refused(vlm, faces, cache, encoded):
    whole = collect(vlm, faces, cache=cache, keep_tokens=True)
    expected = whole.tokens[2].clone()
    entry = whole.tokens.sources[2].path
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1
    entry.write_bytes(data)
    with pytest.raises(InputError, match=r"deleted or damaged while in use: run again"):
        _ = whole.tokens[2]
    again = collect(vlm, faces, cache=cache, keep_tokens=True)
    assert encoded[0] == len(faces) + 1
    assert_same(again.tokens[2], expected)


def test_no_bit_of_an_entry_can_change_unnoticed(tmp_path):
    entry = CacheEntry(tmp_path, '{"image": "a"}', width=4)
    rows = {"pooled": torch.arange(4.0), "tokens": torch.arange(8.0).view(2, 4)}
    entry.write(rows)
    data = entry.path.read_bytes()
    for place in range(len(data)):
        entry.path.write_bytes(data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :])
        for name, tensor in rows.items():
            read = entry.read(name)
            assert read is None or torch.equal(read, tensor)
    entry.path.write_bytes(data)
    assert all(torch.equal(entry.need(name), tensor) for name, tensor in rows.items())
    assert CacheEntry(tmp_path, '{"image": "a"}', width=5).read("pooled") is None
    other = CacheEntry(tmp_path, '{"image": "b"}', width=4)
    other.path.parent.mkdir(exist_ok=True)
    other.path.write_bytes(data)
    assert other.read("pooled") is None


@pytest.mark.parametrize(
    "rows", [torch.zeros(2, 4), torch.zeros(()), torch.zeros(4, dtype=torch.int32), torch.zeros(4).double()]
)
def test_an_entry_of_another_form_is_no_entry(tmp_path, rows):
    entry = CacheEntry(tmp_path, "key")
    entry.write({"pooled": rows})
    assert entry.read("pooled") is None
    assert entry.read("tokens") is None
    entry.path.unlink()
    entry.path.mkdir()
    assert entry.read("pooled") is None


def test_a_steered_model_or_another_models_features_are_not_collected(vlm, faces, cache):
    steerer = ggss.fit("ggss", collect(vlm, faces, cache=cache), attribute="race", k=1)
    with (
        pytest.raises(InputError, match="a steerer at"),
        steerer.attach(vlm, alpha=0.5),
    ):
        collect(vlm, faces, cache=cache, max_tokens=3)
    assert len(list(cache.rglob("*.safetensors"))) == len(faces)
    collect(vlm, faces, cache=cache, max_tokens=3)
    with pytest.raises(InputError, match="the features are of other"):
        collect(vlm, faces, features=FeatureCache(Vlm(vlm.model, vlm.processor, "other")))


def test_tokens_are_kept_only_when_asked_for(vlm, faces, cache, encoded):
    without = collect(vlm, faces, cache=cache)
    with pytest.raises(InputError, match="keep_tokens=True"):
        _ = without.tokens
    assert all(list(load_file(entry)) == ["pooled"] for entry in cache.rglob("*.safetensors"))
    kept = collect(vlm, faces, cache=cache, keep_tokens=True)
    assert encoded[0] == 2 * len(faces)
    assert len(kept.tokens) == len(faces)
    torch.testing.assert_close(kept.tokens[2].mean(0), kept.pooled[2], rtol=1e-5, atol=1e-6)
    collect(vlm, faces, cache=cache)
    assert encoded[0] == 2 * len(faces), "entries with tokens also serve those who need only means"


def test_the_cap_draws_the_same_positions_for_images_of_one_size(vlm, faces, cache):
    kept = collect(vlm, faces, cache=cache, keep_tokens=True, max_tokens=5)
    drawn = kept_tokens(vlm.encode([faces.pictures[0].image()])[0].rows[SITE].shape[0], 5)
    assert drawn is not None
    assert torch.equal(drawn, drawn.unique())
    for i, variant in enumerate(faces):
        rows = vlm.encode([variant.image()])[0].rows[SITE]
        torch.testing.assert_close(kept.tokens[i], rows[drawn], rtol=1e-5, atol=1e-6)
    assert kept_tokens(5, 5) is None


def test_all_sites_in_one_pass(qwen, faces, cache):
    acts = collect(qwen, faces, "all", cache=cache)
    assert list(acts.sites) == [SITE, "deepstack-0", "deepstack-1"]
    assert acts.at("deepstack-1").pooled.shape == acts.pooled.shape
    assert not torch.equal(acts.at("deepstack-1").pooled, acts.pooled)


def test_a_cache_that_cannot_be_written_is_one_sentence(vlm, faces, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .* set GGSS_CACHE"):
        collect(vlm, faces, cache=tmp_path / "file")
    with pytest.raises(InputError, match="max_tokens must be from 1"):
        collect(vlm, faces, max_tokens=0, cache=tmp_path / "cache")


def test_with_a_prompt_the_whole_model_is_run_and_gives_the_same_rows(vlm, faces, cache, encoded):
    plain = collect(vlm, faces, cache=cache, keep_tokens=True)
    passes, seen = [0], encoded[0]

    def count(*_):
        passes[0] += 1

    hook = vlm.model.lm_head.register_forward_hook(count)
    try:
        prompted = collect(vlm, faces, cache=cache, keep_tokens=True, prompt="What is this?")
        assert passes[0] == len(faces)
        collect(vlm, faces, cache=cache)
        assert passes[0] == len(faces)  # without a prompt the text model is not run
    finally:
        hook.remove()
    assert encoded[0] == seen  # neither the vision path alone nor its cache was used
    assert prompted.source["prompt"] == "What is this?"
    torch.testing.assert_close(prompted.pooled, plain.pooled, rtol=1e-5, atol=1e-6)
    for one, other in zip(prompted.tokens, plain.tokens, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-5)


def test_a_prompt_that_reached_the_site_would_be_seen(vlm, faces, cache, monkeypatch):
    """The negative control of the table of prompts: a model in which the words change the picture."""
    plain, logits = collect(vlm, faces, cache=cache), vlm.logits

    def leaking(questions, images):
        return logits(questions, [[picture.point(lambda level: level // 2) for picture in own] for own in images])

    monkeypatch.setattr(vlm, "logits", leaking)
    prompted = collect(vlm, faces, cache=cache, prompt="What is this?")
    assert not torch.allclose(prompted.pooled, plain.pooled, rtol=1e-3, atol=1e-3)


def _hook(vlm):
    return vlm.model.base_model.get_submodule("vision_tower").register_forward_hook(lambda *_: None)


def _pre_hook(vlm):
    path = vlm.sites(MLP1)[MLP1]
    return vlm.model.get_submodule(path).register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def _replaced_forward(vlm):
    module = vlm.model.get_submodule(vlm.sites(MLP1)[MLP1])
    compute = module.forward
    module.forward = lambda *args: 2 * compute(*args)
    return SimpleNamespace(remove=lambda: delattr(module, "forward"))


def _replaced_encoder(vlm):
    base = vlm.model.base_model
    compute = base.get_image_features
    base.get_image_features = lambda *args, **kwargs: compute(*args, **kwargs)
    return SimpleNamespace(remove=lambda: delattr(base, "get_image_features"))


def _parametrization(vlm):
    module = vlm.model.get_submodule(vlm.sites(MLP1)[MLP1])
    parametrize.register_parametrization(module, "weight", nn.Softplus())
    return SimpleNamespace(
        remove=lambda: parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
    )


def _global_hook(vlm):
    return torch.nn.modules.module.register_module_forward_hook(lambda *_: None)


@pytest.mark.parametrize(
    "intervene", [_hook, _pre_hook, _replaced_forward, _replaced_encoder, _parametrization, _global_hook]
)
def test_what_acts_before_the_site_is_refused_by_name_and_nothing_is_written(tiny, faces, cache, intervene):
    vlm = tiny("llava-vicuna")
    handle = intervene(vlm)
    try:
        with pytest.raises(InputError, match="must not be cached as its own") as refused:
            collect(vlm, faces, cache=cache)
        named = {
            _global_hook: "a hook for all modules",
            _replaced_encoder: "get_image_features",
            _hook: "vision_tower",
        }
        assert named.get(intervene, "linear_1") in str(refused.value)
        assert not cache.exists()
        with pytest.raises(InputError, match="must not be cached"):
            _ = vlm.identity
    finally:
        handle.remove()
    collect(vlm, faces, cache=cache)


def test_a_steerer_at_an_earlier_site_does_not_poison_the_cache(vlm, faces, cache):
    acts = collect(vlm, faces, [MLP1], cache=cache)
    steerer = ggss.fit("ggss", acts, attribute="race", k=1)
    clean = collect(vlm, faces, cache=cache)
    with steerer.attach(vlm, alpha=1.0):
        with pytest.raises(InputError, match="a steerer at"):
            collect(vlm, faces, cache=cache, max_tokens=5)
        vlm.encode([faces.pictures[0].image()])
    assert torch.equal(collect(vlm, faces, cache=cache).pooled, clean.pooled)


def test_a_hook_in_the_text_model_does_not_matter_before_it(vlm, faces, cache):
    layer = next(m for name, m in vlm.model.named_modules() if name.endswith("language_model.layers.1"))
    handle = layer.register_forward_hook(lambda *_: None)
    try:
        collect(vlm, faces, cache=cache)
        with pytest.raises(InputError, match=r"layers\.1"):
            collect(vlm, faces, "lm-layer1", cache=cache)
    finally:
        handle.remove()


def test_a_model_that_changes_while_it_is_collected_is_refused(tiny, faces, cache, monkeypatch):
    vlm = tiny("llava-vicuna")
    encode, weight = vlm.encode, vlm.model.get_submodule(vlm.sites()[SITE]).weight
    before = weight.detach().clone()

    def changing(images, **options):
        rows = encode(images, **options)
        weight.data.mul_(-1)
        return rows

    monkeypatch.setattr(vlm, "encode", changing)
    try:
        with pytest.raises(InputError, match="was changed while its activations were collected"):
            collect(vlm, faces, cache=cache)
    finally:
        weight.data.copy_(before)


def test_shrunk_pictures_have_activations_of_their_own_and_the_source_tells(qwen, faces, cache):
    whole, small = (collect(qwen, own, keep_tokens=True, cache=cache) for own in (faces, faces.shrunk(32)))
    assert len(small.tokens[0]) < len(whole.tokens[0])
    assert (whole.source["max_side"], small.source["max_side"]) == (None, 32)
    assert whole.source["data_hash"] != small.source["data_hash"]
    again = collect(qwen, faces, keep_tokens=True, cache=cache)
    assert torch.equal(again.pooled, whole.pooled)
    assert torch.equal(collect(qwen, faces.shrunk(64), cache=cache).pooled, whole.pooled)  # nothing is shrunk


def test_a_steerer_of_pictures_of_another_size_is_said(qwen, faces, cache, caplog):
    steerer = ggss.fit("ggss", collect(qwen, faces.shrunk(32), cache=cache), attribute="race")
    compare_sizes(steerer, 32)
    assert not caplog.records
    compare_sizes(steerer, None)
    assert "at most 32 pixels on the longer side, and these are of any size" in caplog.text


def test_the_authors_means_are_of_all_tokens_in_the_models_dtype(tiny, faces, cache):
    vlm = tiny("pixtral")
    vlm = Vlm(vlm.model.to(torch.bfloat16), vlm.processor)
    try:
        rows = [vlm.encode([variant.image()])[0].rows[SITE] for variant in faces]
        options = {"max_tokens": 5, "cache": cache}
        kept, released = (collect(vlm, faces, pooling=pooling, **options) for pooling in ("kept", "release"))
        assert torch.equal(released.pooled, torch.stack([own.mean(0).float() for own in rows]))
        assert torch.equal(released.pooled, released.pooled.bfloat16().float())
        assert not torch.allclose(kept.pooled, released.pooled, atol=1e-3)
        assert (kept.source["pooling"], released.source["pooling"]) == ("kept", "release")
        again = collect(vlm, faces, pooling="release", features=FeatureCache(vlm), max_tokens=5)
        assert torch.equal(again.pooled, released.pooled)
    finally:
        vlm.model.to(torch.float32)


@pytest.fixture
def wide(tmp_path):
    """Two people in pictures of 3 : 1, which LLaVA-NeXT pads, and a third in square ones."""
    rows = []
    for person, size in enumerate(((96, 32), (96, 32), (64, 64))):
        for race in "ab":
            name = f"wide-{person}{race}.png"
            noise(person * 10 + ord(race)).resize(size).save(tmp_path / name)
            rows.append({"path": name, "identity": str(person), "race": race})
    write_manifest(rows, tmp_path / "wide.csv")
    return Counterfactuals.load(tmp_path / "wide.csv", attributes="race")


def test_padding_that_the_text_model_never_sees_is_left_out(tiny, wide, cache):
    """Against the model itself: changing such a row changes no token of the text model, changing another does."""
    vlm = tiny("llava-vicuna")
    acts = collect(vlm, wide, keep_tokens=True, cache=cache)
    features = vlm.encode([wide.pictures[0].image()])[0]
    rows, place = features.rows[SITE], acts.places[0]
    assert len(acts.complete_tokens[0]) == len(rows) > len(acts.tokens[0]) == len(place.visible)
    inputs = {name: value[None] for name, value in features.inputs.items()}
    (before,) = vlm.family.pack(vlm.model, [rows], inputs)
    for number in range(len(rows)):
        changed = rows.clone()
        changed[number] += 1
        (after,) = vlm.family.pack(vlm.model, [changed], inputs)
        assert torch.equal(after, before) == (number not in place.visible.tolist())
    again = collect(vlm, wide, keep_tokens=True, cache=cache)  # from the cache
    assert torch.equal(again.places[0].visible, place.visible)
    assert torch.equal(again.places[0].grid, place.grid)


@pytest.mark.parametrize("family", ["llava-vicuna", "pixtral", "qwen3-vl"])
def test_statistics_are_those_of_the_tokens_that_were_not_kept(tiny, faces, cache, family):
    vlm = tiny(family)
    kept, summed = (
        collect(vlm, faces, keep_tokens=True, cache=cache),
        collect(vlm, faces, summarise=True, cache=cache),
    )
    assert not summed.has_tokens
    expected = gather(kept, "auto", kept.groups("race"))
    for found, wanted in (
        (summed.statistics.sums, expected.sums),
        (summed.statistics.counts, expected.counts),
        (summed.statistics.moments.folds, expected.moments.folds),
        (summed.statistics.mu, expected.mu),
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(summed.pooled, kept.pooled)


def test_of_all_pictures_of_a_person_tokens_at_the_same_positions_are_kept(tiny, faces, cache, monkeypatch):
    monkeypatch.setattr(statistics, "KEPT", 4)
    vlm = tiny("pixtral")
    kept, summed = (
        collect(vlm, faces, keep_tokens=True, cache=cache),
        collect(vlm, faces, summarise=True, cache=cache),
    )
    positions = {}
    for context, all_rows, rows in zip(kept.contexts, kept.tokens, summed.statistics.kept, strict=True):
        found = torch.cdist(rows.double(), all_rows.double()).argmin(1).tolist()
        assert positions.setdefault(context, found) == found
    assert len(set(map(tuple, positions.values()))) > 1, "of other people there are others"
