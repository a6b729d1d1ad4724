"""How long a user waits for a command, against importing the libraries that it is made with."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.bench.timing import alternate, milliseconds, row
from ggss.smallworld.painter import town

MODEL, QUESTION = "small-world/llava-vicuna", "which race is this person ?"


def run() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        face = str(Path(folder) / "face.png")
        town().pictures[0].image().save(face)
        return [
            _row(["--help"], "typer, rich", rounds=15, most=3),
            _row(["ask", MODEL, face, QUESTION], "torch, transformers", rounds=5, most=2),
            _row(["doctor", MODEL], "torch, transformers", rounds=5, most=2),
        ]


def _row(arguments: list[str], libraries: str, rounds: int, most: float) -> dict[str, Any]:
    ggss, code = str(Path(sys.executable).with_name("ggss")), f"import {libraries}"
    ours, peer = alternate(
        lambda: subprocess.run([ggss, *arguments], capture_output=True, check=True),
        lambda: subprocess.run([sys.executable, "-c", code], capture_output=True, check=True),
        rounds=rounds,
    )
    name = f"ggss {arguments[0]}" + (f" {MODEL}" if len(arguments) > 1 else "")
    ratio, against = ours / peer, f'python -c "{code}", {milliseconds(peer)}'
    return row(name, milliseconds(ours), against, ratio, f"at most {most:g}", ratio <= most)
