"""README's commands on this model, unchanged, each as a process of its own; what they print is kept for the page."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

STEPS = ("doctor", "discover", "ask", "probe", "compare", "report", "export", "export-check")
LIMIT = 12  # people of each task: the walk shows that the commands run, not what they find


def run_ggss(arguments: Sequence[object], folder: Path) -> list[str]:
    """The command and what it printed, without colours; RuntimeError if it failed."""
    words = [str(argument) for argument in arguments]
    program = Path(sys.executable).with_name("ggss")
    variables = dict(os.environ, NO_COLOR="1", COLUMNS="118", TERM="dumb")
    ended = subprocess.run([program, *words], cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"ggss {words[0]} ended with {ended.returncode}: {ended.stderr.strip()[-500:]}")
    return [f"$ ggss {' '.join(words)}", *(line.rstrip() for line in ended.stdout.splitlines() if line.strip())]


def walk(model: Path, fitted: Path, measured: Path, questions: Path, picture: Path, out: Path) -> list[str]:
    """Run the steps, keep their output in walk.json, and return its lines."""
    folder = out / "walk"
    folder.mkdir(exist_ok=True)
    kept = out / "walk.json"
    found: dict[str, list[str]] = json.loads(kept.read_text()) if kept.is_file() else {}
    asked = ["probe", model, "--questions", questions, "--images", measured, "--limit", LIMIT, "--max-new-tokens", 1]
    commands: dict[str, list[object]] = {
        "doctor": ["doctor", model],
        "discover": [
            *("discover", model, "--images", fitted, "--attribute", "race,gender"),
            *("--method", "pace", "-o", "steerer"),
        ],
        "ask": ["ask", model, picture, "Is this person rich or poor?", "--steer", "steerer", "--max-new-tokens", 4],
        "probe": [*asked, "-o", "before.jsonl"],
        "compare": ["compare", "before.jsonl", "after.jsonl"],
        "report": ["report", "before.jsonl", "after.jsonl", "-o", "report.html", "--public"],
        "export": ["export", model, "--steer", "both=steerer", "-o", "debiased"],
        "export-check": ["doctor", "debiased"],
    }
    for step, arguments in commands.items():
        if step in found:
            continue
        if step == "compare":
            run_ggss([*asked, "--steer", "steerer", "-o", "after.jsonl"], folder)
        found[step] = run_ggss(arguments, folder)
        kept.write_text(json.dumps(found, indent=1))
    lines = [line for step in STEPS for line in found[step]]
    for place in (fitted.parent, picture.parent, model.parent):  # of this machine, the longest first
        lines = [line.replace(f"{place}{os.sep}", "") for line in lines]
    return lines
