"""`ggss play`: the commands of its box "Measure this properly" give what the page shows."""

import shlex
import sys

import pytest

import ggss
from ggss import cli
from ggss.analysis import records
from ggss.cli.play import MeasuringCommands, fitted_steerers
from ggss.play import Playground, RowQuestion, own_question, row_questions
from ggss.probes import suites
from ggss.smallworld import demo


@pytest.fixture(scope="module")
def suite():
    return suites.load("small-world")


@pytest.fixture(scope="module")
def question(suite):
    return row_questions(suite)[0]


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["ggss", *arguments])
    cli.main()


def test_the_commands_measure_what_is_shown(suite, question, tmp_path, monkeypatch):
    """The steerer is the same, and each answer about each version of a person is."""
    monkeypatch.setenv("GGSS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "HELD_OUT", {"race": ("ceo", "doctor", "lawyer", "nurse")})
    monkeypatch.chdir(tmp_path)
    vlm = ggss.load_vlm("small-world/qwen3-vl")
    playground = Playground(vlm, fitted_steerers(vlm), [question])
    lines = MeasuringCommands("small-world/qwen3-vl", suite, fitted=True)(question, ["race"], 0.75).splitlines()
    assert lines[-1] == "ggss compare before.jsonl after.jsonl"
    for line in lines:
        words = shlex.split(line)[1:]
        run(monkeypatch, *words, *(["--limit", "10"] if words[0] == "probe" else []))
    own = own_question("is this person nurse or doctor ?", "nurse, doctor", question.rows[0][0].images)
    text = MeasuringCommands("small-world/qwen3-vl", suite)(question, [], 0.75, own)
    head, _, written = text.partition("\n")
    written, _, line = written.partition("END\n")
    assert head == "cat > questions.yaml <<'END'"
    (tmp_path / "questions.yaml").write_text(written, encoding="utf-8")
    run(monkeypatch, *shlex.split(line.replace("before", "own"))[1:], "--limit", "10")
    measured = records.load(tmp_path / "own.jsonl")["divergence-own"]
    assert {(item.prompt, *item.options, item.about) for item in measured.items} == {
        (own.prompt, "nurse", "doctor", "race")
    }
    assert ggss.Steerer.from_pretrained("race-steerer").content_hash == playground.steerers["race"].content_hash
    runs = {when: records.load(tmp_path / f"{when}.jsonl")["mcq"] for when in ("before", "after")}
    answers = {
        when: dict(zip((item.key for item in run.items), run.answers, strict=True)) for when, run in runs.items()
    }
    rows = [row for row in question.rows if row[0].key in answers["before"]]
    assert rows
    for items in rows:
        row = list(playground.ask(items, ["race"], 0.75, "mcq", 1))[-1]
        for item, version in zip(items, row.versions, strict=True):
            for when, reply in (("before", version.before), ("after", version.after)):
                measured = answers[when][item.key]
                assert reply.text == measured.text
                assert list(reply.probabilities.values()) == pytest.approx(measured.probabilities, abs=1e-4)


def test_the_commands_repeat_what_was_given(suite, question):
    options = {"--images": "my faces.csv", "--max-new-tokens": 4, "--dtype": "bfloat16", "--trust-remote-code": True}
    options |= {"--device-map": None}
    commands = MeasuringCommands("org/model", suite, options, any_model=True)
    given = "--images 'my faces.csv' --max-new-tokens 4 --dtype bfloat16 --trust-remote-code"
    probe = f"ggss probe org/model --tasks mcq,recognition-race,smallstar {given}"
    assert commands(question, ["a/steerer"], 0.8).splitlines() == [
        f"{probe} -o before.jsonl",
        f"{probe} --steer a/steerer --alpha 0.8 --any-model -o after.jsonl",
        "ggss compare before.jsonl after.jsonl",
    ]
    assert commands(question, [], 0.8).splitlines() == [f"{probe} -o before.jsonl"]


def test_two_steerers_are_measured_one_after_the_other(suite, question):
    commands = MeasuringCommands("small-world/pixtral", suite, fitted=True)
    lines = [shlex.split(line) for line in commands(question, ["race", "gender"], 1.0).splitlines()]
    assert [words[1] for words in lines] == ["discover", "discover", "probe", "probe", "compare", "probe", "compare"]
    written = [words[words.index("-o") + 1] for words in lines if "-o" in words]
    assert len(set(written)) == len(written)
    assert [words[-1] for words in lines if words[1] == "compare"] == [
        words[-1] for words in lines if "--steer" in words
    ]
    discoveries = [words for words in lines if words[1] == "discover"]
    assert [words[words.index("--exclude") + 1] for words in discoveries] == [
        "occupation=ceo",
        "occupation=ceo,doctor,nurse",
    ]


def test_a_task_of_another_attribute_is_measured_with_its_own_recognition(suite):
    question = RowQuestion("nurse-doctor", "nurse-doctor", "gender", ())
    line = MeasuringCommands("small-world/pixtral", suite)(question, [], 1.0)
    assert "--tasks nurse-doctor,recognition-gender,smallstar " in line


def test_an_own_question_is_measured_or_the_box_says_why_not(suite, question):
    commands, pictures = MeasuringCommands("org/model", suite), [item.images[0] for item in question.rows[0]]
    pair = commands(question, [], 1.0, own_question("who earns more ?", "first, second", pictures[:2]))
    assert "metric: win-rate" in pair
    assert "--tasks win-rate-own,recognition-race,smallstar --questions questions.yaml" in pair
    for options, said in (("", "give the question some"), ("a=low, b=high", "it does not say what a, b stand for")):
        text = commands(question, ["race"], 1.0, own_question("how much ?", options, pictures[:1]))
        assert text.startswith("# ")
        assert said in text
        assert "ggss" not in text


def test_without_pictures_the_box_says_what_to_give():
    assert "--images MANIFEST" in MeasuringCommands("org/model", None)(None, ["a"], 1.0)
