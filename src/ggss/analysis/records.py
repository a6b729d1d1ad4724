"""Files of runs: JSON lines, one for each item with its answer, written while a model is asked.

A file has only what was asked and answered. What a parser makes of an answer, and all numbers, are computed from it
later. Lines are ASCII and end with "\n", so that an answer of any characters is read back unchanged. Each line has a
checksum of its content and the number of items of its task: a file that was edited or lost lines is refused.

While a model is asked, answers are added to RUN.jsonl.part, and those of a batch are on disk before the next batch is
asked. When all items have answers, RUN.jsonl is written and the part removed. If the process ends before, the same
call continues from the part. It refuses a part whose answers were given under other conditions (another `Source`).
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
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
from ggss.version import hardware

COMMAND = "ggss probe"
PART = ".part"  # the suffix of an unfinished run
BLOCK = 2**16  # bytes read at a time, from the end, to find the last line
_LONGEST_LINE = 2**24  # bytes
_BEGINNING = b'{"task": "'

Text = InstanceOf[str]  # a string of any characters; pydantic's str refuses some that an answer may have


class Record(BaseModel):
    """One item and its answer.

    `prompt` is the text of the suite with what a steerer appended. A wording may have some families asked it in
    another shape, with a system turn or all pictures first; `suite_hash` includes that.
    """

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
    lexicons: dict[Text, tuple[Text, ...]] = {}
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
    hardware: Text = ""
    checksum: Text = ""

    @classmethod
    def of(
        cls,
        task: str,
        item: Item,
        answer: Answer,
        source: Source,
        task_items: int,
        suffix: str = "",
        machine: str = "",
    ) -> "Record":
        """The record of an answer.

        task_items: how many the task has in the run. suffix: what a steerer appended. machine: where it was asked.
        """
        prompt = item.prompt + suffix
        origin: dict[str, Any] = vars(source) | {"identity": dict(source.identity), "versions": dict(source.versions)}
        record = cls(
            task=task,
            item=item.key,
            prompt_hash=sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest(),
            prompt=prompt,
            answer=answer.text,
            options=dict(item.options),
            probabilities=answer.probabilities,
            about=item.about,
            pictures=tuple(picture.digest for picture in item.images),
            attributes=tuple(map(dict, item.attributes)),
            context=dict(item.context),
            worth=dict(item.worth),
            lexicons=dict(item.lexicons),
            cluster=item.cluster,
            question=item.question,
            expected=item.expected,
            task_items=task_items,
            hardware=machine,
            **origin,
        )
        return record.signed()

    def signed(self) -> "Record":
        """The record with the checksum of its content."""
        return self.model_copy(update={"checksum": self._checksum()})

    @property
    def is_intact(self) -> bool:
        """Whether the content is that of the checksum."""
        return self.checksum == self._checksum()

    def _checksum(self) -> str:
        unknown = {name for name in ("hardware", "lexicons") if not getattr(self, name)}  # older files name neither
        return hashing.of(self.model_dump(exclude={"checksum", *unknown}))

    @property
    def line(self) -> bytes:
        return json.dumps(self.model_dump()).encode() + b"\n"

    @property
    def source(self) -> Source:
        return Source(**{name: getattr(self, name) for name in Source.__dataclass_fields__})

    def to_item(self) -> Item:
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
            self.lexicons,
        )


def records(run: Run, suffix: str = "") -> Iterator[Record]:
    """The records of a run; suffix: what its steerer appended to every prompt."""
    for item, answer in zip(run.items, run.answers, strict=True):
        yield Record.of(run.task, item, answer, run.source, len(run.items), suffix, run.hardware)


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
        InputError: lists every line that is invalid or was changed, every item that has two lines, and every task
            that has lost lines.

    Examples:
        >>> from ggss.analysis import records
        >>> records.write([before], "before.jsonl")
        >>> records.load("before.jsonl")["mcq"].answers == before.answers
        True
    """
    path = Path(path)
    if path.suffix == PART:
        raise InputError(f"{str(path)!r} is an unfinished run: the `ggss probe` command that began it finishes it")
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder: give a file that was written by `ggss probe -o`")
    if not path.is_file():
        part = part_path(path)
        hint = f"; {str(part)!r} is there: the same `ggss probe` command finishes it" if part.is_file() else ""
        raise InputError(f"there is no file {str(path)!r}: give one that was written by `ggss probe -o`{hint}")
    with path.open("rb") as lines:
        return read_complete(lines, path)


def read_complete(lines: Iterable[bytes], path: Path) -> dict[str, Run]:
    """The runs of a file's lines, by task. InputError as for `load`; path: where the lines are from."""
    tasks = _answered_tasks(lines, path)
    if not tasks:
        raise InputError(f"{str(path)!r} is empty: give a file that was written by `ggss probe -o`")
    lost = [
        f"{task}: {answered.total} items were asked, and the file has {len(answered.items)}"
        for task, answered in tasks.items()
        if answered.total != len(answered.items)
    ]
    if lost:
        raise problems(f"{str(path)!r} has lost lines since it was written, or got others: ask again", lost)
    return {task: answered.run(task) for task, answered in tasks.items()}


def read(lines: Iterable[bytes], path: Path) -> dict[str, Run]:
    """The runs of some lines, by task; some of their items may be missing.

    InputError as for `load`; path: where the lines are from.
    """
    return {task: answered.run(task) for task, answered in _answered_tasks(lines, path).items()}


def _answered_tasks(lines: Iterable[bytes], path: Path) -> "dict[str, _AnsweredTask]":
    tasks: dict[str, _AnsweredTask] = {}
    errors: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = Record.model_validate(json.loads(line.decode()))
        except ValidationError as error:
            errors.append(f"line {number}: {_sentence(error)}")
            continue
        except (ValueError, OverflowError, RecursionError) as error:
            errors.append(f"line {number}: it is not JSON ({type(error).__name__}: {error})")
            continue
        if not record.is_intact:
            errors.append(f"line {number}: it was changed after it was written (its checksum does not match)")
            continue
        source = record.source
        answered = tasks.setdefault(record.task, _AnsweredTask(source, record.task_items))
        if record.item in answered.items:
            errors.append(f"line {number}: item {record.item!r} of {record.task} stands in an earlier line, too")
        elif source != answered.source:
            differences = "; ".join(answered.source.differences(source))
            errors.append(f"line {number}: its answer is of another run than that of the first line ({differences})")
        answered.items[record.item] = record.to_item(), Answer(record.answer, record.probabilities)
        answered.machines[record.hardware] = None
    if errors:
        raise problems(f"{str(path)!r} was not written by this version of `ggss probe`, or was changed since", errors)
    return tasks


def holds_run(path: Path) -> bool:
    """Whether a file begins as one that `ggss probe` wrote, of any version and in any state."""
    with path.open("rb") as lines:
        first = lines.readline(_LONGEST_LINE)
    if not first.endswith(b"\n"):
        return first.startswith(_BEGINNING) or _BEGINNING.startswith(first)  # cut short in its first line
    try:
        record = json.loads(first.decode())
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and {"task", "item", "prompt_hash", "answer"} <= record.keys()


@dataclass
class _AnsweredTask:
    """The items and answers of a task by item key; total: how many there are when it is finished."""

    source: Source
    total: int
    items: dict[str, tuple[Item, Answer]] = field(default_factory=dict)
    machines: dict[str, None] = field(default_factory=dict)

    def run(self, task: str) -> Run:
        items, answers = zip(*self.items.values(), strict=True)
        return Run(task, items, answers, self.source, hardware=_joined(self.machines))


def _joined(machines: Iterable[str]) -> str:
    """The machines of a run, as one text."""
    return "; ".join(dict.fromkeys(filter(None, machines)))


def _sentence(error: ValidationError) -> str:
    fields = [f"{'.'.join(map(str, part['loc'])) or 'the line'}: {part['msg']}" for part in error.errors()]
    return json.dumps("; ".join(fields))[1:-1]  # escapes what a file may have put into a field's name


class Questions(NamedTuple):
    """The items of a task, and the conditions under which they are asked."""

    items: tuple[Item, ...]
    source: Source


def part_path(path: Path) -> Path:
    """The file that has the answers of an unfinished run."""
    return path.with_name(path.name + PART)


def check_place(path: Path, force: bool = False) -> None:
    """InputError if a file cannot be written here, or was not written by `ggss probe` and force is not set."""
    check_file(path, COMMAND, holds_run, force)
    check_file(part_path(path), COMMAND, holds_run, force)


class RunFile:
    """A file of runs that is being written; `open_run_file` opens it."""

    def __init__(self, path: Path, part: BufferedRandom, tasks: Mapping[str, Questions], suffix: str) -> None:
        self.path, self.part = path, part_path(path)
        self._file, self._tasks, self._suffix = part, tasks, suffix
        self._items = {task: {item.key: item for item in questions.items} for task, questions in tasks.items()}
        self._answered: dict[str, dict[str, Answer]] = {task: {} for task in tasks}
        self._machines: dict[str, list[str]] = {task: [] for task in tasks}

    def answered(self, task: str) -> Mapping[str, Answer]:
        """The answers that the file has already, by item key."""
        return self._answered[task]

    @property
    def count(self) -> int:
        """How many answers the file has."""
        return sum(map(len, self._answered.values()))

    def keep(self, task: str, answers: Mapping[str, Answer]) -> None:
        """Add answers to the part and wait until they are on disk."""
        items, source = self._items[task], self._tasks[task].source
        machine = "" if source.endpoint else hardware()
        lines = [
            Record.of(task, items[key], answer, source, len(items), self._suffix, machine).line
            for key, answer in answers.items()
        ]
        try:
            self._file.write(b"".join(lines))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise InputError(
                f"cannot write {str(self.part)!r} ({error.strerror}): it has {self.count} answers, and the same "
                "command goes on from there"
            ) from error
        self._answered[task].update(answers)
        self._machines[task].append(machine)

    def finish(self, runs: list[Run]) -> None:
        """Write the finished file, in the order of the items, and remove the part."""
        asked = [replace(run, hardware=_joined(self._machines[run.task])) for run in runs]
        write(asked, self.path, self._suffix)
        self.part.unlink(missing_ok=True)

    def resume(self, runs: Mapping[str, Run], path: Path) -> None:
        """Take over answers of a file. InputError if they are to other items or were given under other conditions."""
        for task, run in runs.items():
            if reason := self._refusal(task, run):
                raise InputError(f"{str(path)!r} has {reason}: give another file, or --force to begin anew")
        for task, run in runs.items():
            self._answered[task] |= {item.key: answer for item, answer in zip(run.items, run.answers, strict=True)}
            self._machines[task].append(run.hardware)

    def _refusal(self, task: str, run: Run) -> str:
        """Why the run's answers cannot be taken over, "" if they can."""
        if task not in self._tasks:
            return f"answers to {task}, which is not asked now"
        if differences := run.source.differences(self._tasks[task].source):
            return f"answers of another run (in the file and now, {'; '.join(differences)})"
        more = [item.key for item in run.items if item.key not in self._items[task]]
        return f"{len(more)} answers to {task} that are not asked now, such as {more[0]!r}" if more else ""


@contextmanager
def open_run_file(
    path: Path, tasks: Mapping[str, Questions], suffix: str = "", force: bool = False
) -> Iterator[RunFile]:
    """Open the file of the runs that are asked, with the answers that it has already.

    tasks: the questions by task. suffix: what a steerer appends to every prompt. force: a run under other conditions,
    finished or not, is replaced; one that was begun in the same way is continued. After an error the part stays.
    """
    check_place(path, force)
    part = part_path(path)
    with _locked(part) as file:
        try:
            run_file = RunFile(path, file, tasks, suffix)
            try:
                _drop_torn_line(file)
                run_file.resume(read(file, part), part)
            except InputError:
                if not force:
                    raise
                file.truncate(0)
            if path.exists() and not force:
                with path.open("rb") as lines:
                    run_file.resume(read(lines, path), path)
            yield run_file
        finally:
            if part.exists() and not part.stat().st_size:
                part.unlink()


@contextmanager
def _locked(part: Path) -> Iterator[BufferedRandom]:
    """The part, opened for reading and appending by this process alone."""
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
    """Remove the last line if its end is missing, and go to the beginning of the file."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - BLOCK)
        file.seek(start)
        if length := file.read(end - start).rfind(b"\n") + 1:
            end = start + length
            break
        end = start
    file.truncate(end)
    file.seek(0)
