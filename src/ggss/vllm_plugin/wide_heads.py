"""An equivalent checkpoint with wider attention heads, for text models whose heads vLLM's CPU kernels do not have.

The new dimensions of a head are zeros. What depends on the width is set so that the same numbers come out, up to
rounding: the scale of attention, the frequencies of rotary positions, the norms of queries and keys. The weights that
an image passes through before the text are written as they are, so that every steerer recognises the model.
"""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ggss.errors import InputError

NARROWEST = 32  # of vLLM's CPU kernels
_WEIGHTS = "model.safetensors"


def head_size(config: dict[str, Any]) -> int:
    """Of the text model that a `config.json` describes."""
    text = config.get("text_config", config)
    return text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]


def widened(model: str | Path, folder: str | Path) -> Path:
    """Write the equivalent of a model's folder. InputError if its positions or its files are of another kind."""
    source, target = Path(model), Path(folder)
    config = json.loads((source / "config.json").read_text())
    times, rest = divmod(NARROWEST, head_size(config))
    rope = config.get("text_config", {}).get("rope_parameters", {})
    if rest or rope.get("rope_type") != "default" or not (source / _WEIGHTS).is_file():
        raise InputError(
            f"the heads of {str(model)!r} are {head_size(config)} wide, vLLM's CPU kernels begin at {NARROWEST}, and "
            f"an equivalent model can be written only for plain rotary positions and weights in one {_WEIGHTS}"
        )
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(_WEIGHTS))
    with safe_open(source / _WEIGHTS, "pt") as file:
        # In float32: the square roots below have no exact value in the checkpoint's dtype.
        names = list(file.keys())
        weights = {name: file.get_tensor(name).float() for name in names}
    normed = any(".q_norm." in name for name in weights)
    heads = _Heads(head_size(config), times, normed)
    save_file({name: heads.wide(name, own).contiguous() for name, own in weights.items()}, target / _WEIGHTS)
    (target / "config.json").write_text(json.dumps(_wide_config(config, times), indent=2))
    return target


@dataclass(frozen=True)
class _Heads:
    """size: of a head. times: how much wider it becomes. normed: queries and keys are normed head by head."""

    size: int
    times: int
    normed: bool

    def wide(self, name: str, weight: Tensor) -> Tensor:
        """A weight of the text model's attention with wider heads; another weight as it is."""
        if "language_model" not in name or "self_attn" not in name:
            return weight
        kind, root = name.split("self_attn.")[1].split(".")[0], math.sqrt(self.times)
        if kind == "o_proj":
            return self._by_head(weight.T, self._padded).T
        if kind == "v_proj":
            return self._by_head(weight, self._padded)
        wide = self._by_head(weight, self._rotated)
        # Attention divides by the root of the width, so queries are `root` times as large. Where a norm follows, its
        # mean square is over zeros too: what it gets is `root` times as large, and what a key's norm gives less.
        if kind.endswith("_norm"):
            return wide / root if kind == "k_norm" else wide
        return wide * root if self.normed or kind == "q_proj" else wide

    def _by_head(self, weight: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.cat([change(own) for own in weight.split(self.size)])

    def _padded(self, head: Tensor) -> Tensor:
        return torch.cat([head, head.new_zeros((self.times - 1) * len(head), *head.shape[1:])])

    def _rotated(self, head: Tensor) -> Tensor:
        """Rotary positions turn the first half of a head against the second, so each half is padded."""
        return torch.cat([self._padded(half) for half in head.chunk(2)])


def _wide_config(config: dict[str, Any], times: int) -> dict[str, Any]:
    text = config["text_config"]
    rope = dict(text["rope_parameters"])
    rope["rope_theta"] = float(rope["rope_theta"]) ** times  # so that the first frequencies are as before
    if section := rope.get("mrope_section"):
        added = (times - 1) * sum(section)  # frequencies of zeros: they may turn by any position
        rope["mrope_section"] = [section[0] + added, *section[1:]]
    wide = text | {"head_dim": times * head_size(config), "rope_parameters": rope, "dtype": "float32"}
    return config | {"text_config": wide, "dtype": "float32"}
