"""Published sets are read as they are published; what is missing, damaged or of another size is said."""

import sys
from io import BytesIO
from itertools import product

import pytest

from conftest import noise
from ggss import cli
from ggss.data import layouts
from ggss.data.counterfactuals import Counterfactuals
from ggss.data.layouts import FOCUS, PAIRS, SOCIAL_COUNTERFACTUALS, read_layout
from ggss.data.manifests import read_rows
from ggss.errors import InputError


def saved(path, seed=0, size=(8, 6)):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise(seed).resize(size).save(path)
    return path


@pytest.fixture
def focus(tmp_path):
    """All 480 pictures."""
    folder = tmp_path / "set" / "source"
    names = product(*FOCUS.fixed.values(), *FOCUS.values.values())
    for seed, (occupation, identity, race, gender) in enumerate(names):
        saved(folder / occupation / identity / f"{race}_{gender}.jpg", seed)
    return folder


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["ggss", "data", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        seen = capsys.readouterr()
        return code, seen.out, " ".join(seen.err.split())

    return call


def test_focus_becomes_a_manifest_that_every_command_reads(focus, tmp_path, run):
    code, said, _ = run("focus", focus.parent, "-o", tmp_path / "faces.csv")
    assert code == 0
    assert "480 pictures of 48 people" in said
    assert "Middle_Eastern" in said
    faces = Counterfactuals.load(tmp_path / "faces.csv")
    faces.validate()
    assert len(faces) == 480
    assert faces.attributes == {column: tuple(sorted(values)) for column, values in FOCUS.values.items()}
    assert dict(faces.pictures[0].context) == {"occupation": "ceo", "identity": "1"}
    assert read_rows(tmp_path / "faces.csv")[0]["path"].startswith(str(tmp_path))
    assert "source/ceo/1/" in (tmp_path / "faces.csv").read_text().split("\n")[1]  # moves with its folder


def test_the_last_underscore_separates(focus):
    rows = read_layout(FOCUS, focus).rows
    assert {row["race"] for row in rows} == set(FOCUS.values["race"])
    assert {row["gender"] for row in rows} == {"man", "woman"}


def damage(focus):
    (focus / "ceo" / "3" / "Middle_Eastern_woman.jpg").unlink()
    saved(focus / "cook" / "2" / "White_man.jpg", size=(16, 6))
    (focus / "doctor" / "8" / "Asian_man.jpg").write_bytes(b"nothing")
    for path in (focus / "nurse").rglob("*.jpg"):
        path.unlink()
    for path in (focus / "teacher" / "5").iterdir():
        path.unlink()
    saved(focus / "lawyer" / "1" / "Martian_man.jpg")
    saved(focus / "lawyer" / "2" / "Black_man.jpeg", 999)
    saved(focus / "contact-sheet.png")


FLAWS = (
    "ceo/3 lacks Middle_Eastern woman",
    "cook/2 has pictures of different sizes: 8x6 (9, such as Asian_man.jpg), 16x6 (1, such as White_man.jpg)",
    "doctor/8 has a damaged picture",
    "occupation nurse is missing",
    "teacher/5 has no pictures",
    "Martian man is none of the published values",
    "lawyer/2 has Black man 2 times",
)


def test_all_that_is_wrong_is_said_and_nothing_is_written(focus, tmp_path, run):
    damage(focus)
    code, _, said = run("focus", focus, "-o", tmp_path / "faces.csv")
    assert code == 2
    assert not (tmp_path / "faces.csv").exists()
    for flaw in FLAWS:
        assert flaw in said
    assert "--complete-only" in said


def test_only_whole_people_are_kept_if_asked(focus, tmp_path, run):
    damage(focus)
    code, told, said = run("focus", focus, "-o", tmp_path / "faces.csv", "--complete-only")
    assert code == 0
    assert "340 pictures of 34 people" in told
    for flaw in FLAWS:
        assert f"{flaw}" in said
    assert "not of REFLECT/FOCUS, by their names: 1 images" in said
    Counterfactuals.load(tmp_path / "faces.csv").validate()


def test_pairs(tmp_path, run):
    names = product(("occupations", "status"), ("phone", "black_apron"), *PAIRS.values.values())
    for seed, (section, scenario, race, gender) in enumerate(names):
        odd = "1" if (section, scenario, race, gender) == ("status", "phone", "white", "man") else ""  # as released
        saved(tmp_path / "data" / section / scenario / f"{race}_{gender}{odd}.png", seed)
    saved(tmp_path / "examples" / "examples.png")
    code, said, _ = run("pairs", tmp_path, "-o", tmp_path / "pairs.csv")
    assert code == 0
    assert "16 pictures of 4 people" in said
    faces = Counterfactuals.load(tmp_path / "pairs.csv")
    faces.validate()
    assert faces.attributes == {"race": ("black", "white"), "gender": ("man", "woman")}


@pytest.mark.parametrize(
    ("kind", "number", "labels"),
    [  # from the published metadata
        ("race_gender", 0, {"race": "White", "gender": "male"}),
        ("race_gender", 9, {"race": "Middle Eastern", "gender": "female"}),
        ("physical_gender", 13, {"trait": "young", "gender": "female"}),
        ("physical_gender", 26, {"trait": "old", "gender": "male"}),
        ("physical_race", 41, {"trait": "young", "race": "Latino"}),
        ("physical_race", 60, {"trait": "obese", "race": "White"}),
        ("physical_race", 82, {"trait": "old", "race": "Middle Eastern"}),
    ],
)
def test_what_the_number_of_a_caption_means(kind, number, labels):
    read = SOCIAL_COUNTERFACTUALS[kind].read(f"a_photo_of_{kind}_civil_engineer_2_{number}_553729286.jpg")
    assert read == {"occupation": "civil_engineer", "identity": "a_photo_of_2_553729286", **labels}
    assert SOCIAL_COUNTERFACTUALS[kind].read(f"{kind}_clerk_0_99_1.jpg") is None


def test_social_counterfactuals(tmp_path, run):
    for seed in range(24):
        opening, own = ("an_image_of_", 77) if seed < 12 else ("", 78)
        saved(tmp_path / "images" / f"{opening}race_gender_plumber_0_{seed % 12}_{own}.jpg", seed)
    saved(tmp_path / "images" / "physical_race_plumber_0_30_5.jpg")
    code, said, told = run("social-counterfactuals", tmp_path / "images", "-o", tmp_path / "faces.csv")
    assert code == 0
    assert "24 pictures of 2 people" in said
    assert "physical_race" in "".join(told.split())
    Counterfactuals.load(tmp_path / "faces.csv").validate()
    code, _, said = run("social-counterfactuals", tmp_path, "-o", tmp_path / "x.csv", "--kind", "age")
    assert code == 2
    assert "there are race_gender, physical_gender, physical_race" in said


def test_a_folder_without_the_set(tmp_path, run):
    saved(tmp_path / "holiday.jpg")
    with pytest.raises(InputError, match=r"has no picture of PAIRS, such as data/status.* 1 other images"):
        read_layout(PAIRS, tmp_path)
    with pytest.raises(InputError, match="is no folder"):
        read_layout(FOCUS, tmp_path / "absent")
    assert "is no .csv file" in run("focus", tmp_path, "-o", tmp_path / "faces.txt")[2]


def parquet_rows(kind="race_gender", sets=("race_gender_tailor_0_376",), types=("race", "gender"), caption=True):
    """The rows of a set as it is on the hub: a picture, its set, and two attributes with their types."""
    values = SOCIAL_COUNTERFACTUALS[kind].values.values()
    rows = []
    for name, (first, second) in product(sets, product(*values)):
        picture = BytesIO()
        noise(len(rows)).resize((8, 6)).save(picture, "JPEG")
        row = {"image": {"bytes": picture.getvalue(), "path": None}, "counterfactual_set": name}
        row |= {"a1_type": types[0], "a1": first, "a2_type": types[1], "a2": second}
        rows.append(row | ({"caption": f"A photo of a {first} {second} tailor"} if caption else {}))
    return rows


@pytest.fixture
def tables(monkeypatch, tmp_path):
    """Parquet files by name, as if pyarrow read them; its own environment reads true ones."""

    def given(**files):
        (tmp_path / "hub" / "data").mkdir(parents=True)
        for name in files:
            (tmp_path / "hub" / "data" / f"{name}.parquet").write_bytes(b"PAR1")

        def read(path, needed, optional, errors):
            return [(f"row {number}", row) for number, row in enumerate(files[path.stem])]

        monkeypatch.setattr(layouts, "read_table", read)
        return tmp_path / "hub"

    return given


def test_parquet_of_social_counterfactuals_becomes_files_and_a_manifest(tables, tmp_path, run):
    sets = ("race_gender_tailor_0_376", "race_gender_tailor_1_99")
    rows = parquet_rows(sets=sets)
    other = parquet_rows("physical_gender", ("physical_gender_cook_0_1",), ("physical_trait", "gender"))
    odd = rows[0] | {"a2_type": "race"}  # of no published kind
    folder = tables(a=[*rows[:7], *other, odd], b=rows[7:])
    code, said, err = run("social-counterfactuals", folder, "-o", tmp_path / "faces.csv")
    assert code == 0, err
    assert "24 pictures of 2 people" in said
    faces = Counterfactuals.load(tmp_path / "faces.csv")
    assert faces.attributes == {
        column: tuple(sorted(values)) for column, values in SOCIAL_COUNTERFACTUALS["race_gender"].values.items()
    }
    assert {picture.context for picture in faces} == {(("occupation", "tailor"), ("identity", name)) for name in sets}
    path = tmp_path / "faces" / "tailor" / sets[0] / "Middle Eastern_female.jpg"
    row = next(row for row in rows if (row["a1"], row["a2"]) == ("Middle Eastern", "female"))
    assert path.read_bytes() == row["image"]["bytes"], "pictures are not coded again"
    code, _, err = run("social-counterfactuals", folder, "-o", tmp_path / "faces.csv", "--force")
    assert code == 0, err
    code, said, err = run(
        "social-counterfactuals", folder, "-o", tmp_path / "traits.csv", "--kind", "physical_gender"
    )
    assert code == 0, err
    assert set(Counterfactuals.load(tmp_path / "traits.csv").attributes) == {"trait", "gender"}


def test_parquet_that_is_wrong_is_said_row_by_row(tables, tmp_path, run):
    rows = parquet_rows()
    damaged = [
        rows[0],
        rows[0],
        rows[1] | {"image": {"bytes": b""}},
        rows[2] | {"caption": "A tailor"},
        rows[3] | {"counterfactual_set": ""},
    ]
    folder = tables(a=damaged)
    code, _, err = run("social-counterfactuals", folder, "-o", tmp_path / "faces.csv")
    assert code == 2
    for part in (
        "a.parquet, row 1, is a second picture of tailor/race_gender_tailor_0_376/White_male.jpg",
        "a.parquet, row 2, has no picture",
        "a.parquet, row 3, has the caption 'A tailor', which does not end in an occupation",
        "a.parquet, row 4, has no counterfactual_set",
    ):
        assert part in err
    assert not (tmp_path / "faces.csv").exists()
    code, _, err = run("social-counterfactuals", folder, "-o", tmp_path / "faces.csv")
    assert code == 2
    assert "which is not empty: give another -o, or --force" in err
    code, _, err = run("social-counterfactuals", folder, "-o", tmp_path / "t.csv", "--kind", "physical_race")
    assert "no pictures that vary physical and race: there are race and gender" in err


def test_parquet_without_captions_and_with_few_pictures(tables, tmp_path, run):
    folder = tables(a=parquet_rows(caption=False)[:11])
    code, _, err = run("social-counterfactuals", folder, "-o", tmp_path / "faces.csv")
    assert code == 2
    assert "person/race_gender_tailor_0_376 lacks Latino female" in err
