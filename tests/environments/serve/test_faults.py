"""What goes wrong: clients that go away, a worker that dies, a steerer that is replaced, a server that is ended."""

import http.client
import json
import os
import signal
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import torch

import ggss
from conftest import ADMIN, KEY, MODEL, PATIENCE, asked, start

QUESTION = "which race is this person ?"


def answer(client, world, number=0, **strengths):
    response = client.chat.completions.create(
        model=MODEL, messages=asked(QUESTION, world.png(number)), max_tokens=2, extra_body={"ggss": strengths}
    )
    return response.choices[0].message.content, response.model_extra["ggss"]["race"]["alpha"]


def until(metric, server, value):
    """Ask again and again until a metric has a value."""
    for _ in range(100_000):
        if server.metric(metric) == value:
            return
    pytest.fail(f"{metric} never was {value}")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_place(server, client, world, stream):
    worker = server.worker
    os.kill(worker, signal.SIGSTOP)
    try:
        host = server.url.removeprefix("http://")
        gone = http.client.HTTPConnection(host, timeout=PATIENCE)
        body = json.dumps({"model": MODEL, "messages": asked(QUESTION, world.png(0)), "stream": stream})
        gone.request(
            "POST",
            "/v1/chat/completions",
            body,
            {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
        )
        until("ggss_waiting_requests", server, 1)
        gone.close()
        until("ggss_waiting_requests", server, 0)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert answer(client, world)[0]
    assert '"status": 499' in server.log.read_text()


def test_a_worker_that_dies_is_replaced_and_never_answers_unsteered(server, client, world):
    before = [answer(client, world, number, race=1.5) for number in range(4)]
    old = server.worker
    os.kill(old, signal.SIGSTOP)  # so that the requests are there when it dies
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(answer, client, world, number, race=1.5) for number in range(4)]
        until("ggss_waiting_requests", server, 4)
        os.kill(old, signal.SIGKILL)
        assert [one.result() for one in waiting] == before
    assert server.metric("ggss_worker_restarts_total") == 1
    assert server.worker != old


def reload(server, name, folder, key=ADMIN):
    request = urllib.request.Request(
        f"{server.url}/ggss/reload",
        json.dumps({"name": name, "folder": str(folder)}).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_steerer_is_replaced_once_it_is_checked_and_brought_back(server, client, world, tmp_path):
    def content():
        return client.models.retrieve(MODEL).model_extra["ggss"]["race"]["content"]

    old = content()
    assert reload(server, "race", world.steerers["gender"], KEY)[0] == 401
    for name, folder, said in [
        ("race", tmp_path, "config.json"),
        ("race", tmp_path / "none", "there is no folder"),
        ("hair", world.steerers["race"], "no steerer 'hair'"),
    ]:
        status, body = reload(server, name, folder)
        assert status == 400
        assert said in body["error"]["message"]
    assert content() == old, "a steerer that is refused replaces nothing"
    status, body = reload(server, "race", world.steerers["gender"])
    assert (status, body["previous"]) == (200, str(world.steerers["race"]))
    assert content() == body["content"] != old
    assert answer(client, world, 1, gender=0)[0]
    assert reload(server, "race", body["previous"])[0] == 200
    assert content() == old


def test_the_end_waits_for_what_is_asked(world, tmp_path):
    """A second server: locked, with one place, and ended while a request waits."""
    server = start(world, tmp_path, "--locked", "--alpha=race=0.5", "--max-queue=1")
    client = server.client
    with pytest.raises(Exception, match=r"is locked: at least 0\.5"):
        answer(client, world, race=0.25)
    until("ggss_waiting_requests", server, 0)  # a request's place is free a moment after its answer is there
    assert answer(client, world, race=0.75)[1] == 0.75
    worker = server.worker
    until("ggss_waiting_requests", server, 0)
    os.kill(worker, signal.SIGSTOP)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(answer, client, world)
        until("ggss_waiting_requests", server, 1)
        with pytest.raises(Exception, match="1 requests are waiting") as full:
            answer(client, world)
        assert full.value.status_code == 429
        assert int(full.value.response.headers["retry-after"]) >= 1
        server.process.send_signal(signal.SIGTERM)
        os.kill(worker, signal.SIGCONT)
        assert waiting.result()[1] == 0.5
    assert server.ended() == 0
    assert not os.path.exists(f"/proc/{worker}")


def test_a_damaged_model_is_the_servers_fault(world, tmp_path):
    """Its logits are NaN: 500 with the sentence, and the server goes on."""
    damaged = ggss.load_vlm(MODEL)
    with torch.no_grad():
        damaged.model.lm_head.weight.fill_(float("nan"))
    damaged.model.save_pretrained(tmp_path / "damaged")
    damaged.processor.save_pretrained(tmp_path / "damaged")
    served = start(world, tmp_path, model=str(tmp_path / "damaged"))
    try:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match="no numbers") as caught:
                served.client.chat.completions.create(
                    model=str(tmp_path / "damaged"), messages=asked(QUESTION, world.png(0)), max_tokens=2
                )
            assert caught.value.status_code == 500
        assert "200" not in served.log.read_text()
    finally:
        served.process.send_signal(signal.SIGTERM)
    assert served.ended() == 0
