"""The strength that a steerer recommends: used when none is given, saved, printed, and written into a folder."""

import json
import math

import pytest
import torch

import ggss
from ggss import InputError
from ggss.steering import artefact
from ggss.steering.artefact import signed
from planted import planted
from rounding import assert_same


@pytest.fixture(scope="module")
def steerer():
    return ggss.fit("ggss", planted(identities=4)[0], attribute="race")


@pytest.fixture
def rows():
    return planted(identities=2, seed=5)[0].tokens[0]


def test_without_a_recommendation_the_strength_is_one(steerer, rows):
    assert steerer.recommended_alpha is None
    assert (steerer.strength(None), steerer.strength(), steerer.strength(0.25)) == (1.0, 1.0, 0.25)
    assert_same(steerer.steer(rows), steerer.steer(rows, alpha=1.0))


def test_a_recommendation_is_used_when_no_alpha_is_given(steerer, rows):
    half = steerer.recommending(0.5)
    assert (half.strength(), half.strength(2.0), half.strength(0.0)) == (0.5, 2.0, 0.0)
    assert_same(half.steer(rows), steerer.steer(rows, alpha=0.5))
    assert_same(half.steer(rows, alpha=1.0), steerer.steer(rows, alpha=1.0))
    assert not torch.allclose(half.steer(rows), steerer.steer(rows), atol=1e-3)
    assert torch.equal(half.steer(rows, alpha=0.0), rows), "0 is a given strength"
    assert half.content_hash == steerer.content_hash
    assert steerer.recommended_alpha is None, "the steerer itself is as before"
    per_image = torch.tensor([1.0])
    assert half.strength(per_image) is per_image


def test_attach_uses_it(tiny, pictures):
    vlm = tiny("pixtral")
    site, path = next(iter(vlm.sites().items()))
    generator = torch.Generator().manual_seed(0)
    frame = torch.linalg.qr(torch.randn(vlm.model.get_submodule(path).out_features, 3, generator=generator))[0]
    operator = ggss.methods.spherical.Geodesic(frame[:, 0].contiguous(), frame[:, 1:].contiguous(), 0.1, 0.1)
    steerer = ggss.Steerer("ggss", "race", (), {site: operator}).recommending(0.5)

    def logits(*alpha):
        with steerer.attach(vlm, *alpha):
            return vlm.logits(["what colour is the hat ?"], [pictures[:1]])

    assert_same(logits(), logits(0.5))
    assert (logits() - logits(1.0)).abs().max() > 1e-3


@pytest.mark.parametrize("alpha", [0, 0.0, -1.0, float("nan"), float("inf")])
def test_a_recommendation_must_be_above_zero_and_finite(steerer, tmp_path, alpha):
    with pytest.raises(InputError, match="finite number above 0"):
        steerer.recommending(alpha)
    folder = steerer.save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InputError, match="finite number above 0"):
        artefact.recommend(folder, alpha)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    config = json.loads(before["config.json"]) | {"recommended_alpha": alpha}
    finite = math.isfinite(alpha)
    (folder / "config.json").write_text(json.dumps(signed(config) if finite else config))
    with pytest.raises(InputError, match="finite number above 0" if finite else "not a number of JSON"):
        ggss.Steerer.from_pretrained(folder)


def test_it_is_saved_and_on_the_card(steerer, tmp_path):
    folder = steerer.recommending(0.75).save_pretrained(tmp_path / "s")
    assert ggss.Steerer.from_pretrained(folder).recommended_alpha == 0.75
    card = (folder / "README.md").read_text()
    assert "| recommended alpha | 0.75; used when no other is given |" in card
    assert "steerer.attach(vlm, alpha=0.75)" in card
    plain = (steerer.save_pretrained(tmp_path / "plain") / "README.md").read_text()
    assert "| recommended alpha | none measured" in plain
    assert "steerer.attach(vlm, alpha=1.0)" in plain


def test_recommend_writes_what_saving_would_have(steerer, tmp_path):
    folder = steerer.save_pretrained(tmp_path / "s")
    tensors = folder / "steerer.safetensors"
    written = tensors.stat().st_mtime_ns
    assert artefact.recommend(folder, 0.75) == folder
    whole = steerer.recommending(0.75).save_pretrained(tmp_path / "whole")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {p.name: p.read_bytes() for p in whole.iterdir()}
    assert tensors.stat().st_mtime_ns == written, "the tensors were not touched"
    artefact.recommend(folder, 1)
    assert ggss.Steerer.from_pretrained(folder).recommended_alpha == 1.0


def test_recommend_changes_both_files_or_none(steerer, tmp_path, monkeypatch):
    folder = steerer.save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    write = artefact.write_whole

    def full_disk(path, data):
        if path.name == "config.json":
            raise InputError(f"cannot write {path}")
        write(path, data)

    monkeypatch.setattr(artefact, "write_whole", full_disk)
    with pytest.raises(InputError, match="cannot write"):
        artefact.recommend(folder, 0.5)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_recommend_needs_a_complete_steerer(steerer, tmp_path):
    with pytest.raises(InputError, match="no steerer folder"):
        artefact.recommend(tmp_path / "none", 0.5)
    with pytest.raises(InputError, match=r"no readable config\.json"):
        artefact.recommend(tmp_path, 0.5)
    folder = steerer.save_pretrained(tmp_path / "s")
    (folder / "steerer.safetensors").write_bytes(b"short")
    with pytest.raises(InputError, match="cut short"):
        artefact.recommend(folder, 0.5)
    assert ": null" in (folder / "config.json").read_text()
