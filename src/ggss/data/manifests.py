"""Tables of images: read from a manifest or from the names of files in folders, written as a manifest.

A **manifest** is CSV (commas, a header line) or JSON lines (one flat object a line), in UTF-8. Its column
`path` is relative to the manifest's folder, or absolute; every other column is a label. Space around a cell
is dropped.

A **folder pattern** such as `faces/{occupation}/{identity}/{race}_{gender}.png` makes a row of every file
that it matches. A placeholder stands for one or more characters of one path component. Where a name can be
split in two ways the leftmost placeholder takes the fewest characters: `{race}_{gender}` reads
`mixed_race_man` as race `mixed`, gender `race_man`. A placeholder that is used twice must read the same text
twice. Hidden files do not match, and everything outside the braces is literal.
"""

import csv
import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path

from ggss.errors import InputError, problems
from ggss.files import write_whole

Row = dict[str, str]


def read_rows(source: str | Path) -> list[Row]:
    """The rows of a manifest or a folder pattern, all with the same columns; `path` is the image file."""
    if Path(source).is_file():
        return _manifest_rows(Path(source))
    if re.search(r"[{}]", str(source)):
        return _pattern_rows(Path(source).as_posix())
    raise InputError(
        f"{str(source)!r} is not a file, and has no placeholders that make it a folder pattern: "
        "give a .csv or .jsonl manifest, or a pattern such as 'faces/{identity}/{race}_{gender}.png'"
    )


def write_manifest(rows: Iterable[Mapping[str, object]], path: str | Path) -> None:
    """Write a CSV manifest, whole or not at all. All rows have the same columns; one of them is `path`."""
    rows, path = list(rows), Path(path)
    if not rows or any(row.keys() != rows[0].keys() or "path" not in row for row in rows):
        raise InputError(f"manifest {str(path)!r} needs rows with the same columns, 'path' among them")
    text = StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())


def _manifest_rows(path: Path) -> list[Row]:
    readers = {".csv": _csv_rows, ".jsonl": _jsonl_rows}
    if path.suffix.lower() not in readers:
        raise InputError(f"manifest {str(path)!r} is neither .csv nor .jsonl: save it as one of the two")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"manifest {str(path)!r} is not UTF-8 ({error.reason}): save it as UTF-8") from error
    except OSError as error:
        raise InputError(f"manifest {str(path)!r} cannot be read: {error.strerror}") from error

    found: list[str] = []
    rows = dict(readers[path.suffix.lower()](text, found))
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    if rows and "path" not in columns:
        raise InputError(
            f"manifest {str(path)!r} has no column 'path': its columns are {', '.join(columns)}; "
            "name the column of image files 'path' and separate columns by commas"
        )
    found += [f"line {line} has no path" for line, row in rows.items() if not row.get("path")]
    if found:
        raise problems(f"manifest {str(path)!r}", found)
    if not rows:
        raise InputError(f"manifest {str(path)!r} has no rows: add one for each image")
    blank = dict.fromkeys(columns, "")
    return [{**blank, **row, "path": str(path.parent / row["path"])} for row in rows.values()]


def _csv_rows(text: str, found: list[str]) -> Iterator[tuple[int, Row]]:
    """(line number, row) of each line with cells; what is wrong with the others goes to `found`."""
    reader = csv.reader(StringIO(text), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        if "" in header or len(set(header)) < len(header):
            found.append(f"line 1 must name each column, and each name once: it reads {','.join(header)!r}")
            return
        for cells in filter(None, reader):
            if len(cells) != len(header):
                found.append(f"line {reader.line_num} has {len(cells)} cells for {len(header)} columns")
            else:
                yield reader.line_num, {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    except csv.Error as error:
        found.append(f"line {reader.line_num} is not CSV: {error}")


def _jsonl_rows(text: str, found: list[str]) -> Iterator[tuple[int, Row]]:
    """(line number, row) of each line with an object; what is wrong with the others goes to `found`."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError):
            found.append(f"line {number} is not JSON: {line[:60]!r}")
            continue
        if not isinstance(cells, dict) or any(isinstance(cell, dict | list) for cell in cells.values()):
            found.append(f"line {number} is not an object of plain values: {line[:60]!r}")
        else:
            yield number, {name.strip(): _text(cell) for name, cell in cells.items()}


def _text(cell: str | float | bool | None) -> str:
    if cell is None:
        return ""
    return cell.strip() if isinstance(cell, str) else json.dumps(cell)


def _pattern_rows(pattern: str) -> list[Row]:
    pieces = re.split(r"\{(\w+)\}", pattern)
    literals, names = pieces[::2], pieces[1::2]
    if re.search(r"[{}]", "".join(literals)) or not all(map(str.isidentifier, names)):
        raise InputError(f"folder pattern {pattern!r} has a placeholder that is not a name: write {{race}}")
    if "path" in names:
        raise InputError(f"folder pattern {pattern!r} has a placeholder 'path', the file itself: rename it")

    expression = re.escape(literals[0])
    for place, name in enumerate(names):
        expression += f"(?P={name})" if name in names[:place] else f"(?P<{name}>[^/]+?)"
        expression += re.escape(literals[place + 1])
    files = [Path(file) for file in sorted(glob.glob("*".join(map(glob.escape, literals))))]
    matches = [(file, re.fullmatch(expression, file.as_posix())) for file in files if file.is_file()]
    rows = [{"path": str(file), **match.groupdict()} for file, match in matches if match]
    if not rows:
        folder = os.path.dirname(literals[0]) or "."
        seen = "has no such file" if os.path.isdir(folder) else "does not exist"
        raise InputError(f"folder pattern {pattern!r} matches nothing: the folder {folder!r} {seen}")
    return rows
