"""`ggss probe --endpoint` against `ggss serve`: the answers and probabilities of a local run, steered and not."""

import json
import os
import subprocess
import sys

import pytest

from conftest import KEY, MODEL
from ggss.analysis import ask, records
from ggss.probes import suites
from ggss.probes.steered_model import SteeredModel
from ggss.steering.steerer import Steerer

TASKS = ("mcq", "2afc", "nurse-doctor", "smallstar")
LIMIT = 24
NEAR = 1e-4  # probabilities; another batch has another last digit


@pytest.mark.parametrize("strengths", [{"race": 0.0, "gender": 0.0}, {"race": 1.0, "gender": 0.0}])
def test_a_served_model_measures_as_the_local_one(server, world, tmp_path, strengths):
    file = tmp_path / "served.jsonl"
    command = ["probe", "--endpoint", f"{server.url}/v1", "--model", MODEL, "--tasks", ",".join(TASKS), "-o", file]
    request = ["--request", json.dumps({"ggss": strengths}), "--limit", LIMIT]
    done = subprocess.run(
        [sys.executable, "-m", "ggss", *map(str, [*command, *request])],
        env=os.environ | {"GGSS_ENDPOINT_KEY": KEY, "no_proxy": "*"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    served = records.load(file)
    assert KEY not in file.read_text() + done.stdout + done.stderr
    local, suite = SteeredModel.of(world.vlm), suites.load("small-world")
    if strengths["race"]:
        local = local.steered(Steerer.from_pretrained(world.steerers["race"]), strengths["race"])
    for task in TASKS:
        expected = ask(local, suite, task, limit=LIMIT, show=False)
        assert [item.key for item in served[task].items] == [item.key for item in expected.items]
        assert [answer.text for answer in served[task].answers] == [answer.text for answer in expected.answers]
        scored = [answer.probabilities for answer in served[task].answers]
        assert all(scored), "the server lists 20 tokens, and every option is among them or negligible"
        for own, other in zip(scored, expected.answers, strict=True):
            assert own == pytest.approx(other.probabilities, abs=NEAR)
