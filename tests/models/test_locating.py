"""From a name to a place: what is not there is said at once, also without a network."""

import threading

import pytest
from huggingface_hub.errors import HfHubHTTPError

from ggss.errors import InputError
from ggss.models import check_reachable, load_vlm, locate


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    check_reachable.cache_clear()


def test_without_a_network_the_hub_is_asked_once_and_the_sentence_says_offline(monkeypatch):
    asked = []

    def unreachable(url, timeout):
        asked.append((url, timeout))
        raise OSError("[Errno -2] Name or service not known")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", unreachable)
    with pytest.raises(InputError, match=r"'nobody/nothing' .* offline\? \(\[Errno -2\] Name or service not known\)"):
        load_vlm("nobody/nothing")
    assert len(asked) == 1
    assert asked[0][1] <= 4


def test_a_hub_that_does_not_answer_is_not_waited_for(monkeypatch):
    answer = threading.Event()
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.01")
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda *_, **__: answer.wait())
    with pytest.raises(InputError, match=r"offline\? \(no answer in 0.01 s"):
        locate("nobody/nothing")
    answer.set()


def test_a_name_that_the_hub_does_not_have(monkeypatch):
    class Answer:
        status_code, headers, request = 404, {}, None

    def missing(*_, **__):
        error = HfHubHTTPError.__new__(HfHubHTTPError)
        error.response = Answer()
        raise error

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", missing)
    with pytest.raises(InputError, match=r"does not give config.json of 'nobody/nothing' \(status 404\)"):
        locate("nobody/nothing")


def test_what_is_cached_is_not_asked_for(monkeypatch):
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: "/cache/config.json")
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda *_, **__: pytest.fail("the hub was asked"))
    assert locate("some/model") == "some/model"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is not a model|does not exist"),
        ("a/b c", "neither a folder nor a name on the hub"),
        ("~nobody-here/x", "does not exist"),
        ("small-world/atlantis", "there is no model"),
        ("/no/such/\udcff", "not UTF-8"),
    ],
)
def test_other_wrong_names(monkeypatch, name, said):
    monkeypatch.undo()
    with pytest.raises(InputError, match=said):
        locate(name)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device_map": "meta"}, "--device 'meta' is no place"),
        ({"device_map": "nonsense"}, "--device 'nonsense' is no place"),
        ({"device_map": "cuda:99"}, "--device 'cuda:99': this machine has"),
        ({"dtype": "float31"}, "no dtype 'float31'"),
        ({"dtype": "int8"}, "no dtype 'int8'"),
        ({"dtype": ""}, "no dtype ''"),
    ],
)
def test_wrong_places_and_types(options, said):
    with pytest.raises(InputError, match=said):
        load_vlm("small-world/pixtral", **options)
