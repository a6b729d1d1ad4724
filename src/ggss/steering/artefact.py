"""A steerer on disk: `steerer.safetensors`, `config.json` and a README card. Data only, no code.

The tensors of site S are named `S/operator/...` and `S/statistics/...`. `config.json` is written last and holds the
sha256 of the tensors. A folder that is incomplete, or has files of two steerers, is therefore refused when it is
read. Tensors that are too large for memory are in a second file, `streams.safetensors` (see `streams`); it is
memory-mapped, not read.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from ggss.errors import InputError
from ggss.files import write_whole
from ggss.methods.operator import Operator, kind_named
from ggss.steering import streams
from ggss.steering.card import card
from ggss.steering.strengths import checked_recommendation

if TYPE_CHECKING:
    from ggss.steering.steerer import Steerer

FORMAT = 1
TENSORS, STREAMS, CONFIG, CARD = "steerer.safetensors", "streams.safetensors", "config.json", "README.md"


def save(steerer: "Steerer", folder: str | os.PathLike[str]) -> Path:
    """Write the artefact into a folder; each file is written completely or not at all."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"cannot write a steerer to {str(folder)!r}: it is a file; give a folder")
    data = save_tensors(_tensors(steerer))
    digest = hashlib.sha256(data).hexdigest()
    config = _config(steerer) | {"sha256": digest}
    replaced = holds_steerer(folder)
    write_whole(folder / TENSORS, data)
    if large := _streams(steerer):
        streams.write(folder / STREAMS, large, digest)
    elif replaced:  # the large file of the steerer that was here
        (folder / STREAMS).unlink(missing_ok=True)
    write_whole(folder / CARD, card(steerer).encode())
    write_whole(folder / CONFIG, _json(config))
    return folder


def recommend(folder: str | os.PathLike[str], alpha: float) -> Path:
    """Write a recommended strength into an artefact on disk: into `config.json` and `README.md`, nothing else.

    The whole artefact is read and checked first. If a file cannot be written, both are as before.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no steerer folder at {str(folder)!r}: a strength can only be written into a local folder")
    steerer = load(folder).recommending(alpha)
    config = _read_config(folder) | {"recommended_alpha": steerer.recommended_alpha}
    before = (folder / CARD).read_bytes() if (folder / CARD).exists() else None
    write_whole(folder / CARD, card(steerer).encode())
    try:
        write_whole(folder / CONFIG, _json(config))
    except InputError:
        if before is not None:
            write_whole(folder / CARD, before)
        raise
    return folder


def holds_steerer(folder: Path) -> bool:
    """Whether a folder has a `config.json` of a steerer."""
    try:
        _read_config(folder)
    except InputError:
        return False
    return True


def load(name: str | os.PathLike[str], revision: str | None = None) -> "Steerer":
    """Read an artefact from a folder or the hub; InputError says what is wrong if it is incomplete or damaged."""
    folder = Path(name)
    if not folder.is_dir():
        folder = _download(str(name), revision)
    config = _read_config(folder)
    data = _read(folder / TENSORS)
    digest = hashlib.sha256(data).hexdigest()
    if digest != config.get("sha256"):
        raise InputError(f"{folder / TENSORS} is not the file that {CONFIG} describes (cut short?): save it again")
    try:
        return _assemble(config, load_tensors(data), lambda: streams.read(folder / STREAMS, digest))
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise InputError(f"{str(folder)!r}: {error}") from error
        raise InputError(f"{str(folder)!r} is not a complete steerer ({error!r}): save it again") from error


def push(steerer: "Steerer", repo_id: str, private: bool = True, token: str | None = None) -> str:
    """Upload the artefact to the hub; returns the repository's address."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        save(steerer, folder)
        url = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=f"{steerer.method} steerer")
    return str(url)


def _json(config: dict[str, Any]) -> bytes:
    return (json.dumps(config, indent=2) + "\n").encode()


def _tensors(steerer: "Steerer") -> dict[str, Tensor]:
    named = {}
    for site, operator in steerer.operators.items():
        for name, tensor in operator.tensors().items():
            named[f"{site}/operator/{name}"] = tensor.detach().cpu().contiguous()
        for name, tensor in steerer.statistics.get(site, {}).items():
            named[f"{site}/statistics/{name}"] = tensor.detach().cpu().contiguous()
    return named


def _streams(steerer: "Steerer") -> dict[str, Sequence[Tensor]]:
    return {
        f"{site}/{name}": stream
        for site, operator in steerer.operators.items()
        for name, stream in operator.streams().items()
    }


def _config(steerer: "Steerer") -> dict[str, Any]:
    return {
        "format": FORMAT,
        "method": steerer.method,
        "options": steerer.options,
        "attribute": steerer.attribute,
        "values": list(steerer.values),
        "sites": {
            site: {"operator": operator.kind, "width": operator.width, **operator.scalars()}
            for site, operator in steerer.operators.items()
        },
        "source": steerer.source,
        "diagnostics": steerer.diagnostics,
        "recommended_alpha": steerer.recommended_alpha,
        "prompt_suffix": steerer.prompt_suffix,
        "versions": steerer.versions,
    }


def _assemble(
    config: dict[str, Any], tensors: dict[str, Tensor], large: Callable[[], dict[str, Sequence[Tensor]]]
) -> "Steerer":
    from ggss.steering.steerer import Steerer

    operators: dict[str, Operator] = {}
    statistics: dict[str, dict[str, Tensor]] = {}
    for site, described in config["sites"].items():
        scalars = dict(described)
        kind, width = kind_named(scalars.pop("operator")), scalars.pop("width")
        own = {
            n.removeprefix(f"{site}/operator/"): t for n, t in tensors.items() if n.startswith(f"{site}/operator/")
        }
        for name, tensor in own.items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise InputError(f"tensor {name!r} at {site} is not finite")
        mapped = {name: large()[f"{site}/{name}"] for name in kind.streamed}
        operator = kind.load(own | mapped, scalars)
        operator.validate()
        if operator.width != width:
            raise InputError(f"the tensors at {site} are {operator.width} wide, {CONFIG} says {width}")
        operators[site] = operator
        prefix = f"{site}/statistics/"
        statistics[site] = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    tupled = {key: _tuples(config[key]) for key in ("attribute", "values")}
    plain = {
        key: config[key] for key in ("method", "options", "source", "diagnostics", "recommended_alpha", "versions")
    }
    if plain["recommended_alpha"] is not None:
        checked_recommendation(plain["recommended_alpha"])
    suffix = config.get("prompt_suffix", "")
    return Steerer(operators=operators, statistics=statistics, prompt_suffix=suffix, **tupled, **plain)


def _tuples(value: Any) -> Any:
    """Lists, as JSON has them, to the tuples of a steerer: several attributes, or values of intersections."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads(_read(folder / CONFIG))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{folder / CONFIG} is not JSON ({error}): save the steerer again") from error
    if not isinstance(config, dict) or "format" not in config:
        raise InputError(f"{folder / CONFIG} does not describe a ggss steerer (is this a model's folder?)")
    if config["format"] != FORMAT:
        raise InputError(
            f"{str(folder)!r} has artefact format {config['format']}, this version of ggss reads {FORMAT}: "
            f"use the version that wrote it ({config.get('versions', {}).get('ggss', 'unknown')}) or a newer one"
        )
    return config


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{str(path.parent)!r} has no readable {path.name}: {error.strerror}") from error


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[TENSORS, STREAMS, CONFIG, CARD]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise InputError(
            f"no steerer at {name!r}: it is not a folder here, and the hub could not give it ({type(error).__name__})"
        ) from error
