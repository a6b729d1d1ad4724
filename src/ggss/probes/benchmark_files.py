"""Benchmark files: where they are searched for, the rows of their tables, the pictures in the rows."""

import base64
import binascii
import csv
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ggss.data.decoding import header_size
from ggss.data.picture import BytesPicture
from ggss.errors import InputError
from ggss.files import require_file

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


def locate(
    benchmark: str,
    path: str | Path | None,
    names: Sequence[str],
    advice: str,
    fits: Callable[[Path], bool] = Path.is_file,
) -> Path:
    """`path` if it is a file, else the first of the `names` that fits in the folder `path` (None: GGSS_DATA).

    advice: what to download and how to name it, for the error if there is no such file.
    """
    put = f"{advice}, into the folder that the variable GGSS_DATA names, or give its path"
    where = path or os.environ.get("GGSS_DATA")
    if not where:
        raise InputError(f"the data of {benchmark} are not part of ggss: {put}")
    place = Path(where).expanduser()
    if place.is_file():
        return place
    for name in names:
        if fits(place / name):
            return place / name
    seen = f"has none of {', '.join(names)}" if place.is_dir() else "does not exist"
    raise InputError(f"no {benchmark} at {str(place)!r}, which {seen}: {put}")


def read_table(path: Path, needed: Sequence[str], also: Sequence[str], found: list[str]) -> list[tuple[str, Cells]]:
    """(place, row) of each row of a .tsv or .parquet table, with only the columns `needed` and `also`.

    Problems of rows are added to `found`; InputError if the file is no such table or a needed column is missing.
    """
    readers = {".tsv": _tsv_rows, ".parquet": _parquet_rows}
    if path.suffix.lower() not in readers:
        raise InputError(f"{str(path)!r} is neither .tsv nor .parquet: give a table of one of the two kinds")
    require_file(path, "the table")
    try:
        return list(readers[path.suffix.lower()](path, needed, [*needed, *also], found))
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error


def _tsv_rows(path: Path, needed: Sequence[str], wanted: list[str], found: list[str]) -> Iterator[tuple[str, Cells]]:
    usual = csv.field_size_limit(2**31 - 1)  # a whole picture is one cell
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter="\t")
            header = next(reader, [])
            _check_columns(path, needed, header)
            for cells in filter(None, reader):
                if len(cells) != len(header):
                    found.append(f"line {reader.line_num} has {len(cells)} cells for {len(header)} columns")
                    continue
                row = dict(zip(header, cells, strict=True))
                yield f"line {reader.line_num}", {name: row[name] for name in wanted if name in row}
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} is not a table of tab-separated UTF-8 ({error}): get it again") from error
    finally:
        csv.field_size_limit(usual)


def _parquet_rows(
    path: Path, needed: Sequence[str], wanted: list[str], found: list[str]
) -> Iterator[tuple[str, Cells]]:
    try:
        from pyarrow import ArrowException, parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(f"reading {str(path)!r} needs pyarrow: pip install pyarrow") from error
    try:
        with parquet.ParquetFile(path) as table:
            header = table.schema_arrow.names
            _check_columns(path, needed, header)
            present = [name for name in wanted if name in header]
            count = 0
            for batch in table.iter_batches(batch_size=64, columns=present):
                for row in batch.to_pylist():
                    yield f"row {count}", row
                    count += 1
    except ArrowException as error:
        raise InputError(f"{str(path)!r} is not a parquet table ({error}): get it again") from error


def _check_columns(path: Path, needed: Sequence[str], header: Sequence[str]) -> None:
    if missing := ", ".join(name for name in needed if name not in header):
        raise InputError(f"{str(path)!r} has no column {missing}: its columns are {', '.join(header) or 'none'}")
