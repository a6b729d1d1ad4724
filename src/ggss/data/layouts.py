"""Published sets of pictures, read from the folders, file names and tables in which they are published.

**Counterfactual sets**, in which a person has several versions:

| set | a picture's file | held fixed | varied |
| --- | --- | --- | --- |
| REFLECT/FOCUS | `ceo/3/Middle_Eastern_woman.jpg` | occupation, identity | race, gender |
| PAIRS | `data/status/phone/black_man.png` | section, scenario | race, gender |
| SocialCounterfactuals | `a_photo_of_race_gender_tailor_0_4_3761796350.jpg` | occupation, set | two attributes |
| GenderBias-VL | `xl_generate_base/Chief_executive/female/female_Chief_executive_0.png` | occupation, file | gender |

Only the last parts of a path count, so the user may give any folder above them. PAIRS' section becomes the occupation
and its scenario the identity. A name of SocialCounterfactuals ends in the rank, the number of the caption and the
seed of the set. The meaning of a caption's number is in the metadata that its authors published with their code
(IntelLabs/multimodal_cognitive_ai, `Uncovering_LVLM_Bias`), and is the same in all their sets. GenderBias-VL has a
picture's counterfactual version in the same place below `xl_generate_cf_via_instructpix2pix`: the folder's gender is
that of the first version.

**Labelled sets**, in which a person has one picture (`Labels`):

| set | where the labels are | columns of the manifest |
| --- | --- | --- |
| FairFace | a table: `file, age, gender, race, service_test` | age, gender, race |
| UTKFace | file names: `[age]_[gender]_[race]_[date&time].jpg` | age in years, age_group, gender, race |
| FACET | a table of people: how many reviewers gave each label | occupation, gender, age, skin_tone, lighting |

A label of FACET is the one that most reviewers gave, `na` if most could not say, none did or two are equal; its skin
tone is the mean of theirs on Monk's scale, 1 to 10. A picture of FACET may show several people, so each is cut out by
their bounding box.

On the hub SocialCounterfactuals is parquet: each row has a picture, its `counterfactual_set`, and two attributes with
their types (`a1_type`, `a1`, `a2_type`, `a2`). `extract` writes the pictures of one kind into files, unchanged, as
`tailor/SET/Middle Eastern_female.jpg`; the occupation is the end of the `caption`.
"""

import csv
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import product
from pathlib import Path

from ggss.data.hub import Cells, embedded, read_table
from ggss.data.manifests import Row, csv_rows
from ggss.data.pictures import FilePicture, as_number
from ggss.errors import InputError, no_such, problems
from ggss.files import read_utf8, write_whole
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
class Labels:
    """A set whose pictures have labels, and no versions of a person.

    table: the columns by which its tables (CSV files) are recognised; none: the labels are in the names of files.
    read: from a row of the table, or {"path": name of the file}, to labels and `path`, the end of the picture's path;
    None if it has none. values: the published values of some columns.
    """

    title: str
    example: str
    table: Sequence[str]
    read: Callable[[Row], Row | None]
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)


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


def complete(contents: SetContents, layout: Layout | Labels, leave_out: bool) -> list[Row]:
    """The rows. InputError lists all that is wrong with the set, unless incomplete people may be left out."""
    if contents.flaws and not leave_out:
        raise problems(
            f"{layout.title} is not complete (--complete-only leaves out the people of whom a picture is missing)",
            contents.flaws,
        )
    if not contents.rows:
        raise problems(f"nobody in this {layout.title} has all pictures", contents.flaws)
    return contents.rows


def read_labels(labels: Labels, folder: str | Path) -> SetContents:
    """All labelled pictures below a folder; InputError if there is none. A flaw counts all pictures that have it."""
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise InputError(f"{str(folder)!r} is no folder: give the one that holds {labels.title}")
    by_name: dict[str, list[Path]] = {}
    for path in _images(folder):
        by_name.setdefault(path.name, []).append(path)
    flaws: dict[str, list[str]] = {}
    rows: list[Row] = []
    others: list[str] = []
    people: set[str] = set()
    for source, entry in _table_rows(labels, folder) if labels.table else _name_rows(by_name):
        row = labels.read(entry)
        if row is None:
            (flaws.setdefault("cannot be read", []) if labels.table else others).append(source)
            continue
        paths = [path for path in by_name.get(Path(row["path"]).name, []) if _ends_with(path, row["path"])]
        flaw = _label_flaw(labels, row, paths)
        person = row.get("person") or str(paths[0] if paths else "")
        if not flaw and person in people:
            flaw = "of people who are in the tables twice (keep one line of each)"
        if flaw:
            flaws.setdefault(flaw, []).append(source)
        else:
            people.add(person)
            rows.append({**row, "path": str(paths[0])})
    if not rows and not flaws:
        raise InputError(
            f"{str(folder)!r} has nothing of {labels.title}, such as {labels.example}"
            + (f": it has {len(others)} other images, such as {others[0]!r}" if others else "")
        )
    lines = [f"{len(sources)} {flaw}, such as {sources[0]}" for flaw, sources in flaws.items()]
    return SetContents(rows, lines, others)


def _label_flaw(labels: Labels, row: Row, paths: Sequence[Path]) -> str:
    """What is wrong with a labelled picture, or "". paths: the files that it may be."""
    for column, values in labels.values.items():
        if row[column] not in values:
            return f"with {column} {row[column]!r}, none of the published values"
    if len(paths) > 1:
        return "of pictures that are there several times (give a folder that has them once)"
    return "" if paths else "of pictures that are not there"


def _table_rows(labels: Labels, folder: Path) -> Iterator[tuple[str, Row]]:
    """Each row of the set's tables, with its file and line; InputError if a table cannot be read."""
    for path in sorted(folder.rglob("*.csv")):
        text, flaws = read_utf8(path, "table"), []
        if not _header(text) >= set(labels.table):
            continue
        for line, row in csv_rows(text, flaws):
            yield f"{path} line {line}", row
        if flaws:
            raise problems(f"table {str(path)!r}", flaws)


def _header(text: str) -> set[str]:
    """The columns of a table; none if its first line is not CSV."""
    try:
        return {name.strip() for name in next(csv.reader([text.partition("\n")[0]], strict=True), [])}
    except csv.Error:
        return set()


def _name_rows(by_name: Mapping[str, Sequence[Path]]) -> Iterator[tuple[str, Row]]:
    for name, paths in sorted(by_name.items()):
        for path in paths:
            yield str(path), {"path": name}


def _ends_with(path: Path, ending: str) -> bool:
    parts = Path(ending).parts
    return path.parts[-len(parts) :] == parts


def cut_out(rows: Sequence[Row], folder: Path) -> list[Row]:
    """The rows without `person` and `box`, with paths of pictures of the person alone, written into a folder.

    Nothing is written before all boxes and pictures are checked. InputError lists boxes that are not inside their
    pictures, and damaged pictures.
    """
    edges, mistakes = [], dict[str, None]()
    for row in track(rows, "checking people", len(rows)):
        try:
            size = FilePicture(Path(row["path"])).image().size
        except InputError as error:
            mistakes[str(error)] = None
            continue
        left, top, right, bottom = _edges(row["box"], size)
        edges.append((left, top, right, bottom))
        if left >= right or top >= bottom:
            mistakes[f"the box of person {row['person']!r} is not inside {row['path']!r}: correct the table"] = None
    if mistakes:
        raise problems(f"people to be cut out into {str(folder)!r}", list(mistakes))
    folder.mkdir(parents=True, exist_ok=True)
    cut = []
    for row, corners in zip(track(rows, "cutting out people", len(rows)), edges, strict=True):
        labels = {column: label for column, label in row.items() if column not in ("person", "box")}
        data, path = BytesIO(), folder / f"{row['person']}.png"
        FilePicture(Path(row["path"])).image().crop(corners).save(data, "PNG")
        write_whole(path, data.getvalue())
        cut.append({**labels, "path": str(path)})
    return cut


def _edges(box: str, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the part of a box that is in a picture of this width and height."""
    x, y, width, height = (float(number) for number in box.split())
    return max(0, round(x)), max(0, round(y)), min(size[0], round(x + width)), min(size[1], round(y + height))


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

_OTHER = {"female": "male", "male": "female"}


def _read_gender_bias_vl(path: str) -> Row | None:
    match = re.fullmatch(
        r"xl_generate_(?P<kind>base|cf_via_instructpix2pix)/(?P<occupation>[^/]+)/(?P<gender>female|male)"
        r"/(?P<picture>[^/]+)\.png",
        path,
    )
    if match is None:
        return None
    gender = match["gender"] if match["kind"] == "base" else _OTHER[match["gender"]]
    return {"occupation": match["occupation"], "identity": match["picture"], GENDER: gender}


GENDER_BIAS_VL = Layout(
    "GenderBias-VL",
    "xl_generate_base/Chief_executive/female/female_Chief_executive_0.png",
    4,
    _read_gender_bias_vl,
    {GENDER: ("female", "male")},
)


def _read_fairface(row: Row) -> Row | None:
    return {"path": row["file"], **{column: row[column] for column in ("age", GENDER, RACE)}}


FAIRFACE = Labels(
    "FairFace",
    "fairface_label_train.csv with the columns file, age, gender, race, and train/1.jpg",
    ("file", "age", "gender", "race"),
    _read_fairface,
    {
        GENDER: ("Male", "Female"),
        RACE: ("White", "Black", "Latino_Hispanic", "East Asian", "Southeast Asian", "Indian", "Middle Eastern"),
    },
)

AGE_GROUPS = (0, 3, 10, 20, 30, 40, 50, 60, 70)  # FairFace's: the first year of each


def age_group(years: int) -> str:
    """FairFace's group of an age: `20-29`; `more than 70` for the oldest."""
    first = max(year for year in AGE_GROUPS if year <= years)
    if first == AGE_GROUPS[-1]:
        return f"more than {first}"
    return f"{first}-{AGE_GROUPS[AGE_GROUPS.index(first) + 1] - 1}"


_UTKFACE_GENDERS = ("male", "female")
_UTKFACE_RACES = ("White", "Black", "Asian", "Indian", "Others")


def _read_utkface(row: Row) -> Row | None:
    match = re.fullmatch(r"(?P<age>\d{1,3})_(?P<gender>[01])_(?P<race>[0-4])_\d+\.jpg(\.chip\.jpg)?", row["path"])
    if match is None:
        return None
    age = int(match["age"])
    return {
        "path": row["path"],
        "age": str(age),
        "age_group": age_group(age),
        GENDER: _UTKFACE_GENDERS[int(match["gender"])],
        RACE: _UTKFACE_RACES[int(match["race"])],
    }


UTKFACE = Labels("UTKFace", "26_1_2_20170104023102422.jpg.chip.jpg", (), _read_utkface)

_FACET_LABELS = {
    GENDER: ("gender_presentation", ("masc", "fem", "non_binary")),
    "age": ("age_presentation", ("young", "middle", "older")),
    "lighting": ("lighting", ("well_lit", "dimly_lit", "underexposed", "overexposed")),
}
_TONES = range(1, 11)
NOT_SAID = "na"


def _read_facet(row: Row) -> Row | None:
    said = {column: _said_by_most(row, prefix, names) for column, (prefix, names) in _FACET_LABELS.items()}
    counts = [as_number(row.get(f"skin_tone_{tone}", "")) or 0 for tone in _TONES]
    mean = sum(tone * count for tone, count in zip(_TONES, counts, strict=True)) / (sum(counts) or 1)
    try:
        box = json.loads(row["bounding_box"])
        corners = [float(box[name]) for name in ("x", "y", "width", "height")]
    except (ValueError, TypeError, KeyError):
        return None
    person = row["person_id"]
    if not math.isfinite(sum(map(abs, corners))) or not re.fullmatch(r"[\w-]+", person):
        return None
    return {
        "path": row["filename"],
        "occupation": row["class1"],
        GENDER: said[GENDER],
        "age": said["age"],
        "skin_tone": f"{mean:.2f}".rstrip("0").rstrip(".") if mean else NOT_SAID,
        "lighting": said["lighting"],
        "person": person,
        "box": " ".join(map(str, corners)),
    }


def _said_by_most(row: Row, prefix: str, names: Sequence[str]) -> str:
    counts = {name: as_number(row.get(f"{prefix}_{name}", "")) or 0 for name in (*names, NOT_SAID)}
    most = [name for name, count in counts.items() if count == max(counts.values())]
    return most[0] if len(most) == 1 else NOT_SAID


FACET = Labels(
    "FACET",
    "annotations.csv with the columns person_id, filename, class1, bounding_box, and imgs_1/sa_1.jpg",
    ("person_id", "filename", "class1", "bounding_box"),
    _read_facet,
)


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
