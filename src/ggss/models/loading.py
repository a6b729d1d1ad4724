"""Loading a VLM by name: from a registered collection, a directory, or the hub."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, dynamic_module_utils
from transformers.utils import logging as transformers_logging

from ggss.errors import InputError
from ggss.models.locating import locate, snapshot
from ggss.models.placement import check_placement, placement, use_float32_products
from ggss.models.processors import load_processor
from ggss.models.vlm import Vlm
from ggss.models.wrappers import exported_words
from ggss.terminal import quiet

log = logging.getLogger(__name__)


def load_vlm(
    name_or_dir: str | Path,
    dtype: torch.dtype | str | None = None,
    device_map: Any = None,
    trust_remote_code: bool = False,
    attention: str | None = None,
    quantization_config: Any = None,
) -> Vlm:
    """A model that answers, scores and encodes, from `COLLECTION/NAME`, a local directory or a hub id.

    By default on the accelerator, if there is one, in the checkpoint's dtype (see `ggss.models.placement`). A
    quantised checkpoint is loaded as it is.

    Args:
        name_or_dir: `small-world/qwen3-vl`, a local directory or a hub id.
        dtype: a torch dtype or its name; None: the checkpoint's, float32 on a CPU.
        device_map: a device, "auto" or a map, as in transformers.
        trust_remote_code: run Python that comes with the model; without it a model that needs such code is refused.
        attention: transformers' `attn_implementation`.
        quantization_config: as in transformers.

    Returns:
        The model with its processor.

    Raises:
        InputError: if there is no such model (with the nearest name), it is not a VLM, its weights are incomplete, or
            it needs code of its own.

    Examples:
        >>> llava = ggss.load_vlm("small-world/llava-vicuna")
        >>> llava.family.name, llava.sites()
        ('LLaVA-NeXT', {'projection-mlp2': 'model.multi_modal_projector.linear_2'})
    """
    name = str(name_or_dir)
    path = locate(name)
    check_placement(dtype, device_map)
    try:
        with _quiet(), _without_prompting():
            config, processor = _config_and_processor(name, path, trust_remote_code)
            load: Any = AutoModelForImageTextToText.from_pretrained
            place = placement(config, dtype, device_map, name)
            options = {"config": config, "dtype": place.dtype, "device_map": place.device_map}
            options |= {"trust_remote_code": trust_remote_code, "weights_only": True}  # a .bin is a pickle
            options |= {"attn_implementation": attention} if attention else {}
            options |= {"quantization_config": quantization_config} if quantization_config is not None else {}
            # Weights of a wrong shape are accepted here, to be reported below in a message that says what to do.
            model, report = load(path, **options, ignore_mismatched_sizes=True, output_loading_info=True)
            if place.device_map is None:
                model = model.to(place.device)
    except InputError:
        raise
    except Exception as error:  # for damaged files transformers raises exceptions of many types
        if "trust_remote_code" in str(error) and not trust_remote_code:
            raise _needs_code(name) from error
        if isinstance(error, UnpicklingError):
            raise InputError(
                f"the weights in {name!r} cannot be read without running code in them: get them as safetensors"
            ) from error
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(
            f"cannot load a model from {name!r} ({reason}): give a directory or hub id of a VLM"
        ) from error
    if unusable := sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}):
        raise InputError(
            f"the weights in {name!r} are incomplete ({len(unusable)} missing or of the wrong shape, such as "
            f"{unusable[0]}): get the model again"
        )
    use_float32_products(model)
    if words := exported_words(vars(model.config)):
        log.warning("%s has steering in its weights (%s): always on, for pictures only", name, words)
    return Vlm(model, processor, name)


def load_description(name: str, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """A model's config and processor, without its weights."""
    path = locate(name)
    kept = None if os.path.isdir(path) else snapshot(name)
    try:
        with _quiet(), _without_prompting():
            if kept is not None and not trust_remote_code:
                with suppress(OSError, ValueError):  # the cache may lack files
                    return _config_and_processor(name, str(kept), trust_remote_code)
            return _config_and_processor(name, path, trust_remote_code)
    except InputError:
        raise
    except Exception as error:  # as above
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(f"cannot read the config and processor of {name!r} ({reason})") from error


def _config_and_processor(name: str, path: str, trust_remote_code: bool) -> tuple[Any, Any]:
    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    if not trust_remote_code and _kernels(config):
        raise _needs_code(name)
    return config, load_processor(path, config, trust_remote_code)


def _needs_code(name: str) -> InputError:
    return InputError(
        f"the model {name!r} needs code of its own, which ggss does not run unless you allow it: if you have read it "
        "and trust it, give --trust-remote-code (in Python, trust_remote_code=True)"
    )


def _kernels(config: Any) -> list[str]:
    """The hub ids of code that a config names for attention and experts, to replace that of transformers."""
    implementations = [str(getattr(config, f"_{part}_implementation", None)) for part in ("attn", "experts")]
    parts = [part for name in config.sub_configs if (part := getattr(config, name, None)) is not None]
    kernels = [implementation for implementation in implementations if "/" in implementation]
    return kernels + [kernel for part in parts for kernel in _kernels(part)]


@contextmanager
def _without_prompting() -> Iterator[None]:
    """Keep transformers from asking on the terminal whether to run a model's code.

    It asks wherever `trust_remote_code` was not passed on, and some of its classes do not pass it on to their parts.
    With no seconds to wait for an answer it refuses at once.
    """
    seconds = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
    try:
        yield
    finally:
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = seconds


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log messages of transformers, and its progress bars unless a terminal shows them."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    if quiet() or not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
