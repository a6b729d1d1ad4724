"""Tables of images: read from a manifest or from the names of files in folders, written as a manifest.

A **manifest** is CSV (commas, a header line) or JSON lines (one flat object a line), in UTF-8. Its column
`path` is relative to the manifest's folder, or absolute; every other column is a label. Space around a cell
is dropped.

A **folder pattern** such as `faces/{occupation}/{identity}/{race}_{gender}.png` makes a row of every file
that it matches. A placeholder stands for one or more characters of one path component. A name that can be split
in two ways is refused: `{race}_{gender}` may read `mixed_race_man` as race `mixed`, gender `race_man`, or as race
`mixed_race`, gender `man`. A placeholder that is used twice must read the same text twice. Hidden files do not match,
and everything outside the braces is literal.

Labels are Unicode text. Files may have names that are not, as long as no label is read from them.
"""

import csv
import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path

from ggss.errors import InputError, problems
from ggss.escaping import is_unicode
from ggss.files import read_utf8, write_whole

Row = dict[str, str]


def read_rows(source: str | Path) -> list[Row]:
    """The rows of a manifest or a folder pattern, all with the same columns; `path` is the image file."""
    if Path(source).is_file():
        return _manifest_rows(Path(source))
    if re.search(r"[{}]", str(source)):
        pattern = Path(source).as_posix()
        return _with_text_labels(_pattern_rows(pattern), f"folder pattern {pattern!r}")
    raise InputError(
        f"{str(source)!r} is not a file, and has no placeholders that make it a folder pattern: "
        "give a .csv or .jsonl manifest, or a pattern such as 'faces/{identity}/{race}_{gender}.png'"
    )


def write_manifest(rows: Iterable[Mapping[str, object]], path: str | Path) -> None:
    """Write a CSV manifest, completely or not at all. All rows have the same columns; one of them is `path`."""
    rows, path = list(rows), Path(path)
    if not rows or any(row.keys() != rows[0].keys() or "path" not in row for row in rows):
        raise InputError(f"manifest {str(path)!r} needs rows with the same columns, 'path' among them")
    write_whole(path, manifest_bytes(rows))


def manifest_bytes(rows: Sequence[Mapping[str, object]]) -> bytes:
    """The content of a manifest as a CSV file."""
    text = StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if not is_unicode(text.getvalue()):
        raise InputError("a name or a label of a manifest is not Unicode text: rename the file, or correct the label")
    return text.getvalue().encode()


def _manifest_rows(path: Path) -> list[Row]:
    readers = {".csv": csv_rows, ".jsonl": _jsonl_rows}
    if path.suffix.lower() not in readers:
        raise InputError(f"manifest {str(path)!r} is neither .csv nor .jsonl: save it as one of the two")
    text = read_utf8(path, "manifest")
    flaws: list[str] = []
    rows = dict(readers[path.suffix.lower()](text, flaws))
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    if rows and "path" not in columns:
        raise InputError(
            f"manifest {str(path)!r} has no column 'path': its columns are {', '.join(columns)}; "
            "name the column of image files 'path' and separate columns by commas; `ggss data --help` lists the "
            "published sets whose tables are read as they are"
        )
    flaws += [f"line {line} has no path" for line, row in rows.items() if not row.get("path")]
    if flaws:
        raise problems(f"manifest {str(path)!r}", flaws)
    if not rows:
        raise InputError(f"manifest {str(path)!r} has no rows: add one for each image")
    blank = dict.fromkeys(columns, "")
    placed = [{**blank, **row, "path": str(path.parent / row["path"])} for row in rows.values()]
    return _with_text_labels(placed, f"manifest {str(path)!r}")


def csv_rows(text: str, flaws: list[str]) -> Iterator[tuple[int, Row]]:
    """(line number, row) of each line with cells; what is wrong with other lines is added to `flaws`."""
    reader = csv.reader(StringIO(text), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        if "" in header or len(set(header)) < len(header):
            flaws.append(f"line 1 must name each column, and each name once: it reads {','.join(header)!r}")
            return
        for cells in filter(None, reader):
            if len(cells) != len(header):
                flaws.append(f"line {reader.line_num} has {len(cells)} cells for {len(header)} columns")
            else:
                yield reader.line_num, {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    except csv.Error as error:
        flaws.append(f"line {reader.line_num} is not CSV: {error}")


def _jsonl_rows(text: str, flaws: list[str]) -> Iterator[tuple[int, Row]]:
    """(line number, row) of each line with an object; what is wrong with other lines is added to `flaws`."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            cells = json.loads(line, object_pairs_hook=tuple)  # an object is a tuple of pairs, an array a list
        except (ValueError, RecursionError):
            flaws.append(f"line {number} is not JSON: {line[:60]!r}")
            continue
        if not isinstance(cells, tuple) or any(isinstance(cell, tuple | list) for _, cell in cells):
            flaws.append(f"line {number} is not an object of plain values: {line[:60]!r}")
            continue
        row = {name.strip(): _text(cell) for name, cell in cells}
        if len(row) < len(cells):
            flaws.append(f"line {number} names a column twice: {line[:60]!r}")
        yield number, row


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
    try:
        os.lstat(pattern)
    except ValueError as error:  # or a UnicodeError, which is one
        raise InputError(f"folder pattern {pattern!r} has a character that no file name has ({error})") from error
    except OSError:
        pass  # it need not be a file

    expression = _expression(pattern, literals, names)
    files = [Path(file) for file in sorted(glob.glob("*".join(map(glob.escape, literals))))]
    matches = [(file, re.fullmatch(expression, file.as_posix())) for file in files if file.is_file()]
    readings = {file: match.groupdict() for file, match in matches if match}
    _refuse_two_readings(pattern, literals, names, readings)
    rows = [{"path": str(file), **reading} for file, reading in readings.items()]
    if not rows:
        folder = os.path.dirname(literals[0]) or "."
        problem = "has no such file" if os.path.isdir(folder) else "does not exist"
        raise InputError(f"folder pattern {pattern!r} matches nothing: the folder {folder!r} {problem}")
    return rows


def _refuse_two_readings(
    pattern: str, literals: list[str], names: list[str], readings: Mapping[Path, Mapping[str, str]]
) -> None:
    """InputError if a name can be read in another way, too. readings: those with the text between placeholders first.

    The other way is the same from the end of the name: the text between placeholders as late as possible. If both
    agree there is no third, as all others lie in between.
    """
    numbered = [f"n{place}" for place in range(len(names))]
    backwards = _expression(pattern, [literal[::-1] for literal in reversed(literals)], numbered)
    ambiguous: list[tuple[Path, Mapping[str, str]]] = []
    for file, reading in readings.items():
        match = re.fullmatch(backwards, file.as_posix()[::-1])
        texts = [text[::-1] for text in reversed(match.groups())] if match else []
        other = dict(zip(names, texts, strict=False))
        consistent = [other.get(name) for name in names] == texts  # a name that is used twice reads the same twice
        if texts and consistent and other != reading:
            ambiguous.append((file, other))
    if ambiguous:
        file, other = ambiguous[0]
        ways = (" ".join(f"{name}={text}" for name, text in way.items()) for way in (readings[file], other))
        count = len(ambiguous)
        more = f" ({count} of {len(readings)} names can be read in two ways)" if count > 1 else ""
        raise InputError(
            f"folder pattern {pattern!r} fits {file.name!r} in two ways, {' or '.join(ways)}{more}: rename the files "
            "so that no value contains the text between two placeholders, or write a manifest"
        )


def _expression(pattern: str, literals: list[str], names: list[str]) -> str:
    """The regular expression of a pattern. Matching takes time linear in the length of a file's name.

    A placeholder ends at the first place where the text after it matches. No match is lost by this: if the rest of
    the pattern matches after a later place, it also matches after the first, with a longer placeholder in between. So
    the group is atomic, `(?>...)`, and no other place is tried. Only before the second use of a name must all places
    be tried: there, at most two placeholders may have several.
    """
    again = max((place for place, name in enumerate(names) if name in names[:place]), default=-1)
    places = sum("/" not in literals[place + 1] for place in range(again) if names[place] not in names[:place])
    if places > 2:
        raise InputError(
            f"folder pattern {pattern!r} uses {names[again]!r} twice after {places} placeholders without a / between "
            "them: there are too many ways to read a name; use another name the second time"
        )
    expression = re.escape(literals[0])
    for place, name in enumerate(names):
        literal = re.escape(literals[place + 1])
        if name in names[:place]:
            expression += f"(?P={name}){literal}"
        elif place < again or place == len(names) - 1:
            expression += f"(?P<{name}>[^/]+?){literal}"
        else:
            expression += f"(?>(?P<{name}>[^/]+?){literal})"
    return expression


def _with_text_labels(rows: list[Row], where: str) -> list[Row]:
    """The rows. InputError if a label or its column is not Unicode: no file or model could take it."""
    flaws = [
        f"{column!r} of {row['path']!r} is not Unicode text: {cell!r}"
        for row in rows
        for column, cell in row.items()
        if not (is_unicode(column) and (column == "path" or is_unicode(cell)))
    ]
    if flaws:
        raise problems(where, flaws)
    return rows
