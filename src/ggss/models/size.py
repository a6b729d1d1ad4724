"""How much memory a model needs, from its config alone: no weight is loaded.

Weights are counted on a model without storage. A question needs the cache of keys and values of all its tokens, and
what one layer computes for them at a time. That is an estimate: kernels need more or less room.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForImageTextToText
from transformers.initialization import no_init_weights

USABLE = 0.9  # of the free memory: the rest is for kernels and fragments


@dataclass(frozen=True)
class ModelSize:
    """parameters: their number. text: the sizes of the text model that a question's memory depends on."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    key_values: int
    """Numbers that one layer keeps of a token."""
    context: int | None
    """The longest prompt and answer that the model was made for, in tokens."""

    @classmethod
    def of(cls, config: Any) -> "ModelSize":
        text = config.get_text_config()
        heads = text.num_attention_heads
        head = getattr(text, "head_dim", None) or text.hidden_size // heads
        with no_init_weights(), torch.device("meta"):  # initialising would take seconds
            model = AutoModelForImageTextToText.from_config(config)
        return cls(
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            intermediate=text.intermediate_size,
            key_values=2 * head * (getattr(text, "num_key_value_heads", None) or heads),
            context=getattr(text, "max_position_embeddings", None),
        )

    def weights(self, dtype: torch.dtype) -> int:
        """Bytes of all weights."""
        return self.parameters * dtype.itemsize

    def cache(self, tokens: int, dtype: torch.dtype) -> int:
        """Bytes of the keys and values of a prompt and its answer."""
        return self.layers * self.key_values * tokens * dtype.itemsize

    def question(self, tokens: int, dtype: torch.dtype) -> int:
        """Bytes that one question of a batch needs: the cache, and what a layer works on."""
        working = 8 * self.hidden + 3 * self.intermediate + self.key_values
        return self.cache(tokens, dtype) + working * tokens * dtype.itemsize

    def batch(self, tokens: int, dtype: torch.dtype, free: int) -> int:
        """How many questions fit beside the weights in so many bytes; 0: not even one."""
        room = int(USABLE * free) - self.weights(dtype)
        return max(0, room // self.question(tokens, dtype))


def checkpoint_dtype(config: Any) -> torch.dtype:
    """The dtype that a checkpoint was saved in, as its config says it; float32 if it does not."""
    for own in (config, config.get_text_config()):
        dtype = getattr(own, "dtype", None)
        dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
        if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
            return dtype
    return torch.float32


def free_memory(device: str | torch.device) -> int | None:
    """Bytes that are free on a device, or on the machine for a CPU; None if the system does not say."""
    if torch.device(device).type != "cpu":
        try:
            return torch.accelerator.get_memory_info(device)[0]
        except (RuntimeError, AttributeError, NotImplementedError):
            return None
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return found["MemAvailable"] * 1024
    except (OSError, KeyError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None
