"""How long a user waits for `ggss --help`, against importing the two libraries it is made with."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.timing import alternate, milliseconds, row


def run() -> list[dict[str, Any]]:
    ggss = str(Path(sys.executable).with_name("ggss"))
    ours, peer = alternate(
        lambda: subprocess.run([ggss, "--help"], capture_output=True, check=True),
        lambda: subprocess.run([sys.executable, "-c", "import typer, rich"], capture_output=True, check=True),
        rounds=15,
    )
    ratio = ours / peer
    return [
        row(
            "ggss --help",
            milliseconds(ours),
            f'python -c "import typer, rich", {milliseconds(peer)}',
            ratio,
            "at most 3",
            ratio <= 3,
        )
    ]
