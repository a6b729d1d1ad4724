"""A steerer on disk: `steerer.safetensors`, `config.json` and a README card. Data only, no code.

The tensors of site S are named `S/operator/...` and `S/statistics/...`. Sequences of tensors that are too large for
memory are in a second file, `streams.safetensors`, where tensor i of sequence Q is named `Q/i`. It is written one
tensor at a time and memory-mapped when it is read; it is read through once when an artefact is loaded, for its
sha256.

`config.json` is written last. It holds the sha256 of both files and a checksum of all its other content. So a folder
that is incomplete, was changed, or has files of two steerers is refused when it is read. `Description` declares the
names, types and ranges of its content, which are checked when it is written and read. The scalars of an operator are
not declared here: the operator checks them itself (`ggss.methods.operator`).

The card is written from the steerer's fields.
"""

import hashlib
import json
import os
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from ggss.activations import LazyTensors
from ggss.errors import InputError
from ggss.escaping import code, markdown
from ggss.files import read_bounded, read_json, require_file, write_whole
from ggss.methods.operator import Operator, kind_named
from ggss.steering.attach import unverified
from ggss.steering.steerer import MATCHING, checked_recommendation
from ggss.terminal import track

if TYPE_CHECKING:
    from ggss.steering.steerer import Steerer

FORMAT = 2  # of `config.json`
TENSORS, STREAMS, CONFIG, CARD = "steerer.safetensors", "streams.safetensors", "config.json", "README.md"
LARGEST_TENSORS = 2**32  # bytes; larger ones belong into streams
CHUNK = 2**24  # bytes read at a time for the sha256
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Plain = str | bool | int | float | None
Text = str | None

MEASURED = {"effective_rank", "variance_share", "chance_share", "split_half_cosines"}
UNPAIRED = "what all tokens still show is not measured on unpaired pictures, where it goes with other things."
NOT_MEASURED = "what all tokens still show was not measured, because they were not kept (`--keep-tokens`)."
REMOVES = """\
It removes what counterfactual images showed of one perceived attribute at one layer. It does not make a model fair
and does not remove what its weights know. At high strength the model can no longer name the attribute when it is
asked. Measure bias, capability and recognition on your own task before you choose a strength."""
REMOVES_NOTHING = """\
It changes no activation, at any strength: nothing that the model sees of a person is removed. Measure bias and
capability on your own task with it and without it."""


def save(steerer: "Steerer", folder: str | os.PathLike[str]) -> Path:
    """Write the artefact into a folder; each file is written completely or not at all."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"cannot write a steerer to {str(folder)!r}: it is a file; give a folder")
    data = save_tensors(_tensors(steerer))
    streams, replaced = _streams(steerer), holds_steerer(folder)
    config = _config(steerer) | {"sha256": hashlib.sha256(data).hexdigest(), "streams_sha256": None}
    parse_config(signed(json.loads(_json(config))))  # before anything is written: it must be possible to read it
    write_whole(folder / TENSORS, data)
    if streams:
        config["streams_sha256"] = _write_streams(folder / STREAMS, streams)
    elif replaced:  # the streams of the steerer that was here
        (folder / STREAMS).unlink(missing_ok=True)
    write_whole(folder / CARD, card(steerer).encode())
    write_whole(folder / CONFIG, _json(signed(config)))
    return folder


def load(name: str | os.PathLike[str], revision: str | None = None) -> "Steerer":
    """Read an artefact from a folder or the hub; InputError says what is wrong if it is incomplete or damaged."""
    folder = Path(name)
    if not folder.is_dir():
        folder = _download(str(name), revision)
    config, checked = _read_config(folder)
    data = read_bounded(folder / TENSORS, "the steerer's file", LARGEST_TENSORS)
    if hashlib.sha256(data).hexdigest() != checked.sha256:
        raise InputError(f"{folder / TENSORS} is not the file that {CONFIG} describes (cut short?): save it again")
    streams = _read_streams(folder / STREAMS, checked.streams_sha256) if checked.streams_sha256 else {}
    try:
        tensors = load_tensors(data)
    except Exception as error:  # safetensors raises exceptions of many types
        raise InputError(f"{folder / TENSORS} is no file of safetensors ({error}): save it again") from error
    try:
        return _steerer(config, checked, tensors, streams)
    except InputError as error:
        raise InputError(f"{str(folder)!r}: {error}") from error


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


def push(steerer: "Steerer", repo_id: str, private: bool = True, token: str | None = None) -> str:
    """Upload the artefact to the hub; returns the repository's address."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        save(steerer, folder)
        url = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=f"{steerer.method} steerer")
    return str(url)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class SiteEntry(_Strict, extra="allow"):
    """The operator at a site, and its scalars."""

    operator: str
    width: int

    @property
    def scalars(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class PredictedEntry(_Strict):
    """The share of a label's variance that a column explains, and what chance gives."""

    share: float
    chance: float

    def __str__(self) -> str:
        return f"{max(self.share, 0):.0%} (chance {max(self.chance, 0):.0%})"


class MatchingEntry(_Strict):
    """How unpaired pictures were compared."""

    matched_by: list[str]
    images: int
    compared: int
    strata: int
    compared_strata: int
    predicted: PredictedEntry | None
    by_column: dict[str, PredictedEntry]
    left: dict[str, PredictedEntry]
    warnings: list[str]

    def sentences(self, attribute: str) -> str:
        """For the card."""
        by_column = ", ".join(f"{name} {share}" for name, share in self.by_column.items())
        left = ", ".join(f"{name} {share}" for name, share in self.left.items())
        return (
            f"Fitted to unpaired pictures, matched by {', '.join(self.matched_by) or 'nothing that has a name'}: "
            f"{self.compared} of {self.images} are in {self.compared_strata} of {self.strata} strata with several "
            f"values of {attribute}. What they are matched by explains {self.predicted or 'an unknown share'} of "
            f"{attribute}{f': {by_column}' if by_column else ''}. Within strata, "
            f"{left or 'no other column is known'}. What differs between the groups and is no column is removed "
            f"with {attribute}."
        )


class SourceEntry(_Strict, extra="allow"):
    """The model and the pictures that a steerer was fitted on."""

    model: Text = None
    revision: Text = None
    family: Text = None
    fingerprint: Text = None
    data_hash: Text = None
    backend: Text = None
    images: int | None = None
    ordered: list[str] = []
    matching: dict[str, MatchingEntry] = {}


class TokensEntry(_Strict):
    """What a probe of all tokens reads of the attribute before and after steering, and how far tokens move."""

    before: float
    after: float
    chance: float
    displacement: float


class DiagnosticsEntry(_Strict, extra="allow"):
    """What discovery measured at a site."""

    effective_rank: float | None = None
    variance_share: float | None = None
    chance_share: float | None = None
    split_half_cosines: list[float] = []
    notes: list[str] = []
    transfer: float | None = None
    all_tokens: TokensEntry | None = None
    warnings: list[str] = []


class Description(_Strict):
    """The content of `config.json`."""

    format: int
    method: str
    options: dict[str, JsonValue]
    attribute: str | Annotated[list[str], Field(min_length=1)]
    values: list[Plain | list[Plain]]
    sites: Annotated[dict[str, SiteEntry], Field(min_length=1)]
    source: SourceEntry
    diagnostics: dict[str, DiagnosticsEntry]
    recommended_alpha: Annotated[float, AfterValidator(checked_recommendation)] | None
    prompt_suffix: str
    versions: dict[str, str]
    sha256: Sha256
    streams_sha256: Sha256 | None
    checksum: Sha256


def signed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same content, with its checksum."""
    return {**config, "checksum": checksum(config)}


def checksum(config: Mapping[str, Any]) -> str:
    """sha256 of all content but the checksum itself, whatever its order and layout."""
    content = {name: value for name, value in config.items() if name != "checksum"}
    text = json.dumps(content, sort_keys=True, allow_nan=False, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def parse_config(config: Any) -> Description:
    """The checked content of a `config.json`; InputError says what is wrong with it."""
    if not isinstance(config, dict) or not {"format", "sites"} <= config.keys():
        raise InputError("does not describe a ggss steerer (is this a model's folder?)")
    if config["format"] != FORMAT:
        versions = config.get("versions")
        writer = versions.get("ggss", "unknown") if isinstance(versions, dict) else "unknown"
        raise InputError(
            f"has artefact format {str(config['format'])[:20]}, this version of ggss reads {FORMAT}: "
            f"make the steerer again, or use the version of ggss that wrote it ({str(writer)[:20]})"
        )
    try:
        if config.get("checksum") != checksum(config):
            raise InputError("was changed after it was written (its checksum differs): make the steerer again")
        return Description.model_validate(config)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc']))[:80]}: {e['msg']}" for e in error.errors()]
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise InputError(f"does not describe a steerer: {'; '.join(wrong[:3])}{more}") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"does not describe a steerer: {error}") from error


def tuples(value: Any) -> Any:
    """Lists of JSON as the tuples of a steerer: several attributes, or values of intersections."""
    return tuple(tuples(item) for item in value) if isinstance(value, list | tuple) else value


def card(steerer: "Steerer") -> str:
    """The artefact's README in Markdown, for people who cannot ask its author."""
    source = steerer.source
    attribute = " x ".join([steerer.attribute] if isinstance(steerer.attribute, str) else steerer.attribute)
    alpha = steerer.recommended_alpha

    def known(name: str) -> str:
        return code(str(source.get(name, "unknown")))

    facts = {
        "method": f"{code(steerer.method)} {markdown(str(steerer.options or ''))}",
        "attribute": markdown(f"{attribute}: {_values(steerer)}"),
        "sites": ", ".join(f"{code(site)} (width {op.width})" for site, op in steerer.operators.items()),
        "model": f"{known('model')} {markdown(str(source.get('revision') or ''))}",
        "fingerprint of the vision path": "not recorded: nobody can check that a model is the one it was made for"
        if unverified(steerer)
        else known("fingerprint"),
        "discovery images": f"{source.get('images', 'unknown')}{', unpaired' if source.get(MATCHING) else ''}, "
        f"hash {known('data_hash')}",
        "image backend": known("backend"),
        "recommended alpha": "none measured: try 0.25 to 1.5 on your own probes"
        if alpha is None
        else f"{alpha:g}; used when no other is given",
        "versions": ", ".join(f"{name} {number}" for name, number in steerer.versions.items()) or "unknown",
    }
    suffix = steerer.prompt_suffix
    if suffix:
        facts["appended to every prompt"] = code(json.dumps(suffix, ensure_ascii=False))
    removes = any(op.kind != "identity" for op in steerer.operators.values())
    table = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return f"""---
library_name: ggss
tags: [ggss, activation-steering, fairness]
---
# A {markdown(steerer.method)} steerer for {markdown(attribute)}

| | |
| --- | --- |
{table}

## What discovery measured

{_diagnostics(steerer)}

## How to use it

```python
import ggss

vlm = ggss.load_vlm({json.dumps(source.get("model", "MODEL"))})
steerer = ggss.Steerer.from_pretrained("THIS FOLDER")
with steerer.attach(vlm, alpha={steerer.strength()}):
    print(vlm.answer(["What does this person earn?"{" + steerer.prompt_suffix" if suffix else ""}], [[image]]))
```

## What it does not do

{REMOVES if removes else REMOVES_NOTHING}
"""


def _values(steerer: "Steerer") -> str:
    """The values of what is steered; of a number its range."""
    if steerer.attribute in steerer.source.get("ordered", ()):
        return f"a number, from {steerer.values[0]} to {steerer.values[-1]}"
    return ", ".join(map(str, steerer.values))


def _diagnostics(steerer: "Steerer") -> str:
    lines = [
        f"- {markdown(MatchingEntry.model_validate(compared).sentences(attribute))}"
        for attribute, compared in steerer.source.get(MATCHING, {}).items()
    ]
    for site, measured in steerer.diagnostics.items():
        if {name for name, value in measured.items() if value is not None} >= MEASURED:
            cosines = ", ".join(f"{c:.2f}" for c in measured["split_half_cosines"]) or "too few contexts"
            transfer = measured.get("transfer")
            lines.append(
                f"- {code(site)}: effective rank {measured['effective_rank']:.1f}; "
                f"{measured['variance_share']:.1%} of the variance that is not the attribute's inside the subspace "
                f"(chance {measured['chance_share']:.1%}); "
                + (f"transfer between halves {transfer:.0%}; " if transfer is not None else "")
                + f"split-half cosines {cosines}."
            )
        if probe := measured.get("all_tokens"):
            lines.append(
                f"- {code(site)}: a probe of all tokens names the attribute of people it has not seen in "
                f"{probe['before']:.0%} of the images before and {probe['after']:.0%} after steering at alpha 1 "
                f"(guessing: {probe['chance']:.0%}); tokens move by {probe['displacement']:.0%} of their length."
            )
        elif site in steerer.operators and steerer.operators[site].kind != "identity":
            lines.append(f"- {code(site)}: {UNPAIRED if steerer.source.get(MATCHING) else NOT_MEASURED}")
        lines += [f"- {markdown(text)}" for text in measured.get("notes", [])]
    lines += [f"- **Warning.** {markdown(text)}" for text in steerer.warnings]
    return "\n".join(lines) or "Nothing was recorded."


def _stored_tensor(path: Path, name: str) -> Tensor:
    with safe_open(path, "pt") as file:
        return file.get_tensor(name)


def _write_streams(path: Path, sequences: Mapping[str, Sequence[Tensor]]) -> str:
    """Write the sequences with one tensor in memory at a time, all or nothing; return the file's sha256."""
    header: dict[str, object] = {}
    digest = hashlib.sha256()
    end = 0
    for name, sequence in sequences.items():
        for i, tensor in enumerate(sequence):
            start, end = end, end + tensor.numel() * tensor.element_size()
            entry = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
            header[f"{name}/{i}"] = entry
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def pieces() -> Iterator[bytes]:
        yield struct.pack("<Q", len(text)) + text
        for sequence in sequences.values():
            for tensor in sequence:
                yield tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()

    def hashed() -> Iterator[bytes]:
        for piece in pieces():
            digest.update(piece)
            yield piece

    write_whole(path, hashed())
    return digest.hexdigest()


def _read_streams(path: Path, sha256: str) -> dict[str, Sequence[Tensor]]:
    """The sequences of a file, memory-mapped; InputError unless the file is complete and has this sha256."""
    require_file(path, "the steerer's file")
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for _ in track(range(0, path.stat().st_size, CHUNK), "checking references"):
                digest.update(file.read(CHUNK))
        if digest.hexdigest() != sha256:
            raise InputError(f"{str(path)!r} was changed, cut short, or is of another steerer: save this one again")
        with safe_open(path, "pt") as file:
            names = set(file.keys())
    except (OSError, SafetensorError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}): save the steerer again") from error
    sizes = Counter(name.rpartition("/")[0] for name in names)
    if names != {f"{name}/{i}" for name, size in sizes.items() for i in range(size)}:
        raise InputError(f"{str(path)!r} lacks some of its numbered tensors: save the steerer again")
    read_tensor = partial(_stored_tensor, path)
    return {name: LazyTensors([f"{name}/{i}" for i in range(size)], read_tensor) for name, size in sizes.items()}


def _json(config: Mapping[str, Any]) -> bytes:
    try:
        return (json.dumps(config, indent=2, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"this steerer cannot be saved, it holds what JSON cannot: {error}") from error


def _tensors(steerer: "Steerer") -> dict[str, Tensor]:
    tensors = {}
    for site, operator in steerer.operators.items():
        for name, tensor in operator.tensors().items():
            tensors[f"{site}/operator/{name}"] = tensor.detach().cpu().contiguous()
        for name, tensor in steerer.statistics.get(site, {}).items():
            tensors[f"{site}/statistics/{name}"] = tensor.detach().cpu().contiguous()
    return tensors


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


def _steerer(
    config: Mapping[str, Any],
    checked: Description,
    tensors: Mapping[str, Tensor],
    streams: Mapping[str, Sequence[Tensor]],
) -> "Steerer":
    from ggss.steering.steerer import Steerer

    operators: dict[str, Operator] = {}
    statistics: dict[str, dict[str, Tensor]] = {}
    for site, entry in checked.sites.items():
        operators[site] = _operator(site, entry, _under(f"{site}/operator/", tensors), streams)
        statistics[site] = _under(f"{site}/statistics/", tensors)
    unchanged = ("method", "options", "source", "diagnostics", "recommended_alpha", "prompt_suffix", "versions")
    return Steerer(
        attribute=tuples(checked.attribute),
        values=tuples(checked.values),
        operators=operators,
        statistics=statistics,
        **{name: config[name] for name in unchanged},
    )


def _operator(
    site: str, entry: SiteEntry, tensors: dict[str, Tensor], streams: Mapping[str, Sequence[Tensor]]
) -> Operator:
    kind = kind_named(entry.operator)
    missing = [name for name in kind.streamed if f"{site}/{name}" not in streams]
    if missing:
        raise InputError(f"{STREAMS} has no {', '.join(missing)} for {site}")
    streamed = {name: streams[f"{site}/{name}"] for name in kind.streamed}
    try:
        operator = kind.load(tensors | streamed, entry.scalars)
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
        return config, parse_config(config)
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
