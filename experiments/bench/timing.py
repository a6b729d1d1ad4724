"""How this package measures: medians of alternating runs on one thread, so that both sides see the same machine."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def row(name: str, value: str, peer: str, ratio: float, goal: str, met: bool | None = None) -> dict[str, Any]:
    """One line of the table; `met` None where the line has no goal."""
    return {"name": name, "value": value, "peer": peer, "ratio": ratio, "goal": goal, "met": met}


def alternate(*runs: Callable[[], Any], rounds: int = 9) -> list[float]:
    """The median seconds of each of several functions, called in turn after one warm-up each."""
    for run in runs:
        run()
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, times in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in seconds]


def in_own_process(function: Callable[..., None], *arguments: Any, **environment: str) -> dict[str, Any]:
    """What a function of a module prints as JSON when a fresh process calls it with these literals."""
    module, name = function.__module__, function.__name__
    command = [sys.executable, "-c", f"import {module}; {module}.{name}{arguments!r}"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment).stdout
    return json.loads(printed)


def peak_memory() -> int:
    """The highest resident size of this process so far, in bytes.

    Not getrusage's, which a child inherits from the process that started it.
    """
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
