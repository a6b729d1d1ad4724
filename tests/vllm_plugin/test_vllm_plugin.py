"""The parts of the vLLM plug-in that need no vLLM; `make test-vllm` tests the rest."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import nn

import ggss
from ggss.errors import InputError
from ggss.models import locate
from ggss.models.identity import skeleton
from ggss.models.sites import MLP2
from ggss.models.vlm import Vlm
from ggss.steering import SteeringRecord
from ggss.steering.attach import NeverFired
from ggss.vllm_plugin import _checked, placeholder_torchvision
from ggss.vllm_plugin import steering as steering_module
from ggss.vllm_plugin.engine import NARROWEST, head_size, widened
from ggss.vllm_plugin.steering import (
    AskedStrengths,
    PictureRows,
    PictureStrengths,
    ProjectorSteering,
    SteeringRecords,
    folders,
    key_of,
    packed,
    unpacked,
)

CONTENTS = {"race": "ab" * 32, "gender": "0f" * 32}
WIDTH = 128


@pytest.mark.parametrize(
    "strengths", [{}, {"ff" * 32: 0.1}, {"00" * 32: -1.5, "ab" * 32: 1e-300, "12" * 32: 123456.789}]
)
def test_strengths_travel_bit_for_bit_and_in_order(strengths):
    key = key_of("a picture's hash")
    found = unpacked(packed(strengths, key))
    assert found == PictureStrengths(key, strengths)
    assert list(found.strengths) == list(strengths)


def test_words_that_are_none_are_refused():
    with pytest.raises(ValueError, match="no strengths"):
        unpacked(torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="no strengths"):
        unpacked(packed({"ab" * 32: 1.0}).double())


def test_names_become_contents_and_zeros_nothing():
    asked = AskedStrengths(CONTENTS)
    prompt = {"multi_modal_data": {"image": "one"}, "mm_processor_kwargs": {"ggss": {"gender": 0, "race": 1}}}
    assert asked.prompt(prompt)["mm_processor_kwargs"] == {"ggss": {CONTENTS["race"]: 1.0}}
    both = {"gender": 0.5, "race": 0.25}
    assert list(asked.strengths(both)) == [CONTENTS["gender"], CONTENTS["race"]]  # in the order of the request
    ordered = AskedStrengths(CONTENTS, defaults={"race": 1.0, "gender": 1.0})
    assert list(ordered.strengths(both).items()) == [(CONTENTS["race"], 0.25), (CONTENTS["gender"], 0.5)]
    same = AskedStrengths(CONTENTS | {"origin": CONTENTS["race"]})
    with pytest.raises(InputError, match="race and origin are one and the same steerer"):
        same.strengths({"race": 1.0, "origin": 0.5})
    assert same.strengths({"race": 0.0, "origin": 0.5}) == {CONTENTS["race"]: 0.5}
    assert asked.prompt({"prompt": "text"}) == {"prompt": "text"}
    without = asked.prompt({"mm_processor_kwargs": {"ggss": {"race": 0.0}}})
    assert without["mm_processor_kwargs"] == {}


IMAGE = {"multi_modal_data": {"image": "one"}}


@pytest.mark.parametrize(
    ("settings", "strengths"),
    [
        ({}, {"race": 1.0, "gender": 0.5}),
        ({"mm_processor_kwargs": None}, {"race": 1.0, "gender": 0.5}),
        ({"mm_processor_kwargs": {}}, {"race": 1.0, "gender": 0.5}),
        ({"mm_processor_kwargs": {"ggss": {}}}, {"race": 1.0, "gender": 0.5}),
        ({"mm_processor_kwargs": {"ggss": {"race": 0.75}}}, {"race": 0.75, "gender": 0.5}),
        ({"mm_processor_kwargs": {"ggss": {"race": 0}}}, {"gender": 0.5}),
        ({"mm_processor_kwargs": {"ggss": {"gender": 0, "race": 0}}}, {}),
    ],
)
def test_a_request_that_names_no_strength_is_steered_as_the_server_says(settings, strengths):
    asked = AskedStrengths(CONTENTS, defaults={"race": 1.0, "gender": 0.5})
    by_content = {CONTENTS[name]: alpha for name, alpha in strengths.items()}
    assert asked.prompt(IMAGE | settings) == {
        **IMAGE,
        "mm_processor_kwargs": {"ggss": by_content} if strengths else {},
    }
    text = {"prompt_token_ids": [1]}
    assert asked.prompt(text) == text, "there is nothing to steer"
    with pytest.raises(InputError, match=r"has do_resize for the image processor.*\(race: 0, gender: 0\)"):
        asked.prompt(IMAGE | {"mm_processor_kwargs": {"do_resize": False}})
    plain = {"do_resize": False, "ggss": {"race": 0, "gender": 0}}
    assert asked.prompt(IMAGE | {"mm_processor_kwargs": plain})["mm_processor_kwargs"] == {"do_resize": False}


def test_the_strengths_of_the_server_come_from_its_environment(steering, tmp_path, monkeypatch):
    _, _, (race, gender) = steering
    recommended = replace(gender, recommended_alpha=0.75).save_pretrained(tmp_path / "recommended")
    monkeypatch.setenv("GGSS_STEERERS", f"race={tmp_path / '0'},gender={recommended}")
    for name in ("GGSS_ALPHAS", "GGSS_MAX_ALPHA", "GGSS_ALLOW_NEGATIVE"):
        monkeypatch.delenv(name, raising=False)
    asked = AskedStrengths.from_environment()
    assert asked.defaults == {"race": 1.0, "gender": 0.75}
    assert asked.prompt(IMAGE)["mm_processor_kwargs"]["ggss"][race.content_hash] == 1.0
    monkeypatch.setenv("GGSS_ALPHAS", "gender=0, race=1.25")
    monkeypatch.setenv("GGSS_MAX_ALPHA", "1.1")
    told = AskedStrengths.from_environment()
    assert told.prompt(IMAGE)["mm_processor_kwargs"]["ggss"] == {race.content_hash: 1.25}
    assert told.strengths({"race": 1.25}), "what the server itself uses is allowed"
    with pytest.raises(InputError, match=r"may be at most 1\.1 on this server"):
        told.strengths({"gender": 1.2})
    process = AskedStrengths({"other": "12" * 32})
    process.fill(told)
    assert process.prompt(IMAGE) == told.prompt(IMAGE)
    assert process.strengths({"other": 1.0})["12" * 32] == 1.0
    for wrong, said in {
        "rase=1": "names 'rase', which is no steerer of GGSS_STEERERS: did you mean 'race'",
        "race": "is written `race=1.0,gender=0.5`",
        "race=much": "'much', which is not a number",
        "race=nan": "GGSS_ALPHAS must be from",
        "race=-1": "that needs GGSS_ALLOW_NEGATIVE=1",
    }.items():
        monkeypatch.setenv("GGSS_ALPHAS", wrong)
        with pytest.raises(InputError, match=said):
            AskedStrengths.from_environment()


def test_every_prompt_of_vllm_gets_the_strengths(monkeypatch):
    """What `register` puts around vLLM's step, with vLLM's exception alone."""

    class VLLMValidationError(Exception):
        pass

    exceptions = ModuleType("vllm.exceptions")
    exceptions.VLLMValidationError = VLLMValidationError
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.exceptions", exceptions)
    monkeypatch.setattr(steering_module, "ASKED", AskedStrengths(CONTENTS, defaults={"race": 1.0}))
    step = _checked(lambda renderer, prompt, **options: (renderer, prompt, options))
    renderer, prompt, options = step("renderer", dict(IMAGE), flag=True)
    assert (renderer, options) == ("renderer", {"flag": True})
    assert prompt["mm_processor_kwargs"] == {"ggss": {CONTENTS["race"]: 1.0}}
    with pytest.raises(VLLMValidationError, match="may be at most"):
        step("renderer", IMAGE | {"mm_processor_kwargs": {"ggss": {"race": 5}}})


def test_one_steerer_under_two_names_is_refused_at_the_start(steering, tmp_path, monkeypatch):
    monkeypatch.setenv("GGSS_STEERERS", f"race={tmp_path / '0'},origin={tmp_path / '0'}")
    monkeypatch.delenv("GGSS_ALPHAS", raising=False)
    with pytest.raises(InputError, match="race and origin are one and the same steerer"):
        AskedStrengths.from_environment()


@pytest.mark.parametrize(
    ("strengths", "said"),
    [
        ({"race": 5}, "may be at most 1.5 on this server"),
        ({"rac": 1.0}, "no steerer 'rac' on this server: did you mean 'race'"),
        ({"race": "1"}, "must be a number"),
        ({"race": True}, "must be a number"),
        ({"race": float("nan")}, "the strength of 'race'"),
        ({"race": 1e9}, "the strength of 'race'"),
        ({"race": -0.5}, "would amplify the bias"),
        (["race"], "gives strengths by steerer"),
    ],
)
def test_what_cannot_be_applied_is_refused(strengths, said):
    prompt = {"multi_modal_data": {"image": "one"}, "mm_processor_kwargs": {"ggss": strengths}}
    with pytest.raises(InputError, match=said):
        AskedStrengths(CONTENTS).prompt(prompt)


def test_steering_needs_an_image_and_no_other_settings():
    asked = AskedStrengths(CONTENTS, allow_negative=True)
    with pytest.raises(InputError, match="has no image"):
        asked.prompt({"mm_processor_kwargs": {"ggss": {"race": -1.0}}})
    with pytest.raises(InputError, match="images are steered here, and the request has do_resize"):
        settings = {"ggss": {"race": 1.0}, "do_resize": False}
        asked.prompt({"multi_modal_data": {"image": "one"}, "mm_processor_kwargs": settings})


def test_folders_are_read_from_a_line():
    assert folders("race=/a, gender=b=c,") == {"race": "/a", "gender": "b=c"}
    for wrong in ("race", "=a", "race=", "race=a,race=b"):
        with pytest.raises(InputError, match="each name once"):
            folders(wrong)


def test_counts_forget_the_least_recently_asked_for():
    counts = SteeringRecords(most=2)
    done = {"c": SteeringRecord(1.0, 1, 4)}
    counts.add(1, done)
    counts.add(2, {})
    assert counts.get(1) == done
    counts.add(3, {})
    assert (counts.get(1), counts.get(2), counts.get(3)) == (done, None, {})


@pytest.mark.parametrize("name", ["llava-vicuna", "pixtral", "qwen3-vl"])
def test_wider_heads_give_the_same_logits(name, tmp_path):
    image = ggss.Counterfactuals.load("small-world", include={"occupation": "cook", "identity": "00"}).pictures[0]
    own = ggss.load_vlm(f"small-world/{name}", dtype="float32")
    wide = ggss.load_vlm(str(widened(locate(f"small-world/{name}"), tmp_path / name)), dtype="float32")
    assert head_size(wide.model.config.to_dict()) == NARROWEST
    question = ["which race is this person ?"], [[image.image()]]
    assert torch.allclose(own.logits(*question), wide.logits(*question), atol=1e-4)
    assert own.fingerprint == wide.fingerprint


class Projector(nn.Linear):
    """Gives a tuple, as vLLM's Linears do."""

    def forward(self, rows):
        return super().forward(rows), None


@pytest.fixture
def steering(tmp_path):
    """A projector with two steerers for it, and these."""
    vlm = ggss.load_vlm("small-world/llava-vicuna", dtype="float32")
    faces = ggss.Counterfactuals.load("small-world", include={"occupation": "cook", "identity": ["00", "01"]})
    acts = ggss.collect(vlm, faces, cache=tmp_path / "cache", show=False)
    made = Vlm(skeleton(vlm.model.config), vlm.processor, vlm.name)
    projector = Projector(WIDTH, WIDTH)
    steering = ProjectorSteering(made, vlm.fingerprint, {MLP2: projector}, "0" * 64)
    steerers = [ggss.fit("ggss", acts, attribute=name) for name in ("race", "gender")]
    for number, own in enumerate(steerers):
        steering.load(str(own.save_pretrained(tmp_path / str(number))))
    return steering, projector, steerers


def test_each_picture_is_steered_at_its_own_strengths(steering):
    acting, projector, (race, gender) = steering
    torch.manual_seed(0)
    given = torch.randn(3, 8, WIDTH)  # the second picture's last half only fills up the batch
    rows = [PictureRows(8, 8), PictureRows(4, 8), PictureRows(8, 8)]
    strengths = [{race.content_hash: 1.0}, {gender.content_hash: 0.5, race.content_hash: 0.25}, {}]
    pictures = [PictureStrengths(number, own) for number, own in enumerate(strengths)]
    with torch.no_grad():
        plain = projector(given)[0]
        with acting.acting(pictures, rows):
            steered = projector(given)[0]
        after = projector(given)[0]
    second = race.steer(gender.steer(plain[1, :4], alpha=0.5), alpha=0.25)
    assert torch.allclose(steered[0], race.steer(plain[0], alpha=1.0), atol=1e-6)
    assert torch.allclose(steered[1, :4], second, atol=1e-6)
    assert torch.equal(steered[1, 4:], plain[1, 4:])
    assert torch.equal(steered[2], plain[2])
    assert torch.equal(after, plain)
    count = acting.records.get(1)[race.content_hash]
    assert (count.alpha, count.calls, count.tokens) == (0.25, 1, 4)
    assert acting.records.get(2) == {}


def test_steering_that_does_not_happen_is_an_error(steering):
    acting, projector, (race, _) = steering
    picture = PictureStrengths(1, {race.content_hash: 1.0})
    with pytest.raises(NeverFired, match="acted at none"), acting.acting([picture], [PictureRows(4, 4)]):
        pass  # the projector is not called
    assert acting.records.get(1) is None
    with pytest.raises(NeverFired, match="should have 4 rows"), acting.acting([picture], [PictureRows(4, 4)]):
        projector(torch.zeros(5, WIDTH))
    with (
        pytest.raises(InputError, match="no steerer of the content"),
        acting.acting([PictureStrengths(1, {"ab" * 32: 1.0})], [PictureRows(4, 4)]),
    ):
        pass


def test_a_steerer_of_other_weights_is_refused(steering, tmp_path):
    acting, projector, (race, _) = steering
    other = ProjectorSteering(acting._described, "0" * 64, {MLP2: projector}, "0" * 64)
    with pytest.raises(InputError, match="vision weights"):
        other.load(str(race.save_pretrained(tmp_path / "race")))
    with pytest.raises(InputError, match="is not the one that was checked"):
        acting.load(str(tmp_path / "race"), "1" * 64)


def test_torchvision_is_a_name_only_while_modules_are_imported():
    with placeholder_torchvision():
        from torchvision.transforms.v2 import functional

        assert functional.anything is not None
    assert not [name for name in sys.modules if name.partition(".")[0] == "torchvision"]
    with pytest.raises(ImportError):
        __import__("torchvision")
