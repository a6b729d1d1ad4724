"""Requests made from the server's own schema, with whole and broken pictures: none is a defect of the server.

`make fuzz-serve` tries 10,000; this test a few hundred.
"""

import base64
import json
import os
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import hypothesis
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode

from conftest import KEY, MODEL, PATIENCE

CASES = int(os.environ.get("GGSS_SERVE_CASES", "300"))
PAGE = os.environ.get("GGSS_SERVE_PAGE", "")
KNOWN = {
    "model",
    "messages",
    "stream",
    "n",
    "max_tokens",
    "temperature",
    "seed",
    "stop",
    "logprobs",
    "top_logprobs",
    "ggss",
}


@st.composite
def pictures(draw, png: bytes) -> bytes:
    """A picture as it is, cut, with some bytes changed, or no picture at all."""
    kind = draw(st.sampled_from(["whole", "cut", "changed", "none"]))
    if kind == "cut":
        return png[: draw(st.integers(0, len(png)))]
    if kind == "none":
        return draw(st.binary(max_size=200))
    data = bytearray(png)
    for _ in range(draw(st.integers(1, 4)) if kind == "changed" else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def sent(url: str, body: object) -> tuple[int, bytes]:
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_no_request_is_a_defect(server, world):
    schema = schemathesis.openapi.from_dict(json.loads(server.get("/openapi.json")))
    operation = schema["/v1/chat/completions"]["POST"]
    cases = st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )
    statuses: Counter[int] = Counter()
    png = world.png(0)

    @hypothesis.settings(
        max_examples=CASES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(cases, st.booleans(), st.data())
    def run(case, likely, data):
        body = case.body
        if likely and isinstance(body, dict):
            # Half of the cases get past the first checks: the right model, no unknown fields, pictures.
            body = {name: value for name, value in body.items() if name in KNOWN} | {"model": MODEL, "max_tokens": 3}
            encoded = base64.b64encode(data.draw(pictures(png))).decode()
            part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}
            if data.draw(st.booleans()):
                words = data.draw(st.text(max_size=20))
                body["messages"] = [{"role": "user", "content": [{"type": "text", "text": words}, part]}]
        status, answer = sent(server.url, body if not isinstance(body, bytes) else body.decode("latin-1"))
        statuses[status] += 1
        assert status < 500, (status, answer[:300])
        if status != 200:
            error = json.loads(answer)["error"]
            assert error["message"]
            assert error["type"]

    run()
    assert statuses[200] >= CASES // 50, statuses
    assert statuses[400] >= CASES // 10, statuses
    assert server.metric("ggss_worker_restarts_total") <= 1, "a picture has ended the worker"
    assert server.metric("ggss_waiting_requests") == 0
    if PAGE:
        tell(Path(PAGE), statuses)


def tell(page: Path, statuses: Counter[int]) -> None:
    """Write how the requests ended into a section of a page."""
    begin, end = "<!-- fuzz: written by `make fuzz-serve` -->", "<!-- end of the fuzz -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    assert found, f"{page} has no place for the figures"
    counts = ", ".join(f"{count:,} with {status}" for status, count in sorted(statuses.items()))
    said = (
        f"Fuzzing: {sum(statuses.values()):,} requests made from the server's own schema, half of them with a "
        f"picture that is whole,\ncut, changed or none, were answered: {counts}. None was a defect of the server."
    )
    page.write_text(f"{before}{begin}\n\n{said}\n\n{end}{rest.partition(end)[2]}", encoding="utf-8")
