"""Published sets are read as they are published; what is missing, damaged or of another size is said."""

import csv
import json
from io import BytesIO
from itertools import product
from pathlib import Path

import pytest
from PIL import Image

from conftest import noise
from ggss.data import layouts
from ggss.data.counterfactuals import Counterfactuals
from ggss.data.layouts import FOCUS, GENDER_BIAS_VL, PAIRS, SOCIAL_COUNTERFACTUALS, age_group, read_layout
from ggss.data.manifests import read_rows
from ggss.data.pictures import FilePicture
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
def run(ggss_command):
    def call(*arguments):
        code, out, err = ggss_command("data", *arguments)
        return code, out, " ".join(err.split())

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


def written_table(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_genderbias_vl_pairs_a_picture_with_its_edited_version(tmp_path, run):
    for seed, (kind, gender) in enumerate(
        product(("xl_generate_base", "xl_generate_cf_via_instructpix2pix"), ("female", "male"))
    ):
        saved(tmp_path / kind / "Chief_executive" / gender / f"{gender}_Chief_executive_0.png", seed)
    saved(tmp_path / "xl_generate_bleach" / "Chief_executive" / "male" / "male_Chief_executive_0.png")
    contents = read_layout(GENDER_BIAS_VL, tmp_path)
    assert len(contents.others) == 1
    shown = {(row["identity"], row["gender"]): "_cf_" in row["path"] for row in contents.rows}
    assert shown == {
        ("female_Chief_executive_0", "female"): False,
        ("female_Chief_executive_0", "male"): True,  # the folder is of the first version
        ("male_Chief_executive_0", "male"): False,
        ("male_Chief_executive_0", "female"): True,
    }
    code, said, _ = run("genderbias-vl", tmp_path, "-o", tmp_path / "faces.csv")
    assert code == 0
    assert "4 pictures of 2 people, varied in gender (female, male)" in said
    Counterfactuals.load(tmp_path / "faces.csv").validate("gender")
    saved(tmp_path / "xl_generate_base" / "Chief_executive" / "male" / "male_Chief_executive_7.png", 9)
    assert read_layout(GENDER_BIAS_VL, tmp_path).flaws == ["Chief_executive/male_Chief_executive_7 lacks female"]


@pytest.fixture
def fairface(tmp_path):
    """Two tables of its layout, and the pictures that they name."""
    folder = tmp_path / "FairFace"
    races = ("East Asian", "Latino_Hispanic", "Black")
    for split in ("train", "val"):
        rows = [
            {
                "file": f"{split}/{number}.jpg",
                "age": "20-29" if number % 2 else "more than 70",
                "gender": "Male" if number < 6 else "Female",
                "race": races[number % 3],
                "service_test": str(number % 2 == 0),
            }
            for number in range(1, 13)
        ]
        written_table(folder / f"fairface_label_{split}.csv", rows)
        for number, row in enumerate(rows):
            saved(folder / row["file"], number + 20 * (split == "val"), size=(8 + number, 6))
    return folder


def test_fairface_becomes_a_manifest_of_unpaired_pictures(fairface, tmp_path, run):
    code, said, _ = run("fairface", fairface, "-o", tmp_path / "people.csv")
    assert code == 0
    assert "24 pictures, one of each person, with age (2 values), gender (2 values), race (3 values)" in said
    people = Counterfactuals.load(tmp_path / "people.csv", attributes="race", unpaired=True)
    people.validate("race")
    assert dict(people.pictures[0].context).keys() == {"age", "gender"}
    by_name = {picture.name.rpartition("FairFace/")[2]: picture.attributes["race"] for picture in people}
    assert by_name["train/1.jpg"] == "Latino_Hispanic"
    assert by_name["val/3.jpg"] == "East Asian"
    with pytest.raises(InputError, match="problem"):  # as a counterfactual set it is none
        Counterfactuals.load(tmp_path / "people.csv", attributes="race").validate("race")


def test_what_is_wrong_with_fairface_is_counted(fairface, tmp_path, run):
    (fairface / "train" / "3.jpg").unlink()
    (fairface / "train" / "4.jpg").unlink()
    table = fairface / "fairface_label_val.csv"
    table.write_text(table.read_text().replace("Black", "Martian", 1))
    code, _, said = run("fairface", fairface, "-o", tmp_path / "people.csv")
    assert code == 2
    assert "2 of pictures that are not there, such as" in said
    assert "fairface_label_train.csv line 4" in said
    assert "1 with race 'Martian', none of the published values" in said
    assert not (tmp_path / "people.csv").exists()
    code, out, said = run("fairface", fairface, "-o", tmp_path / "people.csv", "--complete-only")
    assert code == 0
    assert out.startswith("21 pictures")
    assert "left out: 2 of pictures that are not there" in said
    copied = fairface / "copy" / "val" / "5.jpg"
    copied.parent.mkdir(parents=True)
    copied.write_bytes((fairface / "val" / "5.jpg").read_bytes())
    assert "there several times" in run("fairface", fairface, "-o", tmp_path / "other.csv")[2]
    code, _, said = run("fairface", fairface / "train", "-o", tmp_path / "third.csv")
    assert code == 2
    assert "has nothing of FairFace, such as fairface_label_train.csv" in said


def test_a_line_or_a_table_of_fairface_that_is_there_twice_is_counted(fairface, tmp_path, run):
    table = fairface / "fairface_label_val.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, lines[2], lines[5]]) + "\n")
    code, _, said = run("fairface", fairface, "-o", tmp_path / "people.csv")
    assert code == 2
    assert "2 of people who are in the tables twice (keep one line of each), such as" in said
    assert "fairface_label_val.csv line 14" in said
    table.write_text("\n".join(lines) + "\n")
    (fairface / "old").mkdir()
    (fairface / "old" / table.name).write_text(table.read_text())
    code, _, said = run("fairface", fairface, "-o", tmp_path / "people.csv")
    assert code == 2
    assert "12 of people who are in the tables twice" in said
    code, out, _ = run("fairface", fairface, "-o", tmp_path / "people.csv", "--complete-only")
    assert code == 0
    assert out.startswith("24 pictures")


def test_a_table_with_a_quoted_header_is_recognised(fairface, tmp_path, run):
    for table in fairface.glob("*.csv"):
        head, _, rows = table.read_text().replace("\r\n", "\n").partition("\n")
        table.write_text(",".join(f'"{name}"' for name in head.split(",")) + "\n" + rows)
    code, said, _ = run("fairface", fairface, "-o", tmp_path / "people.csv")
    assert code == 0
    assert said.startswith("24 pictures")


def test_a_picture_of_utkface_in_two_folders_is_counted(tmp_path, run):
    for folder, seed in (("part1", 0), ("copy", 0)):
        saved(tmp_path / "UTKFace" / folder / "26_1_2_20170104023102422.jpg", seed)
    saved(tmp_path / "UTKFace" / "part1" / "3_0_0_20161219140642920.jpg", 1)
    code, _, said = run("utkface", tmp_path, "-o", tmp_path / "people.csv")
    assert code == 2
    assert "2 of pictures that are there several times (give a folder that has them once), such as" in said


def test_utkface_is_read_from_its_file_names(tmp_path, run):
    folder = tmp_path / "UTKFace"
    names = ("26_1_2_20170104023102422.jpg.chip.jpg", "101_0_4_20170105174847679.jpg", "3_0_0_20161219140642920.jpg")
    for seed, name in enumerate(names):
        saved(folder / "part1" / name, seed)
    saved(folder / "part1" / "61_1_20170109142408075.jpg")  # a file of the release that lacks a label
    code, said, left_out = run("utkface", tmp_path, "-o", tmp_path / "people.csv")
    assert code == 0
    assert said.startswith("3 pictures, one of each person")
    assert "not of UTKFace, by their names: 1 images, such as" in left_out
    rows = {row["path"].rpartition("/")[2]: row for row in read_rows(tmp_path / "people.csv")}
    assert {k: v for k, v in rows[names[0]].items() if k != "path"} == {
        "age": "26",
        "age_group": "20-29",
        "gender": "female",
        "race": "Asian",
    }
    assert rows[names[1]]["age_group"] == "more than 70"
    assert rows[names[1]]["race"] == "Others"
    people = Counterfactuals.load(
        tmp_path / "people.csv", context=["gender"], unpaired=True, ordered="age", exclude={"race": "Others"}
    )
    assert people.values("age") == ("26", "3")


def test_age_groups_are_those_of_fairface():
    ages = [0, 2, 3, 9, 10, 19, 20, 69, 70, 116]
    groups = ["0-2", "0-2", "3-9", "3-9", "10-19", "10-19", "20-29", "60-69", "more than 70", "more than 70"]
    assert [age_group(age) for age in ages] == groups


FACET_COUNTS = (
    *(f"gender_presentation_{label}" for label in ("masc", "fem", "non_binary", "na")),
    *(f"age_presentation_{label}" for label in ("young", "middle", "older", "na")),
    *(f"skin_tone_{label}" for label in (*range(1, 11), "na")),
    *(f"lighting_{label}" for label in ("underexposed", "dimly_lit", "well_lit", "overexposed", "na")),
)


def read_rows_of(table):
    with table.open(newline="") as lines:
        return list(csv.DictReader(lines))


def facet_row(person, name, box, **counts):
    """A row of its table, with no reviewer for any label but those given."""
    fixed = {"person_id": person, "filename": name, "class1": "guard", "class2": "", "bounding_box": json.dumps(box)}
    return fixed | dict.fromkeys(FACET_COUNTS, 0) | counts


@pytest.fixture
def facet(tmp_path):
    folder = tmp_path / "FACET"
    first = {"x": 0, "y": 0, "width": 10, "height": 12, "dict_attributes": {}}
    said = {"gender_presentation_fem": 1, "age_presentation_older": 1, "skin_tone_4": 2, "skin_tone_5": 1}
    rows = [
        facet_row(1, "sa_1.jpg", first, **said),
        facet_row(2, "sa_1.jpg", {"x": 10.4, "y": 2, "width": 90, "height": 8}, lighting_dimly_lit=3),
    ]
    written_table(folder / "annotations" / "annotations.csv", rows)
    picture = Image.new("RGB", (30, 12), "red")
    picture.paste("blue", (10, 0, 30, 12))
    (folder / "imgs_2").mkdir()
    picture.save(folder / "imgs_2" / "sa_1.jpg", quality=100)
    return folder


def test_facet_cuts_people_out_and_reads_what_most_reviewers_said(facet, tmp_path, run):
    code, said, _ = run("facet", facet, "--crops", tmp_path / "crops", "-o", tmp_path / "people.csv")
    assert code == 0
    assert said.startswith("2 pictures, one of each person, with occupation (1 values)")
    first, second = read_rows(tmp_path / "people.csv")
    assert {k: v for k, v in first.items() if k != "path"} == {
        "occupation": "guard",
        "gender": "fem",
        "age": "older",
        "skin_tone": "4.33",  # of two reviewers' 4 and one reviewer's 5
        "lighting": "na",
    }
    assert (second["gender"], second["skin_tone"], second["lighting"]) == ("na", "na", "dimly_lit")
    red, blue = (FilePicture(Path(row["path"])).image() for row in (first, second))
    assert (red.size, blue.size) == ((10, 12), (20, 8))  # the second box ends outside of the picture
    assert red.getpixel((3, 3))[0] > 200 > blue.getpixel((3, 3))[0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("sa_1.jpg", "sa_9.jpg"), "2 of pictures that are not there"),
        (('""x"": 0,', '""x"": 400,'), "the box of person '1' is not inside"),
        (('""x"": 0,', '""y"": 0,'), "1 cannot be read"),
        (('""x"": 0,', '""x"": NaN,'), "1 cannot be read"),
        (('""width"": 10,', '""width"": Infinity,'), "1 cannot be read"),
        (("\n2,", "\n1,"), "1 of people who are in the tables twice"),
        (("\n2,", "\n../2,"), "1 cannot be read"),
    ],
)
def test_tables_of_facet_that_cannot_be_used_are_refused(facet, tmp_path, run, change, problem):
    table = facet / "annotations" / "annotations.csv"
    table.write_text(table.read_text().replace("\r\n", "\n").replace(*change))
    code, _, said = run("facet", facet, "--crops", tmp_path / "crops", "-o", tmp_path / "people.csv")
    assert code == 2
    assert problem in said
    assert not (tmp_path / "people.csv").exists()


def test_boxes_and_pictures_are_checked_before_crops_are_written(facet, tmp_path, run):
    table = facet / "annotations" / "annotations.csv"
    correct = table.read_text()
    table.write_text(correct.replace('""x"": 10.4', '""x"": 1000'))
    words = ("facet", facet, "--crops", tmp_path / "crops", "-o", tmp_path / "people.csv")
    code, _, said = run(*words)
    assert code == 2
    assert "the box of person '2' is not inside" in said
    table.write_text(correct)
    picture = facet / "imgs_2" / "sa_1.jpg"
    whole = picture.read_bytes()
    picture.write_bytes(whole[: len(whole) // 2])
    code, _, said = run(*words)
    assert code == 2
    assert not list((tmp_path / "crops").glob("*"))
    picture.write_bytes(whole)
    code, out, _ = run(*words)
    assert code == 0
    assert out.startswith("2 pictures")


def test_reviewers_who_could_not_say_count(facet, tmp_path, run):
    table = facet / "annotations" / "annotations.csv"
    rows = read_rows_of(table)
    rows[0] |= {"gender_presentation_na": 2, "age_presentation_na": 1}
    written_table(table, rows)
    assert run("facet", facet, "--crops", tmp_path / "crops", "-o", tmp_path / "people.csv")[0] == 0
    first, _ = read_rows(tmp_path / "people.csv")
    assert (first["gender"], first["age"]) == ("na", "na")  # of one and two, and of one and one


def test_crops_go_into_a_new_folder(facet, tmp_path, run):
    (tmp_path / "crops").mkdir()
    (tmp_path / "crops" / "mine.txt").write_text("mine")
    code, _, said = run("facet", facet, "--crops", tmp_path / "crops", "-o", tmp_path / "people.csv")
    assert code == 2
    assert "give a new folder, or --force" in said


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
