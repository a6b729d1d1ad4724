"""The device and dtype of a model, unless the user chooses them; how much memory it needs; bfloat16 on slow CPUs.

A model goes to the accelerator, if there is one, in the dtype of its checkpoint. On a CPU it is loaded in float32,
which every CPU computes fast and without loss. Only a half-precision checkpoint that would not fit in memory in
float32 is loaded in bfloat16 there.

`ModelSize` computes memory from the config alone: no weight is loaded. Weights are counted on the meta device. A
question needs the KV cache of all its tokens, and what one layer computes for them at a time. That is an estimate:
kernels need more or less memory.

`ConvertedLinear` is for CPUs without instructions for bfloat16. They multiply bfloat16 matrices several times more
slowly than float32 ones. All weights in float32 may not fit in memory, so they are converted for each product, which
is faster if there are many rows. A matrix is converted in parts, which reuse the same small piece of memory: to
allocate memory for a whole matrix each time may take longer than the product. The products are rounded to bfloat16 as
before. Only the order of their sums differs, as between any two CPUs.
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

CPU, AUTO = "cpu", "auto"
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")}
PLACES = (AUTO, "balanced", "balanced_low_0", "sequential")  # with which transformers spreads the layers by itself
USABLE = 0.9  # of the free memory: the rest is for kernels and fragmentation

ISA = "ONEDNN_MAX_CPU_ISA"  # the variable that limits the instructions of matrix products on a CPU
WITHOUT_AMX = "AVX512_CORE_FP16"
TRIAL = "import torch; a = torch.ones(256, 256, dtype=torch.bfloat16); a @ a"

MANY = 16  # rows from which on the conversion to float32 pays
PART = 2**20  # weights that are converted at a time

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSize:
    """The number of parameters, and the sizes of the text model on which a question's memory depends."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    key_values: int
    """Numbers that the KV cache of one layer holds for a token."""
    context: int | None
    """The longest prompt and answer together, in tokens."""

    @classmethod
    def of(cls, config: Any) -> "ModelSize":
        text = config.get_text_config()
        heads = text.num_attention_heads
        head = getattr(text, "head_dim", None) or text.hidden_size // heads
        with no_init_weights(), torch.device("meta"):  # initialisation would take seconds
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
        """Bytes of the KV cache of a prompt and its answer."""
        return self.layers * self.key_values * tokens * dtype.itemsize

    def question(self, tokens: int, dtype: torch.dtype) -> int:
        """Bytes that one question of a batch needs: its KV cache, and what a layer computes."""
        working = 8 * self.hidden + 3 * self.intermediate + self.key_values
        return self.cache(tokens, dtype) + working * tokens * dtype.itemsize

    def batch(self, tokens: int, dtype: torch.dtype, free: int) -> int:
        """How many questions fit into `free` bytes together with the weights; 0: not even one."""
        room = int(USABLE * free) - self.weights(dtype)
        return max(0, room // self.question(tokens, dtype))


def checkpoint_dtype(config: Any) -> torch.dtype:
    """The dtype in which a checkpoint was saved, from its config; float32 if the config has none."""
    for part in (config, config.get_text_config()):
        dtype = getattr(part, "dtype", None)
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
            kilobytes = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
        return kilobytes["MemAvailable"] * 1024
    except (OSError, KeyError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def execution_device(model: Any) -> Any:
    """The device of the model's inputs: its own, or where accelerate computes if the weights are offloaded."""
    if model.device.type != "meta":
        return model.device
    devices = (getattr(getattr(module, "_hf_hook", None), "execution_device", None) for module in model.modules())
    return next((device for device in devices if device is not None), "cpu")


@dataclass(frozen=True)
class Placement:
    """Where a model is loaded. device: torch's name, or a device map of transformers. dtype: of the weights."""

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
    """Where and how to load the model of a config: as the user chooses, or by the rules above."""
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
    """InputError for an unknown dtype or a device that this machine does not have. Device maps are not checked."""
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
        count = torch.accelerator.device_count() or "no"
        raise InputError(f"--device {device_map!r}: this machine has {count} accelerators; cpu always works")


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
    size = _weights(config, dtype or checkpoint_dtype(config))
    if size is None or size <= USABLE * free:
        return device
    log.warning(
        f"the weights of {name or 'this model'} ({gigabytes(size)}) do not fit in the {gigabytes(free)} that are "
        f"free on {device}: it is spread over all devices and the machine's memory (--device auto)"
    )
    return AUTO


def _cpu_dtype(config: Any, name: str) -> torch.dtype:
    free = free_memory(CPU)
    if checkpoint_dtype(config).itemsize >= 4 or free is None:
        return torch.float32
    size = _weights(config, torch.float32)
    if size is None or size <= USABLE * free:
        return torch.float32
    log.warning(
        f"{name or 'this model'} needs {gigabytes(size)} in float32 and {gigabytes(free)} of memory are free: it "
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
    """Make sure that products in bfloat16 do not kill the process.

    Some virtual machines announce AMX and then refuse its instructions. A child process tries them. If it dies, these
    instructions are switched off here, which works as long as no product has been computed yet.
    """
    if ISA in os.environ or _survives({}):
        return
    if not _survives({ISA: WITHOUT_AMX}):
        raise InputError("this machine cannot compute in bfloat16: use --dtype float32")
    os.environ[ISA] = WITHOUT_AMX


def _survives(environment: dict[str, str]) -> bool:
    process = subprocess.run([sys.executable, "-c", TRIAL], env=os.environ | environment, capture_output=True)
    return process.returncode == 0


class ConvertedLinear(nn.Linear):
    """A linear layer in bfloat16 that multiplies many rows in float32."""

    def forward(self, input: Tensor) -> Tensor:
        applies = self.weight.dtype is torch.bfloat16 and self.weight.device.type == "cpu"
        if not applies or input.numel() < MANY * self.in_features:
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
    """Make linear layers compute their products in float32 and round them. Returns the layers that were changed.

    needed: False does nothing; None: only if the model is in bfloat16 on a CPU without instructions for it.
    """
    if not (_is_slow(model) if needed is None else needed):
        return []
    # A layer whose forward was replaced, such as by accelerate, does not use that of its class.
    changed = [module for module in model.modules() if type(module) is nn.Linear and "forward" not in vars(module)]
    for module in changed:
        module.__class__ = ConvertedLinear  # no new module: it can be copied and saved as before
    return changed


@contextmanager
def float32_products(model: nn.Module, needed: bool | None = None) -> Iterator[None]:
    """`use_float32_products` inside the block."""
    changed = use_float32_products(model, needed)
    try:
        yield
    finally:
        for module in changed:
            module.__class__ = nn.Linear


def _is_slow(model: nn.Module) -> bool:
    parameter = next(model.parameters(), None)
    if parameter is None or parameter.dtype is not torch.bfloat16 or parameter.device.type != "cpu":
        return False
    return not _instructions()


def _instructions() -> bool:
    """Whether this CPU has instructions for bfloat16 matrices."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
