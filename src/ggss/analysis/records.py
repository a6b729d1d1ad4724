"""Runs as JSON lines, one per item: all that is needed to compute any statistic of them later.

Only what was asked and answered is in a file. What a parser makes of an answer, and all numbers, are computed when
they are needed. Lines are ASCII and end with "\n", so that an answer of any characters is read as it was given.

A line has a checksum of its content and says how many were asked in its task: what was edited, or has lost lines, is
refused.

A file of runs that grows while a model is asked: what was answered is on disk before the next batch is asked.

Answers are added to RUN.jsonl.part. When all are there, RUN.jsonl is written whole and the part removed. Whenever the
process ends before, the same call goes on where it stopped. Answers that are there were given under the same
conditions (the same `Source`), or the call is refused.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from io import BufferedRandom
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, InstanceOf, ValidationError

from ggss import hashing
from ggss.analysis.run import Run, Source
from ggss.data.pictures import AbsentPicture
from ggss.errors import InputError, problems
from ggss.files import check_file, locked, write_whole
from ggss.models.reading import Answer
from ggss.probes import Item

PART = ".part"  # the ending of a run that is being asked
Text = InstanceOf[str]  # a string of any characters; pydantic's own refuses some that an answer may have


class Record(BaseModel):
    """One item and its answer. `prompt` is the text as it was asked, with what a steerer appended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Text
    suite: Text
    suite_hash: Text
    item: Text
    prompt_hash: Text
    prompt: Text
    answer: Text
    options: dict[Text, Text]
    probabilities: tuple[float, ...]
    about: Text
    pictures: tuple[Text, ...]
    attributes: tuple[dict[Text, Text], ...]
    context: dict[Text, Text]
    worth: dict[Text, float] = {}
    cluster: Text
    question: Text
    expected: Text | None
    model: Text
    identity: dict[Text, Text]
    method: Text
    attribute: Text
    steerer: Text
    alpha: float
    max_new_tokens: int
    versions: dict[Text, Text]
    task_items: int
    checksum: Text = ""

    @classmethod
    def of(cls, task: str, item: Item, answer: Answer, source: Source, task_items: int, suffix: str = "") -> "Record":
        """task_items: how many the task has in this run. suffix: what a steerer appended to the prompt."""
        prompt = item.prompt + suffix
        origin: dict[str, Any] = vars(source) | {"identity": dict(source.identity), "versions": dict(source.versions)}
        content = cls(
            task=task,
            item=item.key,
            prompt_hash=sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest(),
            prompt=prompt,
            answer=answer.text,
            options=dict(item.options),
            probabilities=answer.probabilities,
            about=item.about,
            pictures=tuple(picture.digest for picture in item.images),
            attributes=tuple(dict(of_picture) for of_picture in item.attributes),
            context=dict(item.context),
            worth=dict(item.worth),
            cluster=item.cluster,
            question=item.question,
            expected=item.expected,
            task_items=task_items,
            **origin,
        )
        return content.signed()

    def signed(self) -> "Record":
        """The same with the checksum of its content."""
        return self.model_copy(update={"checksum": self._checksum()})

    @property
    def is_whole(self) -> bool:
        """Whether it is as it was written."""
        return self.checksum == self._checksum()

    def _checksum(self) -> str:
        return hashing.of(self.model_dump(exclude={"checksum"}))

    @property
    def line(self) -> bytes:
        return json.dumps(self.model_dump()).encode() + b"\n"

    @property
    def source(self) -> Source:
        return Source(**{name: getattr(self, name) for name in Source.__dataclass_fields__})

    def asked(self) -> Item:
        """The item as it was asked; of its pictures only the digests are known."""
        return Item(
            self.item,
            self.prompt,
            tuple(AbsentPicture(digest) for digest in self.pictures),
            self.attributes,
            self.cluster,
            self.question,
            self.options,
            self.expected,
            self.about,
            self.context,
            self.worth,
        )


def records(run: Run, suffix: str = "") -> Iterator[Record]:
    """The records of a run; suffix: what its steerer appended to every prompt."""
    for item, answer in zip(run.items, run.answers, strict=True):
        yield Record.of(run.task, item, answer, run.source, len(run.items), suffix)


def write(runs: Iterable[Run], path: str | Path, suffix: str = "") -> None:
    """Write all runs to a file, completely or not at all."""
    write_whole(Path(path), (record.line for run in runs for record in records(run, suffix)))


def load(path: str | Path) -> dict[str, Run]:
    """The runs of a file that `ggss probe -o` wrote.

    Args:
        path: a file of JSON lines.

    Returns:
        The runs by task.

    Raises:
        InputError: lists every line that is invalid or was changed, every item that is there twice, and every task
            of which lines are missing.

    Examples:
        >>> from ggss.analysis import records
        >>> records.write([before], "before.jsonl")
        >>> records.load("before.jsonl")["mcq"].answers == before.answers
        True
    """
    path = Path(path)
    unfinished = path.with_name(path.name + PART)
    if path.suffix == PART:
        raise InputError(f"{str(path)!r} is an unfinished run: the `ggss probe` command that began it finishes it")
    if not path.is_file():
        there = (
            f"; {str(unfinished)!r} is there: the same `ggss probe` command finishes it"
            if unfinished.is_file()
            else ""
        )
        raise InputError(f"there is no file {str(path)!r}: give one that was written by `ggss probe -o`{there}")
    with path.open("rb") as lines:
        tasks = _rows(lines, path)
    if not tasks:
        raise InputError(f"{str(path)!r} is empty: give a file that was written by `ggss probe -o`")
    lost = [
        f"{own.asked} were asked, and {len(own.items)} of {task} are there"
        for task, own in tasks.items()
        if own.asked != len(own.items)
    ]
    if lost:
        raise problems(f"{str(path)!r} has lost lines since it was written, or got others: ask again", lost)
    return {task: own.run(task) for task, own in tasks.items()}


def read(lines: Iterable[bytes], path: Path) -> dict[str, Run]:
    """The runs of some lines, by task, whether all that was asked is there or not.

    InputError as for `load`; path: where the lines are from.
    """
    return {task: own.run(task) for task, own in _rows(lines, path).items()}


def _rows(lines: Iterable[bytes], path: Path) -> "dict[str, _Rows]":
    tasks: dict[str, _Rows] = {}
    found: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = Record.model_validate(json.loads(line.decode()))
        except ValidationError as error:
            found.append(f"line {number}: {_wrong(error)}")
            continue
        except (ValueError, OverflowError, RecursionError) as error:
            found.append(f"line {number}: it is not JSON ({type(error).__name__}: {error})")
            continue
        if not record.is_whole:
            found.append(f"line {number}: it was changed after it was written, its checksum is another")
            continue
        source = record.source
        own = tasks.setdefault(record.task, _Rows(source, record.task_items))
        if record.item in own.items:
            found.append(f"line {number}: item {record.item!r} of {record.task} is there already")
        elif source != own.source:
            other = "; ".join(own.source.differences(source))
            found.append(f"line {number}: its answer is of another run than that of the first line ({other})")
        own.items[record.item] = record.asked(), Answer(record.answer, record.probabilities)
    if found:
        raise problems(f"{str(path)!r} was not written by this version of `ggss probe`, or was changed since", found)
    return tasks


def holds_run(path: Path) -> bool:
    """Whether a file begins as one that `ggss probe` wrote, of any version and in any state."""
    with path.open("rb") as lines:
        first = lines.readline(_LONGEST)
    if not first.endswith(b"\n"):
        return first.startswith(_BEGINNING) or _BEGINNING.startswith(first)  # cut short in its first line
    try:
        told = json.loads(first.decode())
    except (ValueError, RecursionError):
        return False
    return isinstance(told, dict) and {"task", "item", "prompt_hash", "answer"} <= told.keys()


_LONGEST = 2**24  # bytes of a line
_BEGINNING = b'{"task": "'


@dataclass
class _Rows:
    """The lines of a task; asked: how many there are when it is finished."""

    source: Source
    asked: int
    items: dict[str, tuple[Item, Answer]] = field(default_factory=dict)

    def run(self, task: str) -> Run:
        items, answers = zip(*self.items.values(), strict=True)
        return Run(task, items, answers, self.source)


def _wrong(error: ValidationError) -> str:
    told: list[Any] = [f"{'.'.join(map(str, one['loc'])) or 'the line'}: {one['msg']}" for one in error.errors()]
    return json.dumps("; ".join(told))[1:-1]


COMMAND = "ggss probe"
BLOCK = 2**16  # bytes read at a time, from the end, to find the last line


class Asked(NamedTuple):
    """What is asked in a task, and under which conditions."""

    items: tuple[Item, ...]
    source: Source


def part_of(path: Path) -> Path:
    """Where the answers of an unfinished run are."""
    return path.with_name(path.name + PART)


def check_place(path: Path, force: bool = False) -> None:
    """Refuse a place that cannot be written to, and files of something else unless forced."""
    check_file(path, COMMAND, holds_run, force)
    check_file(part_of(path), COMMAND, holds_run, force)


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
            Record.of(task, items[key], answer, source, len(items), self._suffix).line
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
        write(runs, self.path, self._suffix)
        self.part.unlink(missing_ok=True)

    def know(self, runs: Mapping[str, Run], where: Path) -> None:
        """Take over answers that are there. InputError if this call would not have asked for them like this."""
        for task, run in runs.items():
            if refused := self._refused(task, run):
                raise InputError(f"{str(where)!r} holds {refused}: give another file, or --force to begin anew")
        for task, run in runs.items():
            self._answered[task] |= {item.key: answer for item, answer in zip(run.items, run.answers, strict=True)}

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
                grown.know(read(file, part), part)
            except InputError:
                if not force:
                    raise
                file.truncate(0)
            if path.exists() and not force:
                with path.open("rb") as lines:
                    grown.know(read(lines, path), path)
            yield grown
        finally:
            if part.exists() and not part.stat().st_size:
                part.unlink()


@contextmanager
def _locked(part: Path) -> Iterator[BufferedRandom]:
    """The part, opened for reading and adding, by this process alone."""
    lock = part.with_name(f"{part.name}.lock")
    refusal = f"another process is writing {str(part)!r}: wait for it, or give another file"
    with ExitStack() as opened:
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            opened.enter_context(locked(lock, refusal))
            file = opened.enter_context(part.open("ab+"))
        except OSError as error:
            raise InputError(f"cannot write {str(part)!r} ({error.strerror}): choose another place") from error
        try:
            yield file
        finally:
            with suppress(OSError):  # Windows removes no open file
                lock.unlink()


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
