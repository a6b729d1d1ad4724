"""A counterfactual set: pictures that differ in protected attributes and share everything else.

A picture's `attributes` are what is varied (race, gender, age); its `context` is what is held fixed (occupation,
identity). For one attribute a, the paper's context u is the picture's context plus all its other attributes: the
pictures of one u are the group in which the values of a are compared.

**Unpaired** pictures have labels, and no versions of a person: FairFace, UTKFace, FACET. Their context is what they
are *matched by*: the pictures of a context (a stratum) are compared with one another, any number of each value. They
are not matched by their other attributes; a fit says how far those still predict the one that is compared.

An **ordered** attribute is a number, such as an age in years. It is so only if the caller says so.

`problems_of` lists every reason why the pictures of a set cannot be compared. A notebook shows a set as what is
varied, what is held fixed, and some of the pictures in rows.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ggss import escaping
from ggss.data.manifests import read_rows
from ggss.data.pictures import (
    Context,
    FilePicture,
    Picture,
    ShrunkPicture,
    as_number,
    held_fixed,
    is_file,
    labels,
    shrunk,
    size_of,
)
from ggss.errors import InputError, no_such, problems
from ggss.escaping import plot
from ggss.plugins import Registry
from ggss.terminal import track

Choice = Mapping[str, str | Iterable[str]]  # column -> a value or several: {"occupation": ["nurse", "doctor"]}

# The columns that are held fixed unless a caller says otherwise; all others are attributes.
CONTEXT_COLUMNS = OCCUPATION, IDENTITY = "occupation", "identity"
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
ROWS, COLUMNS = 2, 6  # of pictures in a notebook
MOST_NUMBERS = 10  # values of an attribute that are all numbers and still compared as classes without a question


@dataclass(frozen=True)
class Counterfactuals:
    """Pictures with the same columns, sorted by context and attributes: the order of rows has no meaning.

    Args:
        pictures: each gives an image, a digest, its attributes and its context.
        unpaired: there are no versions of a person; the context is what pictures are matched by.
        ordered: the attributes that are numbers.

    Raises:
        InputError: if there are none, their columns differ, or an ordered attribute has a label that is no number.

    Examples:
        >>> len(faces), faces.attributes["gender"]
        (40, ('man', 'woman'))
    """

    pictures: tuple[Picture, ...]
    unpaired: bool = False
    ordered: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        columns = {(tuple(picture.attributes), tuple(dict(picture.context))) for picture in self.pictures}
        if len(columns) != 1:
            raise InputError("a counterfactual set needs at least one image, and all with the same columns")
        ordered = sorted(self.pictures, key=lambda p: (p.context, tuple(p.attributes.values()), p.name))
        object.__setattr__(self, "pictures", tuple(ordered))
        for name in self.ordered:
            check_numbers(name, self.values(name))

    @classmethod
    def load(
        cls,
        source: str | Path,
        attributes: str | Sequence[str] | None = None,
        context: str | Sequence[str] | None = None,
        exclude: Choice | None = None,
        include: Choice | None = None,
        unpaired: bool = False,
        ordered: str | Sequence[str] = (),
    ) -> "Counterfactuals":
        """Read a manifest or a folder pattern (see `ggss.data.manifests`), or take a registered set by its name.

        No image is opened yet.

        Args:
            source: a CSV or JSON lines file with a `path` column, a folder pattern such as
                `faces/{occupation}/{identity}/{race}_{gender}.png`, or a name such as `small-world`.
            attributes: the columns that are varied.
            context: the columns that are held fixed. If only one of the two is given, the other is all the rest; if
                neither is, `occupation` and `identity` are held fixed, and every other column is varied.
            exclude: drops the pictures that have a chosen value in any chosen column.
            include: keeps the pictures that have a chosen value in every chosen column.
            unpaired: there are no versions of a person; `context` names the columns that pictures are matched by.
            ordered: the attributes that are numbers, such as an age in years.

        Returns:
            The set, sorted.

        Raises:
            InputError: if the source cannot be read, a column or value does not exist (with the nearest name), or no
                picture is left.

        Examples:
            >>> nurses = ggss.Counterfactuals.load("small-world", include={"occupation": "nurse"})
            >>> len(nurses), nurses.values("race")
            (80, ('amber', 'coral', 'indigo', 'jade', 'pearl'))
        """
        if str(source) in PICTURE_SETS:
            images = PICTURE_SETS.get(str(source))()
            for name in _names(attributes or ()):
                images.values(name)
            if unpaired:
                raise InputError(f"{str(source)!r} is a complete counterfactual set: fit it as one, not as unpaired")
            return replace(images, ordered=_names(ordered)).chosen(include, exclude)
        rows = read_rows(source)
        columns = [column for column in rows[0] if column != "path"]
        varied, fixed = _columns(str(source), columns, attributes, context)
        selected = _selection([{column: row[column] for column in columns} for row in rows], include, exclude)
        return cls(
            tuple(
                FilePicture(
                    path=Path(row["path"]),
                    attributes={column: row[column] for column in varied},
                    context=tuple((column, row[column]) for column in fixed),
                )
                for row in compress(rows, selected)
            ),
            unpaired,
            _names(ordered),
        )

    def _repr_html_(self) -> str:
        return _html(self)

    def plot(self, attribute: str | None = None, axis: Any = None) -> Any:
        """Draw some rows of pictures along which only one attribute changes (the first, unless it is given).

        Returns the matplotlib axis. axis: where to draw.
        """
        return _draw(self, attribute, axis)

    def __len__(self) -> int:
        return len(self.pictures)

    def __iter__(self) -> Iterator[Picture]:
        return iter(self.pictures)

    @cached_property
    def attributes(self) -> dict[str, tuple[str, ...]]:
        """Attribute -> its values, sorted."""
        names = self.pictures[0].attributes
        return {name: tuple(sorted({picture.attributes[name] for picture in self})) for name in names}

    def values(self, attribute: str) -> tuple[str, ...]:
        """The sorted values of one attribute; InputError if the set has no such attribute."""
        if attribute not in self.attributes:
            raise no_such(f"no attribute {attribute!r}", attribute, self.attributes)
        return self.attributes[attribute]

    def groups(self, attribute: str) -> dict[Context, dict[str, int]]:
        """u -> {value of the attribute: index into `pictures`}, all sorted. Of duplicates the first counts."""
        self.values(attribute)
        grouped: dict[Context, dict[str, int]] = {}
        for index, picture in enumerate(self):
            group = grouped.setdefault(held_fixed(picture, attribute), {})
            group.setdefault(picture.attributes[attribute], index)
        return dict(sorted(grouped.items()))

    def chosen(self, include: Choice | None = None, exclude: Choice | None = None) -> "Counterfactuals":
        """The pictures that have a chosen value in every column of `include`, and none of those of `exclude`.

        Args:
            include: column -> a value or several.
            exclude: the same.

        Returns:
            A set of those pictures.

        Raises:
            InputError: if a column or value does not exist, or no picture is left.

        Examples:
            >>> len(faces.chosen(include={"gender": "woman"}, exclude={"race": ["jade", "pearl"]}))
            12
        """
        selected = _selection([labels(picture) for picture in self], include, exclude)
        return replace(self, pictures=tuple(compress(self, selected)))

    def shrunk(self, max_side: int | None) -> "Counterfactuals":
        """The same set with at most so many pixels on the longer side of each picture; None: as it is.

        Examples:
            >>> faces.shrunk(512).max_side
            512
        """
        return replace(self, pictures=tuple(shrunk(picture, max_side) for picture in self))

    @property
    def max_side(self) -> int | None:
        """The cap on the longer side of its pictures, in pixels; None: there is none."""
        first = self.pictures[0]
        return first.max_side if isinstance(first, ShrunkPicture) else None

    @cached_property
    def content_hash(self) -> str:
        """sha256 of all labels and images, and of how they are compared.

        Paths of files and the order of rows do not matter.
        """
        content: list[Any] = sorted([sorted(p.attributes.items()), sorted(p.context), p.digest] for p in self)
        if self.unpaired or self.ordered:  # so that the hashes of all other sets are as they were
            content = [content, self.unpaired, sorted(self.ordered)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def validate(self, attributes: str | Sequence[str] | None = None, decode: bool = True) -> None:
        """Raise one InputError that lists every reason why the pictures cannot be compared.

        Call it before a model runs.

        Args:
            attributes: those to be compared; None: all.
            decode: decode every image completely; without it only the headers and checksums of files are read, and a
                damaged picture is noticed when it is used.

        Raises:
            InputError: lists missing and duplicate versions of a person, pictures of unequal size, and those that
                cannot be decoded; of unpaired pictures, why values cannot be compared within contexts.

        Examples:
            >>> faces.validate("race")  # nothing is wrong with it
        """
        compared = tuple(self.attributes) if attributes is None else _names(attributes)
        if messages := problems_of(self, compared, decode):
            kind = "unpaired" if self.unpaired else "counterfactual"
            raise problems(f"set of {len(self)} {kind} images", messages)


def folder_of_pictures(folder: str | Path) -> Counterfactuals:
    """All pictures in a folder and the folders in it, without labels: pictures that show nobody.

    InputError if there are none, or if some cannot be decoded.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{str(folder)!r} is not a folder: name one that holds pictures")
    files = sorted(path for path in root.rglob("*") if path.suffix.lower() in PICTURE_SUFFIXES)
    if not files:
        raise InputError(f"no picture ({', '.join(PICTURE_SUFFIXES)}) in folder {str(folder)!r}")
    messages = []
    for path in files:
        try:
            FilePicture(path, {}, ()).image()
        except InputError as error:
            messages.append(str(error))
    if messages:
        raise problems(f"folder {str(folder)!r} of {len(files)} pictures", messages)
    return Counterfactuals(tuple(FilePicture(path, {}, ()) for path in files))


PICTURE_SETS: Registry[Callable[[], Counterfactuals]] = Registry("picture set", "ggss.pictures")
"""Sets that can be named wherever a manifest can."""


def problems_of(images: "Counterfactuals", compared: Sequence[str], decode: bool) -> list[str]:
    """Why the pictures of a set cannot be compared, one message for each reason. compared: the attributes."""
    messages = _empty_cells(images)
    for attribute in compared:
        if attribute not in images.attributes:
            messages.append(str(no_such(f"no attribute {attribute!r}", attribute, images.attributes)))
            continue
        if attribute not in images.ordered and (question := asked_of_numbers(attribute, images.values(attribute))):
            messages.append(question)
            continue
        messages += (_matching_problems if images.unpaired else _comparison_problems)(images, attribute)
    return messages + ([] if images.unpaired else _duplicates(images)) + _image_problems(images, decode)


def check_numbers(attribute: str, values: Iterable[str]) -> None:
    """InputError if a value of an ordered attribute is no number."""
    others = [value for value in values if as_number(value) is None]
    if others:
        examples = ", ".join(map(repr, others[:3]))
        raise InputError(
            f"{attribute!r} is to be ordered, and {len(others)} of its values are no numbers, such as {examples}: "
            "write numbers, leave those pictures out, or compare it as classes"
        )


def asked_of_numbers(attribute: str, values: Sequence[str]) -> str:
    """What must be said of an attribute with many values that are all numbers; "" for any other."""
    if len(values) <= MOST_NUMBERS or any(as_number(value) is None for value in values):
        return ""
    return (
        f"attribute {attribute!r} has {len(values)} values, all numbers: say that it is ordered (--ordered "
        f"{attribute}; in Python ordered={attribute!r}), or group them, such as 20-29"
    )


def unlinked(attribute: str, labels: Iterable[Any], strata: Iterable[Any], ordered: bool) -> str:
    """Why the values of unpaired pictures cannot be compared within strata; "" if they can.

    Two values are linked if a stratum has both, or if both are linked to a third. A number needs no links: its slope
    is the same in all strata.
    """
    values_of: dict[Any, dict[Any, None]] = {}
    for label, stratum in zip(labels, strata, strict=True):
        values_of.setdefault(stratum, {})[label] = None
    values = list(dict.fromkeys(value for group in values_of.values() for value in group))
    if len(values) < 2:
        return f"attribute {attribute!r} has fewer than two values: {', '.join(map(str, values)) or 'none'}"
    if all(len(group) == 1 for group in values_of.values()):
        return (
            f"no two pictures of different {attribute!r} agree in all that they are matched by: "
            "match by fewer columns, or by wider groups"
        )
    if ordered:
        return ""
    components = [{value} for value in values]
    for group in values_of.values():
        touched = [component for component in components if component & group.keys()]
        components = [component for component in components if component not in touched] + [set().union(*touched)]
    if len(components) == 1:
        return ""
    largest = max(components, key=len)
    apart = ", ".join(sorted(str(value) for value in values if value not in largest))
    return (
        f"no stratum links {apart} of {attribute!r} with its other values: match by fewer columns, or by wider "
        "groups, or leave those pictures out"
    )


def _matching_problems(images: "Counterfactuals", attribute: str) -> list[str]:
    """Why the values of one attribute of unpaired pictures cannot be compared."""
    labelled, strata = [p.attributes[attribute] for p in images], [p.context for p in images]
    problem = unlinked(attribute, labelled, strata, attribute in images.ordered)
    return [problem] if problem else []


def _empty_cells(images: "Counterfactuals") -> list[str]:
    return [
        f"image {picture.name!r} has an empty {column!r}: fill it in"
        for picture in images
        for column, cell in (*picture.context, *picture.attributes.items())
        if not cell
    ]


def _comparison_problems(images: "Counterfactuals", attribute: str) -> list[str]:
    """Why the values of one attribute cannot be compared, among the images without empty cells."""
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
    if all(len(group) == 1 for group in groups.values()):
        columns = ", ".join(dict(held_fixed(images.pictures[0], attribute)))
        return [
            f"no context has two values of {attribute!r}: a column among {columns} changes with it; "
            "name the columns that count, attributes and context"
        ]
    return [
        f"context {_spelled(u)} has {len(group)} of {len(values)} values of {attribute!r}: "
        f"missing {', '.join(value for value in values if value not in group)}"
        for u, group in sorted(groups.items())
        if len(group) < len(values)
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
    """Problems that need the files: damaged images, unequal sizes, one image under two labels or twice unpaired."""
    messages: list[str] = []
    sizes: dict[Context, dict[str, list[str]]] = {}
    labels_by_digest: dict[str, dict[str, list[str]]] = {}
    files = [picture for picture in images if decode or is_file(picture)]
    for picture in track(files, "checking images", total=len(files)):
        try:
            width, height = _size(picture, decode)
        except InputError as error:
            messages.append(str(error))
            continue
        label, name = _spelled(picture.attributes.items()), repr(picture.name)
        if not images.unpaired:
            sizes.setdefault(picture.context, {}).setdefault(f"{width}x{height}", []).append(name)
        labels_by_digest.setdefault(picture.digest, {}).setdefault(label, []).append(name)
    messages += [
        f"context {_spelled(context)} has images of different sizes: "
        + ", ".join(f"{size} ({len(names)}, such as {names[0]})" for size, names in by_size.items())
        for context, by_size in sizes.items()
        if len(by_size) > 1
    ]
    messages += [
        f"the same image is labelled {' and '.join(f'{label} ({names[0]})' for label, names in by_label.items())}"
        for by_label in labels_by_digest.values()
        if len(by_label) > 1
    ]
    if images.unpaired:  # of a counterfactual set, one image may be in several contexts
        messages += [
            f"{' and '.join(names)} are the same image: keep one"
            for by_label in labels_by_digest.values()
            for names in by_label.values()
            if len(names) > 1
        ]
    return messages


def _size(picture: Picture, decode: bool) -> tuple[int, int]:
    return picture.image().size if decode else size_of(picture)


def _spelled(pairs: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"{column}={value}" for column, value in pairs) or "(no columns)"


def _columns(
    source: str, columns: list[str], attributes: str | Sequence[str] | None, context: str | Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns that are varied and those that are held fixed, checked."""
    if attributes is None and context is None:
        context = tuple(column for column in columns if column in CONTEXT_COLUMNS)
        if not context:
            raise InputError(
                f"{source!r} has the columns {', '.join(columns)}, and none of them is "
                f"{' or '.join(CONTEXT_COLUMNS)}: name the columns that are varied, or those that are held fixed"
            )
    varied = _names([c for c in columns if c not in _names(context or ())] if attributes is None else attributes)
    fixed = _names([c for c in columns if c not in varied] if context is None else context)
    # A person is named by the context, with the identity last.
    order = {column: place for place, column in enumerate(CONTEXT_COLUMNS)}
    fixed = tuple(sorted(fixed, key=lambda column: order.get(column, -1)))
    for column in (*varied, *fixed):
        if column not in columns:
            raise no_such(f"{source!r} has no column {column!r}", column, columns)
    if not varied or set(varied) & set(fixed):
        raise InputError(f"attributes {varied} must be at least one, and none of the context {fixed}")
    return varied, fixed


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _selection(rows: Sequence[Mapping[str, str]], include: Choice | None, exclude: Choice | None) -> list[bool]:
    """For each row: does it have a chosen value in every column of `include`, and in none of `exclude`?

    InputError if no row does.
    """
    choices = zip(_matches(rows, include or {}), _matches(rows, exclude or {}), strict=True)
    selected = [all(included) and not any(excluded) for included, excluded in choices]
    if not any(selected):
        raise InputError(f"no image is left: chosen were {include or 'all'}, without {exclude or 'exceptions'}")
    return selected


def _matches(rows: Sequence[Mapping[str, str]], choice: Choice) -> list[list[bool]]:
    """For each row and each chosen column: does the row have one of the chosen values?"""
    values_by_column = {column: _names(values) for column, values in choice.items()}
    for column, values in values_by_column.items():
        if column not in rows[0]:
            raise no_such(f"no column {column!r} to choose by", column, rows[0])
        existing = sorted({row[column] for row in rows})
        for value in values:
            if value not in existing:
                raise no_such(f"no image has {column}={value}", value, existing)
    return [[row[column] in values for column, values in values_by_column.items()] for row in rows]


def _html(images: "Counterfactuals") -> str:
    fixed = list(dict(images.pictures[0].context))
    varied = [(name, ", ".join(values), len(values)) for name, values in images.attributes.items()]
    parts = [escaping.line(f"{'matched by' if images.unpaired else 'held fixed'}: {', '.join(fixed) or 'nothing'}")]
    parts.append(escaping.table(("varied", "values", "count"), varied))
    for row in _rows(images):
        context = " ".join(f"{column}={value}" for column, value in row[0].context)
        parts += [escaping.line(context), "<div>", *map(_thumbnail, row), "</div>"]
    return escaping.titled(f"{len(images)} {'unpaired' if images.unpaired else 'counterfactual'} pictures", *parts)


def _draw(images: "Counterfactuals", attribute: str | None, axis: Any) -> Any:
    """A row of pictures for some of the contexts; along a row only the attribute changes."""
    name = attribute or next(iter(images.attributes))
    groups = list(images.groups(name).items())[:ROWS]
    axis, side = escaping.new_axis(axis), escaping.SIDE
    values = images.values(name)
    sheet = np.full((side * len(groups), side * len(values), 3), 255, np.uint8)
    for row, (_, group) in enumerate(groups):
        for column, value in enumerate(values):
            if value in group:
                small = images.pictures[group[value]].image().convert("RGB").resize((side, side))
                sheet[row * side : (row + 1) * side, column * side : (column + 1) * side] = np.asarray(small)
    axis.imshow(sheet)
    axis.set_xticks([side * (column + 0.5) for column in range(len(values))], [plot(value) for value in values])
    labels = [plot(" ".join(value for _, value in context)) for context, _ in groups]
    axis.set_yticks([side * (row + 0.5) for row in range(len(groups))], labels)
    axis.set_title(plot(f"only {name} changes along a row"))
    return axis


def _rows(images: "Counterfactuals") -> list[list[Picture]]:
    by_context: dict[Any, list[Picture]] = {}
    for picture in images:
        by_context.setdefault(picture.context, []).append(picture)
    return [pictures[:COLUMNS] for pictures in list(by_context.values())[:ROWS]]


def _thumbnail(picture: Picture) -> str:
    """The picture as HTML, or what is wrong with it: a damaged picture does not hide the others."""
    caption = " ".join(f"{name}={value}" for name, value in picture.attributes.items())
    try:
        image: Image.Image = picture.image()
    except InputError as error:
        return escaping.line(str(error))
    return escaping.picture(image, caption)
