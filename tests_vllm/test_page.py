"""docs/serving.md: its five commands work with vLLM, too, and vLLM's own server takes strengths from requests."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
PATIENCE = 900


def test_the_five_commands_with_vllm(tmp_path):
    block = re.search(r"^## Five commands$.*?^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert block is not None
    lines = block[1].replace("\\\n", " ").splitlines()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = [f"{line} --engine vllm >&2 &" if line.startswith("ggss serve") else line for line in lines]
    script = "\n".join(["set -e", *served]).replace("8000", str(port)).replace("--retry 300", f"--retry {PATIENCE}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "GGSS_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            out, _ = run.communicate(timeout=2 * PATIENCE)
        finally:
            os.killpg(run.pid, signal.SIGTERM)
    assert run.returncode == 0
    answer = json.loads(out.splitlines()[-1])
    assert answer["choices"][0]["message"]["content"]
    assert answer["ggss"]["race"]["alpha"] == 0.75
    assert answer["ggss"]["race"]["tokens"] > 0
