"""Every reason why the pictures of a set cannot be compared, as a message."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ggss.data.picture import Context, FilePicture, Picture, held_fixed, size_of
from ggss.errors import InputError, no_such
from ggss.progress import track

if TYPE_CHECKING:
    from ggss.data.counterfactuals import Counterfactuals


def problems_of(images: "Counterfactuals", compared: Sequence[str], decode: bool) -> list[str]:
    """All problems of a set whose attributes `compared` are to be compared."""
    found = _empty_cells(images)
    for attribute in compared:
        found += _comparison_problems(images, attribute)
    return found + _duplicates(images) + _image_problems(images, decode)


def _empty_cells(images: "Counterfactuals") -> list[str]:
    return [
        f"image {picture.name!r} has an empty {column!r}: fill it in"
        for picture in images
        for column, cell in (*picture.context, *picture.attributes.items())
        if not cell
    ]


def _comparison_problems(images: "Counterfactuals", attribute: str) -> list[str]:
    """Why the values of one attribute cannot be compared, among the images without empty cells."""
    if attribute not in images.attributes:
        return [str(no_such(f"no attribute {attribute!r}", attribute, images.attributes))]
    groups: dict[Context, set[str]] = {}
    for picture in images:
        value, u = picture.attributes[attribute], held_fixed(picture, attribute)
        if value and all(cell for _, cell in u):
            groups.setdefault(u, set()).add(value)
    values = sorted(set().union(*groups.values()))
    if len(values) < 2:
        return [f"attribute {attribute!r} has fewer than two values: {', '.join(values) or 'none'}"]
    if len(groups) < 2:
        return [f"attribute {attribute!r} has fewer than two contexts: {_spelled(next(iter(groups)))}"]
    if all(len(seen) == 1 for seen in groups.values()):
        columns = ", ".join(dict(held_fixed(images.pictures[0], attribute)))
        return [
            f"no context has two values of {attribute!r}: a column among {columns} changes with it; "
            "name the columns that count, attributes and context"
        ]
    return [
        f"context {_spelled(u)} has {len(seen)} of {len(values)} values of {attribute!r}: "
        f"missing {', '.join(value for value in values if value not in seen)}"
        for u, seen in sorted(groups.items())
        if len(seen) < len(values)
    ]


def _duplicates(images: "Counterfactuals") -> list[str]:
    rows: dict[Context, list[str]] = {}
    for picture in images:
        rows.setdefault((*picture.context, *picture.attributes.items()), []).append(repr(picture.name))
    return [
        f"{_spelled(row)} has {len(names)} images, {', '.join(names)}: keep one"
        for row, names in rows.items()
        if len(names) > 1
    ]


def _image_problems(images: "Counterfactuals", decode: bool) -> list[str]:
    """Problems that need the files: damaged images, unequal sizes, one image under two labels."""
    found: list[str] = []
    sizes: dict[Context, dict[str, list[str]]] = {}
    shown: dict[str, dict[str, str]] = {}
    files = [picture for picture in images if decode or isinstance(picture, FilePicture)]
    for picture in track(files, "checking images", total=len(files)):
        try:
            width, height = _size(picture, decode)
        except InputError as error:
            found.append(str(error))
            continue
        label, name = _spelled(picture.attributes.items()), repr(picture.name)
        sizes.setdefault(picture.context, {}).setdefault(f"{width}x{height}", []).append(name)
        shown.setdefault(picture.digest, {}).setdefault(label, name)
    found += [
        f"context {_spelled(context)} has images of different sizes: "
        + ", ".join(f"{size} ({len(names)}, such as {names[0]})" for size, names in by_size.items())
        for context, by_size in sizes.items()
        if len(by_size) > 1
    ]
    found += [
        f"the same image is labelled {' and '.join(f'{label} ({name})' for label, name in names.items())}"
        for names in shown.values()
        if len(names) > 1
    ]
    return found


def _size(picture: Picture, decode: bool) -> tuple[int, int]:
    return picture.image().size if decode else size_of(picture)


def _spelled(pairs: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"{column}={value}" for column, value in pairs) or "(no columns)"
