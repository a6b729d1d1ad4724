"""Where a model is put and in which dtype it is loaded, unless the user says it.

The accelerator, if there is one, with the checkpoint's own dtype. On a CPU float32, which every processor computes
fast and without loss; only a checkpoint in half precision that would not fit in memory in float32 is loaded in
bfloat16.

How much memory a model needs, from its config alone: no weight is loaded.

Weights are counted on a model without storage. A question needs the cache of keys and values of all its tokens, and
what one layer computes for them at a time. That is an estimate: kernels need more or less room.

Products of a bfloat16 model on a CPU that has no instructions for them.

Such a CPU multiplies bfloat16 matrices several times more slowly than float32 ones. The weights of the whole
model in float32 may not fit in memory, so they are converted for each product, which is faster where many rows share
them. A matrix is converted in parts: the memory of a small part is used again for the next one. For a whole matrix
the system would give new memory each time, and that may take longer than the product.

The products are rounded to bfloat16 as before. Only the order of their sums differs, as between any two CPUs.
"""

import functools
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForImageTextToText
from transformers.initialization import no_init_weights

from ggss.errors import InputError, no_such

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


log = logging.getLogger(__name__)

CPU, AUTO = "cpu", "auto"
ISA = "ONEDNN_MAX_CPU_ISA"  # the variable that limits the instructions of matrix products on a CPU
WITHOUT_AMX = "AVX512_CORE_FP16"
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")}
PLACES = (AUTO, "balanced", "balanced_low_0", "sequential")  # of transformers; it spreads the layers by itself
TRIAL = "import torch; a = torch.ones(256, 256, dtype=torch.bfloat16); a @ a"


@dataclass(frozen=True)
class Placement:
    """device: as torch names it, or what transformers takes as a device map. dtype: of the weights in memory."""

    device: Any
    dtype: torch.dtype

    @property
    def device_map(self) -> Any:
        """For transformers; None if the model is to be moved to `device` after it was loaded.

        With accelerate, weights go from the file to a device without a copy of all of them in the machine's memory.
        """
        alone = self.device == CPU or (find_spec("accelerate") is None and _one_device(self.device))
        return None if alone else self.device


def placement(config: Any, dtype: torch.dtype | str | None = None, device: Any = None, name: str = "") -> Placement:
    """Where and how to load the model of a config: as the user says, or by the rules above."""
    check_placement(dtype, None)
    kind = DTYPES.get(dtype, checkpoint_dtype(config)) if isinstance(dtype, str) else dtype
    quantised = getattr(config, "quantization_config", None) is not None
    if device is None:
        device = _default_device(config, kind, quantised, name)
    on_cpu = device == CPU or not torch.accelerator.is_available()
    if kind is None:
        kind = _cpu_dtype(config, name) if on_cpu and not quantised else checkpoint_dtype(config)
    if on_cpu and kind is torch.bfloat16:
        check_products()
    return Placement(device, kind)


def check_placement(dtype: Any, device_map: Any) -> None:
    """InputError for the name of a dtype or place that is not there; mappings are left to transformers."""
    if isinstance(dtype, str) and dtype not in (*DTYPES, AUTO):
        raise no_such(f"there is no dtype {dtype!r} for a model's weights", dtype, [*DTYPES, AUTO])
    if not isinstance(device_map, str) or device_map in PLACES:
        return
    device = torch.device(device_map) if _one_device(device_map) else None
    if device is None or device.type == "meta":
        raise InputError(
            f"--device {device_map!r} is no place for a model: choose from {', '.join(PLACES)}, cpu, cuda:0"
        )
    if device.type != "cpu" and (device.index or 0) >= torch.accelerator.device_count():
        seen = torch.accelerator.device_count() or "no"
        raise InputError(f"--device {device_map!r}: this machine has {seen} accelerators; cpu is always there")


def _one_device(device: Any) -> bool:
    try:
        return bool(torch.device(device))
    except (RuntimeError, TypeError):
        return False


def _default_device(config: Any, dtype: torch.dtype | None, quantised: bool, name: str) -> str:
    if not torch.accelerator.is_available():
        return CPU
    device = f"{torch.accelerator.current_accelerator()}:{torch.accelerator.current_device_index()}"
    free = free_memory(device)
    if free is None or quantised:
        return device
    needed = _weights(config, dtype or checkpoint_dtype(config))
    if needed is None or needed <= USABLE * free:
        return device
    log.warning(
        f"the weights of {name or 'this model'} ({gigabytes(needed)}) do not fit in the {gigabytes(free)} that are "
        f"free on {device}: it is spread over all devices and the machine's memory (--device auto)"
    )
    return AUTO


def _cpu_dtype(config: Any, name: str) -> torch.dtype:
    own, free = checkpoint_dtype(config), free_memory(CPU)
    if own.itemsize >= 4 or free is None:
        return torch.float32
    needed = _weights(config, torch.float32)
    if needed is None or needed <= USABLE * free:
        return torch.float32
    log.warning(
        f"{name or 'this model'} needs {gigabytes(needed)} in float32 and {gigabytes(free)} of memory are free: it "
        "is loaded in bfloat16, whose answers may differ a little (--dtype says otherwise)"
    )
    return torch.bfloat16


def _weights(config: Any, dtype: torch.dtype) -> int | None:
    try:
        return ModelSize.of(config).weights(dtype)
    except Exception:  # a config of a class that transformers cannot build without the checkpoint's own code
        return None


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB"


@functools.cache
def check_products() -> None:
    """Make sure that products in bfloat16 do not end the process.

    Some virtual machines announce AMX and then refuse its instructions. A process of its own tries it, and if it
    dies, these instructions are switched off here, which works as long as no product has been computed yet.
    """
    if ISA in os.environ or _survives({}):
        return
    if not _survives({ISA: WITHOUT_AMX}):
        raise InputError("this machine cannot compute in bfloat16: use --dtype float32")
    os.environ[ISA] = WITHOUT_AMX


def _survives(environment: dict[str, str]) -> bool:
    done = subprocess.run([sys.executable, "-c", TRIAL], env=os.environ | environment, capture_output=True)
    return done.returncode == 0


MANY = 16  # rows from which on the conversion pays
PART = 2**20  # weights that are converted at a time


class ConvertedLinear(nn.Linear):
    """A linear layer in bfloat16 that multiplies many rows in float32."""

    def forward(self, input: Tensor) -> Tensor:
        here = self.weight.dtype is torch.bfloat16 and self.weight.device.type == "cpu"
        if not here or input.numel() < MANY * self.in_features:
            return super().forward(input)
        wide, many = input.float(), max(1, PART // self.in_features)
        starts = range(0, self.out_features, many)
        parts = [self._part(wide, slice(start, start + many)).to(input.dtype) for start in starts]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _part(self, input: Tensor, outputs: slice) -> Tensor:
        """Some columns of the product, in float32."""
        bias = None if self.bias is None else self.bias[outputs].float()
        return functional.linear(input, self.weight[outputs].float(), bias)


def use_float32_products(model: nn.Module, needed: bool | None = None) -> list[nn.Linear]:
    """From now on compute the products of linear layers in float32, and round them. The layers that were changed.

    needed: False does nothing; unless given, whether the model is in bfloat16 on a CPU without instructions.
    """
    if not (_needed(model) if needed is None else needed):
        return []
    # A layer whose forward was replaced, such as by accelerate, does not use that of its class.
    changed = [module for module in model.modules() if type(module) is nn.Linear and "forward" not in vars(module)]
    for module in changed:
        module.__class__ = ConvertedLinear  # so it can be copied and saved as before
    return changed


@contextmanager
def float32_products(model: nn.Module, needed: bool | None = None) -> Iterator[None]:
    """The same while inside."""
    changed = use_float32_products(model, needed)
    try:
        yield
    finally:
        for module in changed:
            module.__class__ = nn.Linear


def _needed(model: nn.Module) -> bool:
    one = next(model.parameters(), None)
    return one is not None and one.dtype is torch.bfloat16 and one.device.type == "cpu" and not _instructions()


def _instructions() -> bool:
    """Whether this CPU multiplies bfloat16 matrices by itself."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
