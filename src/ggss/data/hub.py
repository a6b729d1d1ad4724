"""Published data: its tables, whose cells may be pictures, and its download from the hub.

Nothing is fetched before its size and licence are known; the hub says both. A folder that was downloaded has a file
`ggss_download.json` with the repository, its revision and its files. The revision of a benchmark's file is a part of
its items, and so of the identity of what is asked.

**Tables** are tab-separated text, as VLMEvalKit has it, or parquet, as the hub has it. A picture is base64 text,
bytes, or what the `datasets` library writes, {"bytes": ...}. Parquet needs pyarrow, the extra `parquet`.
"""

import base64
import binascii
import csv
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ggss.data.pictures import BytesPicture, header_size
from ggss.errors import InputError
from ggss.files import read_json, require_file, write_whole

RECORD = "ggss_download.json"
SECONDS = 30.0  # to wait for the hub's description of a repository
NOT_STATED = "not stated"
_LEVELS = 3  # folders above a file in which its record may be


@dataclass(frozen=True)
class HubData:
    """A data set: its repository, and the patterns of the files that are needed. folder: its place in GGSS_DATA."""

    title: str
    repository: str
    patterns: tuple[str, ...]
    folder: str = ""

    @property
    def address(self) -> str:
        return f"https://huggingface.co/datasets/{self.repository}"


MMSTAR = HubData("MMStar", "Lin-Chen/MMStar", ("MMStar.tsv",), "MMStar")
MME = HubData("MME", "lmms-lab/MME", ("data/test-*.parquet",), "MME")
SOCIAL_COUNTERFACTUALS = HubData("SocialCounterfactuals", "Intel/SocialCounterfactuals", ("data/*.parquet",))


@dataclass(frozen=True)
class Offer:
    """What a download brings: a revision of a repository, its licence, and by name the bytes of each file."""

    data: HubData
    revision: str
    licence: str
    files: Mapping[str, int]

    @property
    def size(self) -> int:
        return sum(self.files.values())


def offered(data: HubData, folder: Path, hub: Any = None) -> Offer:
    """What the hub has of a data set, in its newest revision. hub: in the place of `huggingface_hub`.

    InputError if the hub cannot be reached or does not have the files, with what to put into the folder by hand.
    """
    hub = hub or _hub()
    files = " and ".join(data.patterns)
    by_hand = f"where there is a network, get {files} from {data.address}, and put them into {str(folder)!r}"
    try:
        info = hub.HfApi().dataset_info(data.repository, files_metadata=True, timeout=SECONDS)
    except Exception as error:  # of requests, httpx and the hub, by its version
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{data.title} cannot be downloaded ({reason}): {by_hand}") from error
    sizes = {
        file.rfilename: int(file.size or 0)
        for file in info.siblings or ()
        if any(fnmatch(file.rfilename, pattern) for pattern in data.patterns)
    }
    if not sizes:
        raise InputError(f"{data.repository} has no {files} at revision {info.sha}: look at {data.address}")
    card = getattr(info, "card_data", None) or {}
    licence = card.get("license") or NOT_STATED
    return Offer(data, info.sha, ", ".join(licence) if isinstance(licence, list) else str(licence), sizes)


def download(offer: Offer, folder: Path, hub: Any = None) -> None:
    """Download into a folder. Files of an earlier download that are not in this revision are removed.

    InputError if there is no room, or if a file is not as large as the hub says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(size for name, size in offer.files.items() if not _is_there(folder / name, size))
    if (free := shutil.disk_usage(folder).free) < needed:
        raise InputError(f"{str(folder)!r} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} GB are needed")
    hub = hub or _hub()
    try:
        hub.snapshot_download(
            offer.data.repository,
            repo_type="dataset",
            revision=offer.revision,
            allow_patterns=list(offer.files),
            local_dir=folder,
        )
    except OSError as error:
        raise InputError(f"the download of {offer.data.title} stopped ({error}): the same command goes on") from error
    wrong = [name for name, size in offer.files.items() if not _is_there(folder / name, size)]
    if wrong:
        raise InputError(f"{', '.join(wrong)} did not arrive as the hub describes it: delete it and try again")
    for name in _record(folder).get("files", {}):
        if name not in offer.files:
            (folder / name).unlink(missing_ok=True)
    content = {"repository": offer.data.repository, "revision": offer.revision, "licence": offer.licence}
    write_whole(folder / RECORD, json.dumps(content | {"files": dict(offer.files)}, indent=2).encode())


def revision_of(path: Path) -> str:
    """REPOSITORY@REVISION of a file or folder that was downloaded; "" if it was not, or is not as it was then."""
    folders = [path, *path.parents][: _LEVELS + 1] if path.is_dir() else list(path.parents)[:_LEVELS]
    for folder in folders:
        record = _record(folder)
        if not record:
            continue
        sizes = record.get("files", {})
        names = sizes if path.is_dir() else [path.relative_to(folder).as_posix()]
        known = all(name in sizes and _is_there(folder / name, sizes[name]) for name in names)
        return f"{record.get('repository', '')}@{record.get('revision', '')}" if known else ""
    return ""


def _is_there(file: Path, size: int) -> bool:
    return file.is_file() and file.stat().st_size == size


def _record(folder: Path) -> dict[str, Any]:
    file = folder / RECORD
    record = read_json(file, f"the record {str(file)!r}") if file.is_file() else {}
    return record if isinstance(record, dict) else {}


def _hub() -> Any:
    import huggingface_hub  # transformers needs it, so it is installed

    return huggingface_hub


Cells = dict[str, Any]
"""A row of a table, by column."""


def embedded(cell: Any) -> BytesPicture:
    """The picture in a cell: base64 text, bytes, or the `datasets` library's {"bytes": ...}; ValueError if none."""
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    if isinstance(data, str):
        try:
            data = base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise ValueError(f"has a picture that is not base64 ({error})") from error
    if not data:
        raise ValueError("has no picture")
    if not isinstance(data, bytes):
        raise ValueError(f"has a {type(data).__name__} for a picture")
    header_size(data, "has a picture which")
    return BytesPicture.of(data)


def read_table(
    path: Path, needed: Sequence[str], optional: Sequence[str], errors: list[str]
) -> list[tuple[str, Cells]]:
    """(place, row) of each row of a .tsv or .parquet table, with only the columns `needed` and `optional`.

    Rows that cannot be read are added to `errors`; InputError if the file is no such table or lacks a needed column.
    """
    readers = {".tsv": _tsv_rows, ".parquet": _parquet_rows}
    if path.suffix.lower() not in readers:
        raise InputError(f"{str(path)!r} is neither .tsv nor .parquet: give a table of one of the two kinds")
    require_file(path, "the table")
    try:
        return list(readers[path.suffix.lower()](path, needed, [*needed, *optional], errors))
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error


def _tsv_rows(
    path: Path, needed: Sequence[str], columns: list[str], errors: list[str]
) -> Iterator[tuple[str, Cells]]:
    limit = csv.field_size_limit(2**31 - 1)  # a picture is one cell
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter="\t")
            header = next(reader, [])
            _check_columns(path, needed, header)
            for cells in filter(None, reader):
                if len(cells) != len(header):
                    errors.append(f"line {reader.line_num} has {len(cells)} cells for {len(header)} columns")
                    continue
                row = dict(zip(header, cells, strict=True))
                yield f"line {reader.line_num}", {name: row[name] for name in columns if name in row}
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} is not a table of tab-separated UTF-8 ({error}): get it again") from error
    finally:
        csv.field_size_limit(limit)


def _parquet_rows(
    path: Path, needed: Sequence[str], columns: list[str], errors: list[str]
) -> Iterator[tuple[str, Cells]]:
    pyarrow = require_pyarrow(f"{str(path)!r} is a parquet table")
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            header = table.schema_arrow.names
            _check_columns(path, needed, header)
            present = [name for name in columns if name in header]
            count = 0
            for batch in table.iter_batches(batch_size=64, columns=present):
                for row in batch.to_pylist():
                    yield f"row {count}", row
                    count += 1
    except pyarrow.ArrowException as error:
        raise InputError(f"{str(path)!r} is not a parquet table ({error}): get it again") from error


def require_pyarrow(why: str) -> Any:
    """The module pyarrow. InputError, with the line that installs it, if it is not installed."""
    try:
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(f"{why}, and reading it needs pyarrow: pip install 'ggss[parquet]'") from error
    return pyarrow


def _check_columns(path: Path, needed: Sequence[str], header: Sequence[str]) -> None:
    if missing := ", ".join(name for name in needed if name not in header):
        raise InputError(f"{str(path)!r} has no column {missing}: its columns are {', '.join(header) or 'none'}")
