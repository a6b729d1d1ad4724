"""Text from outside as text: escaped for a terminal, Markdown, LaTeX, a spreadsheet and a plot, each in one place.

HTML is left to jinja2, which escapes by itself (`autoescape`).

Small pieces of HTML for notebooks: text is escaped, pictures are inside, nothing is fetched.
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


BAR = r"\|"  # of a table's cell, where Markdown looks for bars first of all
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
    r"""Control characters, and bytes of file names that are not UTF-8, as `\x1b`; line ends and tabs stay."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


def is_unicode(text: str) -> bool:
    """False if a part of it came from bytes that are not UTF-8, as a file's name may: no file of text can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_line(text: str) -> str:
    """Visible, with every run of white space as one space."""
    return visible(re.sub(r"\s+", " ", text))


def markdown(text: str) -> str:
    """One line of Markdown that shows this text, also in the cell of a table."""
    return _MARKDOWN.sub(lambda found: "\\" + found[0], one_line(text))


def code(text: str) -> str:
    """The same as code, between as many backquotes as it needs."""
    line = one_line(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    pad = " " if "`" in line else ""
    return f"{fence}{pad}{line.replace('|', BAR)}{pad}{fence}"


def latex(text: str) -> str:
    r"""One line of LaTeX that shows this text. A bracket at its beginning would be read as an argument of `\\`."""
    shown = "".join(_LATEX.get(sign, sign) for sign in one_line(text))
    return f"{{[}}{shown[1:]}" if shown.startswith("[") else shown


def spreadsheet(text: str) -> str:
    """A cell of words. Spreadsheets compute what begins with one of = + - @, unless a quote comes before it."""
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


SIDE = 72  # pixels of a thumbnail
_CELL = "text-align:left;padding:2px 10px"


def text(value: object) -> str:
    """A value as text of a page, whatever is in it; right-to-left text does not turn what is beside it."""
    return f"<bdi>{escape(visible(str(value)), quote=True)}</bdi>"


def titled(title: object, *parts: str) -> str:
    """A title and what follows it, each part HTML already."""
    return f"<div><strong>{text(title)}</strong>{''.join(parts)}</div>"


def line(value: object) -> str:
    return f"<div>{text(value)}</div>"


def table(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table of text; the first cell of a row is its name."""
    head = "".join(f'<th scope="col" style="{_CELL}">{text(one)}</th>' for one in columns)
    body = ""
    for first, *others in rows:
        cells = "".join(f'<td style="{_CELL}">{text(one)}</td>' for one in others)
        body += f'<tr><th scope="row" style="{_CELL}">{text(first)}</th>{cells}</tr>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def picture(image: "Image.Image", said: str, side: int = SIDE) -> str:
    """A thumbnail with a text for those who do not see it."""
    small = image.convert("RGB")
    small.thumbnail((side, side))
    data = io.BytesIO()
    small.save(data, "JPEG", quality=80)
    code = base64.b64encode(data.getvalue()).decode()
    words = escape(visible(said), quote=True)
    return f'<img src="data:image/jpeg;base64,{code}" alt="{words}" title="{words}" style="margin:2px">'


def new_axis(axis: Any = None) -> Any:
    """The matplotlib axis to draw on: the given one, or that of a new figure."""
    if axis is not None:
        return axis
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(6.4, 3.6), layout="constrained")[1]


def pandas() -> Any:
    """The library pandas, which is not installed with ggss; InputError says how to get it."""
    try:
        import pandas
    except ImportError as error:
        raise InputError("a data frame needs pandas: pip install 'ggss[pandas]'") from error
    return pandas
