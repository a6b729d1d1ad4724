"""vLLM's own server with the plug-in: steered unless a request says otherwise, and refusals as 400."""

import base64
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest

import ggss
from conftest import QUESTIONS, steerers
from ggss.models import locate
from ggss.vllm_plugin.engine import widened

PATIENCE = 900


def command(folder, port):
    options = ["--dtype=float32", "--max-model-len=512", "--enforce-eager", f"--port={port}", "--host=127.0.0.1"]
    module = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--trust-request-mm-kwargs"]
    return [*module, f"--model={folder}", "--served-model-name=small", *options]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    vlm, faces, folders = steerers("llava-vicuna", folder)
    return vlm, faces, folders, widened(locate("small-world/llava-vicuna"), folder / "wide")


@pytest.fixture(scope="module")
def url(made):
    named = ",".join(f"{name}={place}" for name, place in made[2].items())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = os.environ | {
        "GGSS_STEERERS": named,
        "GGSS_ALPHAS": "gender=0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    with subprocess.Popen(command(made[3], port), env=given, start_new_session=True) as process:
        end = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < end:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1/chat/completions"
        os.killpg(process.pid, signal.SIGTERM)


def ask(url, picture, strengths):
    content = [{"type": "text", "text": QUESTIONS[0]}]
    if picture is not None:
        data = io.BytesIO()
        picture.image().save(data, "PNG")
        address = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
        content.insert(0, {"type": "image_url", "image_url": {"url": address}})
    body = {"model": "small", "temperature": 0, "max_tokens": 8, "messages": [{"role": "user", "content": content}]}
    body |= {} if strengths is None else {"mm_processor_kwargs": {"ggss": strengths}}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return 200, json.loads(answer.read())["choices"][0]["message"]["content"].strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_each_request_has_its_own_strength(made, url):
    vlm, faces, folders, _ = made
    race = ggss.Steerer.from_pretrained(folders["race"])
    for picture in faces.pictures[:3]:
        (features,) = vlm.encode([picture.image()])
        for alpha in (None, 0.5, 0.0, 1.0):
            strength = 1.0 if alpha is None else alpha  # a request that forgets the field is steered
            seen = features.steered(race, strength) if strength else features
            right = vlm.answer([QUESTIONS[0]], [[seen]], 8)[0]
            assert ask(url, picture, None if alpha is None else {"race": alpha}) == (200, right)


@pytest.mark.parametrize(
    ("strengths", "said"),
    [
        ({"rac": 1.0}, "no steerer 'rac'"),
        ({"race": 5}, "at most 1.5"),
        ({"race": "x"}, "must be a number"),
        ({"race": -1.0}, "amplify the bias"),
    ],
)
def test_what_cannot_be_applied_is_a_400(made, url, strengths, said):
    status, body = ask(url, made[1].pictures[0], strengths)
    assert status == 400
    assert said in body


def test_steering_without_an_image_is_a_400(url):
    status, body = ask(url, None, {"race": 1.0})
    assert status == 400
    assert "has no image" in body
    assert ask(url, None, None)[0] == 200


def test_a_steerer_of_another_model_ends_it_at_start(made, tmp_path):
    steerer = ggss.Steerer.from_pretrained(made[2]["race"])
    other = replace(steerer, source=steerer.source | {"fingerprint": "0" * 64}).save_pretrained(tmp_path / "other")
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "GGSS_STEERERS": f"race={other}",
    }
    ended = subprocess.run(
        command(made[3], 0), env=os.environ | settings, capture_output=True, text=True, timeout=PATIENCE
    )
    assert ended.returncode != 0
    assert "vision weights: the steerer was made with 0000" in ended.stdout + ended.stderr
