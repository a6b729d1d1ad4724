"""No table is cut: not on a screen of 80 columns, not in a pipe."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.table import Table

import ggss
import invented_study
from ggss.analysis.selection import ComparedTasks
from ggss.cli import compare, discover, doctor, inventory, probe, study, world
from ggss.smallworld.demo import Demo, Line
from ggss.steering.doctor import Examination
from ggss.study.grid import Unit
from ggss.study.status import Progress
from ggss.terminal import PROSE, Terminal
from planted import planted

NAMES = ("small-world/llava-vicuna", "small-world/llava-mistral")
NUMBERS = ("1,234,567", "122.62 [111.32, 158.94]", "-98 % [-100, -92]", "0.0001", "about 12 min")


def table(columns: int) -> Table:
    made = Table("model", *(f"column {number}" for number in range(columns)))
    for name in NAMES:
        made.add_row(name, *NUMBERS[:columns])
    return made


def printed(shown, capsys) -> list[str]:
    Terminal().print(shown)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5])
def test_names_and_numbers_are_whole_on_a_narrow_screen(columns, screen, capsys):
    lines = printed(table(columns), capsys)
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    for value in (*NAMES, *NUMBERS[:columns]):
        assert any(value in line for line in lines), value


def test_what_does_not_fit_is_a_list_and_what_fits_a_table(screen, capsys):
    assert len(printed(table(1), capsys)) == 6
    assert printed(table(5), capsys)[:3] == [
        "small-world/llava-vicuna",
        "  column 0  1,234,567",
        "  column 1  122.62 [111.32, 158.94]",
    ]


def test_a_pipe_is_as_wide_as_a_table_needs(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = printed(table(5), capsys)
    assert len(lines) == 6
    assert all(value in lines[3] for value in (NAMES[0], *NUMBERS))


def test_prose_is_broken_between_words_and_empty_cells_are_left_out(screen, capsys):
    made = Table("method", "what it does")
    made.add_row("ggss", "removes the attribute " * 10)
    lines = printed(made, capsys)
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).replace("│", " ").split()).count("removes the attribute") == 10
    wide = table(5)
    wide.add_row("all", "", "7", "", "", "")
    assert [line.split() for line in printed(wide, capsys)[-2:]] == [["all"], ["column", "1", "7"]]


def test_a_name_without_spaces_is_folded_not_cut(screen, capsys):
    name = "/a/very/long/path" * 8
    made = Table("model", "questions")
    made.add_row(name, "7")
    seen = "".join("".join(printed(made, capsys)).replace("│", " ").split())
    assert "…" not in seen
    assert seen.replace("7", "", 1).count("/a/very/long/path") >= 7


def comparisons():
    found = invented_study.results()
    tasks = {"mcq": "race", "2afc": "race", "nurse-doctor": "gender", "mmstar": "race"}
    return [found.comparison(invented_study.QWEN, "ggss", task, 1.0, about) for task, about in tasks.items()]


def show_doctor():
    facts = {"path": "model.visual.deepstack_merger_list.0.linear_fc2", "width": 4096, "rows": 576}
    sites = {"projection-mlp2": facts, "deepstack-0": facts}
    leaks = {"projection-mlp2": 0.0123, "all sites": 0.0}
    checks = [("identity at alpha 0", True, "bit-identical"), ("the site fires once", False, "2 calls")]
    about = ("org/model", "Qwen3VL", "Qwen3-VL", "bfloat16")
    doctor.show(Examination(*about, sites, checks, 12.25, leaks, ["it leaks"]))


def show_discover():
    discover.show(ggss.fit("ggss", planted()[0], attribute="race"), Path("race-steerer"))


def show_probe():
    probe.show_run("org/model", [one.before for one in comparisons()])


def show_compare():
    compare.show_comparison(ComparedTasks.of(comparisons()))


def show_demo():
    tasks = ComparedTasks.of(comparisons())
    found = Demo("small-world/qwen3-vl", 1.0, tasks, {}, [], Path("demo.png"), material=None)
    world.show_demo(found, Path("report.html"))


def show_world():
    what = "race bias of MCQ, unsteered, over the people of the evaluation"
    world.show("qwen3-vl", [Line(what, "122.62 [111.32, 158.94]", "at least 50", True)])


def show_methods():
    inventory.methods()


def show_probes():
    inventory.probes()


def show_plan(monkeypatch):
    monkeypatch.setattr("ggss.study.status._measured", lambda plan, counted, *_: replace(counted, seconds=12_345.6))
    monkeypatch.setattr("ggss.study.checking.free_memory", lambda *_: 8 * 10**9)
    study.plan(Path(__file__).parents[2] / "studies" / "smoke.yaml")


def show_status(monkeypatch):
    units = [Progress(Unit(name, "gated-euclidean-renorm"), 12_345, 98_765, 0.75, ("warned",)) for name in NAMES]
    monkeypatch.setattr("ggss.study.status.status", lambda _: (invented_study.plan(), units))
    study.status(Path())


SHOWN = [value for name, value in list(globals().items()) if name.startswith("show_")]


@pytest.mark.parametrize("show", SHOWN, ids=lambda show: show.__name__.removeprefix("show_"))
def test_no_command_cuts_its_tables(show, monkeypatch, capsys):
    """A narrow screen shows every name and number that a pipe gets, none of them cut or broken."""
    given = [monkeypatch] if show.__code__.co_argcount else []
    monkeypatch.delenv("COLUMNS", raising=False)
    show(*given)
    piped = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    show(*given)
    narrow = capsys.readouterr().out
    assert "…" not in piped + narrow
    assert max(map(len, narrow.splitlines())) <= 80
    cells = {cell.strip() for line in piped.splitlines() for cell in re.split(r"[│┃]|  +", line)}
    on_one_line = [cell for cell in cells if re.search(r"\d", cell) and len(cell) <= PROSE]
    assert on_one_line
    assert [cell for cell in on_one_line if not any(cell in line for line in narrow.splitlines())] == []
