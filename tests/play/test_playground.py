"""What the playground does, without its page: answers, bars, heat, variants, uploads."""

import io
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ggss
from conftest import noise
from ggss.errors import InputError
from ggss.play import LARGEST, Playground, laid_out, overlaid
from ggss.play import page as page
from ggss.probes import suites


def png(image: Image.Image) -> bytes:
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


@pytest.fixture(scope="module")
def world():
    return ggss.load_vlm("small-world/qwen3-vl")


@pytest.fixture(scope="module")
def faces():
    return ggss.Counterfactuals.load(
        "small-world", include={"occupation": "cook", "identity": ["00", "01", "02", "03"]}
    )


@pytest.fixture(scope="module")
def playground(world, faces, tmp_path_factory):
    acts = ggss.collect(world, faces, cache=tmp_path_factory.mktemp("cache"), show=False)
    return Playground(world, {"race": ggss.fit("ggss", acts, attribute="race")}, faces)


@pytest.fixture(scope="module")
def asked():
    """A question of the suite, with its options."""
    item = suites.load("small-world").items("mcq")[0]
    return item.prompt, list(item.options)


def last(answers):
    return list(answers)[-1]


def test_the_answers_are_those_of_the_attached_model(playground, world, faces, asked):
    question, options = asked
    picture = faces.pictures[0]
    shown = last(playground.ask(question, [picture], ["race"], 1.0, options, 1))
    assert shown.unsteered.answer == world.answer([question], [[picture.image()]], 1)[0]
    with playground.steerers["race"].attach(world, 1.0):
        live = world.read([question], [[picture.image()]], [options], 1)[0]
    assert shown.steered.answer == live.text
    # The features were encoded in another batch than the live picture: the last digits may differ.
    assert np.allclose(list(shown.steered.bars.values()), live.probabilities, atol=1e-4)
    assert list(shown.steered.bars) == options
    assert sum(shown.unsteered.bars.values()) == pytest.approx(1, abs=1e-5)


def test_the_unsteered_answer_comes_first_and_strength_0_changes_nothing(playground, faces, asked):
    question, options = asked
    first, both = playground.ask(question, [faces.pictures[3]], ["race"], 0.0, options, 1)
    assert first.steered is None
    assert both.unsteered == first.unsteered
    assert both.steered.answer == both.unsteered.answer
    assert np.allclose(list(both.steered.bars.values()), list(both.unsteered.bars.values()), atol=1e-6)
    assert len(list(playground.ask(question, [faces.pictures[3]], [], 1.0, options, 1))) == 1


def test_the_strength_moves_the_answer_and_the_picture_is_encoded_once(playground, world, faces, asked, monkeypatch):
    question, options = asked
    seen = [last(playground.ask(question, [faces.pictures[5]], ["race"], 0.0, options, 1)).steered.bars]
    monkeypatch.setattr(world, "encode", lambda images, **_: [pytest.fail("encoded again") for _ in images])
    others = [last(playground.ask(question, [faces.pictures[5]], ["race"], a, options, 1)) for a in (0.5, 1.0, 1.5)]
    seen += [shown.steered.bars for shown in others]
    moved = [max(abs(own[option] - seen[0][option]) for option in options) for own in seen[1:]]
    assert min(moved) > 1e-4


def test_variants_are_the_versions_of_one_person(playground, faces, asked):
    row = playground.variants(faces.pictures[0], "race", asked[0], ["race"], 1.0, 1)
    assert [one.label for one in row] == list(faces.values("race"))
    group = next(own for own in faces.groups("race").values() if 0 in own.values())
    for one in row:
        picture = faces.pictures[group[one.label]]
        shown = last(playground.ask(asked[0], [picture], ["race"], 1.0, (), 1))
        assert (one.unsteered, one.steered) == (shown.unsteered.answer, shown.steered.answer)
    with pytest.raises(InputError, match="an upload has no versions"):
        playground.variants(playground.upload(png(noise(0))), "race", asked[0])


def test_heat_is_bright_where_the_gate_is_open():
    gate = np.zeros((4, 4))
    gate[0, 0] = 1.0
    shown = np.asarray(overlaid(Image.new("RGB", (64, 64)), gate), dtype=float).sum(-1)
    assert shown[:12, :12].mean() > 2 * shown[32:, 32:].mean()


def test_heat_of_a_picture(playground, faces):
    shown = playground.heat(faces.pictures[0], "race")
    assert shown.size == faces.pictures[0].image().size
    assert np.asarray(shown).std() > 0


def test_a_gate_is_laid_out_as_the_picture_is():
    assert laid_out(np.arange(12), (40, 30)).shape == (3, 4)
    assert laid_out(np.arange(12), (30, 40)).tolist()[0] == [0, 1, 2]
    assert laid_out(np.arange(20), (30, 30), overview=16).tolist()[3] == [12, 13, 14, 15]
    with pytest.raises(InputError, match="7 tokens make no grid"):
        laid_out(np.arange(7), (64, 64))


def test_an_upload_is_checked_and_never_written(playground, tmp_path, asked):
    picture = playground.upload(png(noise(1)))
    assert last(playground.ask(asked[0], [picture], ["race"], 1.0, (), 1)).steered is not None
    for data, said in {
        b"no picture": "no known image format",
        png(noise(2))[:200]: "does not decode",
        b"\0" * (LARGEST + 1): "at most 20 are read",
    }.items():
        with pytest.raises(InputError, match=said):
            playground.upload(data)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((" ", 1, [], 1.0), "there is no question"),
        (("who ?", 0, [], 1.0), "about one or 2 pictures, seen 0"),
        (("who ?", 3, [], 1.0), "seen 3"),
        (("who ?", 1, ["rase"], 1.0), "did you mean 'race'?"),
        (("who ?", 1, ["race"], 1.6), "alpha must be from 0 to 1.5"),
        (("who ?", 1, ["race"], -0.1), "alpha must be from 0 to 1.5"),
    ],
)
def test_bad_input_is_a_sentence(playground, faces, arguments, said):
    question, count, names, alpha = arguments
    with pytest.raises(InputError) as caught:
        list(playground.ask(question, faces.pictures[:count], names, alpha))
    assert said in str(caught.value)


def test_a_steerer_of_another_model_is_refused(playground):
    other = ggss.load_vlm("small-world/pixtral")
    with pytest.raises(InputError):
        Playground(other, playground.steerers)


def test_an_unverified_steerer_is_named_once_unless_any_model_is_allowed(playground, faces, caplog):
    unverified = {"race": replace(playground.steerers["race"], source={})}
    for force, times in ((False, 1), (True, 0)):
        caplog.clear()
        opened = Playground(playground.vlm, unverified, faces, force)
        list(opened.ask("who ?", faces.pictures[:1], ["race"], 1.0))
        assert caplog.text.count("does not record which model it was made for") == times


def test_without_gradio_the_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(InputError, match=r"pip install 'ggss\[ui\]'"):
        page.gradio()


def test_nothing_but_the_page_imports_gradio():
    root = Path(ggss.__file__).parent
    wanted = re.compile(r"^\s*(import gradio|from gradio)", re.MULTILINE)
    named = [path.name for path in root.rglob("*.py") if wanted.search(path.read_text(encoding="utf-8"))]
    assert named == ["page.py"]
