"""A study's answers as a file: one row per answered item, in the plan's order. Equal answers make equal files."""

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from ggss.errors import InputError
from ggss.files import write_whole
from ggss.study import grid
from ggss.study.stored_runs import StoredRuns, opened

FORMATS = (".jsonl", ".parquet")
COLUMNS = (*grid.Cell._fields, "weights", "steering", "suite", "item", "answer", "probabilities")
_LONGEST = 2**24  # bytes of a row


def export(folder: str | Path, file: str | Path) -> int:
    """Write all answers of the study's plan, finished or not, to a .jsonl or .parquet file; returns their number."""
    file = Path(file)
    if file.suffix not in FORMATS:
        raise InputError(f"cannot tell a format from {str(file)!r}: end it in {' or '.join(FORMATS)}")
    _, runs = opened(folder)
    found = list(rows(runs))
    data = _parquet(found) if file.suffix == ".parquet" else (f"{json.dumps(row)}\n".encode() for row in found)
    write_whole(file, data)
    return len(found)


def holds_export(file: Path) -> bool:
    """Whether a file is an export: its first row has the columns of one."""
    try:
        if file.suffix == ".parquet":
            return set(_pyarrow().parquet.read_schema(file).names) == set(COLUMNS)
        with file.open("rb") as lines:
            first = json.loads(lines.readline(_LONGEST))
    except (OSError, ValueError, RecursionError):  # pyarrow's errors are ValueErrors
        return False
    return isinstance(first, dict) and first.keys() == set(COLUMNS)


def rows(runs: StoredRuns) -> Iterator[dict[str, Any]]:
    """The answered items of every cell; `model_identity`, `steering` and `suite`: the hashes they are kept under."""
    for cell in grid.all_cells(runs.plan):
        if (fit := runs.fit(cell)) is None:
            continue
        key = runs.key(cell, fit)
        answers = runs.store.answers(key)
        hashes = {"model_identity": key.identity, "steering": key.steering, "suite": key.suite}
        for item in runs.asked.items(cell.task):
            if item.key in answers:
                answer, probabilities = answers[item.key]
                said = {"item": item.key, "answer": answer, "probabilities": probabilities}
                yield {**cell._asdict(), **hashes, **said}


def _parquet(found: list[dict[str, Any]]) -> bytes:
    pyarrow, buffer = _pyarrow(), BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(found), buffer)
    return buffer.getvalue()


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError("parquet needs pyarrow: pip install 'ggss[parquet]', or export to .jsonl") from error
    return pyarrow
