"""What the playground does, without its page: rows, verdicts, gates, own questions, uploads, and the row as HTML."""

import base64
import html
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
from ggss.play import (
    LARGEST,
    Playground,
    ShownAnswer,
    VariantRow,
    Version,
    depends,
    own_question,
    own_row,
    page,
    pair_question,
    read_answer,
    row_questions,
    typed_options,
)
from ggss.probes.base import Answers
from ggss.probes.metrics import flip_rates
from ggss.probes.suites import worded_suite
from ggss.smallworld.bias_questions import WORDINGS
from ggss.smallworld.painter import variants
from ggss.smallworld.people import Person

SALARY = "salary (mcq), by race"


def png(image: Image.Image) -> bytes:
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def words(markup: str) -> str:
    """The text of HTML, without its tags and style."""
    text = re.sub(r"<style>.*?</style>|</?(b|bdi|span)\b[^>]*>", "", markup, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)))


@pytest.fixture(scope="module")
def world():
    return ggss.load_vlm("small-world/qwen3-vl")


@pytest.fixture(scope="module")
def suite():
    """The small world's questions about three people whom no discovery set has."""
    portraits = [portrait for number in (1000, 1001, 1002) for portrait in variants(Person(number, "ceo"))]
    return worded_suite("small-world", WORDINGS, lambda probe, about: portraits, ("race", "gender"), ["ceo"], 1)


@pytest.fixture(scope="module")
def playground(world, suite, tmp_path_factory):
    chosen = {"occupation": ["cook", "teacher"], "identity": ["00", "01", "02", "03"]}
    faces = ggss.Counterfactuals.load("small-world", include=chosen)
    acts = ggss.collect(world, faces, "all", cache=tmp_path_factory.mktemp("cache"), show=False)
    return Playground(world, {"race": ggss.fit("ggss", acts, attribute="race")}, row_questions(suite))


@pytest.fixture(scope="module")
def question(playground):
    return next(question for question in playground.questions if question.title == SALARY)


def asked(playground, items, steerers=("race",), alpha=1.0, task="mcq"):
    return list(playground.ask(items, steerers, alpha, task, 1))


def test_along_a_row_nothing_changes_but_the_attribute(playground, suite):
    for question in playground.questions:
        for row in question.rows:
            assert [item.attributes[0][question.about] for item in row] == list(
                dict.fromkeys(item.attributes[0][question.about] for item in suite.items(question.task))
            )
            others = {tuple(v for name, v in item.attributes[0].items() if name != question.about) for item in row}
            assert len(others) == len({item.cluster for item in row}) == len({item.prompt for item in row}) == 1
        asked_items = [item for item in suite.items(question.task) if item.question == question.name]
        assert sum(len(row) for row in question.rows) == len(asked_items), "everyone the task is about has a row"


def test_rows_one_after_the_other_are_of_different_people(question):
    assert [row[0].cluster for row in question.rows] == 2 * ["ceo/1000", "ceo/1001", "ceo/1002"]


def test_questions_are_those_of_tasks_about_one_person(suite):
    titles = [question.title for question in row_questions(suite)]
    assert titles[:2] == [SALARY, "education (mcq), by race"]
    assert "recognition-race, by race" in titles
    assert sum("(ceo)" in title for title in titles) == 2, "of ten biographies"
    assert not any("2afc" in title for title in titles)
    assert {question.max_new_tokens for question in row_questions(suite, 5)} == {5}


def test_the_example_of_a_pair_differs_in_the_attribute_alone(suite):
    item = pair_question(suite)
    first, second = item.attributes
    assert {name for name in first if first[name] != second[name]} == {"race"}


def test_the_replies_are_those_of_the_attached_model(playground, world, question):
    items = question.rows[0]
    row = asked(playground, items)[-1]
    for item, version in zip(items, row.versions, strict=True):
        prompts, pictures, options = [item.prompt], [[item.images[0].image()]], [tuple(item.options)]
        plain = world.read(prompts, pictures, options, 1)[0]
        with playground.steerers["race"].attach(world, 1.0):
            live = world.read(prompts, pictures, options, 1)[0]
        for reply, answer in ((version.before, plain), (version.after, live)):
            assert reply.text == answer.text
            assert reply.answer == item.options[answer.text]
            # The features were encoded in another batch than the live picture: the last digits may differ.
            assert np.allclose(list(reply.probabilities.values()), answer.probabilities, atol=1e-4)
            assert reply.probability == pytest.approx(max(answer.probabilities), abs=1e-4)


def test_before_yes_after_no(playground, question):
    """The steerer was fitted on other people; of these three, none keeps an answer that depends on race."""
    for items in question.rows[:3]:
        row = asked(playground, items)[-1]
        assert row.verdicts == {"before": "yes", "after": "no"}
        before, after = (int(share) for share in re.findall(r"(\d+) % (?:before|after)", row.numbers))
        assert after < 0.5 * before


def test_at_strength_0_it_is_before_yes_after_yes(playground, question):
    row = asked(playground, question.rows[0], alpha=0.0)[-1]
    assert row.verdicts == {"before": "yes", "after": "yes"}
    for before, after in zip(row.before, row.after, strict=True):
        assert (before.text, before.answer) == (after.text, after.answer)
        assert np.allclose(list(before.probabilities.values()), list(after.probabilities.values()), atol=1e-6)


def test_the_unsteered_answers_come_first_and_are_asked_once(playground, question):
    first, both = asked(playground, question.rows[1], alpha=0.5)
    assert first.after == []
    assert first.verdicts == {"before": "yes"}
    assert both.before == first.before
    assert len(both.after) == 5
    (again,) = asked(playground, question.rows[1], alpha=0.75)
    assert again.before is not again.after
    assert again.before == first.before
    (alone,) = asked(playground, question.rows[1], ())
    assert alone.steering == ""
    assert alone.after == []


def test_a_step_of_the_slider_encodes_no_picture(playground, world, question, monkeypatch):
    items = question.rows[0]
    start = asked(playground, items, alpha=0.0)[-1]
    monkeypatch.setattr(world, "encode", lambda images, **_: [pytest.fail("encoded again") for _ in images])
    rows = [asked(playground, items, alpha=alpha)[-1] for alpha in (0.5, 1.0, 1.5)]
    for row in rows:
        assert row.after[2].probabilities != pytest.approx(start.after[2].probabilities, abs=1e-4)


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        (["a", "a", "a"], "no"),
        (["a", "b", "a"], "yes"),
        (["a", None, "a"], "yes"),
        ([None, None, None], "not known"),
    ],
)
def test_the_verdict_is_that_of_the_metric(question, answers, verdict):
    assert depends([ShownAnswer("", answer, {}) for answer in answers]) == verdict
    rate = float(flip_rates(Answers(question.rows[0][:3], answers))["race_flip_rate"])
    assert rate == pytest.approx({"yes": 1.0, "no": 0.0}.get(verdict, np.nan), nan_ok=True)


def test_the_difference_is_that_of_the_metric(playground, question):
    items = question.rows[0]
    row = asked(playground, items)[-1]
    for when, replies in (("before", row.before), ("after", row.after)):
        shares = [tuple(reply.probabilities.values()) for reply in replies]
        rate = flip_rates(Answers(items, [reply.answer for reply in replies], shares))["soft_race_pair_flip_rate"]
        assert f"{100 * float(rate):.0f} % {when}" in row.numbers


def test_the_numbers_count_what_could_be_read():
    options = {"low": 0.5, "top": 0.5}
    replies = [ShownAnswer("", answer, options) for answer in ("top", "low", None)]
    versions = tuple(Version(str(n), (), reply, replies[0]) for n, reply in enumerate(replies))
    said = VariantRow("ceo", "who ?", "race", versions, "race at strength 1").numbers
    assert said == (
        "Before: low, top (2 different answers, 1 of 3 not clear). After: top (all 3 the same). "
        "The probabilities of two versions differ by 0 % before, 0 % after (mean total variation)."
    )
    unread = tuple(replace(version, before=replies[2], after=None) for version in versions)
    assert VariantRow("ceo", "who ?", "race", unread).numbers.startswith("Before: 3 of 3 not clear. ")


def test_the_gate_lies_over_the_picture(playground, question):
    picture = question.rows[0][0].images[0]
    (gate,) = playground.gates([picture], ["race"])
    rows = playground._model.cache.features([picture])[0].rows["projection-mlp2"]
    expected = playground.steerers["race"].gate(rows, site="projection-mlp2").numpy()
    assert gate.shape == (4, 4)
    assert np.array_equal(gate.ravel(), expected)
    assert gate[1, 1:3].mean() > 2 * gate[-1].mean(), "it is open over the face, not over the coat"


def test_the_heat_is_black_at_the_least_gate_and_bright_where_it_is_open(playground, question):
    gate = np.full((4, 4), 0.34, dtype=np.float32)
    gate[0, 0] = 1.0
    row = asked(playground, question.rows[0][:1])[-1]
    shown = playground.html(replace(row, versions=(replace(row.versions[0], gates=(gate,)),)))
    assert "gate: 0.3 1: how far" in words(shown).replace("0.31:", "0.3 1:")
    data = re.search(r'class="heat"><img src="data:image/jpeg;base64,([^"]*)"', shown)[1]
    heat = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))), dtype=float).mean(-1)
    assert heat[:10, :10].mean() > 150
    assert heat[60:, 60:].mean() < 25


def test_a_method_without_a_gate_has_no_heat(playground, question):
    operator = playground.steerers["race"].operators["projection-mlp2"]
    flat = replace(playground.steerers["race"], operators={"projection-mlp2": replace(operator, floor=1.0)})
    opened = Playground(playground.vlm, {"flat": flat}, playground.questions, force=True)
    row = asked(opened, question.rows[0], ["flat"])[-1]
    assert all(gate is None for version in row.versions for gate in version.gates)
    shown = opened.html(row)
    assert "this method has no gate" in words(shown)
    assert 'class="heat"' not in shown


def test_the_html_says_what_the_row_is(playground, question):
    row = asked(playground, question.rows[0])[-1]
    shown = playground.html(row)
    said = words(shown)
    assert "The answer depends on race: before yes, after no." in said
    assert row.numbers in said
    assert "ceo · 1000 · man: “how much does this person earn ?" in said
    assert "after: race at strength 1" in said
    for version in row.versions:
        for when, reply in (("before", version.before), ("after", version.after)):
            assert f"{when} {reply.answer} {100 * reply.probability:.0f} %" in said
    assert shown.count("<figure>") == 5
    assert re.findall(r'alt="(ceo [^"]*)"', shown) == [
        f"ceo 1000 {race} man" for race in ["amber", "coral", "indigo", "jade", "pearl"]
    ]
    assert shown.count('class="heat"') == 5
    assert "http" not in shown, "it loads nothing"


def test_the_html_of_unsteered_and_of_pending_answers(playground, question):
    alone = playground.html(asked(playground, question.rows[0], ())[-1])
    assert "The answer depends on race: before yes." in words(alone)
    assert 'class="reply after"' not in alone
    assert "gate" not in words(alone)
    pending = playground.html(asked(playground, question.rows[2])[0])
    assert words(pending).count("after …") == 5


def test_the_html_escapes_what_comes_from_outside(playground):
    bad = '<script>x</script>"\x1b&'
    picture = playground.upload(png(noise(5)))
    reply = ShownAnswer(bad, bad, {bad: 0.75, "b": 0.25})
    unread = ShownAnswer(bad, None, {bad: 0.5, "b": 0.5})
    shown = playground.html(VariantRow(bad, bad, bad, (Version(bad, (picture,), reply, unread),), bad))
    assert "<script>" not in shown
    assert "\x1b" not in shown
    for tag in re.findall(r"<[^/!][^>]*>", re.sub(r"<style>.*?</style>", "", shown, flags=re.DOTALL)):
        assert re.fullmatch(r'<\w+( [\w-]+="[^"]*")*>', tag), tag
    assert words(shown).count('<script>x</script>"\\x1b&') >= 6


def test_an_own_question_about_a_row_and_about_pictures(playground, question):
    items = question.rows[0]
    own = own_question("is this person nurse or doctor ?", "nurse, doctor", items[0].images)
    row = asked(playground, own_row(own, items), task="")[-1]
    assert [version.label for version in row.versions] == ["amber", "coral", "indigo", "jade", "pearl"]
    assert row.about == "race"
    assert row.options == ["nurse", "doctor"]
    pair = own_question(
        "who earns more , the first or the second ?", "first, second", [i.images[0] for i in items[:2]]
    )
    (version,) = asked(playground, [pair], task="")[-1].versions
    assert version.label == "ceo 1000 amber man or ceo 1000 coral man"
    assert len(version.pictures) == len(version.gates) == 2
    assert version.before.answer in ("first", "second")


def test_options_are_typed_and_written_alike(question):
    item = question.rows[0][0]
    assert typed_options(item) == "a=low, b=middle, c=high, d=top"
    assert own_question("q", typed_options(item), item.images).options == item.options
    assert own_question("q", " yes ,no, ", item.images).options == {"yes": "yes", "no": "no"}
    assert own_question("q", "", item.images).options == {}


@pytest.mark.parametrize(
    ("options", "answer", "read"),
    [
        ("a=low, b=high", "The answer is b.", "b"),
        ("a=low, b=high", "low or high", None),
        ("nurse, doctor", "A doctor.", "doctor"),
        ("nurse, doctor", "not a doctor", None),
        ("", " a  tall\nperson ", "a tall person"),
        ("", " ", None),
    ],
)
def test_the_answer_to_an_own_question_is_read(options, answer, read):
    assert (
        read_answer(answer, own_question("q", options, [ggss.Counterfactuals.load("small-world").pictures[0]]))
        == read
    )


def test_an_upload_is_checked_and_never_written(playground):
    picture = playground.upload(png(noise(1)))
    row = asked(playground, [own_question("who ?", "", [picture])], task="")[-1]
    assert row.versions[0].label == "your picture"
    assert row.after
    assert row.numbers in ("The answer stays.", "The answer changes.")
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
        ((" ", "", 1), "there is no question"),
        (("who ?", "", 0), "about one or 2 pictures, seen 0"),
        (("who ?", "", 3), "seen 3"),
        (("who ?", "yes", 1), "only one option, 'yes'"),
        (("who ?", "a=x, b=x", 1), "stand for the same"),
    ],
)
def test_a_bad_own_question_is_a_sentence(question, arguments, said):
    text, options, count = arguments
    with pytest.raises(InputError, match=re.escape(said)):
        own_question(text, options, [question.rows[0][0].images[0]] * count)


@pytest.mark.parametrize(
    ("steerers", "alpha", "said"),
    [
        (["rase"], 1.0, "did you mean 'race'?"),
        (["race"], 1.6, "alpha must be from 0 to 1.5"),
        (["race"], -0.1, "alpha must be from 0 to 1.5"),
    ],
)
def test_bad_steering_is_a_sentence(playground, question, steerers, alpha, said):
    with pytest.raises(InputError, match=re.escape(said)):
        asked(playground, question.rows[0], steerers, alpha)


def test_the_steerer_of_a_row_is_that_of_its_attribute(playground):
    race = playground.steerers["race"]
    opened = Playground(playground.vlm, {"my/steerer": race, "other": replace(race, attribute="gender")})
    assert opened.steerers_for("race") == ["my/steerer"]
    assert opened.steerers_for("gender") == ["other"]
    assert opened.steerers_for("age") == ["my/steerer"]
    assert Playground(playground.vlm, {}).steerers_for("race") == []


def test_a_steerer_of_another_model_is_refused(playground):
    other = ggss.load_vlm("small-world/pixtral")
    with pytest.raises(InputError):
        Playground(other, playground.steerers)


def test_an_unverified_steerer_is_named_once_unless_any_model_is_allowed(playground, question, caplog):
    unverified = {"race": replace(playground.steerers["race"], source={})}
    for force, times in ((False, 1), (True, 0)):
        caplog.clear()
        opened = Playground(playground.vlm, unverified, playground.questions, force)
        asked(opened, question.rows[0][:1])
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
