"""A steerer on disk: `steerer.safetensors`, `config.json` and a README card. Data only, no code.

The tensors of site S are named `S/operator/...` and `S/statistics/...`. Tensors that are too large for memory are in
a second file, `streams.safetensors` (see `streams`). `config.json` is written last and holds the sha256 of both files
and a checksum of its own content (see `description`). A folder that is incomplete, was changed, or has files of two
steerers is therefore refused when it is read.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from ggss.errors import InputError
from ggss.files import read_bounded, read_json, write_whole
from ggss.methods.operator import Operator, kind_named
from ggss.steering import streams
from ggss.steering.card import card
from ggss.steering.description import FORMAT, Description, SiteEntry, described, signed, tuples

if TYPE_CHECKING:
    from ggss.steering.steerer import Steerer

LARGEST_TENSORS = 2**32  # bytes; larger ones belong into streams
TENSORS, STREAMS, CONFIG, CARD = "steerer.safetensors", "streams.safetensors", "config.json", "README.md"


def save(steerer: "Steerer", folder: str | os.PathLike[str]) -> Path:
    """Write the artefact into a folder; each file is written completely or not at all."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"cannot write a steerer to {str(folder)!r}: it is a file; give a folder")
    data = save_tensors(_tensors(steerer))
    large, replaced = _streams(steerer), holds_steerer(folder)
    config = _config(steerer) | {"sha256": hashlib.sha256(data).hexdigest(), "streams_sha256": None}
    described(signed(json.loads(_json(config))))  # before anything is written: what is written can be read
    write_whole(folder / TENSORS, data)
    if large:
        config["streams_sha256"] = streams.write(folder / STREAMS, large)
    elif replaced:  # the large file of the steerer that was here
        (folder / STREAMS).unlink(missing_ok=True)
    write_whole(folder / CARD, card(steerer).encode())
    write_whole(folder / CONFIG, _json(signed(config)))
    return folder


def recommend(folder: str | os.PathLike[str], alpha: float) -> Path:
    """Write a recommended strength into an artefact on disk: into `config.json` and `README.md`, nothing else.

    The whole artefact is read and checked first. If a file cannot be written, both are as before.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no steerer folder at {str(folder)!r}: a strength can only be written into a local folder")
    steerer = load(folder).recommending(alpha)
    config = signed(_read_config(folder)[0] | {"recommended_alpha": steerer.recommended_alpha})
    before = read_bounded(folder / CARD, "the card") if (folder / CARD).exists() else None
    write_whole(folder / CARD, card(steerer).encode())
    try:
        write_whole(folder / CONFIG, _json(config))
    except InputError:
        if before is not None:
            write_whole(folder / CARD, before)
        raise
    return folder


def holds_steerer(folder: Path) -> bool:
    """Whether a folder has a `config.json` of a steerer, of any format and in any state."""
    try:
        config = read_json(folder / CONFIG, "the file")
    except InputError:
        return False
    return isinstance(config, dict) and {"format", "method", "sites"} <= config.keys()


def load(name: str | os.PathLike[str], revision: str | None = None) -> "Steerer":
    """Read an artefact from a folder or the hub; InputError says what is wrong if it is incomplete or damaged."""
    folder = Path(name)
    if not folder.is_dir():
        folder = _download(str(name), revision)
    config, checked = _read_config(folder)
    data = read_bounded(folder / TENSORS, "the steerer's file", LARGEST_TENSORS)
    if hashlib.sha256(data).hexdigest() != checked.sha256:
        raise InputError(f"{folder / TENSORS} is not the file that {CONFIG} describes (cut short?): save it again")
    large = streams.read(folder / STREAMS, checked.streams_sha256) if checked.streams_sha256 else {}
    try:
        tensors = load_tensors(data)
    except Exception as error:  # safetensors raises exceptions of many types
        raise InputError(f"{folder / TENSORS} is no file of safetensors ({error}): save it again") from error
    try:
        return _assembled(config, checked, tensors, large)
    except InputError as error:
        raise InputError(f"{str(folder)!r}: {error}") from error


def push(steerer: "Steerer", repo_id: str, private: bool = True, token: str | None = None) -> str:
    """Upload the artefact to the hub; returns the repository's address."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        save(steerer, folder)
        url = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=f"{steerer.method} steerer")
    return str(url)


def _json(config: Mapping[str, Any]) -> bytes:
    try:
        return (json.dumps(config, indent=2, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"this steerer cannot be saved, it holds what JSON cannot: {error}") from error


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


def _assembled(
    config: Mapping[str, Any],
    checked: Description,
    tensors: Mapping[str, Tensor],
    large: Mapping[str, Sequence[Tensor]],
) -> "Steerer":
    from ggss.steering.steerer import Steerer

    operators: dict[str, Operator] = {}
    statistics: dict[str, dict[str, Tensor]] = {}
    for site, entry in checked.sites.items():
        operators[site] = _operator(site, entry, _under(f"{site}/operator/", tensors), large)
        statistics[site] = _under(f"{site}/statistics/", tensors)
    plain = ("method", "options", "source", "diagnostics", "recommended_alpha", "prompt_suffix", "versions")
    return Steerer(
        attribute=tuples(checked.attribute),
        values=tuples(checked.values),
        operators=operators,
        statistics=statistics,
        **{name: config[name] for name in plain},
    )


def _operator(
    site: str, entry: SiteEntry, tensors: dict[str, Tensor], large: Mapping[str, Sequence[Tensor]]
) -> Operator:
    kind = kind_named(entry.operator)
    missing = [name for name in kind.streamed if f"{site}/{name}" not in large]
    if missing:
        raise InputError(f"{STREAMS} has no {', '.join(missing)} for {site}")
    mapped = {name: large[f"{site}/{name}"] for name in kind.streamed}
    try:
        operator = kind.load(tensors | mapped, entry.scalars)
    except TypeError as error:
        raise InputError(f"the fields at {site} are not those of a {entry.operator!r} operator: {error}") from error
    if operator.width != entry.width:
        raise InputError(f"the tensors at {site} are {operator.width} wide, {CONFIG} says {entry.width}")
    return operator


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _read_config(folder: Path) -> tuple[dict[str, Any], Description]:
    """The content of `config.json`, as it is and checked."""
    if not (folder / CONFIG).exists():
        raise InputError(f"{str(folder)!r} has no readable {CONFIG}: give a steerer's folder")
    config = read_json(folder / CONFIG, "the steerer's file")
    try:
        return config, described(config)
    except InputError as error:
        raise InputError(f"{str(folder / CONFIG)!r} {error}") from error


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
