"""What a request may be: pictures in data URLs, fields, strengths, limits. No model is needed."""

import base64
import dataclasses
import io
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from pydantic import ValidationError

from conftest import noise
from ggss.errors import InputError
from ggss.serve.app import bound
from ggss.serve.guard import ApiKeys
from ggss.serve.schema import (
    ChatBody,
    ChatJob,
    Limits,
    Refusal,
    ServedSteerer,
    SteeringRules,
    applied_header,
    picture_bytes,
    read_job,
)

STEERERS = {
    "race": ServedSteerer("there", "ggss", "race", 1.0, "0"),
    "gender": ServedSteerer("here", "ggss", "gender", 0.5, "1"),
}


def png(image: Image.Image) -> bytes:
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


PNG = png(noise(0))


def image(data: bytes = PNG) -> dict:
    return {"type": "image_url", "image_url": {"url": url(data)}}


def job(
    content: object = "who ?", rules: SteeringRules | None = None, limits: Limits | None = None, **fields
) -> ChatJob:
    messages = fields.pop("messages", [{"role": "user", "content": content}])
    body = ChatBody.model_validate({"model": "m", "messages": messages, **fields})
    return read_job(body, rules or SteeringRules(), STEERERS, limits or Limits())


def refused(status: int = 400, **asked) -> str:
    with pytest.raises(Refusal) as caught:
        job(**asked)
    assert caught.value.status == status
    assert caught.value.body["error"]["message"] == caught.value.sentence
    return caught.value.sentence


def test_text_and_pictures_keep_their_places_over_several_turns():
    other = png(noise(1))
    messages = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "first"}, image(), image(other)]},
        {"role": "assistant", "content": "a cook", "refusal": None},
        {"role": "user", "content": [image(), {"type": "text", "text": "and this ?"}]},
    ]
    read = job(messages=messages)
    assert read.turns == [
        ("system", ["be short"]),
        ("user", ["first", None, None]),
        ("assistant", ["a cook"]),
        ("user", [None, "and this ?"]),
    ]
    assert read.pictures == [PNG, other, PNG]


def test_the_fields_of_clients_are_read():
    read = job(
        [image()],
        n=2,
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        stop="end",
        logprobs=True,
        top_logprobs=2,
        stream=True,
        user="me",
        frequency_penalty=0.0,
        tools=[],
        response_format={"type": "text"},
        logit_bias=None,
    )
    assert (read.choices, read.most_tokens, read.temperature, read.top_p, read.seed) == (2, 7, 0.5, 0.9, 3)
    assert (read.stop, read.top_logprobs, read.stream) == (["end"], 2, True)
    plain = job("who ?")
    assert (plain.choices, plain.most_tokens, plain.temperature, plain.seed) == (1, None, 0.0, None)
    assert (plain.stop, plain.top_logprobs, plain.stream) == ([], None, False)
    assert job("who ?", max_completion_tokens=4, max_tokens=9).most_tokens == 4


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": [{"type": "function"}]}, "tools is not supported"),
        ({"frequency_penalty": 0.5}, "frequency_penalty is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
        ({"gsss": {"race": 1.0}}, "unknown field 'gsss': did you mean 'ggss'?"),
        ({"max_tokens": 513}, "at most 512 on this server, seen 513"),
        ({"n": 17}, "n must be at most 16"),
        ({"top_logprobs": 2}, "needs logprobs=true"),
        ({"content": "\ud800"}, "no Unicode text"),
        ({"messages": [{"role": "assistant", "content": [image()]}]}, "only the user may send images"),
    ],
)
def test_what_would_be_left_out_is_refused(fields, said):
    assert said in refused(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": "0.5"},
        {"temperature": float("nan")},
        {"temperature": 3},
        {"n": 0},
        {"n": True},
        {"messages": []},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        {"ggss": {"race": "1"}},
        {"ggss": {"race": float("inf")}},
        {"ggss": [1]},
        {"seed": 2**63},
    ],
)
def test_a_field_of_the_wrong_kind_is_invalid(fields):
    with pytest.raises(ValidationError):
        job(**fields)


# pictures


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1/a.png", "https://example.org/a.png", "file:///etc/passwd", "ftp://x/y", "//x/y", "", "a.png"],
)
def test_no_address_is_opened(address, monkeypatch):
    import socket

    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("a connection was opened"))
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("a file was opened"))
    with pytest.raises(Refusal) as caught:
        picture_bytes(address, Limits(), "p")
    assert "this server opens no addresses" in caught.value.sentence


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (url(PNG, "text/html"), "begins with `data:image/"),
        ("data:image/png," + "x" * 9, "begins with `data:image/"),
        ("data:image/png;base64", "begins with `data:image/"),
        ("data:image/png;base64,@@@@", "not base64"),
        (url(b"no picture"), "no known image format"),
        (url(PNG[:60]), "does not decode"),
    ],
)
def test_a_broken_picture_is_refused(address, said):
    with pytest.raises(Refusal) as caught:
        picture_bytes(address, Limits(), "p")
    assert said in caught.value.sentence


def test_limits_of_pictures():
    assert picture_bytes(url(PNG), Limits(picture=len(PNG), pixels=64 * 64), "p") == PNG
    for limits, said in {
        Limits(picture=len(PNG) - 1): f"{len(PNG):,} bytes",
        Limits(picture=100): "at most 100",
        Limits(pixels=64 * 64 - 1): "64 x 64 pixels",
    }.items():
        with pytest.raises(Refusal) as caught:
            picture_bytes(url(PNG), limits, "p")
        assert said in caught.value.sentence
    assert len(job([image()] * 2, limits=Limits(pictures=2)).pictures) == 2
    assert "at most 2 images" in refused(content=[image()] * 3, limits=Limits(pictures=2))


def test_a_decompression_bomb_is_refused_from_its_header(monkeypatch):
    bomb = png(Image.new("1", (9000, 9000)))
    assert len(bomb) < 20_000
    monkeypatch.setattr(Image.Image, "load", lambda *_: pytest.fail("pixels were decoded"))
    with pytest.raises(Refusal) as caught:
        picture_bytes(url(bomb), Limits(), "p")
    assert "9000 x 9000 pixels" in caught.value.sentence


# strengths


def test_strengths_are_the_servers_or_the_requests():
    assert job([image()]).strengths == {"race": 1.0, "gender": 0.5}
    assert job([image()], SteeringRules({"gender": 0.25})).strengths == {"race": 1.0, "gender": 0.25}
    assert job([image()], ggss={"race": 0.75}).strengths == {"race": 0.75, "gender": 0.5}
    assert job([image()], ggss={"race": 0}).strengths == {"race": 0, "gender": 0.5}
    assert job("no image").strengths == {}
    assert job("no image", ggss={"race": 0}).strengths == {}
    assert applied_header({"race": 0.75, "gender": 1.0}) == "race=0.75, gender=1"
    assert applied_header({}) == "none"


def test_strengths_that_are_refused():
    assert "did you mean 'race'?" in refused(content=[image()], ggss={"rase": 1.0})
    assert "from -1,000 to 1,000, seen 1000000.0" in refused(content=[image()], ggss={"race": 1e6})
    assert "--allow-negative" in refused(content=[image()], ggss={"race": -0.5})
    assert "may be at most 1.5 on this server (--max-alpha), seen 5" in refused(content=[image()], ggss={"race": 5})
    assert "has no image" in refused(content="who ?", ggss={"race": 0.5})
    assert job([image()], SteeringRules(allow_negative=True), ggss={"race": -0.5}).strengths["race"] == -0.5


def test_the_largest_strength_is_the_servers():
    assert job([image()], ggss={"race": 1.5}).strengths["race"] == 1.5
    rules = SteeringRules({"race": 2.0}, allow_negative=True, max_alpha=1.0)
    assert "at most 1 on" in refused(content=[image()], rules=rules, ggss={"gender": 1.01})
    assert "at most 1 on" in refused(content=[image()], rules=rules, ggss={"gender": -1.01})
    assert job([image()], rules, ggss={"race": 2.0}).strengths["race"] == 2.0, (
        "what the server itself uses is allowed"
    )
    assert "at most 2 on" in refused(content=[image()], rules=rules, ggss={"race": 2.01})


def test_a_locked_strength_can_be_raised_and_not_lowered():
    rules = SteeringRules({"race": 0.8}, locked=True, allow_negative=True)
    for alpha in (0.0, 0.79, -1.0):
        assert "is locked: at least 0.8" in refused(403, content=[image()], rules=rules, ggss={"race": alpha})
    assert job([image()], rules, ggss={"race": 0.8}).strengths["race"] == 0.8
    assert job([image()], rules, ggss={"race": 1.2}).strengths["race"] == 1.2
    assert job([image()], replace(rules, locked=False), ggss={"race": 0.0}).strengths["race"] == 0.0


# keys, and addresses


def test_keys(tmp_path, monkeypatch):
    file = tmp_path / "keys"
    file.write_text("# ours\n0123456789abcdef\n\nanother-key-of-ours\n")
    monkeypatch.setenv("K", "key-from-environment")
    keys = ApiKeys.read(str(file), "K")
    for key in ("0123456789abcdef", "another-key-of-ours", "key-from-environment"):
        assert keys.match(f"Bearer {key}")
        assert keys.match(f"bearer {key}")
        assert not keys.match(key)
        assert not keys.match(f"Basic {key}")
        assert not keys.match(f"Bearer {key}x")
        assert key not in repr(vars(keys))
    assert not keys.match("")
    assert not keys.match("Bearer ")
    assert not keys.match("Bearer # ours")
    assert not ApiKeys([]).match("Bearer ")
    file.write_text("# none\n")
    with pytest.raises(InputError, match="has no key"):
        ApiKeys.read(str(file), "K")
    with pytest.raises(InputError, match="at least 16"):
        ApiKeys(["short"])


def test_every_key_is_compared_in_constant_time(monkeypatch):
    """All of them, even after one matched, and never with ==."""
    import hmac

    seen = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: seen.append((a, b)) or a == b)
    assert ApiKeys(["0123456789abcdef", "another-key-of-ours"]).match("Bearer 0123456789abcdef")
    assert len(seen) == 2
    assert {len(one) for pair in seen for one in pair} == {32}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_without_keys_nobody_else_can_reach_it(host):
    with pytest.raises(InputError, match=re.escape(f"others can reach {host}, and there is no key")):
        bound(host, 0, ApiKeys([]))


def test_a_taken_port_is_a_sentence():
    with bound("127.0.0.1", 0, ApiKeys([])) as here, bound("localhost", 0, ApiKeys([])):
        here.listen()
        with pytest.raises(InputError, match="give another --port"):
            bound("127.0.0.1", here.getsockname()[1], ApiKeys([]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "vlm"], "no engine 'vlm' in this version: did you mean 'vllm'"),
        (["--engine", "vllm"], "this needs vLLM: pip install 'ggss[vllm]'"),
        (["--alpha", "race=1"], "--alpha race=1 is for no steerer of --steer"),
        (["--steer", "race=x", "--alpha", "race=much"], "--alpha race=much is not a number"),
        (["--steer", "race=x", "--alpha", "race=-1"], "needs --allow-negative"),
        (["--steer", "race=x", "--alpha", "race=nan"], "must be from -1,000 to 1,000"),
        (["--steer", "a b=x"], "letters, digits, dots"),
        (["--steer", "race"], "--steer 'race' is not NAME=VALUE"),
        (["--host", "0.0.0.0"], "others can reach 0.0.0.0, and there is no key"),
        (["--keys-file", "none"], "the file of keys 'none' does not exist"),
        (["--timeout", "0"], "--timeout"),
        (["--idle-timeout", "0"], "--idle-timeout"),
        (["--max-alpha", "-1"], "--max-alpha"),
        (["--metrics-key-file", "none"], "the file of keys 'none' does not exist"),
        (["--api-key", "a-key-on-the-line"], "write it into a file and give --keys-file FILE"),
    ],
)
def test_wrong_options_are_a_sentence(options, said, monkeypatch, capsys):
    from ggss import cli

    for name in ("GGSS_SERVE_KEYS", "GGSS_SERVE_ADMIN_KEY", "GGSS_METRICS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["ggss", "serve", "small-world/llava-vicuna", *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert "a-key-on-the-line" not in err


def test_every_option_reaches_the_server(tmp_path, monkeypatch):
    from ggss import cli

    for name in ("keys", "admin", "metrics"):
        (tmp_path / name).write_text(f"the-key-in-the-file-{name}\n")
    numbers = {
        **{"--max-body-mb": 2, "--max-picture-mb": 3, "--max-megapixels": 4, "--max-pictures": 5, "--max-tokens": 6},
        **{"--max-prompt-tokens": 7, "--max-batch": 8, "--max-queue": 9, "--timeout": 10, "--cache-mb": 11},
        **{"--max-connections": 12, "--max-per-address": 13, "--idle-timeout": 14, "--max-side": 64},
    }
    words = [f"{name}={value}" for name, value in numbers.items()]
    words += ["--steer=race=a", "--steer=gender=b", "--alpha=race=0.5", "--locked", "--allow-negative", "--any-model"]
    words += ["--max-alpha=0.75", "--port=0", f"--log={tmp_path / 'log.jsonl'}", "--dtype=float32"]
    options = {"--keys-file": "keys", "--admin-key-file": "admin", "--metrics-key-file": "metrics"}
    words += [f"{option}={tmp_path / file}" for option, file in options.items()]
    started = []
    monkeypatch.setattr("ggss.serve.app.run", lambda *arguments: started.append(arguments) or True)
    monkeypatch.setattr(sys, "argv", ["ggss", "serve", "small-world/llava-vicuna", *words])
    cli.main()
    ((setup, settings, listener, _, engine),) = started
    listener.close()
    settings.requests.close()
    mb = 10**6
    expected = (2 * mb, 3 * mb, 4 * mb, 5, 6, 7, 8, 9, 10.0, 11 * mb, 12, 13, 14.0)
    assert dataclasses.astuple(settings.limits) == expected
    assert settings.rules == SteeringRules({"race": 0.5}, locked=True, allow_negative=True, max_alpha=0.75)
    keys = {"keys": settings.keys, "admin": settings.admin, "metrics": settings.metrics_key}
    for name, accepted in keys.items():
        matches = [other for other in keys if accepted.match(f"Bearer the-key-in-the-file-{other}")]
        assert matches == [name]
    assert (tmp_path / "log.jsonl").exists()
    assert (setup.model, setup.steerers, engine) == (settings.model, {"race": "a", "gender": "b"}, "transformers")
    assert (setup.most_rows, setup.most_tokens, setup.prompt_tokens, setup.most_pictures) == (8, 6, 7, 5)
    assert (setup.cache_bytes, setup.max_side, setup.any_model, setup.dtype) == (11 * mb, 64, True, "float32")


def test_the_servers_process_never_imports_torch():
    code = "import sys; import ggss.serve.app, ggss.cli.serve; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_only_the_connection_to_our_own_worker_is_unpickled():
    """multiprocessing is used for pipes alone, which no address leads to."""
    import ggss.serve

    sources = {file.name: file.read_text() for file in Path(ggss.serve.__file__).parent.glob("*.py")}
    words = re.compile(r"^\s*(?:import|from) .*\b(?:pickle|marshal|shelve|multiprocessing)\b.*$", re.MULTILINE)
    assert {name: words.findall(source) for name, source in sources.items() if words.search(source)} == {
        "engine.py": ["from multiprocessing import Pipe", "from multiprocessing.connection import Connection"]
    }
