"""`ggss ask`: the steerer's prompt suffix is asked with, and its recommended strength is used and named."""

import json
from functools import partial

import pytest
import torch

from conftest import noise
from ggss.methods.operator import Identity
from ggss.methods.spherical import Geodesic
from ggss.steering.steerer import Steerer

QUESTION = "what colour is the hat ?"
SITE = "projection-mlp2"


@pytest.fixture
def vlm(tiny, monkeypatch):
    """A tiny model in place of the one that would be loaded; `asked` has the questions that it is asked."""
    vlm = tiny("pixtral")
    vlm.asked = []
    answer = vlm.answer

    def listen(questions, images, **options):
        vlm.asked += questions
        return answer(questions, images, **options)

    monkeypatch.setattr(vlm, "answer", listen)
    monkeypatch.setattr("ggss.cli.arguments.Loading.load", lambda *_: vlm)
    return vlm


@pytest.fixture
def ask(monkeypatch, ggss_command, tmp_path):
    noise(0).save(tmp_path / "face.png")
    monkeypatch.setenv("COLUMNS", "150")
    return partial(ggss_command, "ask", "a-model", tmp_path / "face.png", QUESTION)


@pytest.fixture
def steerer(vlm):
    width = vlm.model.get_submodule(vlm.sites()[SITE]).out_features
    frame = torch.linalg.qr(torch.randn(width, 3, generator=torch.Generator().manual_seed(0)))[0]
    operator = Geodesic(frame[:, 0].contiguous(), frame[:, 1:].contiguous(), 0.1, 0.1)
    return Steerer("ggss", "race", ("a", "b"), {SITE: operator})


def test_the_prompt_suffix_is_appended_to_the_steered_question_only(ask, vlm, steerer, tmp_path):
    width = steerer.operators[SITE].width
    prompt = Steerer("prompt", "race", ("a", "b"), {SITE: Identity(width)}, prompt_suffix=" Be [fair] .")
    folder = prompt.save_pretrained(tmp_path / "s")
    code, out, err = ask("--steer", folder, "--json")
    assert code == 0, err
    assert vlm.asked == [QUESTION, QUESTION + " Be [fair] ."]
    assert json.loads(out)["steered_question"] == QUESTION + " Be [fair] ."
    code, out, _ = ask("--steer", folder)
    assert "appended when steered: Be [fair] ." in out


def test_without_a_suffix_the_question_is_the_same(ask, vlm, steerer, tmp_path):
    code, out, err = ask("--steer", steerer.save_pretrained(tmp_path / "s"))
    assert code == 0, err
    assert vlm.asked == [QUESTION, QUESTION]
    assert "appended" not in out


@pytest.mark.parametrize(
    ("recommended", "given", "used", "note"),
    [
        (0.75, (), 0.75, "alpha 0.75, as the steerer recommends; --alpha chooses another"),
        (None, (), 1.0, "alpha 1, because the steerer recommends none; --alpha chooses another"),
        (0.75, ("--alpha", "0.5"), 0.5, None),
        (0.75, ("--alpha", "0"), 0.0, None),
    ],
)
def test_the_strength_and_where_it_comes_from(ask, steerer, tmp_path, recommended, given, used, note):
    own = steerer if recommended is None else steerer.recommending(recommended)
    folder = own.save_pretrained(tmp_path / "s")
    code, out, err = ask("--steer", folder, *given, "--json")
    assert code == 0, err
    said = json.loads(out)
    assert said["alpha"] == used
    assert said.get("note") == note
    code, out, _ = ask("--steer", folder, *given)
    assert f"steered, alpha {used:g}" in out
    assert (note in out) if note else ("recommends" not in out)


def test_alpha_without_a_steerer_is_refused(ask, vlm):
    for form in ((), ("--json",)):
        code, out, err = ask("--alpha", "0.5", *form)
        assert (code, out) == (2, "")
        assert err == "ggss: --alpha 0.5 is the strength of a steerer: give --steer, or leave out --alpha\n"
    assert vlm.asked == []
