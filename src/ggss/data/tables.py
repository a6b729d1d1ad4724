"""Tables whose cells may be pictures: tab-separated text, as VLMEvalKit has it, and parquet, as the hub has it.

A picture is base64 text, bytes, or what the `datasets` library writes, {"bytes": ...}. Parquet needs pyarrow, the
extra `parquet`.
"""

import base64
import binascii
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ggss.data.pictures import BytesPicture, header_size
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
