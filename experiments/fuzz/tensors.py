"""Files with tensors: steerers' folders, `.pt` checkpoints of two layouts, entries of the activation cache."""

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from experiments.fuzz import tables, trees
from experiments.fuzz.harness import Target
from experiments.training.architectures import build
from ggss.activations import SITE, Activations
from ggss.activations.collect import collect
from ggss.cli.discover import described
from ggss.data.counterfactuals import Counterfactuals
from ggss.methods import registry
from ggss.methods.spherical import Geodesic
from ggss.models import Vlm
from ggss.steering.artefact import CARD, CONFIG, TENSORS, card, load, save, signed
from ggss.steering.checkpoints import read_pt, read_released, write_pt
from ggss.steering.fitting import fit
from ggss.steering.steerer import Steerer

WIDTH = 12
REAL = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES = [*REAL, torch.int64, torch.uint8, torch.bool, torch.complex64]
FILLED = [0.0, 1.0, -1.0, 0.5, 1e30, torch.inf, torch.nan]

shapes = st.lists(st.sampled_from([0, 1, 2, 3, WIDTH, WIDTH + 1]), max_size=3).map(tuple)
tensors = st.tuples(shapes, st.sampled_from(DTYPES), st.sampled_from(FILLED)).map(
    lambda made: (
        torch.full(made[0], made[2], dtype=torch.float64).nan_to_num(1).to(made[1])
        if not made[1].is_floating_point
        else torch.full(made[0], made[2]).to(made[1])
    )
)
"""A tensor of any shape and dtype."""


def activations() -> Activations:
    """Two values in twelve contexts, with tokens."""
    generator = torch.Generator().manual_seed(0)
    labels = [(context, value) for context in range(12) for value in ("amber", "jade")]
    offsets = {"amber": 1.0, "jade": -1.0}
    tokens = []
    for _, value in labels:
        one = torch.randn(3, WIDTH, generator=generator) + 2
        one[:, 0] += offsets[value]
        tokens.append(one)
    # Every second person is of another occupation: some methods keep a column.
    contexts = [(("occupation", "cook" if context % 2 else "nurse"), ("identity", context)) for context, _ in labels]
    return Activations(tokens, [{"race": value} for _, value in labels], contexts)


def use(steerer: Steerer) -> None:
    """What is done with a steerer that was read: describe it, steer with it. What it gives must be numbers."""
    card(steerer)
    json.dumps(described(steerer, Path("folder")))
    assert len(steerer.content_hash) == 64
    assert isinstance(steerer.prompt_suffix, str)
    for site, operator in steerer.operators.items():
        rows = torch.randn(6, operator.width, generator=torch.Generator().manual_seed(1))
        images = torch.tensor([0, 0, 0, 1, 1, 1])
        assert torch.isfinite(steerer.steer(rows, images, 1.0, site=site)).all()
        if not operator.needs_images and (gate := steerer.gate(rows, site=site)) is not None:
            assert ((gate >= 0) & (gate <= 1)).all(), f"gates from {gate.min()} to {gate.max()}"


def _artefacts(folder: Path) -> Any:
    acts = activations()
    whole: dict[str, dict[str, bytes]] = {}
    for name in registry.fitted_names():
        save(fit(name, acts, attribute="race"), folder / name)
        use(load(folder / name))
        whole[name] = {file.name: file.read_bytes() for file in (folder / name).iterdir() if file.name != CARD}
        shutil.rmtree(folder / name)
    place = folder / "steerer"

    def cases(name: str) -> Any:
        files = whole[name]
        config, own = json.loads(files[CONFIG]), load_tensors(files[TENSORS])
        bytewise = st.sampled_from(sorted(files)).flatmap(
            lambda file: st.tuples(st.just(file), trees.damaged(files[file]), st.just(False))
        )
        described = st.tuples(st.just(CONFIG), trees.changed(config, 2).map(_json), st.booleans())
        exchanged = st.dictionaries(st.sampled_from([*own, "other"]), tensors, max_size=2).map(lambda new: own | new)
        held = st.tuples(st.just(TENSORS), exchanged.map(save_tensors), st.just(True))
        return st.tuples(st.just(name), described | described | held | bytewise)

    def read(case: tuple[str, tuple[str, bytes, bool]]) -> None:
        name, (file, data, sealed) = case
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        files = whole[name] | {file: data}
        if sealed:
            files[CONFIG] = _sealed(files)
        for one, content in files.items():
            (place / one).write_bytes(content)
        use(load(place))

    return st.sampled_from(registry.fitted_names()).flatmap(cases), read


def _sealed(files: dict[str, bytes]) -> bytes:
    """The config with the checksums of what is there: one who changes a file can do that, too."""
    config = json.loads(files[CONFIG])
    if not isinstance(config, dict):
        return files[CONFIG]
    config["sha256"] = hashlib.sha256(files[TENSORS]).hexdigest()
    try:
        return _json(signed(config))
    except ValueError:  # a number or a text that is no JSON
        return _json(config)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _checkpoints(folder: Path) -> Any:
    write_pt(fit("ggss", activations(), attribute="race"), folder / "whole.pt")
    stored = torch.load(folder / "whole.pt", weights_only=True)
    return _changed_pt(folder, stored, lambda file: read_pt(file, "race"))


def _released(folder: Path) -> Any:
    own = fit("ggss", activations(), attribute="race").operators[SITE]
    assert isinstance(own, Geodesic)
    stored = {
        "V_bias": own.basis,
        "mu_global": own.mu,
        "k": own.basis.shape[1],
        "metadata": {"type": "geodesic_gated", "layer_name": SITE, "classes": ["a", "b"], "singular_values": [1.0]},
        **{"kappa": 5.0, "gate_floor": 0.0, "bias_median": own.gate_median, "bias_std": own.gate_std},
    }
    return _changed_pt(folder, stored, lambda file: read_released(file, "race"))


def _changed_pt(folder: Path, stored: dict[str, Any], reader: Callable[[Path], Steerer]) -> Any:
    """Files that are not as they should be, made from what a good one holds."""
    whole, file = _saved(stored), folder / "changed.pt"
    new = trees.values | tensors | st.sampled_from(list(stored.values()))
    changed = st.dictionaries(st.sampled_from([*stored, "other"]), new, max_size=2).map(lambda put: stored | put)
    fewer = st.sampled_from([*stored]).map(lambda name: {key: stored[key] for key in stored if key != name})
    content = (changed | changed | fewer | trees.values | tensors).map(_saved) | trees.damaged(whole) | st.binary()

    def read(data: bytes) -> None:
        file.write_bytes(data)
        use(reader(file))

    return content, read


def _saved(value: Any) -> bytes:
    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


def tiny() -> Vlm:
    """A tiny random model of a real class."""
    said = (
        "the person in this picture is a nurse or doctor who earns more than which of two what , . ? : A B C D yes no"
    )
    return Vlm(*build("pixtral", said.split(), 0, width=32, layers=1), name="tiny")


def painted_faces(folder: Path) -> Counterfactuals:
    """A small set of pictures in the folder."""
    tables.paint(folder)
    rows = [{**row, "path": str(folder / row["path"])} for row in tables.ROWS]
    (folder / "faces.jsonl").write_bytes("\n".join(map(json.dumps, rows)).encode())
    return Counterfactuals.load(folder / "faces.jsonl")


def _cache(folder: Path) -> Any:
    faces, vlm, cache = painted_faces(folder), tiny(), folder / "cache"

    def collected() -> tuple[Tensor, list[Tensor]]:
        acts = collect(vlm, faces, cache=cache, keep_tokens=True, show=False)
        return acts.pooled, [one.clone() for one in acts.tokens]

    pooled, tokens = collected()
    entries = sorted(file for file in cache.rglob("*") if file.is_file())
    whole = [entry.read_bytes() for entry in entries]
    own = load_tensors(whole[0])
    exchanged = st.dictionaries(st.sampled_from([*own, "other"]), tensors, max_size=2).map(lambda put: own | put)
    fewer = st.sampled_from([*own]).map(lambda name: {key: own[key] for key in own if key != name})
    content = trees.damaged(whole[0]) | (exchanged | fewer).map(save_tensors) | st.sampled_from(whole) | st.binary()

    def read(data: bytes) -> None:
        entries[0].write_bytes(data)
        found, kept = collected()
        assert torch.allclose(found, pooled, atol=1e-5), "a changed entry changed the activations"
        assert len(kept) == len(tokens)
        for one, other in zip(kept, tokens, strict=True):
            assert one.shape == other.shape
            assert torch.allclose(one.float(), other.float(), atol=1e-5), "a changed entry changed the tokens"

    return content, read


TARGETS = (
    Target("steerers", 0.08, _artefacts),
    Target("published .pt", 0.03, _checkpoints),
    Target("released .pt", 0.03, _released),
    Target("activation cache", 0.035, _cache),
)
