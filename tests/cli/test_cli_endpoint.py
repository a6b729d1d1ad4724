# ruff: noqa: F811 (fixtures of another file)
"""`ggss probe --endpoint` as a user runs it: the run files of `ggss probe`, resumed, compared, and one sentence."""

import json
import re

import pytest

from fake_server import completion, refusal, serving
from ggss.analysis import records
from ggss.analysis.records import part_path
from ggss.probes.endpoint import KEY, NOT_KNOWN
from test_cli import model, own_cache, run  # noqa: F401 (fixtures)
from test_cli_probe import QUICK, manifest  # noqa: F401 (fixtures)

SECRET = "a-key-that-nobody-may-see"


@pytest.fixture(autouse=True)
def directly(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv(KEY, SECRET)


def reply(body, number=0):
    """Always A, and each letter is likelier than the next."""
    return completion("A", {letter: -1.0 - place for place, letter in enumerate("ABCDEF")})


def probe(run, server, manifest, *more):
    return run("probe", "--endpoint", server.url, "--model", "vlm", "--images", manifest, *QUICK, *more)


def test_a_served_model_is_asked_the_same_and_writes_the_same_file(run, model, manifest, tmp_path):
    local, served = tmp_path / "local.jsonl", tmp_path / "served.jsonl"
    assert run("probe", model, "--images", manifest, *QUICK, "-o", local)[0] == 0
    with serving(reply) as server:
        code, out, err = probe(run, server, manifest, "-o", served)
    assert code == 0, err
    assert f"vlm at {server.url}, as it is served" in out
    assert set(server.keys) == {f"Bearer {SECRET}"}
    first, second = records.load(local), records.load(served)
    assert list(first) == list(second)
    lines = [json.loads(file.read_text().splitlines()[0]) for file in (local, served)]
    assert list(lines[0]) == list(lines[1])
    for task, asked in first.items():
        assert [item.prompt for item in asked.items] == [item.prompt for item in second[task].items]
        assert [item.key for item in asked.items] == [item.key for item in second[task].items]
        assert asked.source.suite_hash == second[task].source.suite_hash
    source = second["mcq"].source
    assert source.identity["endpoint"] == server.url
    assert {source.identity[name] for name in NOT_KNOWN} == {"not known"}
    answers = zip(second["mcq"].items, second["mcq"].answers, strict=True)
    (answer,) = {own for item, own in answers if len(item.options) == 4}
    assert answer == ("A", (0.643914, 0.236883, 0.087144, 0.032059)), "rounded as local ones are"
    assert len(server.asked) == sum(len(one.items) for one in second.values())
    assert SECRET not in served.read_text() + out + err

    code, out, err = run("compare", local, served)
    assert code == 0, err
    assert "They differ" not in out
    unchecked = "Not checked: that both runs are of one model apart from its steering: the second was asked at"
    assert f"{unchecked} {server.url}" in " ".join(out.split())
    for command in ("compare", "gate"):
        _, out, _ = run(command, served, served, "--json")
        first_side, second_side = json.loads(out)["unchecked"]
        assert ("the first was asked" in first_side, "the second was asked" in second_side) == (True, True)
        assert json.loads(run(command, local, local, "--json")[1])["unchecked"] == []


def test_the_options_of_a_served_model(run, manifest):
    with serving(reply) as server:
        code, out, err = probe(
            run,
            server,
            manifest,
            "--request",
            '{"ggss": {"race": 0}}',
            "--concurrency",
            "2",
            "--timeout",
            "5",
            "--json",
        )
    assert code == 0, err
    told = json.loads(out)
    assert (told["model"], told["endpoint"], told["steerer"]) == ("vlm", server.url, None)
    assert {json.dumps(body["ggss"]) for body in server.asked} == {'{"race": 0}'}
    assert {body["max_tokens"] for body in server.asked} == {1}


def test_what_was_answered_is_kept_and_only_the_rest_is_asked(run, manifest, tmp_path):
    file, whole = tmp_path / "run.jsonl", tmp_path / "whole.jsonl"
    few = ("--concurrency", "1", "--batch-size", "8")
    with serving(reply) as server:
        assert probe(run, server, manifest, *few, "-o", whole)[0] == 0
        total = len(server.asked)
        server.asked.clear()
        server.reply = lambda body, number: reply(body) if number < 20 else refusal(400, "enough")
        code, out, err = probe(run, server, manifest, *few, "-o", file)
        assert (code, out) == (2, "")
        assert f"(16 of {total} answers are kept, and the same command goes on from there)" in err
        assert part_path(file).read_bytes().count(b"\n") == 16
        assert not file.exists()
        server.asked.clear()
        server.reply = reply
        code, out, err = probe(run, server, manifest, *few, "-o", file)
        assert code == 0, err
        assert f"16 of {total} answers are there already" in err
        assert len(server.asked) == total - 16
        assert file.read_bytes() == whole.read_bytes()
        refused = {
            "model: vlm and other": ("--model", "other"),
            "the model's request: not known and": ("--request", '{"seed": 1}'),
        }
        for told, more in refused.items():
            code, _, err = probe(run, server, manifest, *more, "-o", file)
            assert code == 2
            assert told in err


def bad_calls(server, manifest):
    url = ("probe", "--endpoint", server.url)
    asked = (*url, "--model", "vlm", "--images", manifest)
    return {
        "give --model NAME": url,
        "give --model org/model": (*url, "org/model"),
        "--model is for a served model: give --endpoint URL": ("probe", "org/model", "--model", "vlm"),
        "--timeout is for a served model": ("probe", "org/model", "--timeout", "5"),
        "--steer is for a model that is loaded here.*set where it is served": (*asked, "--steer", "steerer"),
        "--alpha is for a model that is loaded here": (*asked, "--alpha", "1"),
        "--dtype is for a model that is loaded here": (*asked, "--dtype", "float16"),
        "--trust-remote-code is for a model": (*asked, "--trust-remote-code"),
        "--request 'seed' is not JSON": (*asked, "--request", "seed"),
        "--request '1' is no JSON object": (*asked, "--request", "1"),
        "'model' is set by ggss": (*asked, "--request", '{"model": "other"}'),
        "is no address of a server": ("probe", "--endpoint", "localhost", *asked[3:]),
        "give --images": asked[:-2],
        "cannot ask mcqq": (*asked, "--tasks", "mcqq"),
    }


def test_a_wrong_call_is_one_sentence_and_asks_nothing(run, manifest):
    with serving(reply) as server:
        for message, arguments in bad_calls(server, manifest).items():
            code, out, err = run(*arguments)
            assert (code, out) == (2, ""), (arguments, err)
            assert re.search(message, err), (message, err)
    assert server.asked == []


def test_a_server_that_is_not_there_or_wants_a_key_is_one_sentence(run, manifest, monkeypatch, tmp_path):
    with serving(reply, models=refusal(401, "who are you")) as server:
        code, out, err = probe(run, server, manifest, "-o", tmp_path / "run.jsonl")
        assert (code, out) == (2, "")
        assert f"refuses the key in {KEY} (401)" in err
        monkeypatch.delenv(KEY)
        assert f"wants a key, and {KEY} is not set (401)" in probe(run, server, manifest)[2]
    code, out, err = probe(run, server, manifest)
    assert (code, out) == (2, "")
    assert "cannot be reached (Connection refused)" in err
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_help_teaches_it(run):
    _, out, _ = run("probe", "--help")
    assert "ggss probe --endpoint http://localhost:8000/v1 --model my-vlm" in " ".join(out.split())
    assert KEY in out
