"""How long a report takes, and how large it is, against reading the study's answers."""

import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.bench.study import PLAN
from experiments.bench.timing import row
from ggss.report import material, page
from ggss.study.results import Results
from ggss.study.runner import run as run_study

LARGEST = 5.0  # MB


def run() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        run_study(PLAN, folder, show=False)
        start = time.process_time()
        for _ in Results.load(folder):
            pass
        read = time.process_time() - start
        start = time.process_time()
        written = page.write(material.of_study(folder), Path(folder) / "report.html")
        spent, size = time.process_time() - start, written.stat().st_size / 1e6
    return [
        row("report of a study", f"{spent:.1f} s", f"reading its answers, {read:.2f} s", spent / read, ""),
        row("size of the report", f"{size:.2f} MB", f"{LARGEST:g} MB", size / LARGEST, "at most 1", size <= LARGEST),
    ]
