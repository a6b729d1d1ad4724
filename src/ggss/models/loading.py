"""Loading a VLM by name: from a registered collection, a directory, or the hub."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.utils import logging

from ggss.errors import InputError
from ggss.models.collections import COLLECTIONS
from ggss.models.processors import load_processor
from ggss.models.vlm import Vlm


def load_vlm(name_or_dir: str | Path, dtype: torch.dtype | str | None = None, device_map: Any = None) -> Vlm:
    """A model that answers, scores and encodes, from `COLLECTION/NAME`, a local directory or a hub id.

    `dtype` is float32 on a CPU and bfloat16 elsewhere unless given; `device_map` is transformers'.
    """
    name = str(name_or_dir)
    path = _locate(name)
    if dtype is None:
        on_cpu = device_map in (None, "cpu") or not torch.accelerator.is_available()
        dtype = torch.float32 if on_cpu else torch.bfloat16
    try:
        with _quiet():
            config = AutoConfig.from_pretrained(path)
            processor = load_processor(path, config)
            load: Any = AutoModelForImageTextToText.from_pretrained
            options = {"config": config, "dtype": dtype, "device_map": device_map}
            # Weights of a wrong shape are accepted here, to be reported below in a message that says what to do.
            model, report = load(path, **options, ignore_mismatched_sizes=True, output_loading_info=True)
    except Exception as error:  # for damaged files transformers raises exceptions of many types
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(
            f"cannot load a model from {name!r} ({reason}): give a directory or hub id of a VLM"
        ) from error
    if lost := sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}):
        raise InputError(
            f"the weights in {name!r} are incomplete ({len(lost)} missing or of the wrong shape, such as {lost[0]}): "
            "get the model again"
        )
    return Vlm(model, processor, name)


def _locate(name: str) -> str:
    """The directory or hub id of a name."""
    collection, slash, own = name.partition("/")
    if slash and collection in COLLECTIONS:
        folders = COLLECTIONS.get(collection)()
        if own not in folders:
            there = ", ".join(f"{collection}/{other}" for other in folders) or "none yet"
            raise InputError(f"there is no model {name!r}: {collection} has {there}")
        return str(folders[own])
    path = Path(name).expanduser()
    looks_local = path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(
                f"{name!r} is not a model, it has no config.json: give a directory saved with save_pretrained"
            )
        return str(path)
    if path.exists() or looks_local:
        seen = "is a file" if path.exists() else "does not exist"
        raise InputError(f"the model directory {name!r} {seen}: give a directory or a hub id")
    return name


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log messages of transformers, and its progress bars unless stderr is a terminal."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
