"""A counterfactual set in a notebook: what is varied, what is held fixed, and some of the pictures in rows."""

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ggss import notebook
from ggss.data.picture import Picture
from ggss.errors import InputError
from ggss.escaping import plot

if TYPE_CHECKING:
    from ggss.data.counterfactuals import Counterfactuals

ROWS, COLUMNS = 2, 6  # of pictures that are shown


def html(images: "Counterfactuals") -> str:
    fixed = list(dict(images.pictures[0].context))
    varied = [(name, ", ".join(values), len(values)) for name, values in images.attributes.items()]
    parts = [notebook.line(f"held fixed: {', '.join(fixed) or 'nothing'}")]
    parts.append(notebook.table(("varied", "values", "count"), varied))
    for row in _rows(images):
        context = " ".join(f"{column}={value}" for column, value in row[0].context)
        parts += [notebook.line(context), "<div>", *map(_shown, row), "</div>"]
    return notebook.titled(f"{len(images)} counterfactual pictures", *parts)


def draw(images: "Counterfactuals", attribute: str | None, axis: Any) -> Any:
    """A row of pictures for some of the contexts; along a row only the attribute changes."""
    name = attribute or next(iter(images.attributes))
    groups = list(images.groups(name).items())[:ROWS]
    axis, side = notebook.new_axis(axis), notebook.SIDE
    values = images.values(name)
    sheet = np.full((side * len(groups), side * len(values), 3), 255, np.uint8)
    for row, (_, own) in enumerate(groups):
        for column, value in enumerate(values):
            if value in own:
                small = images.pictures[own[value]].image().convert("RGB").resize((side, side))
                sheet[row * side : (row + 1) * side, column * side : (column + 1) * side] = np.asarray(small)
    axis.imshow(sheet)
    axis.set_xticks([side * (column + 0.5) for column in range(len(values))], [plot(value) for value in values])
    labels = [plot(" ".join(value for _, value in context)) for context, _ in groups]
    axis.set_yticks([side * (row + 0.5) for row in range(len(groups))], labels)
    axis.set_title(plot(f"only {name} changes along a row"))
    return axis


def _rows(images: "Counterfactuals") -> list[list[Picture]]:
    by: dict[Any, list[Picture]] = {}
    for picture in images:
        by.setdefault(picture.context, []).append(picture)
    return [own[:COLUMNS] for own in list(by.values())[:ROWS]]


def _shown(picture: Picture) -> str:
    """The picture, or what is wrong with it: the others are shown all the same."""
    said = " ".join(f"{name}={value}" for name, value in picture.attributes.items())
    try:
        image: Image.Image = picture.image()
    except InputError as error:
        return notebook.line(str(error))
    return notebook.picture(image, said)
