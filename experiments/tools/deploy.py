"""The table of docs/howto-deploy.md: the same tasks of a model, of the model with a hook, and of the exported model.

`python -m experiments.tools.deploy` runs the page's own commands, keeps what they give in deploy.json beside this
file, and writes the table from it between its marks. `--write` writes the table only.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ggss.analysis import records
from ggss.analysis.run import Measured, Run

PAGE = Path(__file__).parents[2] / "docs" / "howto-deploy.md"
MEASURED = Path(__file__).with_suffix(".json")
BEGIN, END = "<!-- numbers: written by `python -m experiments.tools.deploy` -->", "<!-- /numbers -->"
FILES = {"unsteered": "before.jsonl", "hook": "hook.jsonl", "export": "export.jsonl"}


def commands(page: str) -> list[str]:
    """The page's commands, in order, until the three files are there."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.startswith("ggss ")]
    last = max(next(i for i, line in enumerate(lines) if f"-o {file}" in line) for file in FILES.values())
    return [" ".join(line.split()) for line in lines[: last + 1]]


def run(lines: list[str]) -> dict[str, dict[str, Run]]:
    """Run commands in an empty folder; by column, the runs of the file that was written."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"GGSS_CACHE": f"{folder}/cache", "HF_HUB_OFFLINE": "1"}
        for line in lines:
            print(line)
            words = [sys.executable, "-m", "ggss", *shlex.split(line)[1:]]
            subprocess.run(words, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
        return {name: records.load(Path(folder, file)) for name, file in FILES.items()}


def measured(runs: Mapping[str, Mapping[str, Run]]) -> dict[str, Any]:
    """What the table shows: each task's bias-corrected value with its interval, and how many answers are the same."""
    tasks = {task: {name: _cell(runs[name][task].measured()) for name in FILES} for task in runs["hook"]}
    return {
        "tasks": {f"{task}: {runs['hook'][task].measured().display().label}": tasks[task] for task in tasks},
        "answers": sum(len(run.items) for run in runs["hook"].values()),
        "same": sum(
            answer.text == other.text
            for task, hook in runs["hook"].items()
            for answer, other in zip(hook.answers, runs["export"][task].answers, strict=True)
        ),
    }


def _cell(task: Measured) -> str:
    interval, display = task.corrected(), task.display()
    low, middle, high = (display.number(value) for value in (interval.low, interval.estimate, interval.high))
    return f"{middle} [{low}, {high}]"


def section(numbers: Mapping[str, Any]) -> str:
    lines = [f"| | {' | '.join(FILES)} |", f"| --- |{' ---: |' * len(FILES)}"]
    lines += [f"| {task} | {' | '.join(cells[name] for name in FILES)} |" for task, cells in numbers["tasks"].items()]
    same = f"Of {numbers['answers']} answers of hook and export, {numbers['same']} are the same."
    return "\n".join([BEGIN, *lines, "", same, "Values are bias-corrected, with 95 % intervals (jackknife).", END])


def with_section(page: str, numbers: Mapping[str, Any]) -> str:
    """The page with the table between its marks."""
    head, _, rest = page.partition(BEGIN)
    _, found, tail = rest.partition(END)
    assert found, f"{PAGE} has no place for the table: {BEGIN} and {END}"
    return head + section(numbers) + tail


def main() -> None:
    if "--write" not in sys.argv[1:]:
        lines = commands(PAGE.read_text(encoding="utf-8"))
        numbers = {"commands": lines, **measured(run(lines))}
        MEASURED.write_text(json.dumps(numbers, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    numbers = json.loads(MEASURED.read_text(encoding="utf-8"))
    PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), numbers), encoding="utf-8")
    print(section(numbers))


if __name__ == "__main__":
    main()
