"""Files of `ggss probe -o`: read, measured and compared."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from experiments.fuzz import trees
from experiments.fuzz.harness import Target
from ggss.analysis import Statistics, compare_all, records
from ggss.analysis.records import Questions, open_run_file, part_path
from ggss.analysis.run import Run, Source
from ggss.errors import InputError
from ggss.models.reading import Answer
from ggss.probes.suites import load

_TASKS = ("mcq", "2afc", "nurse-doctor", "ceo", "recognition-race", "smallstar", "smallmme")
_QUICK = Statistics(20, 20, 0)


def write_run(task: str, file: Path) -> Run:
    """A run that nobody asked: a few items of the small world, answered in turn."""
    items = load("small-world", split="selection").items(task, 4)
    options = [list(item.options) for item in items]
    answers = tuple(Answer(names[n % len(names)], (1 / len(names),) * len(names)) for n, names in enumerate(options))
    run = Run(task, items, answers, Source("model"))
    records.write([run], file)
    return run


def _records(folder: Path) -> Any:
    files: dict[str, bytes] = {}
    asked: dict[str, dict[str, Questions]] = {}
    for task in _TASKS:
        run = write_run(task, folder / task)
        files[task], asked[task] = (folder / task).read_bytes(), {task: Questions(run.items, run.source)}
    changed, begun = folder / "changed.jsonl", folder / "begun.jsonl"

    def cases(task: str) -> Any:
        lines = [json.loads(line) for line in files[task].decode().strip().split("\n")]
        exchanged = st.tuples(st.integers(0, len(lines) - 1), trees.changed(lines[0], 4), st.booleans()).map(
            lambda put: _lines(lines, *put)
        )
        everywhere = trees.changed(lines[0], 2).map(lambda one: _lines([_like(line, one) for line in lines]))
        return st.tuples(st.just(task), exchanged | everywhere | trees.damaged(files[task]))

    def read(case: tuple[str, bytes]) -> None:
        task, data = case
        part_path(begun).write_bytes(data)
        with suppress(InputError), open_run_file(begun, asked[task]) as grown:
            assert grown.count <= len(asked[task][task].items)
        changed.write_bytes(data)
        found = records.load(changed)
        for run in found.values():
            measured = run.measured(_QUICK)
            for name in measured.names:
                measured.interval(name)
                measured.corrected(name)
        for comparison in compare_all(records.load(folder / task), found, _QUICK, unlike=True).values():
            str(comparison.reached)

    return st.sampled_from(_TASKS).flatmap(cases), read


def _like(line: dict[str, Any], changed: Any) -> Any:
    """The line with the changes of another, except for what tells items apart."""
    if not isinstance(changed, dict):
        return changed
    own = {name: line[name] for name in ("item", "cluster", "attributes") if name in line}
    return {**changed, **{name: value for name, value in own.items() if name in changed}}


def _lines(lines: list[Any], place: int | None = None, line: Any = None, twice: bool = False) -> bytes:
    lines = list(lines)
    if place is not None:
        lines[place : place + (not twice)] = [line]
    return "\n".join(map(json.dumps, map(_signed, lines))).encode()


def _signed(line: Any) -> Any:
    """The line with a checksum that fits it, so that what comes after the checksum is tried too."""
    with suppress(ValueError, TypeError, OverflowError):
        return records.Record.model_validate(line).signed().model_dump()
    return line


TARGETS = (Target("records", 0.05, _records),)
