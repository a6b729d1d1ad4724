"""The files of an exported model: folded numbers in a copy of a checkpoint, in a LoRA or in an mmproj file; its card.

A tensor keeps its name, dtype and shape, so its new bytes take the place of the old ones in the file. Nothing else of
a file is read or moved, whatever its size.

The card is the model's README, for those who use it and cannot ask who made it. It is written from the record.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import yaml
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ggss.errors import InputError
from ggss.escaping import code, markdown
from ggss.files import mark, read_json, read_utf8, require_file, write_whole
from ggss.methods.operator import Affine
from ggss.models.identity import short_name
from ggss.steering.artefact import REMOVES

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".npz", ".tflite"}
SAME_NUMBERS = 0.01  # of their size: by how much rounding to half precision may change the numbers of a Linear
_GGUF_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_INDEX, _ONE_FILE = "model.safetensors.index.json", "model.safetensors"


@dataclass(frozen=True)
class SiteLinear:
    """The Linear at a site, its numbers as the model has them in memory, and the map that is folded into it."""

    site: str
    path: str
    map: Affine
    weight: Tensor
    bias: Tensor | None

    @property
    def numbers(self) -> dict[str, Tensor]:
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})


class WrittenWeights(NamedTuple):
    """What was written: the changed tensors by name, the dtype of their numbers, files that were left out, notes."""

    tensors: dict[str, dict[str, Any]]
    dtype: torch.dtype
    left_out: list[str]
    notes: list[str]


def write_checkpoint(source: Path, folder: Path, linears: Sequence[SiteLinear]) -> WrittenWeights:
    """Copy a model's folder, then replace the numbers of the Linears where they are in their files."""
    files = _tensor_files(source)
    stored = {linear.path: _stored_names(files, linear) for linear in linears}
    left_out = _copy(source, folder, set(files.values()))
    tensors: dict[str, dict[str, Any]] = {}
    notes, dtypes = [], set()
    for linear in linears:
        numbers = {}
        for which, name in stored[linear.path].items():
            with safe_open(source / files[name], "pt") as file:
                numbers[which] = file.get_tensor(name)
            _check_same(numbers[which], linear.numbers[which], name)
        weight, bias = linear.map.fold(numbers["weight"], numbers.get("bias"))
        folded: dict[str, Tensor] = {"weight": weight, "bias": bias}
        for which, name in stored[linear.path].items():
            before, after = numbers[which], rounded(folded[which], numbers[which].dtype, name)
            overwrite(folder / files[name], name, after)
            dtypes.add(before.dtype)
            tensors[name] = described(before, after) | {"file": files[name]}
        if linear.bias is not None and not linear.bias.any() and linear.map.offset.any():
            notes.append(
                f"The bias at {linear.path} was 0. Rows that are exactly 0 there, as of empty padding, are left "
                "alone by a live steerer and moved by the weights."
            )
    return WrittenWeights(tensors, max(dtypes, key=lambda kind: torch.finfo(kind).eps), left_out, notes)


def _tensor_files(source: Path) -> dict[str, str]:
    """Tensor name -> file name, of all weights of a model's folder."""
    if (source / _ONE_FILE).is_file():
        with safe_open(source / _ONE_FILE, "pt") as file:
            return dict.fromkeys(file.keys(), _ONE_FILE)
    if not (source / _INDEX).is_file():
        raise InputError(
            f"{str(source)!r} has no {_ONE_FILE} and no {_INDEX}: get the model's weights as safetensors"
        )
    index = read_json(source / _INDEX, "the index of the weights")
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in files.values()
    ):
        raise InputError(f"{str(source / _INDEX)!r} does not say which file has which weight: get the model again")
    return files


def _stored_names(files: Mapping[str, str], linear: SiteLinear) -> dict[str, str]:
    """The names that the weight and bias of a Linear have in the files."""
    stored = {}
    for which in linear.numbers:
        expected = short_name(f"{linear.path}.{which}")
        names = [name for name in files if short_name(name) == expected]
        if len(names) != 1:
            where = f"as {', '.join(names)}" if names else "under no known name"
            raise InputError(
                f"the weights at {linear.path} are in the files {where}: the checkpoint has another layout than "
                "transformers knows, save the model with save_pretrained and export that"
            )
        stored[which] = names[0]
    return stored


def _check_same(stored: Tensor, in_memory: Tensor, name: str) -> None:
    if stored.dtype not in FLOATS:
        raise InputError(f"{name} is stored as {stored.dtype}, quantised: export the model before quantisation")
    if stored.shape != in_memory.shape or not torch.equal(stored.to(in_memory.dtype), in_memory):
        raise InputError(
            f"{name} in the files is not what the model has in memory: it was changed after loading, or is converted "
            "when it is loaded. Save the model with save_pretrained and export that"
        )


def rounded(numbers: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Folded numbers in the dtype in which they are stored; InputError if they are too large for it."""
    values = numbers.to(dtype)
    if not torch.isfinite(values).all():
        raise InputError(
            f"the steered {name} has numbers up to {float(numbers.abs().max()):.3g}, too large for {dtype}: save the "
            "model in bfloat16 or float32 first, or use a smaller strength"
        )
    return values


def described(before: Tensor, after: Tensor) -> dict[str, Any]:
    """What the record says of a changed tensor."""
    return {
        "dtype": str(after.dtype).removeprefix("torch."),
        "shape": list(after.shape),
        "sha256_before": hashlib.sha256(as_bytes(before)).hexdigest(),
        "sha256_after": hashlib.sha256(as_bytes(after)).hexdigest(),
    }


def as_bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def overwrite(file: Path, name: str, values: Tensor) -> None:
    """Write a tensor over the one of this name in a safetensors file: same dtype and shape, so nothing else moves."""
    with file.open("r+b") as stream:
        length = int.from_bytes(stream.read(8), "little")
        entry = json.loads(stream.read(length))[name]
        start, end = entry["data_offsets"]
        data = as_bytes(values)
        if entry["shape"] != list(values.shape) or end - start != len(data):
            raise InputError(f"{name} in {str(file)!r} is not {list(values.shape)}: get the model again")
        stream.seek(8 + length + start)
        stream.write(data)


def _copy(source: Path, folder: Path, used: set[str]) -> list[str]:
    """Copy a model's folder, but for weights in other files: they are not steered. Returns the files left out."""
    left_out = []
    for place, folders, names in os.walk(source):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            relative = (Path(place) / name).relative_to(source)
            unused = relative.suffix in _WEIGHTS or (name.endswith(".index.json") and str(relative) != _INDEX)
            if name.startswith("."):
                continue
            if unused and str(relative) not in used:
                left_out.append(str(relative))
                continue
            target = folder / (CARD_OF_BASE if str(relative) == CARD else relative)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(place) / name, target)
    return left_out


def write_lora(folder: Path, name: str, linears: Sequence[SiteLinear]) -> WrittenWeights:
    """A PEFT adapter in float32 that adds what steering changes to the Linear's output."""
    ranks = {linear.path: linear.map.low_rank()[0].shape[1] for linear in linears}
    for linear in linears:
        if ranks[linear.path] >= min(linear.weight.shape):
            raise InputError(
                f"the steering at {linear.site} changes {ranks[linear.path]} directions of "
                f"{min(linear.weight.shape)}: an adapter would be as large as the weights, export a checkpoint"
            )
    tensors: dict[str, Tensor] = {}
    biases: dict[str, Tensor] = {}
    for linear in linears:
        left, right = linear.map.low_rank()
        start = f"base_model.model.{linear.path}"
        tensors[f"{start}.lora_A.weight"] = (right.T @ linear.weight.double()).float().contiguous()
        tensors[f"{start}.lora_B.weight"] = left.float().contiguous()
        from_bias = 0 if linear.bias is None else left @ (right.T @ linear.bias.double())
        biases[f"{start}.lora_B.bias"] = (linear.map.offset + from_bias).float()
    biased = any(bool(bias.any()) for bias in biases.values())
    tensors |= biases if biased else {}
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": name,
        "inference_mode": True,
        "r": max(ranks.values()),
        "lora_alpha": max(ranks.values()),
        "rank_pattern": ranks,
        "alpha_pattern": ranks,  # so that the scaling is 1
        "lora_dropout": 0.0,
        "lora_bias": biased,
        "bias": "none",
        "target_modules": list(ranks),
        "fan_in_fan_out": False,
    }
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    write_whole(folder / "adapter_config.json", (json.dumps(config, indent=2) + "\n").encode())
    notes = ["The adapter has a bias (lora_bias): PEFT takes it, vLLM does not."] if biased else []
    added = {
        name: {
            "dtype": "float32",
            "shape": list(tensor.shape),
            "sha256_after": hashlib.sha256(as_bytes(tensor)).hexdigest(),
        }
        for name, tensor in tensors.items()
    }
    dtypes = [linear.weight.dtype for linear in linears]
    return WrittenWeights(added, max(dtypes, key=lambda kind: torch.finfo(kind).eps), [], notes)


def write_mmproj(folder: Path, mmproj: Path, linears: Sequence[SiteLinear]) -> WrittenWeights:
    """Copy an mmproj file of llama.cpp and replace the numbers of the Linears in it.

    A Linear is found by its numbers: converters of different families and versions name tensors differently.
    """
    require_file(mmproj, "the mmproj file")
    names = {linear.path: _names_in_gguf(mmproj, linear) for linear in linears}
    target = folder / mmproj.name
    shutil.copyfile(mmproj, target)
    stored, tensors = _gguf_tensors(target, "r+"), {}
    for linear in linears:
        numbers = {which: _values(stored[name]) for which, name in names[linear.path].items()}
        weight, bias = linear.map.fold(numbers["weight"], numbers.get("bias"))
        for which, folded in (("weight", weight), ("bias", bias)):
            if which in numbers:
                name = names[linear.path][which]
                after = rounded(folded, numbers[which].dtype, name)
                tensors[name] = described(numbers[which], after) | {
                    "file": target.name,
                    "path": f"{linear.path}.{which}",
                }
                data = stored[name].data
                data.view("uint8").reshape(-1)[:] = after.contiguous().view(-1).view(torch.uint8).numpy()
                data.flush()
    dtypes = {getattr(torch, changed["dtype"]) for changed in tensors.values()}
    return WrittenWeights(tensors, max(dtypes, key=lambda kind: torch.finfo(kind).eps), [], [])


def read_mmproj(folder: Path, tensors: Mapping[str, Mapping[str, Any]]) -> dict[str, Tensor]:
    """By the path of each parameter, what a rewritten mmproj file has for it."""
    return {
        changed["path"]: _values(_gguf_tensors(folder / changed["file"])[name]) for name, changed in tensors.items()
    }


def _gguf_tensors(file: Path, mode: Literal["r", "r+"] = "r") -> dict[str, Any]:
    try:
        from gguf import GGUFReader  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError("an mmproj file is read with the gguf package: pip install 'ggss[gguf]'") from error
    try:
        return {tensor.name: tensor for tensor in GGUFReader(file, mode).tensors}
    except (ValueError, OSError, IndexError) as error:
        raise InputError(f"{str(file)!r} is no GGUF file ({error}): give the mmproj file of the model") from error


def _values(tensor: Any) -> Tensor:
    """The numbers of a GGUF tensor that is not quantised, in its dtype."""
    shape = tuple(reversed([int(size) for size in tensor.shape]))
    data = torch.from_numpy(tensor.data.view("uint8").reshape(-1).copy())
    return data.view(_GGUF_FLOATS[tensor.tensor_type.name]).view(shape)


def _names_in_gguf(mmproj: Path, linear: SiteLinear) -> dict[str, str]:
    """The names that the weight and bias of a Linear have in an mmproj file; InputError if they are not there."""
    stored = _gguf_tensors(mmproj)
    names, packed = {}, []
    for which, numbers in linear.numbers.items():
        for name, tensor in stored.items():
            if [int(size) for size in reversed(tensor.shape)] != list(numbers.shape) or which in names:
                continue
            if tensor.tensor_type.name not in _GGUF_FLOATS:
                packed.append(f"{name} ({tensor.tensor_type.name})")
                continue
            values, expected = _values(tensor).double(), numbers.double()
            if (values - expected).norm() <= SAME_NUMBERS * expected.norm():
                names[which] = name
    if missing := [which for which in linear.numbers if which not in names]:
        hint = f"; quantised tensors of its shape are {', '.join(packed)}" if packed else ""
        advice = "convert the mmproj again, in f16 or f32" if packed else "convert the mmproj from this very model"
        raise InputError(
            f"{str(mmproj)!r} has no tensor with the numbers of {linear.path}.{missing[0]}{hint}: {advice}"
        )
    return names


RECORD, CARD, CARD_OF_BASE = "ggss_export.json", "README.md", "README.base.md"
WRITTEN_BY, FORMAT = "ggss export", 1
ENGINES = {
    "checkpoint": "Any engine that serves the base model serves this one, with the same command: transformers, vLLM, "
    "SGLang, TGI; converters (GGUF, MLX, ONNX, quantisers) take it as they take the base.",
    "lora": "An adapter for PEFT: `PeftModel.from_pretrained(base, FOLDER)`. With a bias (`lora_bias`), as most have "
    "it, vLLM refuses it; without, vLLM takes it if it is started with `enable_tower_connector_lora`.",
    "mmproj": "The projector's file of llama.cpp and Ollama: `llama-server -m TEXT.gguf --mmproj FILE`. The text "
    "model's file is the one that you have.",
}


def holds_export(folder: Path) -> bool:
    """Whether `ggss export` wrote a folder."""
    return (folder / RECORD).is_file()


def read_record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What an exported model says of itself; InputError if the folder is none."""
    record = read_json(Path(folder) / RECORD, "the record of an exported model")
    if not isinstance(record, dict) or record.get("written_by") != WRITTEN_BY or record.get("format") != FORMAT:
        raise InputError(f"{str(Path(folder) / RECORD)!r} was not written by this version of `{WRITTEN_BY}`")
    return record


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the record, and the card that is made from it."""
    write_whole(folder / RECORD, (json.dumps(record, indent=2) + "\n").encode())
    write_whole(folder / CARD, card(record).encode())


def card(record: Mapping[str, Any]) -> str:
    """The README of an exported model, from its record."""
    base, proof = record["base"], record["proof"]
    names = ", ".join(" x ".join(_listed(steerer["attribute"])) for steerer in record["steerers"])
    steerers = "\n".join(
        f"| {code(steerer['name'])} | {code(steerer['method'])} "
        f"| {markdown(' x '.join(_listed(steerer['attribute'])))} "
        f"| {steerer['alpha']:g} | {', '.join(map(code, steerer['sites']))} | {code(steerer['steerer'][:16])} |"
        for steerer in record["steerers"]
    )
    tensors = "\n".join(
        f"| {code(name)} | {facts['dtype']} | {code(facts.get('sha256_before', 'new')[:16])} "
        f"| {code(facts['sha256_after'][:16])} |"
        for name, facts in record["tensors"].items()
    )
    compared = "\n".join(
        f"| {code(name)} | {facts['error']:.2g} | {facts['units']:.2f} | {facts['effect']:.2g} |"
        for name, facts in proof["compared"].items()
    )
    revision = f" {markdown(base['revision'])}" if base["revision"] else ""
    return f"""---
base_model: {json.dumps(base["model"])}
{f"license: {json.dumps(base['licence'])}" if base["licence"] else "# the base model's card states no licence"}
tags: [ggss, activation-steering, fairness]
---
# {markdown(base["model"])} with steering in its weights: {markdown(names)}

<!-- {mark(WRITTEN_BY)} -->

{"**An approximation.** " + APPROXIMATE if any(steerer["approximation"] for steerer in record["steerers"]) else ""}
{SWITCHED_ON}

| | |
| --- | --- |
| base model | {code(base["model"])}{revision}, {markdown(base["family"])} |
| its vision path | {code(base["fingerprint"][:16])} |
| its licence | {markdown(base["licence"] or "not stated by its card: find out before you share this model")} |
| form | {record["form"]} |
| recommended strength | {_recommended(record)} |
| bias and capability of this model | {_whether_measured(record)} |
| versions | {", ".join(f"{name} {number}" for name, number in record["versions"].items())} |

| steerer | method | attribute | alpha | sites | content |
| --- | --- | --- | --- | --- | --- |
{steerers}
{_approximations(record)}{_measurements(record)}
## Where it runs

{ENGINES[record["form"]]}

## How it was checked

It was loaded without hooks and compared with the live steerers on two pictures: numbers in {proof["stored_in"]},
computed in {proof["computed_in"]}. One unit is what changing the last digit of the folded weights makes.

| compared | error (rms) | in units of rounding | the steering itself |
| --- | --- | --- | --- |
{compared}

## Changed tensors

| tensor | dtype | SHA-256 before | after |
| --- | --- | --- | --- |
{tensors}

{RECORD} has the full hashes.{_left_out(record)}
{"".join(f"{chr(10)}{text}{chr(10)}" for text in record["notes"])}
## What it does not do

{REMOVES}
"""


SWITCHED_ON = """\
The steering is always on and its strength cannot be changed: it is in the weights. It acts on pictures (and frames of
videos) only, never on text. Do not steer this model again with the same steerer; ggss refuses that."""
APPROXIMATE = """\
The method is not affine, so the weights hold the affine map that is nearest to it. A high R^2 is no promise: answers
may differ from those of the method. No strength is recommended before `ggss probe` has measured this model."""


def _listed(attribute: str | Sequence[str]) -> Sequence[str]:
    return [attribute] if isinstance(attribute, str) else attribute


def _approximations(record: Mapping[str, Any]) -> str:
    lines = [
        f"- {code(part['name'])} at {code(site)}: R^2 {near['people']:.4f} on tokens of {near['held_out']} images of "
        f"people that were held out, {near['without_people']:.4f} on pictures without people."
        for part in record["steerers"]
        for site, near in (part["approximation"] or {}).items()
    ]
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _recommended(record: Mapping[str, Any]) -> str:
    if not record["recommended"]:
        return "none: `ggss recommend` writes one, once `ggss probe` has measured this model"
    return ", ".join(f"{code(name)} {alpha:g}" for name, alpha in record["recommended"].items())


def _whether_measured(record: Mapping[str, Any]) -> str:
    return "measured, see below" if record["measured"] else "not measured: `ggss probe` does, as for any other model"


def _measurements(record: Mapping[str, Any]) -> str:
    """A table of the comparison that `ggss recommend` was given."""
    if not (measured := record["measured"]):
        return ""
    rows = [
        *((task, code(task["metric"])) for task in measured["bias"]),
        *((task, "right answers") for task in measured["capability"]),
    ]
    lines = [
        f"| {code(task['task'])} | {metric} | {_number(task['before'])} | {_number(task['after'])} |"
        for task, metric in rows
    ]
    sides = f"Before: {markdown(measured['before']['said'])}. After: {markdown(measured['after']['said'])}."
    return "\n".join(["", sides, "", "| task | metric | before | after |", "| --- | --- | --- | --- |", *lines, ""])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _left_out(record: Mapping[str, Any]) -> str:
    if not record["left_out"]:
        return ""
    names = ", ".join(map(code, record["left_out"]))
    return f" Weights in other files of the base model were not copied, because they are not steered: {names}."


def licence_of(source: Path) -> str | None:
    """The licence that a model's card states in its first lines."""
    try:
        head = read_utf8(source / CARD, "the card").split("---")
        stated = yaml.safe_load(head[1]) if len(head) > 2 and not head[0].strip() else None
    except (InputError, yaml.YAMLError):
        return None
    licence = stated.get("license") if isinstance(stated, dict) else None
    return licence if isinstance(licence, str) else None
