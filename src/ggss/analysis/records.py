"""A run as JSON lines, one per item: all that is needed to compute any statistic of it later."""

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ggss.errors import InputError, problems
from ggss.files import write_whole
from ggss.models.reading import Reading
from ggss.probes.base import Item, get
from ggss.stats.metric import Metric


class Used(BaseModel):
    """The steerer of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hash: str
    method: str


class Record(BaseModel):
    """One item and its answer. `prompt` is the text as it was asked, with what a steerer appended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    suite: str
    suite_hash: str
    item: str
    prompt_hash: str
    prompt: str
    answer: str
    parsed: str | int | None
    options: dict[str, str]
    probabilities: tuple[float, ...]
    attributes: tuple[dict[str, str], ...]
    cluster: str
    question: str
    expected: str | None
    model: str
    fingerprint: str
    steerer: Used | None
    alpha: float
    seed: int
    versions: dict[str, str]

    def as_item(self) -> Item:
        """The item without its pictures."""
        pictures = tuple(range(len(self.attributes)))
        return Item(
            self.item,
            self.prompt,
            pictures,
            self.attributes,
            self.cluster,
            self.question,
            self.options,
            self.expected,
        )


def of(task: str, item: Item, reading: Reading, suffix: str = "", **run: Any) -> Record:
    """The record of one reading; `run` gives what is the same for all of them."""
    prompt = item.prompt + suffix
    return Record(
        task=task,
        item=item.key,
        prompt_hash=sha256(prompt.encode()).hexdigest(),
        prompt=prompt,
        answer=reading.answer,
        parsed=get(task).parse(reading.answer, item),
        options=dict(item.options),
        probabilities=reading.probabilities,
        attributes=tuple(dict(of_picture) for of_picture in item.attributes),
        cluster=item.cluster,
        question=item.question,
        expected=item.expected,
        **run,
    )


def write(records: Iterable[Record], path: str | Path) -> None:
    """The file whole or not at all."""
    write_whole(Path(path), (f"{record.model_dump_json()}\n".encode() for record in records))


def load(path: str | Path) -> list[Record]:
    """The records of a file; InputError lists every line that is none, and every item that is there twice."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}): give a file written by `ggss probe -o`") from error
    records: list[Record] = []
    found: list[str] = []
    seen: set[tuple[str, str]] = set()
    for number, line in enumerate(lines, start=1):
        try:
            record = Record.model_validate_json(line)
        except ValidationError as error:
            found.append(f"line {number}: {_wrong(error)}")
            continue
        if (record.task, record.item) in seen:
            found.append(f"line {number}: item {record.item!r} of {record.task} is there already")
        seen.add((record.task, record.item))
        records.append(record)
    if not lines:
        found.append("it has no lines")
    if found:
        raise problems(f"{str(path)!r} is no run of `ggss probe`", found)
    return records


def by_task(records: Iterable[Record]) -> dict[str, list[Record]]:
    tasks: dict[str, list[Record]] = {}
    for record in records:
        tasks.setdefault(record.task, []).append(record)
    return tasks


def rescored(records: Iterable[Record]) -> dict[str, Mapping[str, Metric]]:
    """Every task's metrics from the raw answers, parsed anew: {task: {metric name: Metric}}."""
    return {task: scored(task, own) for task, own in by_task(records).items()}


def scored(task: str, records: Sequence[Record]) -> Mapping[str, Metric]:
    """The metrics of one task's records, in their order."""
    probabilities = [record.probabilities for record in records]
    return get(task).score(
        [record.as_item() for record in records],
        [record.answer for record in records],
        probabilities if all(probabilities) else None,
    )


def _wrong(error: ValidationError) -> str:
    told = [f"{'.'.join(map(str, one['loc'])) or 'the line'}: {one['msg']}" for one in error.errors()]
    return json.dumps("; ".join(told))[1:-1]
