"""A file of runs that grows while a model is asked: what was answered is on disk before the next batch is asked.

Answers are added to RUN.jsonl.part. When all are there, RUN.jsonl is written whole and the part removed. Whenever the
process ends before, the same call goes on where it stopped. Answers that are there were given under the same
conditions (the same `Source`), or the call is refused.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path
from typing import NamedTuple

from ggss.analysis import records
from ggss.analysis.run import Answer, Run, Source
from ggss.errors import InputError
from ggss.output import check_file
from ggss.probes import Item

COMMAND = "ggss probe"
BLOCK = 2**16  # bytes read at a time, from the end, to find the last line


class Asked(NamedTuple):
    """What is asked in a task, and under which conditions."""

    items: tuple[Item, ...]
    source: Source


def part_of(path: Path) -> Path:
    """Where the answers of an unfinished run are."""
    return path.with_name(path.name + records.PART)


def check_place(path: Path, force: bool = False) -> None:
    """Refuse a place that cannot be written to, and files of something else unless forced."""
    check_file(path, COMMAND, records.holds_run, force)
    check_file(part_of(path), COMMAND, records.holds_run, force)


class RunFile:
    """An open file; `growing` opens one."""

    def __init__(self, path: Path, part: BufferedRandom, asked: Mapping[str, Asked], suffix: str) -> None:
        self.path, self.part = path, part_of(path)
        self._part, self._asked, self._suffix = part, asked, suffix
        self._items = {task: {item.key: item for item in own.items} for task, own in asked.items()}
        self._answered: dict[str, dict[str, Answer]] = {task: {} for task in asked}

    def answered(self, task: str) -> Mapping[str, Answer]:
        """By item key, what is answered already."""
        return self._answered[task]

    @property
    def count(self) -> int:
        """How many answers there are."""
        return sum(map(len, self._answered.values()))

    def keep(self, task: str, answers: Mapping[str, Answer]) -> None:
        """Add answers to the part; afterwards they are on disk."""
        items, source = self._items[task], self._asked[task].source
        lines = [
            records.Record.of(task, items[key], answer, source, len(items), self._suffix).line
            for key, answer in answers.items()
        ]
        try:
            self._part.write(b"".join(lines))
            self._part.flush()
            os.fsync(self._part.fileno())
        except OSError as error:
            raise InputError(
                f"cannot write {str(self.part)!r} ({error.strerror}): {self.count} answers are kept in it, and the "
                "same command goes on from there"
            ) from error
        self._answered[task].update(answers)

    def finish(self, runs: list[Run]) -> None:
        """Write the finished file, in the order of the items, and remove the part."""
        records.write(runs, self.path, self._suffix)
        self.part.unlink(missing_ok=True)

    def know(self, runs: Mapping[str, Run], where: Path) -> None:
        """Take over answers that are there. InputError if this call would not have asked for them like this."""
        for task, run in runs.items():
            if refused := self._refused(task, run):
                raise InputError(f"{str(where)!r} holds {refused}: give another file, or --force to begin anew")
        for task, run in runs.items():
            said = zip(run.items, run.answers, run.probabilities, strict=True)
            self._answered[task] |= {item.key: (answer, own) for item, answer, own in said}

    def _refused(self, task: str, run: Run) -> str:
        if task not in self._asked:
            return f"answers to {task}, which is not asked now"
        if found := run.source.differences(self._asked[task].source):
            return f"answers of another run; there and now, {'; '.join(found)}"
        more = [item.key for item in run.items if item.key not in self._items[task]]
        return f"{len(more)} answers to {task} that are not asked now, such as {more[0]!r}" if more else ""


@contextmanager
def growing(path: Path, asked: Mapping[str, Asked], suffix: str = "", force: bool = False) -> Iterator[RunFile]:
    """The file of the runs that are asked, with the answers that it has already.

    suffix: what a steerer appends to every prompt. force: a run of something else, finished or not, is replaced; one
    that was begun in the same way still goes on. An unfinished run stays where it is, whatever happens.
    """
    check_place(path, force)
    part = part_of(path)
    with _locked(part) as file:
        try:
            grown = RunFile(path, file, asked, suffix)
            try:
                _drop_torn_line(file)
                grown.know(records.read(file, part), part)
            except InputError:
                if not force:
                    raise
                file.truncate(0)
            if path.exists() and not force:
                with path.open("rb") as lines:
                    grown.know(records.read(lines, path), path)
            yield grown
        finally:
            if part.exists() and not part.stat().st_size:
                part.unlink()


@contextmanager
def _locked(part: Path) -> Iterator[BufferedRandom]:
    """The part, opened for reading and adding, by this process alone."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        file = part.open("ab+")
    except OSError as error:
        raise InputError(f"cannot write {str(part)!r} ({error.strerror}): choose another place") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"another process is writing {str(part)!r}: wait for it, or give another file") from None
        yield file


def _drop_torn_line(file: BufferedRandom) -> None:
    """Remove the last line if it was not written whole, and go to the beginning."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - BLOCK)
        file.seek(start)
        if found := file.read(end - start).rfind(b"\n") + 1:
            end = start + found
            break
        end = start
    file.truncate(end)
    file.seek(0)
