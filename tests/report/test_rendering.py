"""A table's three forms, by hand."""

import math

import pytest

from ggss.report.rendering import Column, Figure, Row, Table, comma_separated, latex, markdown

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
