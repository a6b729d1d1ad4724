"""The examination, and above all the leak test: about nothing for LLaVA and Pixtral, a clear leak for Qwen3-VL."""

import pytest

from counting import counted
from ggss.models import MLP2
from ggss.steering.doctor import examine
from ggss.steering.steerer import Steerer


def test_every_architecture_is_healthy(vlm):
    report = examine(vlm)
    assert report.healthy, report.checks
    assert report.moved > 0
    assert report.sites[MLP2]["path"] == vlm.sites()[MLP2]
    assert report.sites[MLP2]["rows"] == 32 if vlm.family.name == "LLaVA-NeXT" else 16


@pytest.mark.parametrize("name", ["llava-vicuna", "llava-mistral", "pixtral"])
def test_nothing_leaks_around_a_llava_projector(tiny, name):
    report = examine(tiny(name))
    assert report.leaks[MLP2] < 1e-5 * report.moved  # but for rounding, none
    assert report.advice == []


def test_qwen_leaks_around_the_merger_and_not_around_all_sites(qwen):
    report = examine(qwen)
    assert report.leaks[MLP2] > 0.1 * report.moved
    assert report.leaks["all sites"] < 1e-5 * report.moved
    assert "--sites all" in report.advice[0]


def test_a_site_that_does_not_fire_is_reported(tiny, monkeypatch):
    vlm = tiny("pixtral")
    calls = vlm.answer
    monkeypatch.setattr(vlm, "answer", lambda *a, **k: [calls(*a, **k), calls(*a, **k)][0])
    report = examine(vlm)
    assert not report.healthy
    assert ("each row is steered once per generate, 1 image", False) in [check[:2] for check in report.checks]


def test_logits_are_the_same_up_to_their_last_digits_and_no_further():
    import torch

    from ggss.steering.doctor import _alike

    logits = torch.tensor([10.0, -2.0])
    assert _alike(logits, logits.clone()) == (True, "bit-identical")
    assert _alike(logits, logits + 1e-5)[0]
    same, seen = _alike(logits, logits, logits + 0.1)
    assert not same
    assert seen.startswith("logits differ by 1")


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        # Before; two tokens each of one and of two images at alpha 1; silenced sites; alpha 0; encoded features.
        ("qwen3-vl", 1 + 2 + 2 + 2 + 1 + 1),
        ("llava-vicuna", 1 + 2 + 2 + 1 + 1 + 1),  # one site, so one pass with it silenced
    ],
)
def test_two_pictures_share_each_pass(tiny, name, texts):
    vlm = tiny(name)
    tower = vlm.model.get_encoder(modality="image")
    block = tower.blocks[0] if name == "qwen3-vl" else tower
    with counted(vlm.model.get_decoder(), block) as counts:
        assert examine(vlm).healthy
    # Each pass reads all weights: at full size that is what takes the time. A second token needs no pass of the
    # tower, encoded features none either, and encoding is one.
    assert counts == [texts, texts - 2]


def test_a_steerer_with_other_strengths_than_asked_for_is_found(qwen, monkeypatch):
    """A negative control of two checks."""
    from ggss.models.features import Features

    steered = Features.steered
    monkeypatch.setattr(Steerer, "strength", lambda self, alpha: alpha or 0.5)
    monkeypatch.setattr(Features, "steered", lambda self, steerer, alpha: steered(self, steerer, alpha / 2))
    found = {what: passed for what, passed, _ in examine(qwen).checks}
    assert not found["alpha 0 changes nothing, and no hook is left"]
    assert not found["answers from encoded features are those of the live hook"]
    assert found["alpha 1 reaches the logits"]


def test_a_hook_that_is_left_is_reported(qwen, monkeypatch):
    from ggss.steering import doctor

    under, left = doctor._under, []

    def careless(vlm, steerer, alpha, pictures):
        left.append(vlm.model.register_forward_hook(lambda *_: None))
        return under(vlm, steerer, alpha, pictures)

    monkeypatch.setattr(doctor, "_under", careless)
    try:
        found = {what: (passed, seen) for what, passed, seen in examine(qwen).checks}
    finally:
        for hook in left:
            hook.remove()
    passed, seen = found["alpha 0 changes nothing, and no hook is left"]
    assert not passed
    assert "1 hook(s) are left" in seen
