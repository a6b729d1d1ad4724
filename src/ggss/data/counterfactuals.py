"""A counterfactual set: pictures that differ in protected attributes and share everything else.

A picture's `attributes` are what is varied (race, gender, age); its `context` is what is held fixed (occupation,
identity). For one attribute a, the paper's context u is the picture's context plus all its other attributes: the
pictures of one u are the group in which the values of a are compared.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ggss.data import validation
from ggss.data.manifests import read_rows
from ggss.data.picture import Context, FilePicture, Picture, held_fixed, labels
from ggss.errors import InputError, no_such, problems
from ggss.plugins import Registry

Choice = Mapping[str, str | Iterable[str]]  # column -> the values meant: {"occupation": ["nurse", "doctor"]}

# The columns that are held fixed unless a caller says otherwise; all others are attributes.
CONTEXT_COLUMNS = ("occupation", "identity")
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")


@dataclass(frozen=True)
class Counterfactuals:
    """Pictures with the same columns, sorted by context and attributes: the order of rows has no meaning.

    Args:
        pictures: each gives an image, a digest, its attributes and its context.

    Raises:
        InputError: if there are none, or their columns differ.

    Examples:
        >>> len(faces), faces.attributes["gender"]
        (40, ('man', 'woman'))
    """

    pictures: tuple[Picture, ...]

    def __post_init__(self) -> None:
        columns = {(tuple(picture.attributes), tuple(dict(picture.context))) for picture in self.pictures}
        if len(columns) != 1:
            raise InputError("a counterfactual set needs at least one image, and all with the same columns")
        ordered = sorted(self.pictures, key=lambda p: (p.context, tuple(p.attributes.values()), p.name))
        object.__setattr__(self, "pictures", tuple(ordered))

    @classmethod
    def load(
        cls,
        source: str | Path,
        attributes: str | Sequence[str] | None = None,
        context: str | Sequence[str] | None = None,
        exclude: Choice | None = None,
        include: Choice | None = None,
    ) -> "Counterfactuals":
        """Read a manifest or a folder pattern (see `ggss.data.manifests`), or take a registered set by its name.

        No image is opened yet.

        Args:
            source: a CSV or JSON lines file with a `path` column, a folder pattern such as
                `faces/{occupation}/{identity}/{race}_{gender}.png`, or a name such as `small-world`.
            attributes: the columns that are varied.
            context: the columns that are held fixed. Where only one of the two is given, the other is all the rest;
                where neither is, `occupation` and `identity` are held fixed, and every other column is varied.
            exclude: drops the pictures that have a chosen value in any chosen column.
            include: keeps the pictures that have a chosen value in every chosen column.

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
            return images.chosen(include, exclude)
        rows = read_rows(source)
        columns = [column for column in rows[0] if column != "path"]
        varied, fixed = _columns(str(source), columns, attributes, context)
        kept = _kept([{column: row[column] for column in columns} for row in rows], include, exclude)
        return cls(
            tuple(
                FilePicture(
                    path=Path(row["path"]),
                    attributes={column: row[column] for column in varied},
                    context=tuple((column, row[column]) for column in fixed),
                )
                for row, keep in zip(rows, kept, strict=True)
                if keep
            )
        )

    def _repr_html_(self) -> str:
        from ggss.data.counterfactuals_view import html

        return html(self)

    def plot(self, attribute: str | None = None, axis: Any = None) -> Any:
        """Draw some rows of pictures along which only one attribute changes (the first, unless it is given).

        Returns the matplotlib axis. axis: where to draw.
        """
        from ggss.data.counterfactuals_view import draw

        return draw(self, attribute, axis)

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
        """u -> {value of the attribute: index into `pictures`}, all sorted; of duplicates, the first."""
        self.values(attribute)
        grouped: dict[Context, dict[str, int]] = {}
        for index, picture in enumerate(self):
            own = grouped.setdefault(held_fixed(picture, attribute), {})
            own.setdefault(picture.attributes[attribute], index)
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
        kept = _kept([labels(picture) for picture in self], include, exclude)
        return Counterfactuals(tuple(picture for picture, keep in zip(self, kept, strict=True) if keep))

    @cached_property
    def content_hash(self) -> str:
        """sha256 of all labels and images; paths of files and the order of rows do not matter."""
        rows = [[sorted(p.attributes.items()), sorted(p.context), p.digest] for p in self]
        return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()

    def validate(self, attributes: str | Sequence[str] | None = None, decode: bool = True) -> None:
        """Raise one InputError that lists every reason why the pictures cannot be compared.

        Call it before a model runs.

        Args:
            attributes: those to be compared; None: all.
            decode: decode every image whole; without it only the headers and checksums of files are read, and a
                damaged picture is found when it is used.

        Raises:
            InputError: lists missing and duplicate versions of a person, pictures of unequal size, and those that
                cannot be decoded.

        Examples:
            >>> faces.validate("race")  # nothing is wrong with it
        """
        compared = tuple(self.attributes) if attributes is None else _names(attributes)
        if found := validation.problems_of(self, compared, decode):
            raise problems(f"set of {len(self)} counterfactual images", found)


def folder_of_pictures(folder: str | Path) -> Counterfactuals:
    """All pictures in a folder and the folders in it, without labels: pictures that show nobody.

    InputError if there are none, or lists those that cannot be decoded.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{str(folder)!r} is not a folder: name one that holds pictures")
    files = sorted(path for path in root.rglob("*") if path.suffix.lower() in PICTURE_SUFFIXES)
    if not files:
        raise InputError(f"no picture ({', '.join(PICTURE_SUFFIXES)}) in folder {str(folder)!r}")
    found = []
    for path in files:
        try:
            FilePicture(path, {}, ()).image()
        except InputError as error:
            found.append(str(error))
    if found:
        raise problems(f"folder {str(folder)!r} of {len(files)} pictures", found)
    return Counterfactuals(tuple(FilePicture(path, {}, ()) for path in files))


PICTURE_SETS: Registry[Callable[[], Counterfactuals]] = Registry("picture set", "ggss.pictures")
"""Sets that can be named wherever a manifest can."""


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
    known = {column: place for place, column in enumerate(CONTEXT_COLUMNS)}
    fixed = tuple(sorted(fixed, key=lambda column: known.get(column, -1)))
    for column in (*varied, *fixed):
        if column not in columns:
            raise no_such(f"{source!r} has no column {column!r}", column, columns)
    if not varied or set(varied) & set(fixed):
        raise InputError(f"attributes {varied} must be at least one, and none of the context {fixed}")
    return varied, fixed


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _kept(rows: Sequence[Mapping[str, str]], include: Choice | None, exclude: Choice | None) -> list[bool]:
    """Which rows have a chosen value in every column of `include`, and in none of `exclude`; InputError if none."""
    choices = zip(_chosen(rows, include or {}), _chosen(rows, exclude or {}), strict=True)
    kept = [all(included) and not any(excluded) for included, excluded in choices]
    if not any(kept):
        raise InputError(f"no image is left: chosen were {include or 'all'}, without {exclude or 'exceptions'}")
    return kept


def _chosen(rows: Sequence[Mapping[str, str]], choice: Choice) -> list[list[bool]]:
    """For each row and each chosen column: does the row have one of the chosen values?"""
    chosen = {column: _names(values) for column, values in choice.items()}
    for column, values in chosen.items():
        if column not in rows[0]:
            raise no_such(f"no column {column!r} to choose by", column, rows[0])
        existing = sorted({row[column] for row in rows})
        for value in values:
            if value not in existing:
                raise no_such(f"no image has {column}={value}", value, existing)
    return [[row[column] in values for column, values in chosen.items()] for row in rows]
