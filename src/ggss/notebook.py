"""Small pieces of HTML for notebooks: text is escaped, pictures are inside, nothing is fetched."""

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ggss.errors import InputError
from ggss.escaping import visible

if TYPE_CHECKING:
    from PIL import Image

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
