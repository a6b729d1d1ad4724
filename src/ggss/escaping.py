"""Text from outside as text: escaped for a terminal, Markdown, LaTeX, a spreadsheet and a plot, each in one place.

HTML is left to jinja2, which escapes by itself (`autoescape`).
"""

import re

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
