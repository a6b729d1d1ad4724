"""The README of an exported model, for those who use it and cannot ask who made it; written from its record."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ggss.errors import InputError
from ggss.escaping import code, markdown
from ggss.files import mark, read_utf8
from ggss.steering.artefact import REMOVES

RECORD, CARD, CARD_OF_BASE = "ggss_export.json", "README.md", "README.base.md"
ENGINES = {
    "checkpoint": "Any engine that serves the base model serves this one, with the same command: transformers, vLLM, "
    "SGLang, TGI; converters (GGUF, MLX, ONNX, quantisers) take it as they take the base.",
    "lora": "An adapter for PEFT: `PeftModel.from_pretrained(base, FOLDER)`. With a bias (`lora_bias`), as most have "
    "it, vLLM refuses it; without, vLLM takes it if it is started with `enable_tower_connector_lora`.",
    "mmproj": "The projector's file of llama.cpp and Ollama: `llama-server -m TEXT.gguf --mmproj FILE`. The text "
    "model's file is the one that you have.",
}


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

<!-- {mark("ggss export")} -->

{"**An approximation.** " + APPROXIMATE if any(steerer["approximation"] for steerer in record["steerers"]) else ""}
{SWITCHED_ON}

| | |
| --- | --- |
| base model | {code(base["model"])}{revision}, {markdown(base["family"])} |
| its vision path | {code(base["fingerprint"][:16])} |
| its licence | {markdown(base["licence"] or "not stated by its card: find out before you share this model")} |
| form | {record["form"]} |
| bias and capability of this model | not measured by the export: `ggss probe` measures it as any other model |
| versions | {", ".join(f"{name} {number}" for name, number in record["versions"].items())} |

| steerer | method | attribute | alpha | sites | content |
| --- | --- | --- | --- | --- | --- |
{steerers}
{_approximations(record)}
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
may differ from those of the method. Use no strength before `ggss probe` has measured this model."""


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
