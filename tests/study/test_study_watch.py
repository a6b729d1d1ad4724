"""`ggss study watch`: a grid that fits the screen, lines in a pipe, and an end."""

import io
from dataclasses import replace

import pytest

import invented_study
from ggss.cli import study
from ggss.study.grid import Unit
from ggss.study.status import Progress
from ggss.terminal import Terminal

NAMES = ("small-world/llava-vicuna", "small-world/qwen3-vl")


class Growing:
    """A study of which every look sees ten more answers of each unit."""

    plan = invented_study.plan()

    def __init__(self, folder):
        self.units = [Progress(Unit(name, "ggss"), 0, 30, None, ()) for name in NAMES]

    def look(self):
        seen = self.units
        self.units = [replace(one, answered=min(one.answered + 10, one.of)) for one in seen]
        return seen


@pytest.fixture
def clock(monkeypatch):
    """Sleeping takes no time; every sleep is a minute for the watcher."""
    now = [0.0]
    monkeypatch.setattr("ggss.study.status.WatchedStudy", Growing)
    monkeypatch.setattr(study.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(study.time, "sleep", lambda _: now.__setitem__(0, now[0] + 60))
    return now


def test_lines_in_a_pipe_until_it_is_finished(clock, capsys, tmp_path):
    study.watch(tmp_path)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    said = [line.partition(": ")[2] for line in out.splitlines()]
    assert said == [
        "0 of 60 questions answered (0 %)",
        "20 of 60 questions answered (33 %), about 2 min left",
        "40 of 60 questions answered (66 %), about 1 min left",
        "60 of 60 questions answered (100 %), finished",
    ]


def test_a_study_that_does_not_move_is_wondered_at_and_ctrl_c_ends(clock, monkeypatch, capsys, tmp_path):
    looks = iter(range(10))

    def still(self):
        if next(looks) == 7:
            raise KeyboardInterrupt
        return self.units

    monkeypatch.setattr(Growing, "look", still)
    study.watch(tmp_path)
    assert len(capsys.readouterr().out.splitlines()) == 1, "in a log nothing is said twice"
    moment = study.StudyMoment(Growing(tmp_path).units, 0, 600.0, 600.0)
    assert moment.sentence().endswith("no new answer for 10 min: is it running?")


def test_the_grid_on_a_terminal(clock, monkeypatch, tmp_path):
    screen = io.StringIO()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(Terminal, "is_terminal", True)
    monkeypatch.setattr(Terminal, "file", screen)
    study.watch(tmp_path)
    shown = screen.getvalue()
    assert "finished" in shown
    assert all(name in shown for name in NAMES)
    assert shown.count("33 %") >= 2


@pytest.mark.parametrize("methods", [3, 60])
def test_the_grid_fits_the_screen(methods, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    names = [f"method-{number}" for number in range(methods)]
    units = [
        Progress(Unit(model, name), 30 if name < "method-2" else 7, 30, 0.5, ()) for model in NAMES for name in names
    ]
    console = Terminal()
    console.print(study.grid("large", study.StudyMoment(units, 0, 60.0, 0.0), console))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert all(any(name in line for line in lines) for name in NAMES)
    if methods == 60:
        assert any("methods are finished" in line and "more are not shown" in line for line in lines)


def test_the_last_percent_is_not_told_early():
    units = [Progress(Unit("m", "ggss"), 9_999, 10_000, None, ())]
    assert "(99 %)" in study.StudyMoment(units, 0, 0.0, 0.0).sentence()
    assert study.duration(59) == "59 s"
    assert study.duration(7_260) == "2 h 1 min"
