"""Every number option of every verb, through the command line: the exit code is 0, 1 or 2, never a traceback.

The models are tiny, and where a verb would paint or train for minutes its work is replaced by a check of the numbers
that reach it.
"""

import inspect
import io
import json
import math
import os
import shutil
import sys
import typing
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer
from hypothesis import strategies as st

from experiments.fuzz import runs, studies, tables, tensors, texts
from experiments.fuzz.harness import Target
from ggss import cli
from ggss.activations.collect import collect
from ggss.cli import WRONG, app
from ggss.data.counterfactuals import Counterfactuals
from ggss.errors import InputError
from ggss.methods import registry
from ggss.smallworld.painter import town
from ggss.steering.checkpoints import write_pt
from ggss.steering.fitting import fit

_FACES = "--images faces.jsonl"
_FIXED = f"discover tiny {_FACES} --attribute race -o out"
LINES = {
    "demo": "demo -o out",
    "discover": _FIXED,
    "ask": "ask tiny nurse-amber.png who --steer steerer",
    "probe": f"probe tiny {_FACES} --tasks recognition-race --steer steerer",
    "compare": "compare before.jsonl before.jsonl",
    "recommend": "recommend before.jsonl before.jsonl steerer",
    "gate": "gate before.jsonl before.jsonl",
    "judge": "judge before.jsonl --rubric rubric.yaml --endpoint http://127.0.0.1:9 --model judge -o scores.jsonl",
    "bundle": "bundle before.jsonl -o out.zip",
    "report": "report before.jsonl -o out.html --no-pdf",
    "play": "play tiny",
    "serve": "serve small-world/pixtral --steer race=steerer",
    "convert": "convert whole.pt -o out --attribute race",
    "study run": "study run plan.yaml -o out",
    "study watch": "study watch out",
    "world paint": "world paint out",
}
"""By verb, a line that is right, to which a number is added."""

_HOSTILE = """
0 -0 1 2 -1 -2 0.5 -0.5 1e-9 1e9 1e308 1e309 -1e308 nan inf -inf 1_000 0x10 1e5 ５ ٣ ² 1,5 1.5.2 2147483648 true none
9223372036854775808 18446744073709551616 -9223372036854775809
"""
numbers = (
    st.sampled_from(_HOSTILE.split())
    | st.integers().map(str)
    | st.integers(0, 64).map(str)
    | st.floats().map(repr)
    | st.just("9" * 4_301)
    | texts.words
)


class Reached(SystemExit):
    """The work of a verb began."""

    def __init__(self) -> None:
        super().__init__(0)


def verbs(of: typer.Typer = app, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its function: ("study run", run)."""
    for command in of.registered_commands:
        assert command.callback is not None
        yield before + (command.name or command.callback.__name__), command.callback
    for group in of.registered_groups:
        assert group.typer_instance is not None
        yield from verbs(group.typer_instance, f"{before}{group.name} ")


def number_options() -> list[tuple[str, str]]:
    """(verb, option) of every option that is a number."""
    found = []
    for verb, function in verbs():
        hints = typing.get_type_hints(function)
        for name in inspect.signature(function).parameters:
            kinds = {hints[name], *typing.get_args(hints[name])}
            if kinds & {int, float}:
                found.append((verb, "--" + name.replace("_", "-")))
    return found


def method_options() -> list[tuple[str, str]]:
    """(method, option) of every method option; the command line takes them as text."""
    return [(name, option) for name in registry.names() for option in registry.get(name).options.model_fields]


def _options(folder: Path) -> Any:
    vlm = prepare(folder)
    lines = [(*LINES[verb].split(), option) for verb, option in number_options()]
    plain = st.tuples(st.sampled_from(lines), numbers).map(lambda put: [*put[0], put[1]])
    glued = st.tuples(st.sampled_from(lines), numbers).map(lambda put: [*put[0][:-1], f"{put[0][-1]}={put[1]}"])
    chosen = st.tuples(st.sampled_from(method_options()), numbers).map(
        lambda put: [*_FIXED.split(), "--method", put[0][0], "--option", f"{put[0][1]}={put[1]}"]
    )
    return plain | glued | chosen, lambda line: run(folder, line, vlm)


def prepare(folder: Path) -> Any:
    """All that the lines name: pictures, a steerer, a checkpoint, a run, a plan. Returns the model."""
    tables.paint(folder)
    (folder / "faces.jsonl").write_text("\n".join(map(json.dumps, tables.ROWS)))
    vlm = tensors.tiny()
    faces = Counterfactuals.load(folder / "faces.jsonl")
    steerer = fit("ggss", collect(vlm, faces, cache=folder / "cache", show=False), attribute="race", k=1)
    steerer.save_pretrained(folder / "steerer")
    write_pt(steerer, folder / "whole.pt")
    runs.write_run("recognition-race", folder / "before.jsonl")
    (folder / "plan.yaml").write_text(json.dumps(studies.PLAN | {"benchmarks": {}}))
    return brief(vlm)


def run(folder: Path, line: list[str], vlm: Any) -> None:
    """Run a command line in the folder. A refusal is an exit code of 2 and a sentence; 1 is what `gate` says."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    told, printed, before = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with ExitStack() as stack:
            for stub in (*stubs(folder, vlm), patch.object(sys, "argv", ["ggss", *line])):
                stack.enter_context(stub)
            stack.enter_context(redirect_stdout(printed))
            stack.enter_context(redirect_stderr(told))
            cli.main()
    except SystemExit as end:
        code, said = end.code or 0, told.getvalue().strip()
        assert code in (0, 1, 2), f"exit code {code}: {said[-300:]}"
        assert not code or said or (code == 1 and printed.getvalue().strip()), f"exit code {code} without a sentence"
        if code == WRONG:
            raise InputError(told.getvalue()) from end
    finally:
        os.chdir(before)


def stubs(folder: Path, vlm: Any) -> list[Any]:
    """Tiny models, and the numbers that reach minutes of work looked at instead of used."""

    def paint(place: Path, seed: int) -> None:
        town(seed)
        raise Reached

    def demo(place: Path, model: str, alpha: float) -> None:
        assert math.isfinite(alpha)
        raise Reached

    return [
        patch.dict(os.environ, {"GGSS_CACHE": str(folder / "cache")}),
        patch("ggss.models.vlm.load_vlm", lambda *given, **named: vlm),
        patch("ggss.smallworld.painter.paint_focus_set", paint),
        patch("ggss.smallworld.demo.run", demo),
        patch("ggss.study.runner.DiscoverySet"),
        patch("ggss.study.runner.Driver", side_effect=Reached),
        patch("ggss.serve.app.bound"),
        patch("ggss.serve.app.run", side_effect=Reached),
    ]


def brief(vlm: Any) -> Any:
    """The model, with answers of two tokens at most."""
    generate = vlm.model.generate

    def short(*given: Any, max_new_tokens: int, **named: Any) -> Any:
        return generate(*given, max_new_tokens=min(max_new_tokens, 2), **named)

    vlm.model.generate = short
    return vlm


TARGETS = (Target("number options", 0.03, _options),)
