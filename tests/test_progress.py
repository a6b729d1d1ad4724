"""Progress on stderr: nothing for short work, a plain line now and then where stderr is a log."""

import pytest

from ggss import terminal


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


def test_silent_work_is_silent(clock, capsys):
    list(terminal.track(clock(100)(3), "asking", 3, show=False))
    assert lines(capsys) == []
