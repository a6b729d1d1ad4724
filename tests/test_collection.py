"""From images to activations: the cap, the cache, and what it survives."""

import pytest
import torch
from safetensors.torch import load_file

from conftest import noise
from ggss import Counterfactuals, InputError, collect
from ggss.activations import collection
from ggss.data.manifests import write_manifest
from rounding import assert_same

SITE = "projection-mlp2"


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
    drawn = collection.kept_tokens(vlm.encode([faces.pictures[0].image()])[0].rows[SITE].shape[0], 5)
    assert drawn is not None
    assert torch.equal(drawn, drawn.unique())
    for i, variant in enumerate(faces):
        rows = vlm.encode([variant.image()])[0].rows[SITE]
        torch.testing.assert_close(kept.tokens[i], rows[drawn], rtol=1e-5, atol=1e-6)
    assert collection.kept_tokens(5, 5) is None


def test_all_sites_in_one_pass(qwen, faces, cache):
    acts = collect(qwen, faces, "all", cache=cache)
    assert list(acts.sites) == [SITE, "deepstack-0", "deepstack-1"]
    assert acts.at("deepstack-1").pooled.shape == acts.pooled.shape
    assert not torch.equal(acts.at("deepstack-1").pooled, acts.pooled)


def test_a_cache_that_cannot_be_written_is_one_sentence(vlm, faces, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .* set GGSS_CACHE"):
        collect(vlm, faces, cache=tmp_path / "file")
    with pytest.raises(InputError, match="max_tokens must be at least 1"):
        collect(vlm, faces, max_tokens=0, cache=tmp_path / "cache")
