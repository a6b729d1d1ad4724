"""Progress on stderr: nothing for short work, a plain line now and then where stderr is a log."""

from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from ggss import terminal
from ggss.cli import app


@pytest.fixture
def clock(monkeypatch):
    """A clock that each item moves by a given number of seconds."""

    def make(seconds):
        now = [0.0]

        def work(count):
            for number in range(count):
                now[0] += seconds
                yield number

        monkeypatch.setattr(terminal, "monotonic", lambda: now[0])
        return work

    return make


def lines(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    assert "\r" not in err
    assert "\x1b" not in err
    return err.splitlines()


def test_short_work_says_nothing_in_a_log(clock, capsys):
    work = clock(0.1)
    assert list(terminal.track(work(250), "asking", 250)) == list(range(250))
    assert lines(capsys) == []


def test_long_work_says_a_line_now_and_then_in_a_log(clock, capsys):
    work = clock(0.1)
    assert list(terminal.track(work(1000), "asking", 1000)) == list(range(1000))
    said = lines(capsys)
    assert len(said) == 4
    assert said[0].startswith("asking: 300 of 1,000 (30%), about 1 min left")
    assert said[-1] == "asking: 1,000 done in 2 min"


def test_work_of_unknown_length_is_counted(clock, capsys):
    work = clock(20)
    list(terminal.track(work(4), "asking"))
    assert lines(capsys) == ["asking: 2", "asking: 4", "asking: 4 done in 1 min"]


def test_the_length_is_asked_for_where_there_is_one(monkeypatch, capsys):
    times = iter([0.0, 31.0, 32.0, 33.0])
    monkeypatch.setattr(terminal, "monotonic", lambda: next(times))
    list(terminal.track(["a", "b"], "asking"))
    assert lines(capsys)[0] == "asking: 1 of 2 (50%), about 31 s left"


def test_a_step_that_takes_long_says_so_in_a_log(clock, capsys):
    """Between two lines there are at most two beats, which are EVERY seconds."""
    work = terminal.track(clock(40)(3), "asking", 3)
    beats = terminal.ProgressLog("ggss probe")
    beats.beat()
    assert lines(capsys) == ["ggss probe: 0 s so far"]
    next(work)
    beats.beat()
    assert lines(capsys) == [], "its own line was the last"
    beats.beat()
    assert lines(capsys) == ["asking: 40 s so far"]
    next(work)
    assert lines(capsys) == ["asking: 1 of 3 (33%), about 1 min left"], "that of the track, between two steps"
    beats.beat()
    beats.beat()
    assert lines(capsys) == ["asking: 1 of 3 (33%), about 3 min left"], "the second step has taken long, too"
    list(work)
    lines(capsys)
    beats.beat()
    beats.beat()
    assert lines(capsys) == ["ggss probe: 2 min so far"]


def test_a_spinner_is_a_step_of_a_log(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(terminal, "monotonic", lambda: now[0])
    beats = terminal.ProgressLog("ggss probe")
    with terminal.Terminal(stderr=True).status("loading [a] model"):
        now[0] = 90.0
        beats.beat()
    assert "loading [a] model: 2 min so far" in lines(capsys)
    beats.beat()
    beats.beat()
    assert lines(capsys) == ["ggss probe: 2 min so far"]


def test_the_heartbeat_of_a_block_ends_with_it(capsys, monkeypatch):
    waited = []

    def wait(seconds):
        waited.append(seconds)
        return len(waited) > 3

    with pytest.raises(ZeroDivisionError), terminal.ProgressLog("ggss x", wait) as beats:
        beats._thread.join()
        raise ZeroDivisionError
    assert waited == [terminal.EVERY / 2] * 4
    assert lines(capsys) == ["ggss x: 0 s so far"] * 2
    with terminal.ProgressLog("ggss x") as beats:
        assert beats._thread.is_alive()
    assert not beats._thread.is_alive()
    monkeypatch.setenv("GGSS_QUIET", "1")
    with terminal.ProgressLog("ggss x") as beats:
        assert not beats._thread.is_alive()
    assert lines(capsys) == []


def test_every_command_but_servers_has_a_heartbeat(monkeypatch, capsys):
    names = []
    monkeypatch.setattr(terminal, "ProgressLog", lambda name: names.append(name) or nullcontext())
    runner = CliRunner()
    assert runner.invoke(app, ["study", "new"]).exit_code == 0
    assert runner.invoke(app, ["probes"]).exit_code == 0
    assert runner.invoke(app, ["study", "watch", "absent"]).exit_code
    assert runner.invoke(app, ["data", "social-counterfactuals", "absent", "-o", "x.txt"]).exit_code
    assert names == ["ggss study new", "ggss probes", "ggss data social-counterfactuals"]


def test_silent_work_is_silent(clock, capsys):
    list(terminal.track(clock(100)(3), "asking", 3, show=False))
    assert lines(capsys) == []
