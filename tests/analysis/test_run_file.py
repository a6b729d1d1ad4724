"""A run that is written while it is asked: stopped anywhere, it goes on; what was asked otherwise is not mixed in."""

import json
import os
from dataclasses import replace

import pytest

from fresh_python import FORKED, python
from ggss.analysis import records
from ggss.analysis.records import Questions, check_place, open_run_file, part_path
from ggss.analysis.run import Run
from ggss.errors import InputError
from ggss.models.reading import Answer
from ggss.version import hardware
from test_comparison import SOURCE, STEERED, runs

HARD = ("\u2028", "a\u0085b", "\x1c\x1d\x1e\x0b\x0c", "one\r\ntwo\n", "\0", "\ud800 alone \udfff", "", '"\\', "é😀")
BATCH = 8


def asked_like(some):
    return {task: Questions(run.items, run.source) for task, run in some.items()}


def ask(path, some, stop_after=None, force=False, suffix=""):
    """Write the answers of made-up runs batch by batch, as if a model gave them; returns how many were asked."""
    count = 0
    with open_run_file(path, asked_like(some), suffix, force) as file:
        for task, run in some.items():
            said = {item.key: answer for item, answer in zip(run.items, run.answers, strict=True)}
            missing = [key for key in said if key not in file.answered(task)]
            for start in range(0, len(missing), BATCH):
                if count == stop_after:
                    raise KeyboardInterrupt
                batch = missing[start : start + BATCH]
                file.keep(task, {key: said[key] for key in batch})
                count += 1
        file.finish(list(some.values()))
    return count


@pytest.fixture
def some():
    return {task: replace(run, hardware=hardware()) for task, run in runs(0.6, tasks=("mcq", "ceo")).items()}


@pytest.fixture
def whole(some, tmp_path):
    """The file of a run that was not stopped."""
    path = tmp_path / "whole.jsonl"
    assert ask(path, some) == 36
    return path.read_bytes()


def test_a_run_that_is_stopped_anywhere_ends_as_if_it_were_not(some, whole, tmp_path):
    path = tmp_path / "run.jsonl"
    for stop in (0, 1, 17, 10):
        with pytest.raises(KeyboardInterrupt):
            ask(path, some, stop_after=stop)
        assert not path.exists()
    assert part_path(path).read_bytes().count(b"\n") == 28 * BATCH
    assert ask(path, some) == 36 - 28
    assert path.read_bytes() == whole
    assert not part_path(path).exists()
    assert records.load(path) == some


def test_a_kill_between_the_finished_file_and_its_part_is_harmless(some, whole, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(whole)
    part_path(path).write_bytes(whole)
    assert ask(path, some) == 0
    assert [file.name for file in tmp_path.glob("run*")] == ["run.jsonl"]
    assert path.read_bytes() == whole


def test_a_torn_last_line_is_dropped_wherever_it_was_cut(some, whole, tmp_path):
    path, part = tmp_path / "run.jsonl", part_path(tmp_path / "run.jsonl")
    with pytest.raises(KeyboardInterrupt):
        ask(path, some, stop_after=2)
    there = part.read_bytes()
    second = there.index(b"\n") + 1
    third = there.index(b"\n", second) + 1
    for cut in (0, 1, 9, 10, second - 1, second, second + 1, third - 2, third - 1, third, len(there) - 1):
        part.write_bytes(there[:cut])
        path.unlink(missing_ok=True)
        with open_run_file(path, asked_like(some)) as file:
            assert file.count == there[:cut].count(b"\n")
            assert file.part.read_bytes() == there[: there[:cut].rfind(b"\n") + 1]
        part.write_bytes(there[:cut])
        ask(path, some)
        assert path.read_bytes() == whole, cut


def test_a_long_torn_line_is_dropped(some, whole, tmp_path, monkeypatch):
    monkeypatch.setattr("ggss.analysis.records.BLOCK", 7)
    test_a_torn_last_line_is_dropped_wherever_it_was_cut(some, whole, tmp_path)


def test_a_batch_is_on_disk_before_the_next_is_asked(some, tmp_path):
    path = tmp_path / "run.jsonl"
    run = some["mcq"]
    with open_run_file(path, asked_like({"mcq": run})) as file:
        for number in range(3):
            file.keep("mcq", {run.items[number].key: run.answers[number]})
            lines = part_path(path).read_bytes().splitlines()
            assert [json.loads(line)["item"] for line in lines] == [item.key for item in run.items[: number + 1]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"identity": {"weights": "g"}}, "the model's weights: f and g"),
        ({"identity": {"weights": "f", "dtype": "float16"}}, "the model's dtype: not known and float16"),
        ({"method": "ggss", "steerer": "s", "alpha": 0.5}, "alpha: 0 and 0.5"),
        ({"steerer": "1" * 64}, f"steerer: none and {'1' * 12}"),
        ({"suite_hash": "2"}, "suite_hash: 1 and 2"),
        ({"max_new_tokens": 8}, "max_new_tokens: 0 and 8"),
        ({"versions": {"ggss": "1"}}, "version of ggss: 0 and 1"),
        ({"model": "n"}, "model: m and n"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_answers_given_otherwise_are_not_mixed_in(some, tmp_path, change, told, finished):
    path = tmp_path / "run.jsonl"
    if finished:
        ask(path, some)
    else:
        with pytest.raises(KeyboardInterrupt):
            ask(path, some, stop_after=5)
    there = path if finished else part_path(path)
    before = there.read_bytes()
    other = {task: replace(run, source=replace(run.source, **change)) for task, run in some.items()}
    with pytest.raises(InputError) as refused:
        ask(path, other)
    assert told in str(refused.value)
    assert str(there) in str(refused.value)
    assert "--force" in str(refused.value)
    assert there.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [there], "nothing else was written"
    assert ask(path, other, force=True) == 36, "with --force all is asked anew"
    assert records.load(path) == other


def test_force_replaces_nothing_before_all_is_there_and_goes_on(some, tmp_path):
    path = tmp_path / "run.jsonl"
    ask(path, some)
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        ask(path, runs(0.6, tasks=("mcq", "ceo"), source=STEERED), stop_after=5, force=True)
    assert path.read_bytes() == before
    assert ask(path, runs(0.6, tasks=("mcq", "ceo"), source=STEERED), force=True) == 31


def test_more_may_be_asked_later_and_not_less(some, tmp_path):
    path = tmp_path / "run.jsonl"
    mcq = some["mcq"]
    first = Run("mcq", mcq.items[:48], mcq.answers[:48], mcq.source)
    assert ask(path, {"mcq": first}) == 6
    assert ask(path, some) == 36 - 6
    assert ask(path, some) == 0, "a run that is complete is not asked again"
    assert records.load(path) == some
    refused = {
        "answers to ceo, which is not asked now": {"mcq": mcq},
        "96 answers to mcq that are not": some | {"mcq": first},
    }
    for told, fewer in refused.items():
        with pytest.raises(InputError, match=told):
            ask(path, fewer)


def test_a_part_that_is_damaged_or_of_something_else_is_refused(some, tmp_path):
    path = tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt):
        ask(path, some, stop_after=2)
    lines = part_path(path).read_bytes().splitlines(keepends=True)
    part_path(path).write_bytes(b"".join([lines[0], b"{}\n", lines[2]]))
    with pytest.raises(InputError, match="line 2: task: Field required"):
        ask(path, some)
    part_path(path).write_bytes(b"my notes\n")
    with pytest.raises(InputError, match=r"run\.jsonl\.part.*--force"):
        check_place(path)
    with pytest.raises(InputError, match="--force"):
        ask(path, some)
    assert part_path(path).read_bytes() == b"my notes\n"
    assert ask(path, some, force=True) == 36


def test_two_processes_do_not_write_one_file(some, tmp_path):
    path = tmp_path / "run.jsonl"
    with open_run_file(path, asked_like(some)), pytest.raises(InputError, match="another process is writing"):
        ask(path, some)
    assert ask(path, some) == 36
    assert os.listdir(tmp_path) == [path.name]


def write_until_killed(path, connection):
    with open_run_file(path, {}):
        connection.send("writing")
        connection.recv()


def test_a_killed_process_frees_its_file(some, tmp_path):
    path = tmp_path / "run.jsonl"
    here, there = FORKED.Pipe()
    other = FORKED.Process(target=write_until_killed, args=(path, there))
    other.start()
    try:
        assert here.recv() == "writing"
        with pytest.raises(InputError, match="another process is writing"):
            ask(path, some)
    finally:
        other.kill()
        other.join()
    assert ask(path, some) == 36


def test_where_fcntl_does_not_exist_everything_can_be_imported():
    """As on Windows. What is imported before `fcntl` is hidden is of others: on Linux some of them need it."""
    code = (
        "import sys, torch, transformers, filelock\n"
        "sys.modules['fcntl'] = None\n"
        "import ggss.analysis, ggss.study, ggss.analysis.records, ggss.study.runner, ggss.cli"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_a_full_disk_loses_nothing_that_was_answered(some, whole, tmp_path, monkeypatch):
    path, synced = tmp_path / "run.jsonl", os.fsync

    def full(number):
        if part_path(path).stat().st_size > 50_000:
            raise OSError(28, "No space left on device")
        synced(number)

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"No space left on device.*it has \d+ answers, and the same command"):
        ask(path, some)
    monkeypatch.undo()
    ask(path, some)
    assert path.read_bytes() == whole


def test_any_answer_is_read_as_it_was_given(some, tmp_path):
    path = tmp_path / "run.jsonl"
    mcq = some["mcq"]
    hard = replace(mcq, answers=tuple(a._replace(text=HARD[n % len(HARD)]) for n, a in enumerate(mcq.answers)))
    hard = replace(hard, items=tuple(replace(item, prompt=item.prompt + HARD[0] + HARD[5]) for item in hard.items))
    hard = replace(hard, answers=(Answer(hard.texts[0], (float("inf"), 0.1 + 0.2)), *hard.answers[1:]))
    with pytest.raises(KeyboardInterrupt):
        ask(path, {"mcq": hard}, stop_after=3)
    assert ask(path, {"mcq": hard}) == 15
    assert records.load(path) == {"mcq": hard}
    assert path.read_bytes().isascii()


def test_a_record_that_an_older_version_wrote_with_a_line_separator_is_one_line(some, tmp_path):
    """A file with the character itself instead of its escape has as many lines as records."""
    path = tmp_path / "run.jsonl"
    hard = replace(some["mcq"], answers=tuple(a._replace(text="a\u2028b\u0085c") for a in some["mcq"].answers))
    lines = [json.dumps(record.model_dump(), ensure_ascii=False) for record in records.records(hard)]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert records.load(path) == {"mcq": hard}


HOSTILE = ["[" * 100_000, "9" * 5000, '{"alpha": ' + "9" * 5000 + "}", "\x80", "null", "[]", "NaN"]


@pytest.mark.parametrize("line", HOSTILE)
def test_hostile_lines_get_a_sentence(tmp_path, line):
    (tmp_path / "run.jsonl").write_bytes(line.encode("latin-1") + b"\n")
    with pytest.raises(InputError, match="line 1: "):
        records.load(tmp_path / "run.jsonl")
    assert not records.holds_run(tmp_path / "run.jsonl")


def test_a_nurse_without_an_occupation_gets_a_sentence():
    run = runs(0.6, tasks=("nurse-doctor",))["nurse-doctor"]
    items = tuple(replace(item, context={}) for item in run.items)
    with pytest.raises(InputError, match="does not say which occupation its picture shows"):
        replace(run, items=items).measured()


def test_an_alpha_of_400_digits_gets_a_sentence(some, tmp_path):
    (record, *_) = records.records(some["mcq"])
    (tmp_path / "run.jsonl").write_text(record.line.decode().replace('"alpha": 0.0', '"alpha": ' + "9" * 400))
    with pytest.raises(InputError, match="line 1: "):
        records.load(tmp_path / "run.jsonl")


def test_an_unfinished_run_is_not_compared(some, tmp_path):
    path = tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt):
        ask(path, some, stop_after=5)
    with pytest.raises(InputError, match=r"run\.jsonl\.part' is an unfinished run: .* finishes it"):
        records.load(part_path(path))
    with pytest.raises(InputError, match=r"there is no file .*run\.jsonl\.part' is there: .* finishes it"):
        records.load(path)


def test_a_long_file_is_read(tmp_path):
    path, run = tmp_path / "run.jsonl", runs(0.6, tasks=("mcq",))["mcq"]
    count = 20_000
    many = (replace(run.items[0], key=str(number)) for number in range(count))
    answers = run.answers[:1] * count
    records.write([replace(run, items=tuple(many), answers=answers)], path)
    (found,) = records.load(path).values()
    assert len(found.items) == count
    assert found.items[19_999].key == "19999"
    assert found.source == SOURCE


def test_no_field_of_a_line_can_be_edited(some, tmp_path):
    path, run = tmp_path / "run.jsonl", some["mcq"]
    records.write([run], path)
    whole = path.read_text()
    lines = whole.splitlines()
    assert records.load(path) == {"mcq": run}
    told = json.loads(lines[5])
    others = {"probabilities": [1.0, 0.0], "options": {"a": "red", "b": "blue"}, "attributes": [{"race": "jade"}]}
    others |= {"alpha": 0.25, "max_new_tokens": 99, "task_items": len(lines) + 1, "expected": "b"}
    others |= {"pictures": ["0" * 64], "worth": {"a": 1.0}, "lexicons": {"warmth": ["kind"]}}
    for name, value in told.items():
        other = others.get(name, {**value, "more": "x"} if isinstance(value, dict) else "edited")
        assert other != value
        path.write_text("\n".join([*lines[:5], json.dumps(told | {name: other}), *lines[6:], ""]))
        with pytest.raises(InputError, match=r"line 6: it was changed after it was written") as refused:
            records.load(path)
        assert "1 problem" in str(refused.value)
        with pytest.raises(InputError, match="line 6"), open_run_file(path, asked_like({"mcq": run})):
            pass
    del told["checksum"]
    path.write_text("\n".join([*lines[:5], json.dumps(told), *lines[6:], ""]))
    with pytest.raises(InputError, match="line 6"):
        records.load(path)
    assert ask(path, {"mcq": run}, force=True), "a run that was edited may be asked anew"
    assert path.read_text() == whole


@pytest.mark.parametrize("kept", [slice(1, None), slice(0, -1), slice(0, 1), slice(0, None, 2)], ids=str)
def test_a_file_that_has_lost_lines_is_no_run_and_the_same_call_completes_it(some, tmp_path, kept):
    path = tmp_path / "run.jsonl"
    records.write(some.values(), path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[kept]))
    lost = r"(?s)has lost lines .*(mcq|ceo): \d+ items were asked, and the file has \d+"
    with pytest.raises(InputError, match=lost):
        records.load(path)
    assert ask(path, some) > 0
    assert path.read_bytes() == whole


def test_a_file_names_the_machines_that_were_asked_and_older_files_are_read(some, tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt):
        ask(path, some, stop_after=1)
    monkeypatch.setattr(records, "hardware", lambda: "another machine")
    ask(path, some)
    loaded = records.load(path)
    assert loaded == some, "no result depends on it"
    assert loaded["mcq"].hardware == f"{hardware()}; another machine"
    assert loaded["ceo"].hardware == "another machine"
    older = [json.loads(line) for line in path.read_text().splitlines()]
    for line in older:
        del line["hardware"]
    path.write_text("".join(json.dumps(line) + "\n" for line in older))
    with pytest.raises(InputError, match="it was changed after it was written"):
        records.load(path)
    records.write([replace(run, hardware="") for run in some.values()], path)
    unnamed = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(
        "".join(json.dumps({k: v for k, v in line.items() if k != "hardware"}) + "\n" for line in unnamed)
    )
    assert records.load(path)["mcq"].hardware == "", "as a file was before the machine was recorded"
    served = replace(SOURCE, identity={"endpoint": "http://there"})
    questions = {"mcq": Questions(some["mcq"].items, served)}
    with open_run_file(path, questions, force=True) as file:
        file.keep("mcq", {some["mcq"].items[0].key: some["mcq"].answers[0]})
        assert json.loads(file.part.read_text())["hardware"] == "", "whose machine is not known"
