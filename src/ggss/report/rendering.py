"""A table as a value, and its forms: Markdown to read, CSV to compute with, LaTeX to print.

Every number, interval, mark and note is in each of them. All words are plain text, which each form escapes.
`differences` compares two such files cell by cell.
"""

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from ggss import escaping

ABSENT = "(not there)"
_NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Figure:
    """A number as it is printed, with its interval if it has one. ranked: it may be the best of its column.

    words: printed instead of the number, for a further interval of the number in the line above. centre: the estimate
    that the interval is about, if that is not the number itself. It is printed with the bounds if it differs from the
    number in the digits shown, because the interval need not contain the number then. If it is NaN, "-" is printed.
    """

    value: float
    interval: tuple[float, float] | None = None
    spec: str = ".2f"
    unit: str = ""
    mark: str = ""
    ranked: bool = True
    words: str = ""
    centre: float | None = None

    def number(self) -> str:
        return self.words or _number(self.value, self.spec)

    def bounds(self) -> str:
        """Both bounds; empty without an interval."""
        if self.interval is None:
            return ""
        low, high = self.interval
        if math.isnan(low) or math.isnan(high):
            return "undefined"
        return f"{_number(low, self.spec)}, {_number(high, self.spec)}"

    def after(self) -> str:
        """What is printed after the number: unit, bounds, mark."""
        unit = f" {self.unit}" if self.unit and math.isfinite(self.value) and not self.words else ""
        bounds = f" [{self.bounds()}]" if self.interval else ""
        if bounds and self.centre is not None:
            centre = "-" if math.isnan(self.centre) else _number(self.centre, self.spec)
            bounds = bounds if centre == self.number() else f" ({centre}{bounds})"
        return f"{unit}{bounds}{self.mark}"


Entry = str | tuple[Figure, ...]
"""One entry of a table: figures, printed one below the other, or words such as "not run"."""


@dataclass(frozen=True)
class Column:
    """`parts` names the figures of one cell, one below the other; `better` is the direction that wins."""

    name: str
    group: str = ""
    better: Literal["lower", "higher", ""] = ""
    parts: tuple[str, ...] = ("",)

    @property
    def arrow(self) -> str:
        return {"lower": " ↓", "higher": " ↑", "": ""}[self.better]

    @property
    def lines(self) -> list[str]:
        """The column's name, and in brackets what its further lines are."""
        below = ", ".join(part for part in self.parts if part)
        return [f"{self.name}{self.arrow}", *([f"({below})"] if below else [])]


@dataclass(frozen=True)
class Row:
    label: str
    cells: tuple[Entry, ...]
    section: str = ""


@dataclass(frozen=True)
class Table:
    """`name` is the name of its files; `title` says what is measured and which direction is better.

    ValueError if a row has not a cell for each column.
    """

    name: str
    title: str
    corner: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(f"{self.name}: row {row.label!r} has {len(row.cells)} of {len(self.columns)} cells")

    def sections(self) -> Iterator[tuple[str, Sequence[Row]]]:
        for section in dict.fromkeys(row.section for row in self.rows):
            yield section, [row for row in self.rows if row.section == section]

    def best(self) -> dict[int, float]:
        """By the place of a column: its best ranked number, if one direction is better and several are ranked."""
        best = {}
        for place, column in enumerate(self.columns):
            ranked = [
                round(cell[0].value, 9)
                for cell in (row.cells[place] for row in self.rows)
                if isinstance(cell, tuple) and cell[0].ranked and math.isfinite(cell[0].value)
            ]
            if column.better and len(ranked) > 1:
                best[place] = min(ranked) if column.better == "lower" else max(ranked)
        return best

    def wins(self, cell: Entry, place: int, best: dict[int, float]) -> bool:
        return (
            place in best
            and isinstance(cell, tuple)
            and cell[0].ranked
            and cell[0].number() == _number(best[place], cell[0].spec)
        )


def markdown(table: Table) -> str:
    """A heading, the caption, a pipe table and the notes."""
    notes = [f"- {escaping.markdown(note)}" for note in table.notes]
    title, caption = escaping.markdown(table.title), escaping.markdown(table.caption)
    blocks = [f"# {title}", caption, pipe_table(table), "\n".join(notes)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def pipe_table(table: Table) -> str:
    """The rows and columns alone."""
    best = table.best()
    heads = ["<br>".join(map(escaping.markdown, _head(column))) for column in table.columns]
    lines = [_pipes([escaping.markdown(table.corner), *heads]), "| --- |" + " ---: |" * len(heads)]
    for section, rows in table.sections():
        if section:
            lines.append(_pipes([f"*{escaping.markdown(section)}*", *[""] * len(heads)]))
        for row in rows:
            cells = [_md(cell, table.wins(cell, k, best)) for k, cell in enumerate(row.cells)]
            lines.append(_pipes([escaping.markdown(row.label), *cells]))
    return "\n".join(lines)


def comma_separated(table: Table) -> str:
    """CSV: columns for each figure, its bounds and its mark. Words such as "not run" are in the figure's column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    shapes = [_shape(table, place) for place in range(len(table.columns))]
    sections = any(row.section for row in table.rows)
    head = ["section"] * sections + [table.corner]
    for column, shape in zip(table.columns, shapes, strict=True):
        for part, (bounds, mark, centre) in zip(column.parts, shape, strict=True):
            name = " ".join(word for word in (column.group, column.name, part) if word)
            head += [name, *[f"{name} corrected"] * centre, *[f"{name} low", f"{name} high"] * bounds]
            head += [f"{name} mark"] * mark
    writer.writerow(map(escaping.spreadsheet, head))
    for row in table.rows:
        line = [escaping.spreadsheet(text) for text in [row.section] * sections + [row.label]]
        for cell, shape in zip(row.cells, shapes, strict=True):
            line += _fields(cell, shape)
        writer.writerow(line)
    return out.getvalue()


def latex(table: Table) -> str:
    """A booktabs table, scaled down if it is wider than the page."""
    best, width = table.best(), len(table.columns) + 1
    lines = [
        "% needs \\usepackage{booktabs,graphicx,makecell}",
        "\\begin{table*}[!ht]",
        "\\centering",
        "\\scriptsize",
    ]
    lines.append(r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%")
    lines.append(f"\\begin{{tabular}}{{@{{}}l{'r' * len(table.columns)}@{{}}}}")
    lines.append("\\toprule")
    if any(column.group for column in table.columns):
        lines.append(" & ".join(["", *_spans(table.columns)]) + r" \\")
    lines.append(" & ".join([escaping.latex(table.corner), *map(_tex_head, table.columns)]) + r" \\")
    for section, rows in table.sections():
        lines.append("\\midrule")
        if section:
            lines.append(rf"\multicolumn{{{width}}}{{@{{}}l@{{}}}}{{\emph{{{escaping.latex(section)}}}}} \\")
        for row in rows:
            cells = [_tex_cell(cell, table.wins(cell, k, best)) for k, cell in enumerate(row.cells)]
            lines.append(" & ".join([escaping.latex(row.label), *cells]) + r" \\")
    lines += ["\\bottomrule", "\\end{tabular}}"]
    title, *words = map(escaping.latex, (table.title, table.caption, *table.notes))
    caption = " ".join([f"\\textbf{{{title}.}}", *words]).strip()
    lines += [f"\\caption{{{caption}}}", f"\\label{{tab:{table.name}}}", "\\end{table*}"]
    return "\n".join(lines) + "\n"


def differences(first: str, second: str, is_csv: bool) -> Iterator[tuple[str, str, str, str]]:
    """Row, column and both texts of all entries in which two files differ: cells of tables, lines of other text.

    Column is "" for a line that is in no table. An entry that a file does not have is `ABSENT`.
    """
    try:
        before, after = (_csv_entries(text) if is_csv else _text_entries(text) for text in (first, second))
    except csv.Error:  # one of them is no CSV
        before, after = _text_entries(first), _text_entries(second)
    for place in sorted({*before, *after}):
        row, column, _ = before.get(place) or after[place]
        old, new = (entries[place][2] if place in entries else ABSENT for entries in (before, after))
        if old != new:
            yield row, column, old, new


_Entries = dict[tuple[int, int], tuple[str, str, str]]
"""By line and place in it: the names of row and column, and the text."""


def _csv_entries(text: str) -> _Entries:
    entries: _Entries = {}
    head: Sequence[str] = ()
    for number, line in enumerate(csv.reader(io.StringIO(text))):
        head = head or line
        label = " ".join(line[: 2 if head[:1] == ["section"] else 1])
        entries |= _named_entries(number, f"row {number} ({label})", line, head)
    return entries


def _text_entries(text: str) -> _Entries:
    """The cells of the pipe tables in a text, and its other lines."""
    entries: _Entries = {}
    head: Sequence[str] = ()
    last: Sequence[str] = ()
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith("| ") and line.endswith(" |"):
            cells = line[2:-2].split(" | ")  # a bar in a cell has a backslash before it
            head = last if line.startswith("| ---") else head
            entries |= _named_entries(number, f"line {number} ({cells[0]})", cells, head)
            last = cells
        else:
            entries[number, 0] = f"line {number}", "", line
            head = ()
    return entries


def _named_entries(number: int, row: str, cells: Sequence[str], head: Sequence[str]) -> _Entries:
    names = [*head, *map(str, range(len(head) + 1, len(cells) + 1))]
    return {(number, place): (row, names[place], cell) for place, cell in enumerate(cells)}


def only_last_digit(first: str, second: str) -> bool:
    """Whether two texts differ only in numbers, and each of these by at most one unit of its last printed digit."""
    if _NUMBER.sub("#", first) != _NUMBER.sub("#", second):
        return False
    return all(map(_near, _NUMBER.findall(first), _NUMBER.findall(second)))


def _near(first: str, second: str) -> bool:
    if first == second:
        return True
    if len(first) > 40 or len(second) > 40:  # no number of a table
        return False
    numbers = [Decimal(text.replace(",", "").replace("−", "-")) for text in (first, second)]
    finest = min(int(number.as_tuple().exponent) for number in numbers)
    return abs(numbers[0] - numbers[1]) <= Decimal(1).scaleb(finest)


def _number(value: float, spec: str) -> str:
    if math.isnan(value):
        return "undefined"
    return signless_zero(format(value, spec), spec)


def signless_zero(text: str, spec: str) -> str:
    """A formatted number; what is rounded to zero has no minus sign."""
    zero = text.lstrip("-+0.,") == "" and text.startswith("-")
    return text.replace("-", "+" if spec.startswith("+") else "", 1) if zero else text


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _head(column: Column) -> list[str]:
    return [*([column.group] if column.group else []), " ".join(column.lines)]


def _md(cell: Entry, wins: bool) -> str:
    if isinstance(cell, str):
        return escaping.markdown(cell)
    first, *rest = ((figure.number(), escaping.markdown(figure.after())) for figure in cell)
    return "<br>".join([f"**{first[0]}**{first[1]}" if wins else "".join(first), *map("".join, rest)])


def _shape(table: Table, place: int) -> list[tuple[bool, bool, bool]]:
    """For each part of a column: does any figure have bounds, a mark, another centre?"""
    cells = [row.cells[place] for row in table.rows]
    figures = [
        [cell[part] for cell in cells if isinstance(cell, tuple) and part < len(cell)]
        for part in range(len(table.columns[place].parts))
    ]
    return [
        (any(f.interval for f in part), any(f.mark for f in part), any(f.centre is not None for f in part))
        for part in figures
    ]


def _fields(cell: Entry, shape: list[tuple[bool, bool, bool]]) -> list[str]:
    fields: list[str] = []
    for part, (bounds, mark, centre) in enumerate(shape):
        if isinstance(cell, tuple) and part < len(cell):
            figure = cell[part]
            low, high = figure.interval or (math.nan, math.nan)
            centre_value = figure.value if figure.centre is None else figure.centre
            fields += [_plain(figure.value), *[_plain(centre_value)] * centre, *[_plain(low), _plain(high)] * bounds]
            fields += [figure.mark] * mark
        else:
            words = escaping.spreadsheet(cell) if isinstance(cell, str) and part == 0 else ""
            fields += [words, *[""] * centre, *["", ""] * bounds, *[""] * mark]
    return fields


def _plain(value: float) -> str:
    """A number with eight digits: enough to compute with, few enough to be the same on every machine."""
    return "" if math.isnan(value) else format(round(value, 9) + 0.0, ".8g")


def _spans(columns: Sequence[Column]) -> list[str]:
    spans: list[tuple[str, int]] = []
    for column in columns:
        if spans and spans[-1][0] == column.group:
            spans[-1] = (column.group, spans[-1][1] + 1)
        else:
            spans.append((column.group, 1))
    return [rf"\multicolumn{{{count}}}{{c}}{{\textbf{{{escaping.latex(group)}}}}}" for group, count in spans]


def _tex_cell(cell: Entry, wins: bool) -> str:
    if isinstance(cell, str):
        return escaping.latex(cell)
    lines = [(escaping.latex(figure.number()), escaping.latex(figure.after())) for figure in cell]
    return _stacked(
        [(f"\\textbf{{{number}}}" if wins and not k else number) + rest for k, (number, rest) in enumerate(lines)]
    )


def _tex_head(column: Column) -> str:
    return _stacked([escaping.latex(line) for line in column.lines])


def _stacked(lines: Sequence[str]) -> str:
    return lines[0] if len(lines) == 1 else r"\makecell[r]{" + r"\\".join(lines) + "}"
