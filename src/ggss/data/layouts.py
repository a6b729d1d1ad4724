"""Published sets of counterfactual pictures, read from the folders and file names in which they are published.

| set | a picture's file | held fixed | varied |
| --- | --- | --- | --- |
| REFLECT/FOCUS | `ceo/3/Middle_Eastern_woman.jpg` | occupation, identity | race, gender |
| PAIRS | `data/status/phone/black_man.png` | section, scenario | race, gender |
| SocialCounterfactuals | `a_photo_of_race_gender_tailor_0_4_3761796350.jpg` | occupation, set | two attributes |

Only the last parts of a path count, so the user may give any folder above them. PAIRS' section becomes the occupation
and its scenario the identity. A name of SocialCounterfactuals ends in the rank, the number of the caption and the
seed of the set. The meaning of a caption's number is in the metadata that its authors published with their code
(IntelLabs/multimodal_cognitive_ai, `Uncovering_LVLM_Bias`), and is the same in all their sets.

On the hub SocialCounterfactuals is parquet: each row has a picture, its `counterfactual_set`, and two attributes with
their types (`a1_type`, `a1`, `a2_type`, `a2`). `extract` writes the pictures of one kind into files, unchanged, as
`tailor/SET/Middle Eastern_female.jpg`; the occupation is the end of the `caption`.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from ggss.data.manifests import Row
from ggss.data.pictures import FilePicture
from ggss.data.tables import Cells, embedded, read_table
from ggss.errors import InputError, no_such, problems
from ggss.files import write_whole
from ggss.terminal import track

IMAGES = (".jpg", ".jpeg", ".png")
RACE, GENDER, TRAIT = "race", "gender", "trait"
PEOPLE = ("White", "Black", "Indian", "Asian", "Middle Eastern", "Latino")
TRAITS = ("skinny", "young", "obese", "tattooed", "old")


@dataclass(frozen=True)
class Layout:
    """How the files of a set are named. read: from the last `parts` of a path to its labels, or None.

    values: the published values of the attributes that are varied. fixed: the published values of what is held fixed,
    if there is a list of them.
    """

    title: str
    example: str
    parts: int
    read: Callable[[str], Row | None]
    values: Mapping[str, Sequence[str]]
    fixed: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class SetContents:
    """What a folder has of a published set.

    rows: of a manifest, for the people that have every published picture in one size. flaws: what is missing, of
    another size, or damaged. others: image files that are not named like the set's.
    """

    rows: list[Row]
    flaws: list[str]
    others: list[str]


def read_layout(layout: Layout, folder: str | Path) -> SetContents:
    """All pictures of a published set below a folder; InputError if there is none."""
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise InputError(f"{str(folder)!r} is no folder: give the one that holds {layout.title}")
    pictures: dict[tuple[str, ...], dict[tuple[str, ...], list[FilePicture]]] = {}
    others: list[str] = []
    columns: list[str] = []
    for path in _images(folder):
        row = layout.read("/".join(path.parts[-layout.parts :]))
        if row is None:
            others.append(str(path))
            continue
        columns = columns or [column for column in row if column not in layout.values]
        varied = tuple(row[column] for column in layout.values)
        versions = pictures.setdefault(tuple(row[column] for column in columns), {})
        versions.setdefault(varied, []).append(FilePicture(path, dict(zip(layout.values, varied, strict=True))))
    if not pictures:
        raise InputError(
            f"{str(folder)!r} has no picture of {layout.title}, such as {layout.example}: it has "
            f"{len(others)} other images{f', such as {others[0]!r}' if others else ''}"
        )
    rows: list[Row] = []
    flaws = _missing_people(layout, pictures)
    for person in track(sorted(pictures), f"checking {layout.title}", len(pictures)):
        versions = pictures[person]
        if person_flaws := _flaws_of(layout, versions):
            flaws += [f"{'/'.join(person)} {line}" for line in person_flaws]
        else:
            fixed = dict(zip(columns, person, strict=True))
            rows += [{"path": str(picture.path), **fixed, **picture.attributes} for (picture,) in versions.values()]
    return SetContents(rows, flaws, others)


def placed(rows: Sequence[Row], manifest: Path) -> list[Row]:
    """The rows with paths relative to the manifest's folder, where that is possible."""
    base = manifest.expanduser().resolve().parent

    def relative(path: str) -> str:
        try:
            return Path(os.path.relpath(Path(path).resolve(), base)).as_posix()
        except ValueError:  # another drive of Windows
            return str(Path(path).resolve())

    return [{**row, "path": relative(row["path"])} for row in rows]


def complete(contents: SetContents, layout: Layout, leave_out: bool) -> list[Row]:
    """The rows. InputError lists all that is wrong with the set, unless incomplete people may be left out."""
    if contents.flaws and not leave_out:
        raise problems(
            f"{layout.title} is not complete (--complete-only leaves out the people of whom a picture is missing)",
            contents.flaws,
        )
    if not contents.rows:
        raise problems(f"nobody in this {layout.title} has all pictures", contents.flaws)
    return contents.rows


def _images(folder: Path) -> Iterable[Path]:
    """Image files below the folder in a fixed order, without hidden ones."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and name.lower().endswith(IMAGES):
                yield Path(where) / name


def _missing_people(layout: Layout, pictures: Mapping[tuple[str, ...], object]) -> list[str]:
    """The published people without any picture, a line for each; one line for an occupation without pictures."""
    if not layout.fixed:
        return []
    expected = list(product(*layout.fixed.values()))
    occupations = {person[0] for person in pictures}
    column = next(iter(layout.fixed))
    absent = [name for name in dict.fromkeys(person[0] for person in expected) if name not in occupations]
    lines = [f"{name} has no pictures: {column} {name} is missing" for name in absent]
    return lines + [f"{'/'.join(p)} has no pictures" for p in expected if p not in pictures and p[0] not in absent]


def _flaws_of(layout: Layout, versions: Mapping[tuple[str, ...], Sequence[FilePicture]]) -> list[str]:
    """What is wrong with the pictures of a person. versions: attribute values -> pictures."""
    published = list(product(*layout.values.values()))
    flaws = [f"lacks {' '.join(values)}" for values in published if values not in versions]
    flaws += [
        f"has {pictures[0].name!r}, and {' '.join(values)} is none of the published values"
        for values, pictures in versions.items()
        if values not in published
    ]
    for values, pictures in versions.items():
        if len(pictures) > 1:
            flaws.append(f"has {' '.join(values)} {len(pictures)} times: {', '.join(repr(p.name) for p in pictures)}")
    sizes: dict[tuple[int, int], list[str]] = {}
    for picture in (picture for pictures in versions.values() for picture in pictures):
        try:
            sizes.setdefault(picture.size(), []).append(picture.path.name)
        except InputError as error:
            flaws.append(f"has a damaged picture: {error}")
    if len(sizes) > 1:
        ordered = sorted(sizes.items(), key=lambda item: (-len(item[1]), item[0]))
        flaws.append(
            "has pictures of different sizes: "
            + ", ".join(f"{w}x{h} ({len(names)}, such as {names[0]})" for (w, h), names in ordered)
        )
    return flaws


def _matched(expression: str) -> Callable[[str], Row | None]:
    compiled = re.compile(expression, re.IGNORECASE)

    def read(path: str) -> Row | None:
        match = compiled.fullmatch(path)
        return match.groupdict() if match else None

    return read


# The last underscore separates the values: the name of a race may have one too.
_TWO_VALUES = r"(?P<race>[^/]+)_(?P<gender>[^/_]+?)"

FOCUS = Layout(
    "REFLECT/FOCUS",
    "ceo/3/Middle_Eastern_woman.jpg",
    3,
    _matched(rf"(?P<occupation>[^/]+)/(?P<identity>\d+)/{_TWO_VALUES}\.(?:jpg|jpeg|png)"),
    {RACE: ("Asian", "Black", "Latino", "Middle_Eastern", "White"), GENDER: ("man", "woman")},
    {
        "occupation": ("ceo", "cook", "doctor", "lawyer", "nurse", "teacher"),
        "identity": tuple(map(str, range(1, 9))),
    },
)

# One file of the release, status/phone/white_man1.png, has a digit after its name.
PAIRS = Layout(
    "PAIRS",
    "data/status/phone/black_man.png",
    3,
    _matched(
        rf"(?P<occupation>occupations|status|potential_crime)/(?P<identity>[^/]+)/{_TWO_VALUES}\d?\.(?:jpg|jpeg|png)"
    ),
    {RACE: ("black", "white"), GENDER: ("man", "woman")},
)


def _numbered(kind: str, columns: tuple[str, str], numbers: Sequence[int], values: Sequence[Sequence[str]]) -> Layout:
    """One of the three kinds of SocialCounterfactuals. numbers: of the captions of all pairs of values, in order."""
    means = dict(zip(map(str, numbers), product(*values), strict=True))
    name = re.compile(
        rf"(?P<opening>|a_picture_of_|a_photo_of_|an_image_of_){kind}_(?P<occupation>.+)"
        r"_(?P<rank>\d+)_(?P<caption>\d+)_(?P<seed>\d+)\.(?:jpg|jpeg|png)"
    )

    def read(path: str) -> Row | None:
        match = name.fullmatch(path)
        if match is None or match["caption"] not in means:
            return None
        identity = f"{match['opening']}{match['rank']}_{match['seed']}"
        labels = dict(zip(columns, means[match["caption"]], strict=True))
        return {"occupation": match["occupation"], "identity": identity, **labels}

    example = f"images/a_photo_of_{kind}_tailor_0_{numbers[0]}_3761796350.jpg"
    return Layout(f"SocialCounterfactuals ({kind})", example, 1, read, dict(zip(columns, values, strict=True)))


_SEXES = ("male", "female")
SOCIAL_COUNTERFACTUALS = {
    "race_gender": _numbered("race_gender", (RACE, GENDER), range(12), (PEOPLE, _SEXES)),
    "physical_gender": _numbered(
        "physical_gender", (TRAIT, GENDER), (10, 11, 12, 13, 20, 21, 24, 25, 26, 27), (TRAITS, _SEXES)
    ),
    "physical_race": _numbered(
        "physical_race", (TRAIT, RACE), (*range(30, 42), *range(60, 66), *range(72, 84)), (TRAITS, PEOPLE)
    ),
}

_PARQUET_COLUMNS = ("image", "counterfactual_set", "a1_type", "a1", "a2_type", "a2")
_EXTRACTED = r"(?P<occupation>[^/]+)/(?P<identity>[^/]+)/(?P<{}>[^/]+)_(?P<{}>[^/_]+?)\.(?:jpg|png)"
_SIGNATURES = {b"\xff\xd8": "jpg", b"\x89P": "png"}


def parquet_files(folder: Path) -> list[Path]:
    """The parquet files of a set as it is on the hub; none for a folder of pictures."""
    return sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))


def extract(files: Sequence[Path], kind: str, target: Path) -> Layout:
    """Write the pictures of a kind of SocialCounterfactuals from parquet into a folder; returns how they are named.

    InputError lists every row that cannot be read, and the kinds that the files have if they lack this one.
    """
    published = SOCIAL_COUNTERFACTUALS[kind].values
    columns = dict(zip(kind.split("_"), published, strict=True))  # race -> race, physical -> trait
    errors: list[str] = []
    kinds: set[str] = set()
    written: set[Path] = set()
    for file in track(files, f"extracting {kind} from {len(files)} files"):
        for place, row in read_table(file, _PARQUET_COLUMNS, ("caption",), errors):
            kinds.add(f"{row['a1_type']} and {row['a2_type']}")
            varied = _varied(row, columns)
            if varied is None:
                continue
            try:
                path, data = _extracted(row, [_published(varied[name], known) for name, known in published.items()])
                if path in written:
                    raise ValueError(f"is a second picture of {path.as_posix()}")
            except ValueError as error:
                errors.append(f"{file.name}, {place}, {error}")
                continue
            write_whole(target / path, data)
            written.add(path)
    if errors:
        raise problems("SocialCounterfactuals in parquet", errors)
    if not written:
        raise no_such(f"the files have no pictures that vary {kind.replace('_', ' and ')}", kind, sorted(kinds))
    example = f"tailor/SET/{'_'.join(values[0] for values in published.values())}.jpg"
    return Layout(SOCIAL_COUNTERFACTUALS[kind].title, example, 3, _matched(_EXTRACTED.format(*published)), published)


def _varied(row: Cells, columns: Mapping[str, str]) -> Row | None:
    """By column, the values of a row's two attributes; None if the row is of another kind."""
    values: Row = {}
    for number in ("a1", "a2"):
        words = str(row[f"{number}_type"]).casefold()
        column = next((name for word, name in columns.items() if word in words), None)
        if column is None:
            return None
        values[column] = str(row[number]).strip()
    return values if len(values) == len(columns) else None


def _published(value: str, values: Sequence[str]) -> str:
    """A value as it is published; as it is written, if it is none of those."""
    plain = value.replace("_", " ")
    return next((known for known in values if known.casefold() == plain.casefold()), plain)


def _extracted(row: Cells, values: Sequence[str]) -> tuple[Path, bytes]:
    """The place of a row's picture in the folder, and its bytes; ValueError says what is wrong with the row."""
    data = embedded(row["image"]).data
    ending = _SIGNATURES.get(data[:2])
    if ending is None:
        raise ValueError("has a picture that is neither JPEG nor PNG")
    if not row["counterfactual_set"]:
        raise ValueError("has no counterfactual_set")
    parts = _occupation(row), str(row["counterfactual_set"]), "_".join(values)
    occupation, person, version = (re.sub(r"[^\w .-]", "-", part).strip(" .") for part in parts)
    return Path(occupation, person, f"{version}.{ending}"), data


def _occupation(row: Cells) -> str:
    """The end of the caption, after both attributes: "A photo of a White male tailor"; "person" without a caption."""
    caption = str(row.get("caption") or "").casefold()
    if not caption:
        return "person"
    ends = [caption.rfind(f"{str(row[name]).casefold()} ") + len(str(row[name])) for name in ("a1", "a2")]
    occupation = caption[max(ends) :].strip().rstrip(".")
    if min(ends) < 0 or not occupation or not all(str(row[name]).casefold() in caption for name in ("a1", "a2")):
        raise ValueError(f"has the caption {row['caption']!r}, which does not end in an occupation")
    return occupation
