"""An artefact that was changed, or that somebody made to do harm, is refused with a sentence; so is a `.pt` file."""

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

import ggss
from ggss import InputError
from ggss.steering import artefact
from ggss.steering.artefact import signed
from ggss.steering.checkpoints import read_pt
from planted import planted

SITE = "projection-mlp2"


@pytest.fixture(scope="module")
def steerer():
    return ggss.fit("ggss", planted(identities=4)[0], attribute="race").recommending(0.5)


@pytest.fixture
def folder(steerer, tmp_path):
    return steerer.save_pretrained(tmp_path / "s")


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def refused(folder, config, message=""):
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    with pytest.raises(InputError, match=message) as caught:
        ggss.Steerer.from_pretrained(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def leaves(value, path=()):
    """The path of every value in a JSON value that holds no other."""
    if isinstance(value, dict | list) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


def changed(config, path, value):
    copy = json.loads(json.dumps(config))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


def test_no_number_and_no_word_of_a_config_can_be_edited(folder):
    config = config_of(folder)
    every = list(leaves(config))
    assert {path[0] for path in every} == set(config), "an empty entry counts as well"
    for path in every:
        message = "artefact format" if path == ("format",) else "changed after it was written"
        refused(folder, changed(config, path, "edited"), message)
    refused(folder, config | {"more": 1}, "changed after it was written")
    refused(folder, {name: value for name, value in config.items() if name != "prompt_suffix"}, "changed after")
    refused(folder, {name: value for name, value in config.items() if name != "checksum"}, "changed after")


def test_the_layout_of_a_config_does_not_matter(folder, steerer):
    config = config_of(folder)
    (folder / "config.json").write_text(json.dumps(dict(reversed(config.items()))))
    assert ggss.Steerer.from_pretrained(folder).content_hash == steerer.content_hash


def test_the_checksum_is_right_after_a_recommendation(folder):
    artefact.recommend(folder, 0.75)
    assert ggss.Steerer.from_pretrained(folder).recommended_alpha == 0.75
    assert config_of(folder) == signed(config_of(folder))


@pytest.mark.parametrize(
    ("scalar", "value"),
    [("kappa", -5), ("floor", -100), ("gate_std", -1), ("gate_median", 1e308), ("kappa", None), ("floor", [0.3])],
)
def test_a_right_checksum_does_not_make_wrong_numbers_right(folder, scalar, value):
    refused(folder, signed(changed(config_of(folder), ("sites", SITE, scalar), value)), f"{scalar} should be")


def test_every_entry_of_another_type_is_a_sentence(folder):
    config = config_of(folder)
    others = [None, [], {}, "", 0, -1, 1.5, True, [1], {"": None}, "\ud800", 10**400, [[[]]], {SITE: None}]
    paths = {path[:depth] for path in leaves(config) for depth in range(1, len(path) + 1)} - {("checksum",)}
    accepted: set[str] = set()
    for path in sorted(paths, key=str):
        for other in others:
            edited = changed(config, path, other)
            with suppress(UnicodeEncodeError):  # a lone surrogate has no bytes
                edited = signed(edited)
            (folder / "config.json").write_text(json.dumps(edited))
            with suppress(InputError):
                loaded = ggss.Steerer.from_pretrained(folder)
                loaded.save_pretrained(folder.parent / "again")  # what was read can be written, with its card
                accepted.add(path[0])
    assert accepted <= {"method", "attribute", "values", "options", "source", "diagnostics", "prompt_suffix"} | {
        "recommended_alpha",
        "versions",
        "streams_sha256",
        "sites",  # floor 0 or 1, kappa 1.5
    }


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("sites", [], "sites: Input should be an object|sites: Input should be a valid dictionary"),
        ("sites", None, "sites: "),
        ("sites", {}, "sites: "),
        ("sites", {SITE: {"operator": "geodesic"}}, "width: Field required"),
        ("sites", {SITE: {"operator": "geodesic", "width": 64}}, "the fields at projection-mlp2 are not those"),
        ("source", None, "source: "),
        ("source", {"fingerprint": 5}, "source.fingerprint: "),
        ("values", "abc", "values: "),
        ("diagnostics", {SITE: {"warnings": 3}}, "warnings: "),
        ("versions", {"ggss": 1}, "versions.ggss: "),
        ("method", None, "method: "),
        ("sha256", None, "sha256: "),
        ("more", 1, "more: Extra inputs"),
        ("format", 1, "artefact format 1, this version of ggss reads 2: make the steerer again"),
        ("format", [2], r"artefact format \[2\]"),
    ],
)
def test_what_is_wrong_is_named(folder, entry, value, message):
    refused(folder, signed(config_of(folder) | {entry: value}), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"format": 2, "sites": ' + "[" * 40 + "]" * 40 + "}", "nested too deeply"),
        ('{"format": 2, "sites": NaN}', "NaN is not a number of JSON"),
        ('{"format": 2, "sites": {}, "options": {"k": 1e999}}', "not JSON compliant"),
        ('{"format": ' + "9" * 5000 + "}", "not JSON"),
        ("", "not JSON"),
        ("null", "does not describe a ggss steerer"),
        ("[]", "does not describe a ggss steerer"),
    ],
)
def test_json_of_any_kind_is_a_sentence(folder, text, message):
    refused(folder, text, message)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_tensors_of_another_dtype_are_refused(folder, dtype):
    tensors = load_tensors((folder / "steerer.safetensors").read_bytes())
    tensors[f"{SITE}/operator/mu"] = tensors[f"{SITE}/operator/mu"].to(dtype)
    rewrite(folder, save_tensors(tensors), "mu must be a dense tensor of torch.float32")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"basis": None}, "the fields at projection-mlp2 are not those"),
        ({"more": torch.ones(3)}, "the fields at projection-mlp2 are not those"),
        ({"kappa": torch.ones(3)}, "the fields at projection-mlp2 are not those"),
        ({"mu": torch.ones(64)}, "mu has length 8"),
        ({"mu": torch.zeros(0)}, "mu must be"),
    ],
)
def test_other_tensors_are_refused(folder, names, message):
    tensors = load_tensors((folder / "steerer.safetensors").read_bytes())
    tensors |= {f"{SITE}/operator/{name}": tensor for name, tensor in names.items() if tensor is not None}
    for name in names:
        if names[name] is None:
            del tensors[f"{SITE}/operator/{name}"]
    rewrite(folder, save_tensors(tensors), message)


def rewrite(folder, data, message):
    (folder / "steerer.safetensors").write_bytes(data)
    refused(folder, signed(config_of(folder) | {"sha256": hashlib.sha256(data).hexdigest()}), message)


def test_tensors_that_are_no_safetensors_are_refused(folder):
    for data in (b"", b"\0" * 100, b"\xff" * 100, b'\x02\0\0\0\0\0\0\0{}{"x"'):
        rewrite(folder, data, "no file of safetensors|the fields at")


@pytest.mark.parametrize("name", ["config.json", "steerer.safetensors"])
def test_only_ordinary_files_are_read(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match="is a named pipe"):
        ggss.Steerer.from_pretrained(folder)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises(InputError, match="is a device"):
        ggss.Steerer.from_pretrained(folder)


def test_what_cannot_be_read_again_is_not_written(steerer, tmp_path):
    for wrong, message in (
        (replace(steerer, diagnostics={SITE: {"effective_rank": float("nan")}}), "JSON cannot"),
        (replace(steerer, values=(object(),)), "JSON cannot"),
        (replace(steerer, source={"model": 3}), "source.model"),
        (replace(steerer, operators={}), "sites"),
    ):
        with pytest.raises(InputError, match=message):
            wrong.save_pretrained(tmp_path / "new")
        assert not (tmp_path / "new").exists()


def checkpoint(steerer, **changes):
    operator = steerer.operators[SITE]
    stored = {"V_bias": operator.basis, "mu": operator.mu, "k": operator.basis.shape[1]}
    stored |= {"b_median": operator.gate_median, "b_std": operator.gate_std, "attribute": "race"}
    return stored | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": "four"}, "k: Input should be a valid integer"),
        ({"k": "4"}, "k: Input should be a valid integer"),
        ({"k": 4.5}, "k: "),
        ({"k": True}, "k: "),
        ({"k": torch.ones(4)}, "k: "),
        ({"k": None}, "k: "),
        ({"b_median": "0.1"}, "b_median: Input should be a valid number"),
        ({"b_median": [0.1]}, "b_median: "),
        ({"b_std": float("nan")}, "b_std: Input should be a finite number"),
        ({"b_std": -1.0}, "gate_std should be greater than or equal to 0"),
        ({"b_std": {}}, "b_std: "),
        ({"mu": "mu"}, "mu: must be an array of real numbers, seen a str"),
        ({"mu": {"a": 1}}, "mu: "),
        ({"mu": ["a"]}, "mu: must be an array of real numbers"),
        ({"mu": [False, "a"]}, "mu: must be an array of real numbers"),
        ({"mu": [None]}, "mu: must be an array of real numbers"),
        ({"mu": [10**400]}, "mu: must be an array of real numbers"),
        ({"mu": [[1.0], [1.0, 2.0]]}, "mu: "),
        ({"mu": 1.0}, "mu: "),
        ({"mu": torch.ones(64, dtype=torch.complex64)}, "mu: "),
        ({"mu": torch.ones(64).to_sparse()}, "mu: must be a dense array"),
        ({"mu": torch.ones(1).expand(10**9, 10**9)}, "has more elements than are stored"),
        ({"mu": torch.full((64,), float("inf"))}, "mu: has numbers that are not finite"),
        ({"mu": torch.ones(0)}, "V_bias is"),
        ({"V_bias": torch.ones(64, 4) > 0}, "V_bias: must be an array of real numbers"),
        ({"V_bias": torch.ones(64)}, r"V_bias is \(64,\)"),
        ({"singular_values": "many"}, "singular_values: "),
        ({"bias_norms": {1: 2}}, "bias_norms: "),
        ({"n_images": "many"}, "n_images: "),
        ({"n_images": -1}, "n_images: "),
        ({"attribute": 5}, "attribute"),
        ({"attribute": [1]}, "attribute"),
        ({"values": "abc"}, "values"),
        ({"values": 3}, "values"),
        ({"values": [{}]}, "values"),
        ({"values": [torch.ones(2)]}, "values"),
        ({1: 2}, "not a dictionary of"),
    ],
    ids=str,
)
def test_a_checkpoint_with_another_type_is_a_sentence(steerer, tmp_path, changes, message):
    torch.save(checkpoint(steerer) | changes, tmp_path / "race.pt")
    with pytest.raises(InputError, match=message) as caught:
        read_pt(tmp_path / "race.pt")
    assert "\n" not in str(caught.value)
    assert "race.pt" in str(caught.value)


def test_a_checkpoint_as_others_may_write_it(steerer, tmp_path):
    operator = steerer.operators[SITE]
    other = {"k": torch.tensor(4), "b_median": torch.tensor(0.25), "b_std": 1, "mu": operator.mu.double()[None]}
    torch.save(
        checkpoint(steerer, V_bias=operator.basis.tolist(), more="x", values=["a"], **other), tmp_path / "r.pt"
    )
    read = read_pt(tmp_path / "r.pt")
    assert torch.equal(read.operators[SITE].basis, operator.basis)
    assert (read.operators[SITE].gate_median, read.operators[SITE].gate_std, read.values) == (0.25, 1.0, ("a",))
    with pytest.raises(InputError, match="kappa should be greater than 0"):
        read_pt(tmp_path / "r.pt", kappa=-5)


def test_only_ordinary_files_are_checkpoints(tmp_path):
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(InputError, match="is a named pipe"):
        read_pt(tmp_path / "pipe.pt")
    with pytest.raises(InputError, match="is a device"):
        read_pt("/dev/zero")
    with pytest.raises(InputError, match="is a folder"):
        read_pt(tmp_path)
