"""The docstrings of the public API: arguments, results, errors, and an example that runs as it stands.

The examples share what docs/api.md makes before them: a small-world model, some of its faces, their
activations, a steerer, and two runs.
"""

import doctest
import inspect
from collections.abc import Iterator
from types import FunctionType

import numpy as np
import pytest
import torch

import ggss
from ggss.analysis import records
from ggss.cli.arguments import one_thread
from ggss.probes import suites
from ggss.probes.steered_model import SteeredModel

ROOMS = (ggss, ggss.sphere, ggss.stats, ggss.analysis)
BESIDES = (
    *(getattr(table, name) for table in (ggss.methods, ggss.probes) for name in ("names", "get", "register")),
    *(ggss.Steerer.steer, ggss.Steerer.gate, ggss.Steerer.attach, ggss.Steerer.save_pretrained),
    *(ggss.Steerer.from_pretrained, ggss.Counterfactuals.load, ggss.Counterfactuals.chosen),
    *(ggss.Counterfactuals.validate, ggss.Vlm.answer, ggss.analysis.Run.metrics, ggss.analysis.Run.measured),
    *(ggss.analysis.Comparison.change, ggss.analysis.Comparison.accuracy),
    *(records.load, suites.load, SteeredModel),
)
WITHOUT = {"InputError", "norm"}  # an exception; and a helper of the sphere that is no part of the contract


def named(room) -> list[str]:
    """What a package offers: `__all__`, or the functions of a module that has none."""
    if hasattr(room, "__all__"):
        return [
            name for name in room.__all__ if inspect.isclass(getattr(room, name)) or callable(getattr(room, name))
        ]
    return [name for name, own in vars(room).items() if isinstance(own, FunctionType) and not name.startswith("_")]


def public() -> Iterator[tuple[str, object]]:
    for room in ROOMS:
        for name in named(room):
            if name not in WITHOUT:
                own = getattr(room, name)
                yield f"{own.__module__}.{own.__qualname__}", own
    for own in BESIDES:
        yield f"{own.__module__}.{own.__qualname__}", own


PUBLIC = dict(public())


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What docs/api.md makes; there with all pictures and items, here with few."""
    one_thread()
    faces = ggss.Counterfactuals.load(
        "small-world", include={"occupation": "cook", "identity": ["00", "01", "02", "03"]}
    )
    vlm = ggss.load_vlm("small-world/llava-vicuna")
    acts = ggss.collect(vlm, faces, keep_tokens=True, cache=tmp_path_factory.mktemp("activations"))
    steerer = ggss.fit("ggss", acts, attribute="race")
    model, suite = SteeredModel.of(vlm), suites.load("small-world")
    before = ggss.analysis.ask(model, suite, "mcq", limit=20)
    after = ggss.analysis.ask(model.steered(steerer, 1.0), suite, "mcq", limit=20)
    runs = [
        ggss.analysis.ask(one, suite, "recognition-race", limit=20) for one in (model, model.steered(steerer, 1.0))
    ]
    return {
        **{
            "__name__": "example",
            "ggss": ggss,
            "torch": torch,
            "np": np,
            "faces": faces,
            "vlm": vlm,
            "acts": acts,
            "steerer": steerer,
        },
        **{"model": model, "suite": suite, "before": before, "after": after},
        **{"comparison": ggss.analysis.compare(before, after), "recognition": ggss.analysis.compare(*runs)},
    }


@pytest.mark.parametrize("name", PUBLIC)
def test_an_example_runs(name, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GGSS_CACHE", str(tmp_path / "cache"))
    parsed = doctest.DocTestParser().get_doctest(inspect.getdoc(PUBLIC[name]), dict(shown), name, None, 0)
    assert parsed.examples, f"{name} has no example"
    runner, told = doctest.DocTestRunner(verbose=False), []
    runner.run(parsed, out=told.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(told)


@pytest.mark.parametrize("name", PUBLIC)
def test_arguments_and_results_are_described(name):
    own = PUBLIC[name]
    text = inspect.getdoc(own)
    signature = inspect.signature(own)
    taken = [one for one in signature.parameters if one not in ("self", "cls") and not one.startswith("_")]
    described = text.partition("Args:\n")[2].partition("\n\n")[0]
    assert [one for one in taken if f"    {one}: " not in described and f"**{one}: " not in described] == []
    returns = not inspect.isclass(own) and signature.return_annotation not in (None, "None", inspect.Signature.empty)
    if returns:
        assert "Returns:\n" in text or "Yields:\n" in text


def test_a_wrong_example_is_noticed(shown):
    parsed = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", dict(shown), "wrong", None, 0)
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(parsed, out=lambda text: None)
    assert runner.summarize(verbose=False).failed == 1
