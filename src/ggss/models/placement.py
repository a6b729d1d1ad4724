"""Where a model is put and in which dtype it is loaded, unless the user says it.

The accelerator, if there is one, with the checkpoint's own dtype. On a CPU float32, which every processor computes
fast and without loss; only a checkpoint in half precision that would not fit in memory in float32 is loaded in
bfloat16.
"""

import functools
import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from ggss.errors import InputError, no_such
from ggss.models.size import USABLE, ModelSize, checkpoint_dtype, free_memory

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
