"""`ggss serve --engine vllm`: the same API, rules and refusals as with transformers, and the same answers."""

import base64
import io
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import ggss
from conftest import QUESTIONS, steerers

MODEL = "small-world/llava-vicuna"
KEY, ADMIN = "a-key-for-tests-only", "an-admin-key-for-tests"
PATIENCE = 900


class Served:
    def __init__(self, folder: Path) -> None:
        self.vlm, self.faces, self.folders = steerers("llava-vicuna", folder)
        command = [sys.executable, "-m", "ggss", "serve", MODEL, "--engine=vllm", "--port=0", f"--timeout={PATIENCE}"]
        command += [f"--steer={name}={place}" for name, place in self.folders.items()]
        command += ["--alpha=race=1.0", "--alpha=gender=0", "--max-prompt-tokens=448", "--max-tokens=64"]
        keys = {"GGSS_SERVE_KEYS": KEY, "GGSS_SERVE_ADMIN_KEY": ADMIN}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | keys)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready: "), line
        self.url = line.split()[1].removesuffix("/v1")

    def png(self, number: int) -> bytes:
        data = io.BytesIO()
        self.faces.pictures[number].image().save(data, "PNG")
        return data.getvalue()

    def ask(self, picture: bytes | None, question: str = QUESTIONS[0], key: str = KEY, **others):
        """The status, the headers and the body of the response."""
        content = [{"type": "text", "text": question}]
        if picture is not None:
            url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
            content.insert(0, {"type": "image_url", "image_url": {"url": url}})
        body = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": content}], **others}
        return self.post("/v1/chat/completions", body, key)

    def post(self, path: str, body: dict, key: str):
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read().decode()

    def reference(self, number: int, question: str, strengths: dict[str, float]) -> str:
        (features,) = self.vlm.encode([self.faces.pictures[number].image()])
        for name, alpha in strengths.items():
            features = features.steered(ggss.Steerer.from_pretrained(self.folders[name]), alpha)
        return self.vlm.answer([question], [[features]], 8)[0]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    made = Served(tmp_path_factory.mktemp("served"))
    yield made
    made.process.send_signal(signal.SIGTERM)
    with made.process:
        assert made.process.wait(PATIENCE) == 0


def said(answer) -> str:
    status, _, body = answer
    assert status == 200, body
    return json.loads(body)["choices"][0]["message"]["content"].strip()


def test_mixed_strengths_at_once_get_their_own_answers(served):
    cases = [
        (number % 4, QUESTIONS[number % 3], {"race": alpha, "gender": other})
        for number, (alpha, other) in enumerate([(0.0, 0.0), (1.0, 0.0), (0.5, 1.0), (1.5, 0.5)] * 4)
    ]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda case: served.ask(served.png(case[0]), case[1], ggss=case[2]), cases))
    assert [said(own) for own in answers] == [served.reference(*case) for case in cases]


def test_the_response_says_what_was_applied(served):
    status, headers, body = served.ask(served.png(0), ggss={"race": 0.75})
    assert (status, headers["x-ggss-applied"]) == (200, "race=0.75, gender=0")
    found = json.loads(body)["ggss"]
    assert found["race"]["calls"] == 1
    assert found["race"]["tokens"] > 0
    assert 0.3 <= found["race"]["gate_mean"] <= 1
    assert found["gender"] == {"alpha": 0.0, "calls": 0, "tokens": 0, "gate_mean": None}


def test_the_servers_own_strength_acts_by_default(served):
    assert said(served.ask(served.png(0))) == served.reference(0, QUESTIONS[0], {"race": 1.0})
    assert served.reference(0, QUESTIONS[0], {"race": 1.0}) != served.reference(0, QUESTIONS[0], {})


@pytest.mark.parametrize(
    ("others", "status", "sentence"),
    [
        ({"ggss": {"rac": 1.0}}, 400, "no steerer 'rac' on this server"),
        ({"ggss": {"race": -1.0}}, 400, "would amplify the bias"),
        ({"ggss": {"race": 1e9}}, 400, "the strength of 'race'"),
        ({"max_tokens": 1000}, 400, "max_tokens must be at most 64"),
        ({"question": "word " * 600}, 400, "tokens"),
        ({"key": "another-key-for-tests"}, 401, "is not valid for"),
    ],
)
def test_the_same_requests_are_refused(served, others, status, sentence):
    found, _, body = served.ask(served.png(0), **others)
    assert found == status
    assert sentence in json.loads(body)["error"]["message"]


def test_steering_without_an_image_is_refused(served):
    status, _, body = served.ask(None, ggss={"race": 1.0})
    assert status == 400
    assert "has no image" in body
    assert served.ask(None)[1]["x-ggss-applied"] == "none"


def test_streams_choices_and_logprobs(served):
    whole = json.loads(served.ask(served.png(1), n=2, logprobs=True, top_logprobs=3)[2])
    assert [own["index"] for own in whole["choices"]] == [0, 1]
    first = whole["choices"][0]["logprobs"]["content"][0]
    assert first["token"] == first["top_logprobs"][0]["token"]
    assert len(first["top_logprobs"]) == 3
    status, _, body = served.ask(served.png(1), stream=True)
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    text = "".join(own["choices"][0]["delta"].get("content", "") for own in events)
    assert status == 200
    assert text == whole["choices"][0]["message"]["content"]
    assert events[0]["ggss"]["race"]["alpha"] == 1.0


def test_a_steerer_is_replaced_while_it_serves(served):
    before = said(served.ask(served.png(0), ggss={"race": 1.0}))
    body = {"name": "race", "folder": str(served.folders["gender"])}
    status, _, told = served.post("/ggss/reload", body, ADMIN)
    assert status == 200, told
    assert said(served.ask(served.png(0), ggss={"race": 1.0})) == served.reference(0, QUESTIONS[0], {"gender": 1.0})
    status, _, told = served.post("/ggss/reload", body | {"folder": json.loads(told)["previous"]}, ADMIN)
    assert status == 200, told
    assert said(served.ask(served.png(0), ggss={"race": 1.0})) == before
    assert served.post("/ggss/reload", body | {"folder": "/nowhere"}, ADMIN)[0] == 400


def test_a_model_process_that_dies_is_replaced(served):
    """Last: it takes vLLM a minute to come up again."""
    pid = served.process.pid
    (worker,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    engines = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    assert engines
    os.kill(int(worker), signal.SIGKILL)
    assert said(served.ask(served.png(0))) == served.reference(0, QUESTIONS[0], {"race": 1.0})
    assert not [own for own in engines if Path(f"/proc/{own}/cmdline").is_file()]  # none is left behind
