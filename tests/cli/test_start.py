"""A command imports only what it uses: torch, transformers and scipy's parts take seconds."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from conftest import noise
from fresh_python import python

SMOKE = Path(__file__).parents[2] / "studies" / "smoke.yaml"
PROGRAM = """
import sys
from ggss import cli

absent, *commands = sys.argv[1:]
for command in commands:
    sys.argv = ["ggss", *command.split("|")]
    try:
        cli.main()
    except SystemExit as stop:
        assert not stop.code, stop.code
print("imported:", *(name for name in absent.split() if name in sys.modules), file=sys.stderr)
"""
FITTING = "sklearn matplotlib scipy.stats"
MODELS = "transformers.modeling_utils torch._dynamo"


@cache
def brought() -> set[str]:
    """What transformers imports by itself before it can generate: 5.18 imports scikit-learn where it is installed."""
    code = "import sys, transformers.generation.utils\nprint(*(set(sys.argv[1].split()) & set(sys.modules)))"
    return set(subprocess.run([sys.executable, "-c", code, FITTING], capture_output=True, text=True).stdout.split())


def imported(names: str, *commands: tuple[str, ...]) -> str:
    """Which of the named modules are imported when the commands have been run, one after the other."""
    lines = ["|".join(command) for command in commands]
    if "transformers" in names.split():
        done = subprocess.run([sys.executable, "-c", PROGRAM, names, *lines], capture_output=True, text=True)
    else:  # it may be there before
        done = python(PROGRAM, names, *lines)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1].removeprefix("imported:").strip()


@pytest.mark.parametrize(
    ("absent", "command"),
    [
        (f"torch transformers numpy scipy PIL yaml pydantic {FITTING}", ("--help",)),
        (f"torch transformers {FITTING}", ("probes",)),
        (f"transformers {FITTING}", ("methods",)),
        (FITTING, ("study", "plan", str(SMOKE), "--no-forecast")),  # it reads configs and counts tokens
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_that_runs_no_model_imports_none(absent, command):
    assert set(imported(absent, command).split()) <= (brought() if command[0] == "study" else set())


def test_asking_and_examining_import_no_statistics(tmp_path):
    noise(0).save(tmp_path / "face.png")
    ask = ("ask", "small-world/llava-vicuna", str(tmp_path / "face.png"), "how much does this person earn ?")
    seen = imported(f"torch {FITTING} ggss.stats ggss.report ggss.study", ask, ("doctor", "small-world/qwen3-vl"))
    assert {"torch"} <= set(seen.split()) <= {"torch"} | brought()
