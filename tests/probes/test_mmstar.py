"""MMStar from a local file: the layouts, VLMEvalKit's prompt, the six dimensions, and what is refused."""

import base64
import csv
import sys
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from ggss.errors import InputError
from ggss.probes import get, suites
from ggss.probes.base import task_label
from ggss.probes.benchmarks import DIMENSIONS, load_mmstar, split_options

SUITCASE = "Which option describe the object relationship in the image correctly?"
PLACES = {
    "A": "It is on the book.",
    "B": "It is beneath the cat.",
    "C": "It is beneath the bed.",
    "D": "It is red, B.",
}


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def row(index: int, **changes: object) -> dict[str, object]:
    fields = {
        "index": index,
        "question": SUITCASE,
        **PLACES,
        "answer": "ABCD"[index % 4],
        "category": DIMENSIONS[index % 6],
        "l2_category": "recognition",
        "image": base64.b64encode(png(index)).decode(),
    }
    return fields | changes


def write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def scored(items, said):
    """The probe's metrics of raw answers."""
    probe = get("mmstar")
    return probe.metrics(probe.answers(items, said), None)


@pytest.fixture
def tsv(tmp_path):
    return write(tmp_path / "MMStar.tsv", [row(i) for i in range(12)])


def test_vlmevalkits_table_becomes_items_with_its_prompt(tsv):
    items = load_mmstar(tsv)
    assert [item.key for item in items] == [str(i) for i in range(12)]
    assert items[5].prompt == (
        f"Question: {SUITCASE}\nOptions:\nA. It is on the book.\nB. It is beneath the cat.\n"
        "C. It is beneath the bed.\nD. It is red, B.\nPlease select the correct answer from the options above. \n"
    )
    assert (items[5].expected, items[5].question, items[5].options) == ("B", DIMENSIONS[5], PLACES)
    assert (items[5].attributes, items[5].about) == (({},), "")
    assert items[5].context == {"category": DIMENSIONS[5], "l2_category": "recognition"}
    get("mmstar").check(items)


def test_pictures_decode_when_asked_and_are_equal_when_their_bytes_are(tsv):
    one, two = load_mmstar(tsv), load_mmstar(tsv)
    assert [item.images for item in one] == [item.images for item in two]
    assert len({item.images for item in one}) == 12
    (source,) = one[3].images
    shown = source.image()
    assert shown.mode == "RGB"
    np.testing.assert_array_equal(shown, Image.open(BytesIO(png(3))))
    assert hash(source) == hash(two[3].images[0]) != hash(one[4].images[0])


def test_a_short_picture_cell_names_the_row_that_has_the_picture(tmp_path):
    items = load_mmstar(write(tmp_path / "MMStar.tsv", [row(0), row(1, image="0")]))
    assert items[1].images == items[0].images
    assert items[1].cluster == items[0].cluster


@pytest.mark.parametrize(
    ("text", "question", "options"),
    [
        (
            f"{SUITCASE}\nOptions: A: It is on the book., B: It is beneath the cat., C: beneath, D: It is red.",
            SUITCASE,
            ["It is on the book.", "It is beneath the cat.", "beneath", "It is red."],
        ),
        ("Find m.\nChoices:\n(A) 28°\n(B)56°\n(C) 90°\n(D) 124°", "Find m.", ["28°", "56°", "90°", "124°"]),
        ("Question: Is A: right?\n(A) yes\n(B) no", "Question: Is A: right?", ["yes", "no"]),
        ("Which?\nOptions: A: 1, 2, B: 3, 4, C: nan, D: nan", "Which?", ["1, 2", "3, 4"]),
        ("Which options: the left or the right?", "Which options: the left or the right?", []),
        ("Is vitamin A. good?", "Is vitamin A. good?", []),
    ],
)
def test_options_inside_a_question(text, question, options):
    found, lettered = split_options(text)
    assert found == question
    assert list(lettered.values()) == options
    assert "".join(lettered) == "ABCD"[: len(options)]


def test_options_inside_the_question_ask_the_same_as_options_in_columns(tsv, tmp_path):
    inside = f"{SUITCASE}\nOptions: " + ", ".join(f"{letter}: {text}" for letter, text in PLACES.items())
    bare = [{k: v for k, v in row(i, question=inside).items() if k not in PLACES} for i in range(12)]
    assert load_mmstar(write(tmp_path / "inside.tsv", bare)) == load_mmstar(tsv)


def test_a_question_without_readable_options_is_answered_by_letter(tmp_path):
    bare = {k: v for k, v in row(2, question="Which of the four drawings?").items() if k not in PLACES}
    (item,) = load_mmstar(write(tmp_path / "MMStar.tsv", [bare]))
    assert item.prompt == "Question: Which of the four drawings?\n"
    assert get("mmstar").parse("The answer is C.", item) == "C"
    assert get("mmstar").parse("the third", item) is None


def test_a_suffix_is_added_to_each_question_and_makes_another_suite(tsv):
    plain, asked = (suites.benchmark("mmstar", tsv, suffix) for suffix in ("", "\nThe letter alone."))
    for one, other in zip(plain.items("mmstar"), asked.items("mmstar"), strict=True):
        assert other.prompt == one.prompt + "\nThe letter alone."
        assert replace(other, prompt=one.prompt) == one
    assert plain.hash("mmstar") != asked.hash("mmstar")


def test_accuracy_and_dimensions_against_a_plain_count(tsv):
    items = load_mmstar(tsv)
    said = ["D", "It is beneath the cat.", "D", "I do not know"] + ["A", "B", "D", "I do not know"] * 2
    found = scored(items, said)
    hits = [False, True, False, False] + [True, True, False, False] * 2  # A, B, C, D are expected in turn
    assert next(iter(found)) == "accuracy"
    assert float(found["accuracy"]) == pytest.approx(sum(hits) / 12)
    assert set(found) == {"accuracy", *DIMENSIONS}
    for dimension in DIMENSIONS:
        own = [hit for hit, item in zip(hits, items, strict=True) if item.question == dimension]
        assert float(found[dimension]) == pytest.approx(sum(own) / len(own))
        assert len(found[dimension]) == len(items)
    assert found["accuracy"].unparsed == 3
    assert sum(found[dimension].unparsed for dimension in DIMENSIONS) == 3
    assert len({float(found[dimension]) for dimension in DIMENSIONS}) > 1


def test_a_dimension_that_is_not_asked_is_not_reported(tsv):
    items = [item for item in load_mmstar(tsv) if item.question == "math"]
    assert list(scored(items, ["A"] * len(items))) == ["accuracy", "math"]


def test_bad_rows_are_all_listed(tmp_path):
    rows = [
        row(0, answer="E"),
        row(1, category="astrology"),
        row(2, image=""),
        row(3, image="x" * 101),
        row(4, image=base64.b64encode(b"no picture" * 9).decode()),
        row(5, image="77"),
        row(6, question=""),
        row(7),
        row(7),
    ]
    path = write(tmp_path / "MMStar.tsv", rows)
    with path.open("a") as file:
        file.write("8\tcut short\n")
    with pytest.raises(InputError) as caught:
        load_mmstar(path)
    for problem in (
        "9 problems",
        "line 2 has answer 'E', which is none of its options A, B, C, D",
        "line 3 has category 'astrology'",
        "line 4 has no picture",
        "line 5 has a picture that is not base64",
        "line 6 has a picture which has no known image format",
        "line 7 has the picture of row '77', which is not there",
        "line 8 has no question",
        "line 10 has index 7 a second time",
        "line 11 has 2 cells for 10 columns",
    ):
        assert problem in str(caught.value)


def test_a_picture_that_is_cut_short_is_refused(tmp_path):
    cut = base64.b64encode(png(0)[:-60]).decode()
    with pytest.raises(InputError, match="line 2 has a picture which does not decode"):
        load_mmstar(write(tmp_path / "MMStar.tsv", [row(0, image=cut)]))


@pytest.mark.parametrize(
    ("make", "seen"),
    [
        (lambda folder: folder, r"has none of MMStar\.tsv.*MMStar\.tsv.*GGSS_DATA"),
        (lambda folder: folder / "nowhere", "does not exist.*download https://"),
        (
            lambda folder: None,
            r"not part of ggss: run `ggss data mmstar --download`; or download https://.*MMStar\.tsv",
        ),
    ],
)
def test_a_missing_file_says_what_to_download_and_where_to_put_it(tmp_path, monkeypatch, make, seen):
    monkeypatch.delenv("GGSS_DATA", raising=False)
    with pytest.raises(InputError, match=seen) as caught:
        load_mmstar(make(tmp_path))
    assert "\n" not in str(caught.value)


def test_it_is_found_in_the_data_folder(tsv, monkeypatch):
    monkeypatch.setenv("GGSS_DATA", str(tsv.parent))
    assert load_mmstar() == load_mmstar(tsv) == load_mmstar(tsv.parent)


def test_files_of_another_kind_are_refused(tmp_path, monkeypatch):
    wrong = write(tmp_path / "MMStar.tsv", [{"index": 1, "question": "?", "answer": "A"}])
    with pytest.raises(InputError, match="has no column category, image: its columns are index, question, answer"):
        load_mmstar(wrong)
    (tmp_path / "MMStar.tsv").write_bytes(b"index\xff")
    with pytest.raises(InputError, match="not a table of tab-separated UTF-8"):
        load_mmstar(tmp_path / "MMStar.tsv")
    (tmp_path / "MMStar.csv").write_text("index")
    with pytest.raises(InputError, match=r"neither \.tsv nor \.parquet"):
        load_mmstar(tmp_path / "MMStar.csv")
    (tmp_path / "mmstar.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"needs pyarrow: pip install 'ggss\[parquet\]'"):
        load_mmstar(tmp_path / "mmstar.parquet")


def test_the_csv_module_is_left_as_it_was(tsv):
    before = csv.field_size_limit()
    load_mmstar(tsv)
    assert csv.field_size_limit() == before


def mmbench(index: int, **changes: object) -> dict[str, object]:
    """A row of another table: its categories are its own, some options are missing, and some rows have a hint."""
    fields = row(index, category="any topic", C="", D="", answer="AB"[index % 2], hint="It is dark." if index else "")
    del fields["l2_category"]
    return fields | {"l2-category": "finer", "split": "dev"} | changes


def test_other_tables_of_vlmevalkit_are_a_task_with_the_files_name(tmp_path, monkeypatch):
    write(tmp_path / "MMBench_DEV_EN.tsv", [mmbench(index) for index in range(4)])
    monkeypatch.setenv("GGSS_DATA", str(tmp_path))
    suite = suites.benchmark("choice-mmbench_dev_en")
    first, second, *_ = suite.items("choice-mmbench_dev_en")
    assert first.options == {letter: PLACES[letter] for letter in "AB"}
    assert first.prompt.startswith(f"Question: {SUITCASE}\nOptions:\nA. It is on the book.\nB. ")
    assert second.prompt.startswith(f"Hint: It is dark.\nQuestion: {SUITCASE}\nOptions:\n")
    assert first.context == {"category": "any topic", "l2_category": "finer"}
    probe = get("choice-mmbench_dev_en")
    metrics = probe.metrics(probe.answers(suite.items("choice-mmbench_dev_en"), ["A", "A", "A", "B"]), None)
    assert {name: float(metric) for name, metric in metrics.items()} == {"accuracy": 0.75, "any topic": 0.75}
    assert task_label("choice-mmbench_dev_en", "") == "multiple choice accuracy (%) (mmbench_dev_en)"
    file = write(tmp_path / "plain.tsv", [{k: v for k, v in mmbench(1).items() if k != "category"}])
    assert suites.benchmark("choice-mine", str(file)).items("choice-mine")[0].question == "all"


@pytest.mark.parametrize(
    ("task", "rows", "sentence"),
    [
        ("choice-test", [mmbench(0, answer="")], "has no answer, as in a split whose answers are not published"),
        ("choice-test", [mmbench(0, answer="C")], "has answer 'C', which is none of its options A, B"),
        ("choice-test", [mmbench(0, image="not a picture" * 9)], "not base64"),
        ("choice-other", [mmbench(0)], "no other at .*which has none of other.tsv"),
        ("choice", [mmbench(0)], "'choice' is no benchmark that is read from a file"),
        ("mmstar-test", [mmbench(0)], "'mmstar-test' is no benchmark"),
        ("mcq", [mmbench(0)], "'mcq' is no benchmark"),
        ("nonsense", [mmbench(0)], "'nonsense' is no benchmark"),
    ],
)
def test_what_is_no_such_table_is_refused(tmp_path, monkeypatch, task, rows, sentence):
    write(tmp_path / "test.tsv", rows)
    monkeypatch.setenv("GGSS_DATA", str(tmp_path))
    with pytest.raises(InputError, match=sentence):
        suites.benchmark(task).items(task)
