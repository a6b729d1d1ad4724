"""A table in LaTeX: booktabs, with every number, interval, mark and note of the other forms."""

from collections.abc import Sequence

from ggss import escaping
from ggss.report.rendering import Column, Entry, Table


def latex(table: Table) -> str:
    """A booktabs table, made narrower where the page is."""
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
    said = [(escaping.latex(figure.number()), escaping.latex(figure.after())) for figure in cell]
    return _stacked(
        [(f"\\textbf{{{number}}}" if wins and not k else number) + rest for k, (number, rest) in enumerate(said)]
    )


def _tex_head(column: Column) -> str:
    return _stacked([escaping.latex(line) for line in column.lines])


def _stacked(lines: Sequence[str]) -> str:
    return lines[0] if len(lines) == 1 else r"\makecell[r]{" + r"\\".join(lines) + "}"
