"""A set is what its images and labels are, wherever they lie; validation names every flaw of it."""

import json
import shutil
import tempfile
from io import BytesIO
from itertools import combinations, pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ggss.data.counterfactuals import Counterfactuals
from ggss.data.manifests import read_rows, write_manifest
from ggss.data.pictures import FilePicture, held_fixed
from ggss.errors import InputError

OCCUPATIONS, IDENTITIES = ("cook", "nurse"), ("01", "02")
RACES, GENDERS = ("jade", "opal", "ruby"), ("man", "woman")
PATTERN = "{occupation}/{identity}/{race}_{gender}.png"


def painted(seed, size=(6, 6), form="PNG", **options):
    """The bytes of a small picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file := BytesIO(), form, **options)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path):
    """A clean set of 24 images in `faces`, with a manifest beside them."""
    rows = []
    for seed, labels in enumerate(product(OCCUPATIONS, IDENTITIES, RACES, GENDERS)):
        row = dict(zip(("occupation", "identity", "race", "gender"), labels, strict=True))
        path = tmp_path / "faces" / PATTERN.format(**row)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(painted(seed))
        rows.append({"path": path.relative_to(tmp_path).as_posix(), **row})
    write_manifest(rows, tmp_path / "manifest.csv")
    return tmp_path


def face(folder, occupation="nurse", identity="02", race="jade", gender="man"):
    return folder / "faces" / occupation / identity / f"{race}_{gender}.png"


def loaded(folder, **options):
    return Counterfactuals.load(folder / "faces" / PATTERN, **options)


def relabelled(folder, change):
    """The set after `change(rows)`, where rows are those of the manifest."""
    rows = read_rows(folder / "manifest.csv")
    write_manifest(change(rows) or rows, folder / "changed.csv")
    return Counterfactuals.load(folder / "changed.csv")


def refused(call, *arguments, **options):
    """The message of the InputError that the call must raise."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    return str(caught.value)


def problems_of(images, attributes=None):
    """The lines that validation lists."""
    head, *lines = refused(images.validate, attributes).splitlines()
    assert head.startswith(f"set of {len(images)} counterfactual images: ")
    return [line.removeprefix("  - ") for line in lines]


@pytest.mark.parametrize("attributes", [None, "race", ("gender", "race")])
def test_a_clean_set_validates(folder, attributes):
    loaded(folder).validate(attributes)


def test_pattern_csv_and_jsonl_give_equal_sets(folder):
    rows = read_rows(folder / "manifest.csv")
    (folder / "manifest.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    from_pattern = loaded(folder)
    for name in ("manifest.csv", "manifest.jsonl"):
        images = Counterfactuals.load(folder / name)
        assert images == from_pattern
        assert images.content_hash == from_pattern.content_hash


def test_values_groups_and_iteration(folder):
    images = loaded(folder)
    assert len(images) == len(list(images)) == 24
    assert images.attributes == {"race": RACES, "gender": GENDERS}
    assert images.values("gender") == GENDERS
    groups = images.groups("race")
    assert list(groups)[:2] == [
        (("occupation", "cook"), ("identity", "01"), ("gender", "man")),
        (("occupation", "cook"), ("identity", "01"), ("gender", "woman")),
    ]
    assert list(groups) == sorted(groups)
    for u, group in groups.items():
        assert tuple(group) == RACES
        for race, index in group.items():
            assert images.pictures[index].attributes["race"] == race
            assert held_fixed(images.pictures[index], "race") == u
    assert "no attribute 'age': there are race, gender" in refused(images.groups, "age")


def test_one_attribute_leaves_the_other_in_the_context(folder):
    images = loaded(folder, attributes="race")
    assert images.attributes == {"race": RACES}
    assert {frozenset(u) for u in images.groups("race")} == {frozenset(u) for u in loaded(folder).groups("race")}
    images.validate()


def test_an_image_is_rgb_and_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.new("L", (4, 2)).save(tmp_path / "grey.png", exif=exif)
    image = FilePicture(tmp_path / "grey.png", {}, ()).image()
    assert (image.mode, image.size) == ("RGB", (2, 4))


def test_a_set_needs_images_with_the_same_columns():
    one, other = FilePicture(Path("a"), {"race": "jade"}, ()), FilePicture(Path("b"), {"gender": "man"}, ())
    assert "at least one image" in refused(Counterfactuals, ())
    assert "the same columns" in refused(Counterfactuals, (one, other))


def test_the_hash_forgets_the_place_and_the_order(folder, tmp_path_factory):
    images = Counterfactuals.load(folder / "manifest.csv")
    moved = tmp_path_factory.mktemp("elsewhere") / "set"
    shutil.copytree(folder, moved)
    rows = [row | {"path": str(Path(row["path"]).relative_to(folder))} for row in read_rows(folder / "manifest.csv")]
    shuffled = [dict(reversed(rows[place].items())) for place in np.random.default_rng(0).permutation(len(rows))]
    write_manifest(shuffled, moved / "manifest.csv")
    assert Counterfactuals.load(moved / "manifest.csv").content_hash == images.content_hash
    assert loaded(folder, attributes=("gender", "race")).content_hash == images.content_hash


def test_the_hash_sees_one_byte_and_one_label(folder):
    clean = loaded(folder).content_hash

    def mislabel(rows):
        rows[3]["race"] = "onyx"

    def move(rows):
        rows[3]["identity"] = "09"

    assert len({clean, relabelled(folder, mislabel).content_hash, relabelled(folder, move).content_hash}) == 3
    data = bytearray(face(folder).read_bytes())
    data[-20] ^= 1
    face(folder).write_bytes(data)
    assert loaded(folder).content_hash != clean


def test_the_hash_tells_attributes_from_context(folder):
    assert loaded(folder, attributes="race").content_hash != loaded(folder).content_hash


def test_the_hash_is_computed_once(folder):
    images = loaded(folder)
    clean = images.content_hash
    shutil.rmtree(folder / "faces")
    assert images.content_hash is clean


def test_exclude_include_and_without(folder):
    cooks = loaded(folder, exclude={"occupation": ["nurse"]})
    assert {variant.context[0] for variant in cooks} == {("occupation", "cook")}
    assert cooks == loaded(folder).chosen(exclude={"occupation": "nurse"})
    assert cooks == loaded(folder, include={"occupation": "cook"})
    assert len(loaded(folder, exclude={"occupation": ["nurse"], "identity": ["01"]})) == 6
    assert len(loaded(folder, include={"occupation": ["nurse"], "identity": ["01"]})) == 6
    assert loaded(folder, exclude={"race": ["ruby"]}).values("race") == ("jade", "opal")


def test_exclude_can_use_a_column_outside_the_context(folder):
    images = loaded(folder, attributes=("race", "gender"), context="identity", exclude={"occupation": ["nurse"]})
    assert {variant.context for variant in images} == {(("identity", "01"),), (("identity", "02"),)}
    images.validate()


@pytest.mark.parametrize("option", ["exclude", "include"])
def test_a_choice_of_what_does_not_exist_is_refused(folder, option):
    assert refused(loaded, folder, **{option: {"job": ["nurse"]}}) == (
        "no column 'job' to choose by: there are occupation, identity, race, gender"
    )
    assert refused(loaded, folder, **{option: {"occupation": ["nurse", "pilot"]}}) == (
        "no image has occupation=pilot: there are cook, nurse"
    )


def test_a_choice_that_leaves_nothing_is_refused(folder):
    everyone = {"occupation": OCCUPATIONS}
    assert "is left" in refused(loaded, folder, exclude=everyone)
    assert "is left" in refused(loaded(folder).chosen, None, everyone)
    assert "no image has occupation=pilot" in refused(loaded(folder).chosen, {"occupation": "pilot"})


def test_unknown_and_conflicting_columns_are_refused(folder):
    message = "has no column 'age': there are occupation, identity, race, gender"
    assert message in refused(loaded, folder, attributes=("race", "age"))
    assert message in refused(loaded, folder, context=("age",))
    assert "none of the context" in refused(loaded, folder, attributes="race", context=("identity", "race"))
    assert "at least one" in refused(loaded, folder, attributes=())


def test_a_missing_value_is_named(folder):
    face(folder).unlink()
    images = loaded(folder)
    line = "context occupation=nurse identity=02 gender=man has 2 of 3 values of 'race': missing jade"
    assert problems_of(images, "race") == [line]
    other = "context occupation=nurse identity=02 race=jade has 1 of 2 values of 'gender': missing man"
    assert problems_of(images) == [line, other]


def test_different_sizes_in_one_context_are_named(folder):
    face(folder).write_bytes(painted(99, size=(6, 4)))
    assert problems_of(loaded(folder), "race") == [
        "context occupation=nurse identity=02 has images of different sizes: "
        f"6x4 (1, such as '{face(folder)}'), 6x6 (5, such as '{face(folder, gender='woman')}')"
    ]


def test_contexts_may_differ_in_size(folder):
    for seed, (race, gender) in enumerate(product(RACES, GENDERS)):
        face(folder, race=race, gender=gender).write_bytes(painted(seed, size=(6, 4)))
    loaded(folder).validate()


@pytest.mark.parametrize("form", [("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("WEBP", {})])
def test_a_file_cut_short_anywhere_is_never_misread(tmp_path, form):
    data = painted(0, (16, 16), form[0], **form[1])
    variant = FilePicture(tmp_path / "cut", {}, ())
    variant.path.write_bytes(data)
    whole = variant.image().tobytes()
    refusals = 0
    for kept in range(0, len(data), 3):
        variant.path.write_bytes(data[:kept])
        try:
            assert variant.image().tobytes() == whole
        except InputError:
            refusals += 1
    assert refusals >= len(data) // 3 - 1


def test_every_unreadable_file_is_named(folder):
    cut, text, gone = (face(folder, identity="01", race=race) for race in RACES)
    flipped = face(folder, identity="02")
    cut.write_bytes(cut.read_bytes()[:-30])
    text.write_text("not an image")
    gone.unlink()
    data = bytearray(flipped.read_bytes())
    data[60] ^= 1
    flipped.write_bytes(data)
    found = problems_of(Counterfactuals.load(folder / "manifest.csv"), "race")
    assert len(found) == 4
    assert found[0].startswith(f"image '{cut}' does not decode (")
    assert found[1].startswith(f"image '{text}' has no known image format (PNG, ")
    assert found[2] == f"image '{gone}' does not exist: correct its path"
    assert found[3].startswith(f"image '{flipped}' does not decode (")


def test_a_folder_in_place_of_an_image_is_named(folder):
    images = relabelled(folder, lambda rows: rows[0].update(path=str(folder)))
    assert problems_of(images)[0].startswith(f"image '{folder}' is a folder: ")


def test_duplicate_rows_are_named(folder):
    copy = face(folder).with_name("copy.png")
    copy.write_bytes(painted(99))
    images = relabelled(folder, lambda rows: [*rows, rows[18] | {"path": str(copy)}])
    assert problems_of(images) == [
        f"occupation=nurse identity=02 race=jade gender=man has 2 images, '{copy}', '{face(folder)}': keep one"
    ]


def test_the_same_image_under_two_labels_is_named(folder):
    shutil.copy(face(folder), face(folder, race="ruby"))
    assert problems_of(loaded(folder), "gender") == [
        f"the same image is labelled race=jade gender=man ('{face(folder)}') "
        f"and race=ruby gender=man ('{face(folder, race='ruby')}')"
    ]


def test_the_same_image_in_two_contexts_is_fine(folder):
    shutil.copy(face(folder, identity="01"), face(folder, identity="02"))
    loaded(folder).validate()


def test_empty_cells_are_named_and_are_no_value(folder):
    def blank(rows):
        rows[0]["race"] = rows[23]["identity"] = " "

    found = problems_of(relabelled(folder, blank), "race")
    first, last = face(folder, "cook", "01"), face(folder, race="ruby", gender="woman")
    assert sorted(found) == [
        "context occupation=cook identity=01 gender=man has 2 of 3 values of 'race': missing jade",
        "context occupation=nurse identity=02 gender=woman has 2 of 3 values of 'race': missing ruby",
        f"image '{first}' has an empty 'race': fill it in",
        f"image '{last}' has an empty 'identity': fill it in",
    ]


def test_fewer_than_two_values_are_named(folder):
    images = loaded(folder, include={"race": "opal"})
    assert problems_of(images) == ["attribute 'race' has fewer than two values: opal"]
    images.validate("gender")

    unlabelled = relabelled(folder, lambda rows: [row | {"race": ""} for row in rows[:2]])
    assert "attribute 'race' has fewer than two values: none" in problems_of(unlabelled)


def test_fewer_than_two_contexts_are_named(folder):
    images = loaded(folder, include={"occupation": "cook", "identity": "01", "gender": "man"})
    context = "occupation=cook identity=01 gender=man"
    assert problems_of(images, "race") == [f"attribute 'race' has fewer than two contexts: {context}"]


def test_an_unknown_attribute_is_named_beside_the_rest(folder):
    face(folder).write_bytes(b"")
    found = problems_of(loaded(folder), ("age", "race"))
    assert found[0] == "no attribute 'age': there are race, gender"
    assert found[1].startswith(f"image '{face(folder)}'")


def test_a_column_that_changes_with_the_attribute_is_one_problem(folder):
    def number(rows):
        return [row | {"seed": place} for place, row in enumerate(rows)]

    assert problems_of(relabelled(folder, number), "race") == [
        "no context has two values of 'race': a column among occupation, identity, gender, seed changes with it; "
        "name the columns that count, attributes and context"
    ]
    columns = {"attributes": ("race", "gender"), "context": ("occupation", "identity")}
    Counterfactuals.load(folder / "changed.csv", **columns).validate()


def test_twenty_problems_are_shown_and_the_rest_counted(folder):
    shutil.rmtree(folder / "faces")
    found = problems_of(Counterfactuals.load(folder / "manifest.csv"))
    assert len(found) == 21
    assert found[-1].strip() == "... and 4 more"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("m.csv", b"", "has no rows: add one for each image"),
        ("m.csv", b"path,race\n\n", "has no rows"),
        ("m.jsonl", b"\n", "has no rows"),
        ("m.txt", b"path,race\na,b\n", "is neither .csv nor .jsonl: save it as one of the two"),
        ("m.csv", b"\x89PNG\xff\xfe", "is not UTF-8 (invalid start byte): save it as UTF-8"),
        ("m.csv", b"file,race\na,b\n", "has no column 'path': its columns are file, race; name the column"),
        ("m.csv", b"path;race\na;b\n", "has no column 'path': its columns are path;race; name the column"),
        ("m.csv", b"path,race\na,b\nc\n", "  - line 3 has 1 cells for 2 columns"),
        ("m.csv", b"path,race\na,b,c\n", "  - line 2 has 3 cells for 2 columns"),
        (
            "m.csv",
            b",path,race\n0,a,b\n",
            "line 1 must name each column, and each name once: it reads ',path,race'",
        ),
        ("m.csv", b"path,race,race\na,b,c\n", "line 1 must name each column, and each name once"),
        ("m.csv", b'path,race\na,"b\n', "  - line 2 is not CSV: unexpected end of data"),
        ("m.csv", b"path,race\n,b\n", "  - line 2 has no path"),
        ("m.jsonl", b'{"path": "a"}\n\n{"path": "b"\n', '  - line 3 is not JSON: \'{"path": "b"\''),
        ("m.jsonl", b'{"path": "a"}\n["b"]\n', "  - line 2 is not an object of plain values: '[\"b\"]'"),
        ("m.jsonl", b'{"path": {"a": 1}}\n', "  - line 1 is not an object of plain values"),
        ("m.jsonl", b'{"path": "a"}\n{"race": "b"}\n', "  - line 2 has no path"),
        ("m.jsonl", b'{"file": "a"}\n', "has no column 'path': its columns are file"),
        ("m.jsonl", b'{"path": "a", "race": "b", "race": "c"}\n', "  - line 1 names a column twice"),
        ("m.jsonl", b'{"path": "a", "race": "b", " race": "c"}\n', "  - line 1 names a column twice"),
    ],
)
def test_a_bad_manifest_is_refused(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    seen = refused(Counterfactuals.load, tmp_path / name, "race")
    assert seen.startswith(f"manifest '{tmp_path / name}'")
    assert message in seen


def test_all_bad_lines_are_listed_at_once(tmp_path):
    (tmp_path / "m.jsonl").write_text("{\n" * 25)
    seen = refused(read_rows, tmp_path / "m.jsonl")
    assert "25 problems" in seen
    assert "... and 5 more" in seen


@pytest.mark.parametrize("source", ["absent.csv", "faces", "faces/*.png"])
def test_a_source_that_is_neither_file_nor_pattern_is_refused(folder, source):
    assert "is not a file, and has no placeholders" in refused(Counterfactuals.load, folder / source)


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_byte_order_mark_line_ends_and_spaces_do_not_matter(tmp_path, mark, ends):
    expected = [{"path": str(tmp_path / "a b.png"), "race": "jade"}, {"path": "/c.png", "race": "ópal"}]
    comma, lines = tmp_path / "m.csv", tmp_path / "m.jsonl"
    comma.write_bytes((mark + ends.join(["path, race", "a b.png, jade ", "", "/c.png,ópal", ""])).encode())
    cells = [{"path": "a b.png", "race": "jade "}, {"path": "/c.png", "race": "ópal"}]
    lines.write_bytes((mark + ends.join([json.dumps(cell, ensure_ascii=False) for cell in cells])).encode())
    assert read_rows(comma) == read_rows(lines) == expected


def test_json_cells_become_text(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"path": "a", "n": 3, "x": 0.5, "y": true, "z": null}\n{"path": "b"}')
    first, second = read_rows(tmp_path / "m.jsonl")
    assert first == {"path": str(tmp_path / "a"), "n": "3", "x": "0.5", "y": "true", "z": ""}
    assert second == {"path": str(tmp_path / "b"), "n": "", "x": "", "y": "", "z": ""}


def test_a_manifest_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "m.csv"
    rows = [{"path": "a,b.png", "note": 'with "quotes"\nand lines'}, {"path": "c.png", "note": "ä"}]
    write_manifest(rows, target)
    assert read_rows(target) == [row | {"path": str(tmp_path / row["path"])} for row in rows]

    class Unprintable:
        def __str__(self):
            raise RuntimeError

    before = target.read_bytes()
    with pytest.raises(RuntimeError):
        write_manifest([{"path": "a"}, {"path": Unprintable()}], target)
    for bad in ([], [{"race": "jade"}], [{"path": "a"}, {"path": "b", "race": "jade"}]):
        assert "the same columns, 'path' among them" in refused(write_manifest, bad, target)
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


def touched(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def matched(folder, pattern):
    return [{key: cell for key, cell in row.items() if key != "path"} for row in read_rows(folder / pattern)]


def test_a_placeholder_stays_in_its_component(tmp_path):
    touched(tmp_path, "opal_man.png", "deep/jade_man.png", ".opal_man.png", "_man.png", "jade_man.jpg")
    assert matched(tmp_path, "{race}_{gender}.png") == [{"race": "opal", "gender": "man"}]
    assert matched(tmp_path, "{folder}/{race}_man.png") == [{"folder": "deep", "race": "jade"}]


def test_a_name_that_can_be_read_in_two_ways_is_refused_with_both(tmp_path):
    touched(tmp_path, "f/jade_man.png", "f/mixed_race_man.png", "f/mixed_race_woman.png")
    said = refused(read_rows, tmp_path / "f" / "{race}_{gender}.png")
    assert (
        "fits 'mixed_race_man.png' in two ways, race=mixed gender=race_man or race=mixed_race gender=man "
        "(2 of 3 names can be read in two ways): rename the files"
    ) in said
    assert said.count("\n") == 0
    assert matched(tmp_path, "f/mixed_race_{gender}.png") == [{"gender": "man"}, {"gender": "woman"}]
    touched(tmp_path, "g/a_b_c/x_y.png")
    assert "fits 'x_y.png' in two ways, a=a b=b_c c=x d=y or a=a_b b=c c=x d=y: rename" in refused(
        read_rows, tmp_path / "g" / "{a}_{b}" / "{c}_{d}.png"
    )
    touched(tmp_path, "h/ab", "i/abc")
    assert matched(tmp_path, "h/{x}{y}") == [{"x": "a", "y": "b"}]
    assert "x=a y=bc or x=ab y=c" in refused(read_rows, tmp_path / "i" / "{x}{y}")


@settings(max_examples=200, deadline=None)
@given(st.text("ab_", min_size=1, max_size=9), st.integers(2, 3))
def test_a_name_is_refused_if_and_only_if_there_are_two_readings(name, count):
    """Against all ways to split the name, one by one."""
    names = [f"p{place}" for place in range(count)]
    ways = {
        tuple("_".join(words) for words in (parts[i:j] for i, j in pairwise((0, *cuts, len(parts)))))
        for parts in [name.split("_")]
        for cuts in combinations(range(1, len(parts)), count - 1)
    }
    ways = {way for way in ways if all(way)}
    with tempfile.TemporaryDirectory() as folder:
        touched(Path(folder), name)
        pattern = Path(folder) / "_".join(f"{{{own}}}" for own in names)
        if len(ways) == 1:
            assert matched(Path(folder), pattern.name) == [dict(zip(names, *ways, strict=True))]
        else:
            assert ("in two ways" if ways else "matches nothing") in refused(read_rows, pattern)


def test_a_repeated_placeholder_reads_the_same_text(tmp_path):
    touched(tmp_path, "01/01_jade.png", "01/02_jade.png", "02/02_opal.png")
    assert matched(tmp_path, "{identity}/{identity}_{race}.png") == [
        {"identity": "01", "race": "jade"},
        {"identity": "02", "race": "opal"},
    ]


def test_a_repeated_placeholder_is_found_where_it_fits(tmp_path):
    touched(tmp_path, "mixed_race_man/mixed_race.png", "jade_man/jade.png")
    assert matched(tmp_path, "{race}_{gender}/{race}.png") == [
        {"race": "jade", "gender": "man"},
        {"race": "mixed_race", "gender": "man"},
    ]


def test_a_pattern_with_many_ways_to_read_a_name_takes_no_time(tmp_path):
    """Trying every way, as a plain regular expression does, takes longer than anybody waits."""
    touched(tmp_path, "a" * 200, "a" * 199 + "b")
    many = "".join(f"{{n{i}}}a" for i in range(12))
    assert "matches nothing" in refused(read_rows, tmp_path / f"{many}c")
    assert "in two ways, n0=a n1=a" in refused(read_rows, tmp_path / f"{many}{{last}}b")
    touched(tmp_path, "aba")
    assert len(matched(tmp_path, "{x}{y}{x}")) == 2
    assert "too many ways to read a name" in refused(read_rows, tmp_path / "{x}a{y}a{z}a{x}c")


def test_names_that_are_not_utf8(tmp_path):
    try:
        touched(tmp_path, "\udcff/1/jade.png")
    except (OSError, UnicodeEncodeError):
        pytest.skip("this file system has no such names")
    assert matched(tmp_path, "\udcff/{identity}/{race}.png") == [{"identity": "1", "race": "jade"}]
    said = refused(read_rows, tmp_path / "{folder}/{identity}/{race}.png")
    assert "'folder' of" in said
    assert "is not Unicode text: '\\udcff'" in said
    (tmp_path / "m.jsonl").write_text('{"path": "\\udcff/1/jade.png", "race": "jade"}')
    assert Path(read_rows(tmp_path / "m.jsonl")[0]["path"]).is_file()
    (tmp_path / "m.jsonl").write_text('{"path": "a.png", "race": "\\ud800"}')
    assert "'race' of" in refused(read_rows, tmp_path / "m.jsonl")
    assert "is not Unicode text" in refused(write_manifest, [{"path": "\udcff.png"}], tmp_path / "m.csv")
    assert not (tmp_path / "m.csv").exists()


def test_the_rest_of_a_pattern_is_literal(tmp_path):
    touched(tmp_path, "a[1]*/jade+.png", "a1x/opal+.png", "a[1]*/ruby.png", "a[1]*/ruby+xpng")
    assert matched(tmp_path, "a[1]*/{race}+.png") == [{"race": "jade"}]


def test_a_relative_pattern_and_doubled_slashes(folder, monkeypatch):
    monkeypatch.chdir(folder)
    images = Counterfactuals.load(f".//faces//{PATTERN}")
    assert images.content_hash == loaded(folder).content_hash


def test_folders_are_not_images(tmp_path):
    (tmp_path / "jade.png").mkdir()
    assert "matches nothing" in refused(read_rows, tmp_path / "{race}.png")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("faces/{race}.gif", "matches nothing: the folder '{root}/faces' has no such file"),
        ("absent/{race}.png", "matches nothing: the folder '{root}/absent' does not exist"),
        ("faces/{}.png", "has a placeholder that is not a name: write {race}"),
        ("faces/{race.png", "has a placeholder that is not a name"),
        ("faces/{1st}.png", "has a placeholder that is not a name"),
        ("faces/{path}.png", "has a placeholder 'path', the file itself: rename it"),
    ],
)
def test_a_bad_pattern_is_refused(folder, pattern, message):
    seen = refused(Counterfactuals.load, folder / pattern)
    assert seen.startswith(f"folder pattern '{folder / pattern}'")
    assert message.replace("{root}", str(folder)) in seen


@pytest.mark.parametrize("character", ["\x00", "\ud800"])
def test_a_pattern_with_a_character_that_no_file_name_has_is_refused(character):
    assert "has a character that no file name has" in refused(Counterfactuals.load, character + "/{race}.png")


# Unpaired pictures, and attributes that are numbers.


@pytest.fixture
def people(tmp_path):
    """One picture of each of 24 people, of different sizes, and their labels."""
    rows = []
    for number in range(24):
        (tmp_path / f"{number}.png").write_bytes(painted(number, size=(6 + number % 3, 6)))
        labels = {"race": RACES[number % 3], "gender": GENDERS[number // 3 % 2], "age": 20 + number}
        rows.append({"path": f"{number}.png", **labels, "age_group": "20-31" if number < 12 else "32-43"})
    write_manifest(rows, tmp_path / "people.csv")
    return tmp_path / "people.csv"


def test_unpaired_pictures_are_matched_by_the_context(people):
    matched = Counterfactuals.load(people, context=["gender", "age_group"], unpaired=True)
    matched.validate("race")
    assert list(dict(matched.pictures[0].context)) == ["gender", "age_group"]
    assert list(matched.attributes) == ["race", "age"]
    assert matched.chosen(include={"gender": "man"}).unpaired
    assert matched.shrunk(4).unpaired
    assert "4 unpaired" in matched.chosen(include={"age": ["20", "21", "22", "23"]})._repr_html_()
    by_all = Counterfactuals.load(people, attributes="race", unpaired=True)
    (line,) = unpaired_problems(by_all, "race")  # every picture has an age of its own
    assert line.startswith("no two pictures of different 'race' agree in all that they are matched by")


def unpaired_problems(images, attributes):
    head, *lines = refused(images.validate, attributes).splitlines()
    assert head.startswith(f"set of {len(images)} unpaired images: ")
    return [line.removeprefix("  - ") for line in lines]


def test_flaws_of_unpaired_pictures_are_listed(people):
    people.write_text(people.read_text().replace("0.png,jade,man,20", "0.png,,man,20").replace("5.png", "1.png"))
    images = Counterfactuals.load(people, context=["gender"], unpaired=True)
    text = "\n".join(unpaired_problems(images, "race"))
    assert "has an empty 'race'" in text
    assert "the same image is labelled" in text
    assert "different sizes" not in text
    rows = read_rows(people)
    write_manifest([row for row in rows if row["race"] != "ruby" or row["gender"] == "man"], people)
    write_manifest([row for row in read_rows(people) if row["gender"] == "woman" or row["race"] == "ruby"], people)
    images = Counterfactuals.load(people, context=["gender"], unpaired=True)
    assert "no stratum links ruby of 'race'" in "\n".join(unpaired_problems(images, "race"))


def test_an_unpaired_picture_counts_once(people):
    (people.parent / "copy.png").write_bytes((people.parent / "3.png").read_bytes())
    rows = read_rows(people)
    write_manifest([*rows, rows[3] | {"path": str(people.parent / "copy.png")}, rows[7]], people)
    images = Counterfactuals.load(people, context=["gender"], unpaired=True)
    lines = [line.replace(f"{people.parent}/", "") for line in unpaired_problems(images, "race")]
    assert sorted(lines) == [
        "'3.png' and 'copy.png' are the same image: keep one",
        "'7.png' and '7.png' are the same image: keep one",
    ]


def test_a_complete_set_by_its_name_is_not_unpaired():
    assert "is a complete counterfactual set" in refused(Counterfactuals.load, "small-world", unpaired=True)


def test_how_pictures_are_compared_is_part_of_the_hash(people):
    kinds = [
        Counterfactuals.load(people, context=context, unpaired=unpaired, ordered=ordered).content_hash
        for context, unpaired, ordered in (
            (["gender"], False, ()),
            (["gender"], True, ()),
            (["gender"], True, "age"),
            (["gender", "age_group"], True, "age"),
        )
    ]
    assert len(set(kinds)) == 4


def test_many_numbers_are_asked_about(people):
    images = Counterfactuals.load(people, context=["gender"], unpaired=True)
    (line,) = unpaired_problems(images, "age")
    assert line.startswith("attribute 'age' has 24 values, all numbers: say that it is ordered (--ordered age")
    Counterfactuals.load(people, context=["gender"], unpaired=True, ordered="age").validate("age")


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ("race", "'race' is to be ordered, and 3 of its values are no numbers"),
        ("aje", "did you mean 'age'?"),
    ],
)
def test_only_numbers_are_ordered(people, column, problem):
    assert problem in refused(Counterfactuals.load, people, context=["gender"], unpaired=True, ordered=column)
