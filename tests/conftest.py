"""Tiny random models of the real classes and pictures of noise, shared by all tests. Nothing here needs a network."""

import functools
import logging
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
# Some virtual machines announce AMX and then refuse its instructions: bfloat16 products would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# A test process is one thread: two of them fill two cores, and more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
import typer
from PIL import Image

from experiments.training.architectures import NAMES, build
from ggss.models import Vlm

torch.set_num_threads(1)
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")

TEXT = "the person in this picture is a nurse or doctor who earns more than which of two what colour hat"
WORDS = [*TEXT.split(), "red", "blue", "green", "yes", "no", ",", ".", "?", ":", "A", "B", "C", "D"]


@pytest.fixture(autouse=True)
def as_loud_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `ggss --quiet` and `--debug` switch on for a whole process ends with the test that ran it."""
    for name in ("GGSS_QUIET", "GGSS_DEBUG"):
        monkeypatch.setenv(name, "")
    yield
    logging.getLogger("ggss").setLevel(logging.NOTSET)


# From typer's declarations to a command takes longer than most commands that are refused.
command_of = functools.cache(typer.main.get_command)


@pytest.fixture
def ggss_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple]:
    """Runs `ggss ...` in this process; gives exit code, stdout, stderr."""
    from ggss import cli

    monkeypatch.setattr("typer.main.get_command", command_of)

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ggss", *map(str, words)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Vlm]:
    """Makes a fresh tiny model: `tiny("pixtral", seed=1, width=64)`."""

    def make(name: str, seed: int = 0, **size: object) -> Vlm:
        return Vlm(*build(name, WORDS, seed, **{"width": 64, "layers": 2} | size), name=name)

    return make


@pytest.fixture(scope="session", params=NAMES)
def vlm(request: pytest.FixtureRequest, tiny: Callable[..., Vlm]) -> Vlm:
    """Each of the four architectures in turn. It is shared: leave it as it was."""
    return tiny(request.param)


@pytest.fixture(scope="session")
def qwen(tiny: Callable[..., Vlm]) -> Vlm:
    """A Qwen3-VL with two deepstack mergers. It is shared: leave it as it was."""
    return tiny("qwen3-vl", layers=3, deepstack=(0, 1))


@pytest.fixture(scope="session")
def model_dir(vlm: Vlm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `vlm` of the same test, saved as an ordinary model directory."""
    directory = tmp_path_factory.mktemp(vlm.name)
    vlm.model.save_pretrained(directory)
    vlm.processor.save_pretrained(directory)
    return directory


def noise(seed: int, height: int = 64, width: int = 64) -> Image.Image:
    """A picture of coloured noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture(scope="session")
def pictures() -> list[Image.Image]:
    """Four pictures, the last two of other shapes."""
    return [noise(0), noise(1), noise(2, 48, 96), noise(3, 80, 32)]


def exported(study: Path) -> bytes:
    """All answers of a study, as its export has them."""
    from ggss.study.results import export

    export(study, study / "answers.jsonl")
    return (study / "answers.jsonl").read_bytes()
