"""The five commands of docs/serving.md, run as they are on the page; `vllm` runs them too."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[1] / "docs" / "serving.md").read_text(encoding="utf-8")
PATIENCE = 900  # seconds; a busy machine may be slow, and nothing here waits for time to pass


def lines() -> list[str]:
    """The lines of the page's block, those that go on joined."""
    block = re.search(r"^## Five commands$.*?^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert block is not None
    return block[1].replace("\\\n", " ").splitlines()


def check_answer(folder: Path, options: str = "") -> None:
    """Run them in a folder, the server on a free port and with these options: they end with a steered answer."""
    answer = _answer(folder, options)
    assert answer["choices"][0]["message"]["content"]
    assert answer["ggss"]["race"]["alpha"] == 0.75
    assert answer["ggss"]["race"]["tokens"] > 0


def _answer(folder: Path, options: str) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The server, which has a terminal of its own on the page, goes on in the background and is ended with its group.
    served = [f"{line} {options} >&2 &" if line.startswith("ggss serve") else line for line in lines()]
    script = "\n".join(["set -e", *served]).replace("8000", str(port)).replace("--retry 300", f"--retry {PATIENCE}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": path, "GGSS_CACHE": str(folder / "cache")},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            out, _ = run.communicate(timeout=2 * PATIENCE)
        finally:
            os.killpg(run.pid, signal.SIGTERM)
    assert run.returncode == 0
    return json.loads(out.splitlines()[-1])
