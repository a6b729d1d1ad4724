"""A table's three forms, by hand."""

import math

import pytest

from ggss.report.rendering import (
    ABSENT,
    Column,
    Figure,
    Row,
    Table,
    comma_separated,
    differences,
    latex,
    markdown,
    only_last_digit,
)

SMALL = Table(
    "small",
    "What is left (lower is better)",
    "Method",
    (Column("MCQ", "one", "lower", ("", "change %")), Column("note")),
    (
        Row("none", ((Figure(20.0, (18.0, 22.0), ranked=False),), "100 % of it_")),
        Row("a|b", ((Figure(12.0, (10.0, 14.0)), Figure(-40.0, (-50.0, math.nan), "+.0f", "%", "†")), ""), "S & T"),
        Row("c", ((Figure(-0.001, None), Figure(math.nan, spec="+.0f")), "not run"), "S & T"),
    ),
    notes=("† a note",),
)


def test_markdown_by_hand():
    assert markdown(SMALL).splitlines() == [
        "# What is left (lower is better)",
        "",
        "| Method | one<br>MCQ ↓ (change %) | note |",
        "| --- | ---: | ---: |",
        "| none | 20.00 [18.00, 22.00] | 100 % of it\\_ |",
        "| *S & T* |  |  |",
        "| a\\|b | 12.00 [10.00, 14.00]<br>-40 % [undefined]† |  |",
        "| c | **0.00**<br>undefined | not run |",
        "",
        "- † a note",
    ]


def test_csv_by_hand():
    assert comma_separated(SMALL).splitlines() == [
        "section,Method,one MCQ,one MCQ low,one MCQ high,one MCQ change %,one MCQ change % low,one MCQ change % high,"
        "one MCQ change % mark,note",
        ",none,20,18,22,,,,,100 % of it_",
        "S & T,a|b,12,10,14,-40,-50,,†,",
        "S & T,c,-0.001,,,,,,,not run",
    ]


def test_latex_by_hand():
    lines = latex(SMALL).splitlines()
    assert r" & \multicolumn{1}{c}{\textbf{one}} & \multicolumn{1}{c}{\textbf{}} \\" in lines
    assert r"Method & \makecell[r]{MCQ $\downarrow$\\(change \%)} & note \\" in lines
    assert r"none & 20.00 [18.00, 22.00] & 100 \% of it\_ \\" in lines
    assert r"a|b & \makecell[r]{12.00 [10.00, 14.00]\\-40 \% [undefined]$^\dagger$} &  \\" in lines
    assert r"\multicolumn{3}{@{}l@{}}{\emph{S \& T}} \\" in lines


def test_an_interval_about_another_estimate_shows_that_estimate():
    """The published number is not looked for in an interval that is not its own."""
    cells = (
        (Figure(-60.0, (-79.0, -61.0), "+.0f", "%", centre=-70.2),),
        (Figure(-60.2, (-79.0, -41.0), "+.0f", "%", centre=-59.9),),
    )
    table = Table(
        "t", "t", "m", (Column("Avg"),), tuple(Row(name, (cell,)) for name, cell in zip("ab", cells, strict=True))
    )
    assert markdown(table).splitlines()[-2:] == ["| a | -60 % (-70 [-79, -61]) |", "| b | -60 % [-79, -41] |"]
    assert r"a & -60 \% (-70 [-79, -61]) \\" in latex(table)
    assert comma_separated(table).splitlines() == [
        "m,Avg,Avg corrected,Avg low,Avg high",
        "a,-60,-70.2,-79,-61",
        "b,-60.2,-59.9,-79,-41",
    ]


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="row 'x' has 1 of 2 cells"):
        Table("t", "t", "m", SMALL.columns, (Row("x", ("",)),))


def test_a_cell_that_differs_is_named_in_both_forms():
    text = markdown(SMALL)
    assert list(differences(text, text, is_csv=False)) == []
    found = list(differences(text, text.replace("12.00 [", "13.00 ["), is_csv=False))
    column = "one<br>MCQ ↓ (change %)"
    rest = "[10.00, 14.00]<br>-40 % [undefined]†"
    assert found == [("line 7 (a\\|b)", column, f"12.00 {rest}", f"13.00 {rest}")], "an escaped bar ends no cell"
    assert list(differences(text, text.replace("a note", "b note"), False)) == [
        ("line 10", "", "- † a note", "- † b note")
    ]
    table = comma_separated(SMALL)
    assert list(differences(table, table.replace(",10,", ",11,"), is_csv=True)) == [
        ("row 2 (S & T a|b)", "one MCQ low", "10", "11")
    ]


def test_rows_and_columns_that_only_one_file_has_are_named():
    table = comma_separated(SMALL)
    shorter = "\n".join(table.splitlines()[:-1]) + "\n"
    found = list(differences(table, shorter, is_csv=True))
    assert len(found) == 10
    assert {new for *_, new in found} == {ABSENT}
    wider = "\n".join(f"{line},x" for line in table.splitlines()) + "\n"
    assert [(old, new) for *_, old, new in differences(table, wider, is_csv=True)] == [(ABSENT, "x")] * 4


def test_what_is_no_csv_is_compared_by_line():
    huge = "a," + "b" * 200_000
    assert list(differences(huge, "a,b", is_csv=True)) == [("line 1", "", huge, "a,b")]


@pytest.mark.parametrize(
    ("first", "second", "last"),
    [
        ("0.12", "0.13", True),
        ("0.12", "0.14", False),
        ("0.12", "0.12000001", True),
        ("0.12", "0.121", True),
        ("0.12", "0.125", False),
        ("1,099", "1,100", True),
        ("-0.01", "+0.00", True),
        ("−61 % [−79, −47]", "−61 % [−78, −46]", True),
        ("−61 % [−79, −47]", "−61 % [−78, −45]", False),
        ("1.2e-05", "1.3e-05", True),
        ("1.2e-05", "1.3e-04", False),
        ("p = 0.05", "p < 0.05", False),
        ("0.12*", "0.13", False),
        ("not run", "undefined", False),
        ("9" * 10_000, "8" * 10_000, False),
    ],
)
def test_only_the_last_digit(first, second, last):
    assert only_last_digit(first, second) is last
    assert only_last_digit(second, first) is last
