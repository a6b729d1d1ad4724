"""A served model that answers items: what is sent, how probabilities are read, each way in which a server fails."""

import base64
import io
import json
import math
import threading
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from conftest import noise
from fake_server import completion, refusal, serving
from ggss.data.pictures import decoded
from ggss.errors import InputError
from ggss.models.prompts import PICTURE
from ggss.probes import Item
from ggss.probes.endpoint import KEY, LISTED, Endpoint, Unanswered, option_probabilities


class Painted:
    def __init__(self, seed: int) -> None:
        self.digest, self._image = f"picture-{seed}", noise(seed)

    def image(self) -> Image.Image:
        return self._image


PICTURES = Painted(0), Painted(1)


def an_item(number: int = 0, prompt: str = "", pictures=PICTURES[:1], options=("a", "b")) -> Item:
    named = {option: option for option in options}
    return Item(f"item-{number}", prompt or f"question {number}", pictures, ({},) * len(pictures), "c", options=named)


@pytest.fixture(autouse=True)
def directly(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


def endpoint(server, waits=None, **how) -> Endpoint:
    """Waits are counted, and nothing waits."""
    return Endpoint(server.url, "vlm", wait=(waits if waits is not None else []).append, **how)


def read(server, items=None, waits=None, tokens=8, **how):
    return endpoint(server, waits, **how).read_batch([an_item()] if items is None else items, tokens)


def test_what_is_asked_is_what_a_local_model_is_asked():
    two = an_item(1, f"left {PICTURE} right {PICTURE} who ?", PICTURES)
    with serving(lambda body, number: completion(" a \n")) as server:
        answers = read(server, [an_item(), two, an_item(2, pictures=())], concurrency=1, key="secret")
    assert [answer.text for answer in answers] == ["a", "a", "a"]
    assert server.shown(0) == ["picture", "question 0"]
    assert server.shown(1) == ["left ", "picture", " right ", "picture", " who ?"]
    assert server.shown(2) == ["question 2"]
    assert set(server.keys) == {"Bearer secret"}
    for body in server.asked:
        assert (body["model"], body["temperature"], body["max_tokens"]) == ("vlm", 0, 8)
        assert (body["logprobs"], body["top_logprobs"]) == (True, LISTED[0])
    pictures = [part for part in server.asked[1]["messages"][0]["content"] if part["type"] == "image_url"]
    for part, picture in zip(pictures, PICTURES, strict=True):
        kind, _, data = part["image_url"]["url"].partition(",")
        assert kind == "data:image/png;base64"
        sent = decoded(base64.b64decode(data), "it")
        assert np.array_equal(np.asarray(sent), np.asarray(picture.image())), "the same pixels"
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert image.format == "PNG"


def test_no_key_no_header_and_no_options_no_logprobs():
    with serving(lambda body, number: completion("fine")) as server:
        (answer,) = read(server, [an_item(options=())])
    assert answer == ("fine", ())
    assert server.keys == [None]
    assert "logprobs" not in server.asked[0]


def test_fields_of_a_request_are_added_and_null_leaves_one_out():
    extra = {"ggss": {"race": 0.0}, "max_tokens": None, "max_completion_tokens": 3}
    with serving(lambda body, number: completion("a")) as server:
        read(server, request=extra)
        one, other = endpoint(server), endpoint(server, request=extra)
    (body,) = server.asked
    assert (body["ggss"], body["max_completion_tokens"]) == ({"race": 0.0}, 3)
    assert "max_tokens" not in body
    assert json.loads(other.identity["request"]) == extra
    assert "request" not in one.identity


def test_answers_come_in_the_order_of_the_items_and_four_are_asked_at_a_time(monkeypatch):
    """The server answers no request before four are there."""
    four, threads, sent = threading.Barrier(4), set(), Endpoint._http

    def http(self, *request):
        threads.add(threading.current_thread())
        return sent(self, *request)

    def reply(body, number):
        four.wait()
        return completion(body["messages"][0]["content"][1]["text"].split()[-1])

    monkeypatch.setattr(Endpoint, "_http", http)
    with serving(reply) as server:
        answers = read(server, [an_item(number) for number in range(16)], concurrency=4)
    assert [answer.text for answer in answers] == [str(number) for number in range(16)]
    assert len(threads) == 4


def logs(**shares: float) -> list[tuple[str, float]]:
    return [(token, math.log(share)) for token, share in shares.items()]


@pytest.mark.parametrize(
    ("listed", "options", "expected"),
    [
        (logs(a=0.6, b=0.2, the=0.1), ("a", "b"), (0.75, 0.25)),
        (logs(b=0.6, a=0.2), ("a", "b"), (0.25, 0.75)),
        ([(" a", math.log(0.6)), ("a\n", math.log(0.1)), ("b", math.log(0.2))], ("a", "b"), (0.75, 0.25)),
        (logs(nur=0.3, doctor=0.1, the=0.1), ("nurse", "doctor"), (0.75, 0.25)),
        (logs(a=0.9, the=1e-4), ("a", "b"), (1.0, 0.0)),
        (logs(a=0.9, the=1e-3), ("a", "b"), ()),  # b may have a thousandth, which is too much to be left out
        (logs(the=0.9, that=1e-9), ("a", "b"), ()),
        (logs(A=0.9, B=0.1), ("a", "b"), ()),  # other words, as far as the model is concerned
        (logs(w=0.5, man=0.3, x=1e-9), ("woman", "wife", "man"), ()),  # of whom is the w?
        ([("", 0.0), (" ", -1.0), ("a", -2.0), ("b", -2.0)], ("a", "b"), (0.5, 0.5)),
        ([("a", 0.0), ("b", -9999.0)], ("a", "b"), (1.0, 0.0)),
        ([], ("a", "b"), ()),
        (logs(a=0.5), (), ()),
    ],
)
def test_probabilities_are_those_that_are_listed_or_none(listed, options, expected):
    assert option_probabilities(listed, options) == pytest.approx(expected)


def test_probabilities_come_from_the_first_token():
    with serving(lambda body, number: completion("a", {"a": math.log(0.3), "b": math.log(0.1)})) as server:
        (answer,) = read(server)
    assert answer.probabilities == pytest.approx((0.75, 0.25))


@pytest.mark.parametrize(
    "logprobs",
    [None, [], {"content": None}, {"content": []}, {"content": [{"token": "a", "top_logprobs": "b"}]}]
    + [
        {"content": [{"top_logprobs": [{"token": token, "logprob": logprob}]}]}
        for token, logprob in ((1, -1), ("a", 5))
    ]
    + [{"content": [{"top_logprobs": [{"token": "a", "logprob": "NaN"}, {"token": "b", "logprob": -1}]}]}],
)
def test_a_server_that_lists_no_usable_probabilities_gives_none(logprobs):
    choice = {"message": {"content": "a"}, "logprobs": logprobs}
    with serving(lambda body, number: (200, {"choices": [choice]})) as server:
        assert read(server) == [("a", ())]


@pytest.mark.parametrize("most", [20, 5, 0])
def test_a_server_that_refuses_so_many_logprobs_is_asked_for_fewer(most, capsys):
    def reply(body, number):
        if body.get("top_logprobs", 0) > most:
            return refusal(400, f"at most {most} logprobs")
        return completion("a", {"a": -0.1, "b": -3.0} if "logprobs" in body else None)

    with serving(reply) as server:
        asked = endpoint(server, concurrency=1)
        answers = asked.read_batch([an_item(number) for number in range(3)], 8)
        before = len(server.asked)
        asked.read_batch([an_item()], 8)
        assert len(server.asked) == before + 1, "it is found out once"
    assert [answer.text for answer in answers] == ["a"] * 3
    assert [bool(answer.probabilities) for answer in answers] == [most > 0] * 3
    assert server.asked[-1].get("top_logprobs") == (most or None)
    err = capsys.readouterr().err
    assert ("gives no log-probabilities (400: at most 0 logprobs)" in err) == (most == 0)


@pytest.mark.parametrize("content", [None, ""])
def test_a_model_that_says_nothing_has_an_empty_answer(content):
    with serving(lambda body, number: completion(content)) as server:
        assert read(server)[0].text == ""


def test_a_refusal_is_the_answer():
    choice = {"message": {"content": None, "refusal": "I cannot judge people."}}
    with serving(lambda body, number: (200, {"choices": [choice]})) as server:
        assert read(server)[0].text == "I cannot judge people."


def failing(times, failure, then=None):
    """Fails the first requests."""
    return lambda body, number: failure if number < times else then or completion("a")


def test_a_busy_server_is_asked_again_when_it_says(capsys):
    waits = []
    with serving(failing(3, refusal(429, "too many", Retry_After="7"))) as server:
        assert read(server, waits=waits)[0].text == "a"
    assert waits == [7, 7, 7]
    assert capsys.readouterr().err.count("answered 429 (too many): such requests are repeated") == 1


@pytest.mark.parametrize("header", ["soon", "-1", "Wed, 21 Oct 2026 07:28:00 GMT", "1e9", ""])
def test_a_time_that_is_not_in_seconds_is_not_read(header):
    waits = []
    with serving(failing(1, refusal(429, "too many", Retry_After=header))) as server:
        read(server, waits=waits)
    assert waits == [1]


def test_nobody_waits_for_days():
    waits = []
    with serving(failing(1, refusal(503, "closed", Retry_After="999999"))) as server:
        read(server, waits=waits)
    assert waits == [600]


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408])
def test_what_may_pass_is_tried_again_and_longer_each_time(status):
    waits = []
    with serving(failing(7, refusal(status, "overloaded"))) as server:
        assert read(server, waits=waits)[0].text == "a"
        assert len(server.asked) == 8
    assert waits == [1, 2, 4, 8, 16, 32, 60]


def test_a_server_that_stays_broken_is_given_up_with_a_sentence():
    waits = []
    with serving(lambda body, number: refusal(500, "out of memory")) as server, pytest.raises(Unanswered) as failed:
        read(server, waits=waits, tries=3)
    assert str(failed.value) == (
        f"{server.url} answered 500 (out of memory), 3 times: look at the server, then ask again"
    )
    assert waits == [1, 2]


def test_a_server_that_hangs_is_given_up():
    """It answers nothing until the test is over."""
    over = threading.Event()

    def hang(body, number):
        over.wait()
        return completion("too late")

    with serving(hang) as server:
        try:
            with pytest.raises(Unanswered, match=r"did not answer within 0\.1 s, 2 times"):
                read(server, timeout=0.1, tries=2)
        finally:
            over.set()


def test_a_connection_that_breaks_is_made_again():
    short = (200, b'{"choices"', {"Content-Length": "1000"})
    with serving(failing(2, short)) as server:
        assert read(server)[0].text == "a"
        assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        (b"<html>Bad gateway</html>", "<html>Bad gateway</html>"),
        (b"", "nothing was said"),
        (b"\xff\x1b[31m", r"\ufffd\\x1b\[31m|�\\x1b\[31m"),
        ([], r"\[\]"),
        ({"choices": []}, "choices"),
        ({"choices": [{"text": "a"}]}, "text"),
        ({"choices": [{"message": "a"}]}, "message"),
        ({"choices": [{"message": {"content": ["a"]}}]}, "content"),
        ({"error": {"message": "the queue is full"}}, "the queue is full"),
        (b"[" * 100_000, r"\[\[\["),
    ],
)
def test_an_answer_of_another_form_is_asked_for_again_and_then_named(body, seen):
    with serving(failing(2, (200, body))) as server:
        assert read(server)[0].text == "a"
    with (
        serving(lambda sent, number: (200, body)) as server,
        pytest.raises(Unanswered, match=rf"answered what is no chat completion \(.*{seen}.*\), 2 times"),
    ):
        read(server, tries=2)


def test_a_server_that_is_not_there():
    with serving(failing(0, None)) as server:
        pass
    with pytest.raises(Unanswered, match=r"cannot be reached \(Connection refused\): is the server running"):
        endpoint(server).check()
    waits = []
    with pytest.raises(Unanswered, match="cannot be reached"):
        read(server, waits=waits, tries=3)
    assert waits == [1, 2], "it may be on its way"


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(("key", "told"), [("", "wants a key, and"), ("a-secret", "refuses the key in")])
def test_a_wrong_key_is_a_sentence_that_does_not_name_it(status, key, told):
    refused = refusal(status, "wrong key a-secret")
    with serving(lambda body, number: refused, models=refused) as server:
        for call in (lambda: endpoint(server, key=key).check(), lambda: read(server, key=key)):
            with pytest.raises(Unanswered, match=f"{told} {KEY}") as failed:
                call()
            assert "a-secret" not in str(failed.value)
        assert len(server.asked) == 1, "it is not tried again"
    assert "a-secret" not in repr(endpoint(server, key=key))


def test_a_model_that_is_not_served():
    with serving(lambda body, number: refusal(404, "no such model"), (200, {"data": [{"id": "other"}]})) as server:
        asked = endpoint(server)
        asked.check()
        with pytest.raises(Unanswered, match=r"has no model 'vlm', or .*\(404: no such model\): it has other"):
            asked.read_batch([an_item()], 8)


@pytest.mark.parametrize("models", [(404, b"?"), (200, b"?"), (200, {"data": None}), (500, {}), (200, [])])
def test_a_server_need_not_list_its_models(models):
    with serving(lambda body, number: completion("a"), models) as server:
        endpoint(server).check()


def shows(body) -> bool:
    (message,) = body["messages"]
    return not isinstance(message["content"], str)


@pytest.mark.parametrize("status", [400, 422, 500])
def test_a_server_that_takes_no_pictures(status):
    """Its reason may be in any words: asked without the picture, it answers."""

    def reply(body, number):
        return refusal(status, "content must be text") if shows(body) else completion("a")

    with (
        serving(reply) as server,
        pytest.raises(Unanswered, match=rf"'vlm' at .* takes no pictures: .*{status}.*content must be text"),
    ):
        read(server, tries=2)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_any_other_refusal_is_told_as_it_is(status):
    with (
        serving(lambda body, number: refusal(status, "I am a teapot")) as server,
        pytest.raises(Unanswered, match=rf"refuses a request \({status}: I am a teapot\)"),
    ):
        read(server)


def test_the_key_goes_to_no_other_server():
    with serving(lambda body, number: completion("stolen")) as thief:
        moved = (302, b"", {"Location": f"{thief.url}/chat/completions"})
        with serving(lambda body, number: moved, moved) as server:
            for call in (lambda: endpoint(server, key="k").check(), lambda: read(server, key="k")):
                with pytest.raises(Unanswered, match=rf"is elsewhere \(302, {thief.url}"):
                    call()
        assert thief.keys == []


def test_one_failure_ends_the_batch():
    """The others are not asked to the end: nobody would get their answers."""

    def reply(body, number):
        return refusal(400, "no") if number == 0 else completion("a")

    with serving(reply) as server, pytest.raises(Unanswered):
        read(server, [an_item(number, options=(), pictures=()) for number in range(50)], concurrency=1)
    assert len(server.asked) == 1


def test_what_is_known_and_what_is_not():
    asked = Endpoint("HTTP://Host:8000/v1/", "vlm", key="secret")
    known = asked.identity
    assert known["endpoint"] == "http://Host:8000/v1"
    assert known["weights"] == "not known"
    assert "secret" not in json.dumps(known)
    assert (asked.name, asked.steerings, asked.suffix) == ("vlm", (), "")


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host", "http://host/v1"),
        ("http://host:80/", "http://host:80/v1"),
        ("https://host/openai/v1/chat/completions", "https://host/openai/v1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
    ],
)
def test_an_address_is_completed(url, base):
    assert Endpoint(url, "vlm").url == base


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "host",
            "host:8000/v1",
            "ftp://host/v1",
            "file:///etc/passwd",
            "http://",
            "http://h:x",
            "http://h:99999",
        ),
        *("http://h\n/v1", "http://h/ü", "http://a b/v1", "http://[::1/v1", "http://:0"),
    ],
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(InputError, match="is no address of a server"):
        Endpoint(url, "vlm")


@pytest.mark.parametrize("url", ["http://me:pw@host/v1", "http://host/v1?key=pw", "http://host/v1#pw"])
def test_an_address_with_a_secret_is_refused_and_not_repeated(url):
    with pytest.raises(InputError, match=f"must be an address alone.*{KEY}") as refused:
        Endpoint(url, "vlm")
    assert "pw" not in str(refused.value)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"model": ""}, "give --model"),
        ({"key": "schlüssel"}, "no HTTP header"),
        ({"key": "two\nlines"}, "no HTTP header"),
        ({"request": {"messages": []}}, "'messages' is set by ggss"),
        ({"request": {"temperature": 1}}, "'temperature' is set by ggss"),
        ({"concurrency": 0}, "requests at a time must be from 1"),
        ({"timeout": 0.0}, "the timeout must be from"),
    ],
)
def test_wrong_settings_are_refused(how, told):
    with pytest.raises(InputError, match=told):
        Endpoint("http://host", **{"model": "vlm", **how})


def test_a_wording_with_shapes_of_families_is_refused_before_anything_is_asked():
    shaped = replace(an_item(), shapes={"Pixtral": str.upper})
    with serving(lambda body, number: completion("a")) as server:
        with pytest.raises(InputError, match=r"in a shape of their own \(Pixtral\).*leave `families` out"):
            read(server, [shaped], concurrency=1)
        assert not server.asked
