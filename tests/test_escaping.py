"""Text from outside as text: on a terminal, in Markdown, LaTeX, a spreadsheet, a plot and HTML."""

import csv
import io
import re
from pathlib import Path

import pytest
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ggss import escaping
from ggss.report import rendering
from ggss.report.rendering import latex
from ggss.terminal import Terminal, track

SOURCES = sorted((Path(__file__).parents[1] / "src" / "ggss").rglob("*.py"))
HOSTILE = "[INST] hi [/INST] [/bold] :smile: \x1b[2J\x1b]0;owned\x07\x9b31m\r\x7f \udcff"
SHOWN = r"[INST] hi [/INST] [/bold] :smile: \x1b[2J\x1b]0;owned\x07\x9b31m\r\x7f \udcff"


def unsafe(text: str) -> list[str]:
    return re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text)


def test_visible():
    assert escaping.visible(HOSTILE) == SHOWN
    assert escaping.visible("two\nlines\tשלום é 👩") == "two\nlines\tשלום é 👩"


def test_a_terminal_prints_text_as_it_is(capsys):
    console = Terminal()
    console.print(HOSTILE, soft_wrap=True)
    assert capsys.readouterr().out == f"{SHOWN}\n"


def test_a_terminal_reads_no_markup_wherever_the_text_is(capsys):
    """A cell, a title, a panel, a spinner, a styled text: rich parses some of these by itself."""
    console = Terminal()
    table = Table(HOSTILE, title=HOSTILE, caption=HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE, "bold"))
    for printed in (table, Panel(HOSTILE), Text.assemble((HOSTILE, "red"))):
        console.print(printed)
        seen = capsys.readouterr().out
        assert not unsafe(seen)
        assert "[/INST]" in seen
    with console.status(HOSTILE):
        pass
    list(track([1], HOSTILE, show=True))
    assert "\x1b[2J" not in capsys.readouterr().err


def test_styles_reach_a_terminal_and_control_characters_of_the_text_do_not(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    Terminal().print(Text("a\x1b[31mb", "bold"))
    assert capsys.readouterr().out == "\x1b[1ma\\x1b[31mb\x1b[0m\n"


def test_there_is_one_console_and_no_markup():
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if path.name != "terminal.py":
            assert "rich.console" not in text, path
            assert "from_markup" not in text, path
        if path.parts[-2:] != ("cli", "__init__.py"):  # the help of the program itself
            assert not re.search(r"\[/(bold|dim|red|green|yellow)?\]", text), path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b", r"a\|b"),
        ("*bold* _it_ snake_case", r"\*bold\* \_it\_ snake_case"),
        ("[a](http://b) [1, 2]", r"[a\](http://b) [1, 2]"),
        ("<script>", r"\<script>"),
        ("&lt; S & T", r"\&lt; S & T"),
        ("# no heading\nno second line", r"\# no heading no second line"),
        ("- no list", r"\- no list"),
        ("-3.2", "-3.2"),
        ("1. no list", r"1\. no list"),
        ("back\\slash `code` ~~gone~~", r"back\\slash \`code\` \~\~gone\~\~"),
        ("\x1b", r"\\x1b"),
    ],
)
def test_markdown(text, expected):
    assert escaping.markdown(text) == expected


def test_code_in_markdown():
    assert escaping.code("small-world/pixtral") == "`small-world/pixtral`"
    assert escaping.code("a`` | b\n`") == "``` a`` \\| b ` ```"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            r"\input{x} 5 % $a_1$ #2 & ~^",
            r"\textbackslash{}input\{x\} 5 \% \$a\_1\$ \#2 \& "
            r"\textasciitilde{}\textasciicircum{}",
        ),
        ("[a] begins a row", "{[}a] begins a row"),
        ("two\nlines", "two lines"),
        ("α < β*", r"$\alpha$ $<$ β$^\ast$"),
    ],
)
def test_latex(text, expected):
    assert escaping.latex(text) == expected


@pytest.mark.parametrize("text", ["=1+1", "+a", "-a", "@a", "\t=1", " =1", "\ta", "-", "=cmd|' /C calc'!A0"])
def test_a_spreadsheet_computes_no_words(text):
    assert escaping.spreadsheet(text).startswith("'")


@pytest.mark.parametrize("text", ["-3.2", "+1e-5", "-inf", "12", "", "a=b", "* 3 of 4"])
def test_a_spreadsheet_keeps_numbers_and_harmless_words(text):
    assert escaping.spreadsheet(text) == text


def test_a_table_of_hostile_words_keeps_its_shape():
    words = f"=1|2 {HOSTILE} \\ {{ $x$ <b> \n\n# end"
    column = rendering.Column(words, words, "lower", ("", words))
    figures = (rendering.Figure(-1.5, (-2.0, 1.0)), rendering.Figure(-3.2))
    rows = (rendering.Row(words, (figures,), words), rendering.Row(words, (words,), words))
    table = rendering.Table("t", words, words, (column,), rows, words, (words,))
    page = rendering.markdown(table).splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in page if line.startswith("|")} == {3}
    assert [line for line in page if line.startswith("#")] == page[:1]
    assert not unsafe("".join(page))
    tex = latex(table)
    bare = re.sub(r"\\textbackslash\{\}|\\[{}]", "", tex)
    assert bare.count("{") == bare.count("}")
    assert not unsafe(tex.replace("\n", ""))
    read = list(csv.reader(io.StringIO(rendering.comma_separated(table))))
    assert {len(line) for line in read} == {6}
    assert read[1][2:] == ["-1.5", "-2", "1", "-3.2"]
    assert all(cell.startswith("'=1") for cell in (*read[0][1:], *read[1][:2], *read[2][:3]))


def test_a_plot_shows_dollars():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure = plt.figure()
    figure.suptitle(escaping.plot("a $5 model, {\\broken} $ \x1b"))
    figure.canvas.draw()
    plt.close(figure)
