"""A counterfactual set: images that differ in protected attributes and share everything else.

An image's `attributes` are what is varied (race, gender); its `context` is what is held fixed (occupation,
identity). For one attribute a, the paper's context u is the image's context plus all its other attributes:
the images of one u are the group in which the values of a are compared.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from ggss.data.manifests import read_rows
from ggss.errors import InputError, problems
from ggss.progress import track

Context = tuple[tuple[str, str], ...]
Choice = Mapping[str, str | Iterable[str]]  # column -> the values meant: {"occupation": ["nurse", "doctor"]}


@dataclass(frozen=True)
class Variant:
    """One image of a set, and what is known of it."""

    path: Path
    attributes: dict[str, str] = field(hash=False)
    context: Context

    def u(self, attribute: str) -> Context:
        """All that is held fixed while `attribute` varies: the context, then the other attributes."""
        return self.context + tuple(pair for pair in self.attributes.items() if pair[0] != attribute)

    @cached_property
    def digest(self) -> str:
        """sha256 of the image file, read once."""
        return hashlib.sha256(self._bytes()).hexdigest()

    def image(self) -> Image.Image:
        """The picture in RGB, turned as its EXIF says; InputError unless the whole file decodes."""
        data = self._bytes()
        try:
            with Image.open(BytesIO(data)) as image:
                image.verify()  # checksums and the end of a PNG, which decoding alone does not look at
            with Image.open(BytesIO(data)) as image:
                return ImageOps.exif_transpose(image).convert("RGB")
        except UnidentifiedImageError as error:
            raise InputError(f"image {str(self.path)!r} has no known image format: replace it") from error
        except Exception as error:  # a decoder raises whatever it stumbles over, such as struct.error
            raise InputError(f"image {str(self.path)!r} does not decode ({error}): replace it") from error

    def _bytes(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError as error:
            raise InputError(f"image {str(self.path)!r} does not exist: correct its path") from error
        except (OSError, ValueError) as error:
            raise InputError(f"image {str(self.path)!r} cannot be read: {error}") from error


@dataclass(frozen=True)
class Counterfactuals:
    """Variants with the same columns, sorted by context and attributes: the order of rows has no meaning."""

    variants: tuple[Variant, ...]

    def __post_init__(self) -> None:
        columns = {(tuple(variant.attributes), tuple(dict(variant.context))) for variant in self.variants}
        if len(columns) != 1:
            raise InputError("a counterfactual set needs at least one image, and all with the same columns")
        ordered = sorted(self.variants, key=lambda v: (v.context, tuple(v.attributes.values()), v.path))
        object.__setattr__(self, "variants", tuple(ordered))

    @classmethod
    def load(
        cls,
        source: str | Path,
        attributes: str | Sequence[str] = ("race", "gender"),
        context: str | Sequence[str] | None = None,
        exclude: Choice | None = None,
        include: Choice | None = None,
    ) -> "Counterfactuals":
        """Read a manifest or a folder pattern (see `ggss.data.manifests`); no image is opened yet.

        `attributes` are the columns that are varied, `context` those held fixed (None: all others but
        `path`). `include` keeps the rows that have a chosen value in every chosen column; `exclude` drops
        the rows that have one in any.
        """
        rows = read_rows(source)
        columns = [column for column in rows[0] if column != "path"]
        varied = _names(attributes)
        fixed = _names([name for name in columns if name not in varied] if context is None else context)
        for column in (*varied, *fixed):
            if column not in columns:
                seen = ", ".join(columns)
                raise InputError(f"{str(source)!r} has no column {column!r}: its columns are {seen}")
        if not varied or set(varied) & set(fixed):
            raise InputError(f"attributes {varied} must be at least one, and none of the context {fixed}")

        choices = zip(rows, _chosen(rows, include or {}), _chosen(rows, exclude or {}), strict=True)
        rows = [row for row, included, excluded in choices if all(included) and not any(excluded)]
        if not rows:
            raise InputError(f"no image of {str(source)!r} is left: exclude={exclude}, include={include}")
        return cls(
            tuple(
                Variant(
                    path=Path(row["path"]),
                    attributes={column: row[column] for column in varied},
                    context=tuple((column, row[column]) for column in fixed),
                )
                for row in rows
            )
        )

    def __len__(self) -> int:
        return len(self.variants)

    def __iter__(self) -> Iterator[Variant]:
        return iter(self.variants)

    @cached_property
    def attributes(self) -> dict[str, tuple[str, ...]]:
        """Attribute -> its values, sorted."""
        names = self.variants[0].attributes
        return {name: tuple(sorted({variant.attributes[name] for variant in self})) for name in names}

    def values(self, attribute: str) -> tuple[str, ...]:
        """The sorted values of one attribute; InputError if the set has no such attribute."""
        if attribute not in self.attributes:
            raise InputError(f"no attribute {attribute!r}: the attributes are {', '.join(self.attributes)}")
        return self.attributes[attribute]

    def groups(self, attribute: str) -> dict[Context, dict[str, int]]:
        """u -> {value of the attribute: index into `variants`}, all sorted; of duplicates, the first."""
        self.values(attribute)
        grouped: dict[Context, dict[str, int]] = {}
        for index, variant in enumerate(self):
            grouped.setdefault(variant.u(attribute), {}).setdefault(variant.attributes[attribute], index)
        return dict(sorted(grouped.items()))

    def without(self, choice: Choice) -> "Counterfactuals":
        """The set less the images that have one of the chosen values, as `{"occupation": ["nurse"]}`."""
        excluded = _chosen([dict(variant.context) | variant.attributes for variant in self], choice)
        kept = tuple(variant for variant, out in zip(self, excluded, strict=True) if not any(out))
        if not kept:
            raise InputError(f"no image is left without {dict(choice)}: choose fewer values")
        return Counterfactuals(kept)

    @cached_property
    def content_hash(self) -> str:
        """sha256 of all labels and image bytes, wherever the files lie and however the rows are ordered."""
        rows = [[sorted(v.attributes.items()), sorted(v.context), v.digest] for v in self]
        return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()

    def validate(self, attributes: str | Sequence[str] | None = None) -> None:
        """Decode every image; raise one InputError that lists all that stands in the way of comparing them.

        `attributes` are those to be compared (None: all). Call it before a model runs.
        """
        compared = tuple(self.attributes) if attributes is None else _names(attributes)
        found = _empty_cells(self)
        for attribute in compared:
            found += _comparison_problems(self, attribute)
        found += _duplicates(self) + _image_problems(self)
        if found:
            raise problems(f"set of {len(self)} counterfactual images", found)


def _empty_cells(images: Counterfactuals) -> list[str]:
    return [
        f"image {str(variant.path)!r} has an empty {column!r}: fill it in"
        for variant in images
        for column, cell in (*variant.context, *variant.attributes.items())
        if not cell
    ]


def _comparison_problems(images: Counterfactuals, attribute: str) -> list[str]:
    """What keeps the values of one attribute from being compared, among the images without empty cells."""
    if attribute not in images.attributes:
        return [f"no attribute {attribute!r}: the attributes are {', '.join(images.attributes)}"]
    groups: dict[Context, set[str]] = {}
    for variant in images:
        value, u = variant.attributes[attribute], variant.u(attribute)
        if value and all(cell for _, cell in u):
            groups.setdefault(u, set()).add(value)
    values = sorted(set().union(*groups.values()))
    if len(values) < 2:
        return [f"attribute {attribute!r} has fewer than two values: {', '.join(values) or 'none'}"]
    if len(groups) < 2:
        return [f"attribute {attribute!r} has fewer than two contexts: {_spelled(next(iter(groups)))}"]
    if all(len(seen) == 1 for seen in groups.values()):
        columns = ", ".join(dict(images.variants[0].u(attribute)))
        return [
            f"no context has two values of {attribute!r}: a column among {columns} changes with it; "
            "name those that stay fixed with context="
        ]
    return [
        f"context {_spelled(u)} has {len(seen)} of {len(values)} values of {attribute!r}: "
        f"missing {', '.join(value for value in values if value not in seen)}"
        for u, seen in sorted(groups.items())
        if len(seen) < len(values)
    ]


def _duplicates(images: Counterfactuals) -> list[str]:
    rows: dict[Context, list[str]] = {}
    for variant in images:
        rows.setdefault((*variant.context, *variant.attributes.items()), []).append(repr(str(variant.path)))
    return [
        f"{_spelled(row)} has {len(paths)} images, {', '.join(paths)}: keep one"
        for row, paths in rows.items()
        if len(paths) > 1
    ]


def _image_problems(images: Counterfactuals) -> list[str]:
    """What shows only when the files are read: broken, of unequal sizes, or the same under two labels."""
    found: list[str] = []
    sizes: dict[Context, dict[str, list[str]]] = {}
    labels: dict[str, dict[str, str]] = {}
    for variant in track(images, "checking images", total=len(images)):
        try:
            width, height = variant.image().size
        except InputError as error:
            found.append(str(error))
            continue
        label, path = _spelled(variant.attributes.items()), repr(str(variant.path))
        sizes.setdefault(variant.context, {}).setdefault(f"{width}x{height}", []).append(path)
        labels.setdefault(variant.digest, {}).setdefault(label, path)
    found += [
        f"context {_spelled(context)} has images of different sizes: "
        + ", ".join(f"{size} ({len(paths)}, such as {paths[0]})" for size, paths in by_size.items())
        for context, by_size in sizes.items()
        if len(by_size) > 1
    ]
    found += [
        f"the same image is labelled {' and '.join(f'{label} ({path})' for label, path in paths.items())}"
        for paths in labels.values()
        if len(paths) > 1
    ]
    return found


def _spelled(pairs: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"{column}={value}" for column, value in pairs) or "(no columns)"


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _chosen(rows: Sequence[Mapping[str, str]], choice: Choice) -> list[list[bool]]:
    """For each row and each chosen column: does the row have one of the chosen values?"""
    columns = [column for column in rows[0] if column != "path"]
    chosen = {column: _names(values) for column, values in choice.items()}
    for column, values in chosen.items():
        if column not in columns:
            raise InputError(f"no column {column!r} to choose by: the columns are {', '.join(columns)}")
        existing = sorted({row[column] for row in rows})
        for value in values:
            if value not in existing:
                raise InputError(f"no image has {column}={value}: the values are {', '.join(existing)}")
    return [[row[column] in values for column, values in chosen.items()] for row in rows]
