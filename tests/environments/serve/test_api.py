"""OpenAI's client against the server: answers, steering by request, streams, and what is refused."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from conftest import ADMIN, KEY, MODEL, asked, shown
from ggss.steering.steerer import Steerer

QUESTION = "which race is this person ?"
TIE = 1e-3  # log-probabilities nearer than this may change places in another batch


def ask(client, messages, strengths=None, **fields):
    """The response, and the header that says what was applied."""
    extra = {} if strengths is None else {"extra_body": {"ggss": strengths}}
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, **extra, **fields)
    return raw.parse(), raw.headers["x-ggss-applied"]


def text(response) -> str:
    return response.choices[0].message.content


def test_answers_and_steering_are_those_of_the_library(client, world):
    """At every strength, against the live hook on the same model in this process."""
    seen = set()
    race, gender = (Steerer.from_pretrained(world.steerers[name]) for name in ("race", "gender"))
    picture = world.faces.pictures[1].image()
    for strengths in ({"race": 0, "gender": 0}, {"race": 0.75, "gender": 0}, {"race": 1.5}, None):
        response, header = ask(
            client, asked(QUESTION, world.png(1)), strengths, logprobs=True, top_logprobs=5, max_tokens=4
        )
        used = {"race": 1.0, "gender": 1.0} | (strengths or {})
        with race.attach(world.vlm, used["race"]) as first, gender.attach(world.vlm, used["gender"]) as second:
            logits = world.vlm.logits([QUESTION], [[picture]])[0].log_softmax(0)
            answer = world.vlm.answer([QUESTION], [[picture]], 4)[0]
        assert header == ", ".join(f"{name}={alpha:g}" for name, alpha in used.items())
        top = response.choices[0].logprobs.content[0].top_logprobs
        expected = logits.topk(5)
        assert [one.logprob for one in top] == pytest.approx(expected.values.tolist(), abs=TIE)
        if expected.values[0] - expected.values[1] > TIE:
            assert text(response) == answer
        seen.add(round(top[0].logprob, 3))
        for name, run in (("race", first), ("gender", second)):
            record = response.model_extra["ggss"][name]
            assert record["alpha"] == used[name]
            acted = used[name] > 0
            assert record["tokens"] == (run.tokens / 2 if acted else 0)  # the hook saw the picture twice
            assert record["calls"] == int(acted)
            assert (record["gate_mean"] is not None) == acted
    assert len(seen) == 4, "every strength gives its own probabilities"


def test_a_stream_has_the_same_answer(client, world):
    whole, header = ask(client, asked(QUESTION, world.png(2)), {"race": 0.5}, max_tokens=6, logprobs=True)
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=asked(QUESTION, world.png(2)),
        max_tokens=6,
        logprobs=True,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ggss": {"race": 0.5}},
    )
    assert raw.headers["x-ggss-applied"] == header == "race=0.5, gender=1"
    first, *chunks, last = list(raw.parse())
    for name, record in whole.model_extra["ggss"].items():
        assert first.model_extra["ggss"][name] == pytest.approx(record, abs=TIE)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text(whole)
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.usage == whole.usage
    assert last.choices == []


def test_choices_seeds_lengths_and_stops(client, world):
    messages = asked(QUESTION, world.png(3))
    drawn = [ask(client, messages, n=6, temperature=2.0, seed=4, max_tokens=3)[0] for _ in range(2)]
    said = [[choice.message.content for choice in one.choices] for one in drawn]
    assert said[0] == said[1]
    assert len(set(said[0])) > 1, "six seeds, one answer"
    short = ask(client, messages, max_tokens=1)[0]
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 1)
    word = text(short)
    cut = ask(client, messages, stop=[word[1:]], max_tokens=1)[0]
    assert (text(cut), cut.choices[0].finish_reason) == (word[:1], "stop")


def test_several_pictures_and_turns(client, world):
    one, two = world.png(4), world.png(5)
    turns = [
        *asked("which race is this person ?", one),
        {"role": "assistant", "content": "jade"},
        {"role": "user", "content": [*shown(two, one), {"type": "text", "text": "who earns more ?"}]},
    ]
    response, _ = ask(client, turns, {"race": 1.0, "gender": 0}, max_tokens=2)
    single, _ = ask(client, asked("who ?", one), {"race": 1.0}, max_tokens=2)
    assert response.model_extra["ggss"]["race"]["tokens"] == 3 * single.model_extra["ggss"]["race"]["tokens"]
    plain, header = ask(client, [{"role": "user", "content": "who earns more ?"}], max_tokens=2)
    assert header == "none"
    assert plain.model_extra["ggss"] == {}
    assert text(plain) == world.vlm.answer(["who earns more ?"], [[]], 2)[0]


def test_mixed_requests_at_the_same_time_are_each_alone(client, server, world):
    """Two steerers, six strengths, eight pictures, streamed and not: what each gets is what it gets alone."""
    strengths = [
        {},
        {"race": 0.0},
        {"race": 0.5},
        {"race": 1.5, "gender": 0.0},
        {"gender": 0.25},
        {"race": 0.0, "gender": 0.0},
    ]
    pictures = [world.png(number) for number in range(8)]
    asks = [
        (strengths[n % 6], pictures[n % 8], "which race is this person ?" + " please" * (n % 3)) for n in range(48)
    ]

    def one(request):
        own, picture, question = request
        response, header = ask(client, asked(question, picture), own, logprobs=True, top_logprobs=2, max_tokens=4)
        return header, response.model_extra["ggss"], response.choices[0].logprobs.content

    alone = [one(request) for request in asks]
    with ThreadPoolExecutor(24) as pool:
        together = list(pool.map(one, asks))
    ties = 0
    for (header, record, tokens), (header_, record_, tokens_) in zip(alone, together, strict=True):
        assert header == header_
        assert {name: own["alpha"] for name, own in record.items()} == {
            name: own["alpha"] for name, own in record_.items()
        }
        for left, right in zip(tokens, tokens_, strict=False):
            if left.token != right.token:
                assert left.top_logprobs[0].logprob - left.top_logprobs[1].logprob < TIE, "another token, and no tie"
                ties += 1
                break
            assert left.logprob == pytest.approx(right.logprob, abs=TIE)
    assert ties <= len(asks) // 4
    assert server.metric("ggss_waiting_requests") == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"strengths": {"rase": 1.0}}, "did you mean 'race'?"),
        ({"strengths": {"race": -0.5}}, "--allow-negative"),
        ({"strengths": {"race": 1e9}}, "from -1,000 to 1,000"),
        ({"strengths": {"race": "1"}}, "ggss.race: Input should be a valid number"),
        ({"max_tokens": 100_000}, "at most 512"),
        ({"n": 100}, "at most 16"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools is not supported"),
    ],
)
def test_a_bad_request_gets_the_sentence(client, world, fields, said):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, asked(QUESTION, world.png(0)), **fields)
    assert said in caught.value.body["message"]
    assert caught.value.body["type"] == "invalid_request_error"


def test_pictures_that_are_refused(client, world):
    png = world.png(0)
    for message, said in [
        ([{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}], "opens no addresses"),
        (shown(png[:-40]), "does not decode"),
        (shown(b"x"), "no known image format"),
        (shown(b"\0" * 1_000_001), "at most 1,000,000 are allowed"),
        (shown(*[png] * 9), "at most 8 images"),
    ]:
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, [{"role": "user", "content": message}])
        assert said in caught.value.body["message"]
    with pytest.raises(openai.BadRequestError, match="has no image"):
        ask(client, [{"role": "user", "content": "who ?"}], {"race": 1.0})
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client, asked("x" * 5_000_000))
    assert caught.value.status_code == 413


def test_keys_and_names(server, client):
    assert [one.id for one in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).model_extra["ggss"]["race"]["alpha"] == 1.0
    with pytest.raises(openai.NotFoundError, match="no model 'gpt'"):
        client.chat.completions.create(model="gpt", messages=asked("who ?"))
    other = openai.OpenAI(base_url=f"{server.url}/v1", api_key="another-key-of-nobody", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        other.models.list()


def test_curl_works_as_it_is(server, world):
    body = json.dumps({"model": MODEL, "messages": asked(QUESTION, world.png(0)), "max_tokens": 2})
    run = subprocess.run(
        [
            *("curl", "-sS", "--fail", f"{server.url}/v1/chat/completions", "-d", "@-"),
            *("-H", f"Authorization: Bearer {KEY}", "-H", "Content-Type: application/json"),
        ],
        input=body,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout)["choices"][0]["message"]["content"]


def test_the_log_has_strengths_and_no_content(server, client, world):
    ask(client, asked("which hat ?", world.png(6)), {"race": 0.625}, max_tokens=1)
    text = server.log.read_text()
    last = json.loads(text.splitlines()[-1])
    assert last["applied"] == {"race": 0.625, "gender": 1.0}
    assert (last["status"], last["pictures"], last["completion_tokens"]) == (200, 1, 1)
    assert "hat" not in text
    assert "base64" not in text
    assert KEY not in text
    assert ADMIN not in text
