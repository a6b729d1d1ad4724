"""Runs as JSON lines, one per item: all that is needed to compute any statistic of them later."""

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ggss.analysis.run import Run, Source
from ggss.data.picture import AbsentPicture
from ggss.errors import InputError, problems
from ggss.files import write_whole
from ggss.probes import Item


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
    about: str
    pictures: tuple[str, ...]
    attributes: tuple[dict[str, str], ...]
    context: dict[str, str]
    cluster: str
    question: str
    expected: str | None
    model: str
    fingerprint: str
    method: str
    attribute: str
    steerer: str
    alpha: float
    seed: int
    versions: dict[str, str]


def records(run: Run, suffix: str = "") -> Iterator[Record]:
    """The records of a run; suffix: what its steerer appended to every prompt."""
    given = zip(run.items, run.answers, run.parsed.parsed, run.probabilities, strict=True)
    origin = {name: value for name, value in vars(run.source).items() if name != "versions"}
    for item, answer, parsed, probabilities in given:
        prompt = item.prompt + suffix
        yield Record(
            task=run.task,
            item=item.key,
            prompt_hash=sha256(prompt.encode()).hexdigest(),
            prompt=prompt,
            answer=answer,
            parsed=parsed,
            options=dict(item.options),
            probabilities=probabilities,
            about=item.about,
            pictures=tuple(picture.digest for picture in item.images),
            attributes=tuple(dict(of_picture) for of_picture in item.attributes),
            context=dict(item.context),
            cluster=item.cluster,
            question=item.question,
            expected=item.expected,
            versions=dict(run.source.versions),
            **origin,
        )


def write(runs: Iterable[Run], path: str | Path, suffix: str = "") -> None:
    """Write all runs to a file, completely or not at all."""
    write_whole(
        Path(path), (f"{record.model_dump_json()}\n".encode() for run in runs for record in records(run, suffix))
    )


def load(path: str | Path) -> dict[str, Run]:
    """The runs of a file by task; InputError lists every invalid line, and every item that is there twice."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}): give a file written by `ggss probe -o`") from error
    tasks: dict[str, dict[str, Record]] = {}
    found: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = Record.model_validate_json(line)
        except ValidationError as error:
            found.append(f"line {number}: {_wrong(error)}")
            continue
        own = tasks.setdefault(record.task, {})
        if record.item in own:
            found.append(f"line {number}: item {record.item!r} of {record.task} is there already")
        own[record.item] = record
    if not lines:
        found.append("it has no lines")
    if found:
        raise problems(f"{str(path)!r} is no run of `ggss probe`", found)
    return {task: _run(task, own) for task, own in tasks.items()}


def _run(task: str, own: Mapping[str, Record]) -> Run:
    rows = list(own.values())
    sources = {json.dumps(source) for source in map(_source, rows)}
    if len(sources) > 1:
        raise InputError(f"the answers to {task} come from {len(sources)} runs: keep one run in a file")
    return Run(
        task,
        tuple(_item(record) for record in rows),
        tuple(record.answer for record in rows),
        tuple(record.probabilities for record in rows),
        Source(**_source(rows[0])),
    )


_SOURCE = tuple(Source.__dataclass_fields__)


def _source(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in _SOURCE}


def _item(record: Record) -> Item:
    """The item as it was asked; of its pictures only the digests are known."""
    return Item(
        record.item,
        record.prompt,
        tuple(AbsentPicture(digest) for digest in record.pictures),
        record.attributes,
        record.cluster,
        record.question,
        record.options,
        record.expected,
        record.about,
        record.context,
    )


def _wrong(error: ValidationError) -> str:
    told = [f"{'.'.join(map(str, one['loc'])) or 'the line'}: {one['msg']}" for one in error.errors()]
    return json.dumps("; ".join(told))[1:-1]
