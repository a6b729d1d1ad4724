"""Escaping of text from outside: for a terminal, Markdown, LaTeX, a spreadsheet, a plot, and HTML in notebooks.

Pages are escaped by jinja2 (`autoescape`). The HTML here has its pictures inside, and fetches nothing.
"""

import base64
import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ggss.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

BAR = r"\|"  # in a table's cell, where Markdown looks for bars before anything else
SIDE = 72  # pixels of a thumbnail
_CELL = "text-align:left;padding:2px 10px"
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_MARKDOWN = re.compile(
    r"[\\`*|<~]"  # marks wherever they are; ~ strikes out
    r"|(?<!\w)_|_(?!\w)"  # emphasis; not inside a word
    r"|\](?=[(\[:])"  # a link; not an interval
    r"|&(?=#?\w+;)"  # an entity
    r"|^[-+#>=](?!\d)|(?<=^\d)[.)](?=\s|$)"  # what a list, a heading or a quotation begins with
)
_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textasciigrave{}",
    "α": r"$\alpha$",
    "κ": r"$\kappa$",
    "Δ": r"$\Delta$",
    "×": r"$\times$",
    "³": "$^3$",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "†": r"$^\dagger$",
    "*": r"$^\ast$",
    "<": "$<$",
    ">": "$>$",
}


def visible(text: str) -> str:
    r"""The text with control characters, and bytes that are not UTF-8, as `\x1b`; line ends and tabs stay."""
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


def is_unicode(text: str) -> bool:
    """False if a part of it came from bytes that are not UTF-8, as in some file names: no text file can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_line(text: str) -> str:
    """`visible` text, with every run of white space as one space."""
    return visible(re.sub(r"\s+", " ", text))


def markdown(text: str) -> str:
    """One line of Markdown that shows this text, in the cell of a table too."""
    return _MARKDOWN.sub(lambda match: "\\" + match[0], one_line(text))


def code(text: str) -> str:
    """One line of Markdown that shows this text as code, between as many backquotes as it needs."""
    line = one_line(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    pad = " " if "`" in line else ""
    return f"{fence}{pad}{line.replace('|', BAR)}{pad}{fence}"


def latex(text: str) -> str:
    r"""One line of LaTeX that shows this text. A bracket at its beginning would be read as an argument of `\\`."""
    escaped = "".join(_LATEX.get(sign, sign) for sign in one_line(text))
    return f"{{[}}{escaped[1:]}" if escaped.startswith("[") else escaped


def spreadsheet(text: str) -> str:
    """A cell with text. Spreadsheets compute what begins with one of = + - @, unless a quote comes before it."""
    computed = re.match(r"\s*[=+\-@]|[\t\r]", text) and not _is_number(text)
    return visible(f"'{text}" if computed else text)


def plot(text: str) -> str:
    """A label of a plot: matplotlib reads what is between dollar signs as a formula."""
    return one_line(text).replace("$", r"\$")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def text(value: object) -> str:
    """A value as HTML text; right-to-left text does not change the direction of the text next to it."""
    return f"<bdi>{escape(visible(str(value)), quote=True)}</bdi>"


def titled(title: object, *parts: str) -> str:
    """A title and the parts after it, which are HTML already."""
    return f"<div><strong>{text(title)}</strong>{''.join(parts)}</div>"


def line(value: object) -> str:
    return f"<div>{text(value)}</div>"


def table(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table of text; the first cell of a row is its name."""
    head = "".join(f'<th scope="col" style="{_CELL}">{text(cell)}</th>' for cell in columns)
    body = ""
    for first, *values in rows:
        cells = "".join(f'<td style="{_CELL}">{text(cell)}</td>' for cell in values)
        body += f'<tr><th scope="row" style="{_CELL}">{text(first)}</th>{cells}</tr>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def picture(image: "Image.Image", alt: str, side: int = SIDE) -> str:
    """A thumbnail as HTML. alt: its text for those who do not see it."""
    small = image.convert("RGB")
    small.thumbnail((side, side))
    data = io.BytesIO()
    small.save(data, "JPEG", quality=80)
    code = base64.b64encode(data.getvalue()).decode()
    words = escape(visible(alt), quote=True)
    return f'<img src="data:image/jpeg;base64,{code}" alt="{words}" title="{words}" style="margin:2px">'


def new_axis(axis: Any = None) -> Any:
    """The matplotlib axis to draw on; that of a new figure, if it is None."""
    if axis is not None:
        return axis
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(6.4, 3.6), layout="constrained")[1]


def pandas() -> Any:
    """The module pandas, which is not installed with ggss. InputError says how to install it."""
    try:
        import pandas
    except ImportError as error:
        raise InputError("a data frame needs pandas: pip install 'ggss[pandas]'") from error
    return pandas
