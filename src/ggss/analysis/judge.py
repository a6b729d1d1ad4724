"""A judge: a served model that scores the texts of a run by a rubric. It is never asked unless a user says so.

The scores are a run of their own, `judged-NAME` for the rubric's question NAME, on the items of the texts: the same
people, groups and counterfactual sets. So they are measured, compared and reported as any answers are. The judge's
name, address and question are part of what the run was made from. It sees a text alone: no picture, no group, no name
of the model.

A judge is wrong in ways that nobody knows beforehand. Human labels of a random sample of the texts correct the gap
between groups (`ggss.stats.prediction_powered`); they are kept as the items' right answers.
"""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ggss import hashing
from ggss.analysis.records import load
from ggss.analysis.run import Run, Source
from ggss.data.pictures import PICTURE, Picture
from ggss.errors import InputError, no_such, problems
from ggss.files import read_utf8
from ggss.models.reading import Answer
from ggss.probes import Item
from ggss.probes.endpoint import Endpoint
from ggss.probes.questions import JUDGED, TEXT, RubricEntry
from ggss.probes.steered_model import Steering
from ggss.probes.suites import Suite

LABEL_COLUMNS, QUESTION_COLUMN = ("item", "label"), "question"
_PICTURE_WORD = "(picture)"


@dataclass
class Judge:
    """A served model that is asked about texts, as `ggss.analysis.ask` asks a model.

    Args:
        endpoint: the judge.
        run: the texts that it scores.
    """

    endpoint: Endpoint
    run: Run

    steerings: tuple[Steering, ...] = ()
    alpha: float = 0.0
    suffix: str = ""

    @property
    def name(self) -> str:
        return f"{self.run.source.model}, judged by {self.endpoint.model}"

    @property
    def identity(self) -> dict[str, str]:
        """That of the model that wrote, and what is known of the judge."""
        judge = {f"judge's {name}": value for name, value in self.endpoint.identity.items()}
        return {**self.run.source.identity, "judge": self.endpoint.model, **judge}

    @property
    def versions(self) -> dict[str, str]:
        """Of the code, and of the texts: scores of other texts are never taken over into a file."""
        texts = hashing.of([[item.key for item in self.run.items], self.run.texts])
        return {**self.run.source.versions, **self.endpoint.versions, "the texts": texts[:12]}

    def preload(self, pictures: Sequence[Picture], show: bool | None = None) -> None:
        """Nothing: a judge sees no picture."""

    def read_batch(self, items: Sequence[Item], max_new_tokens: int) -> list[Answer]:
        """The scores of the items' texts."""
        return self.endpoint.read_batch([replace(item, images=()) for item in items], max_new_tokens)

    def source(self, asked: Source, question: RubricEntry) -> Source:
        """What decided the scores: the steering is that of the model that wrote; asked is the rubric's question.

        The texts themselves are no part of what is asked, as steering changes them.
        """
        texts = self.run.source
        steering = {name: getattr(texts, name) for name in ("method", "attribute", "alpha", "steerer")}
        return replace(asked, suite_hash=hashing.of([texts.suite_hash, question.model_dump()]), **steering)


def text_run(runs: Mapping[str, Run], task: str | None = None) -> Run:
    """The run of a file whose answers are texts, the one that is named or the only one."""
    texts = {name: run for name, run in runs.items() if not any(item.options for item in run.items) and run.about}
    if task is not None and task not in texts:
        raise no_such(f"--task {task!r} is no task of this file whose answers are texts", task, texts)
    if task is None and len(texts) != 1:
        todo = f"give --task, one of {', '.join(texts)}" if texts else "a judge scores those of `writing`"
        raise InputError(f"the file has {len(texts)} tasks whose answers are texts: {todo}")
    return texts[task] if task is not None else next(iter(texts.values()))


def judged_suite(run: Run, rubric: Mapping[str, RubricEntry]) -> Suite:
    """The suite of a rubric's questions about each text of a run."""
    prompts = {f"{JUDGED}-{name}": question.prompts(name)[name] for name, question in rubric.items()}

    def items(task: str) -> list[Item]:
        prompt = prompts[task]
        return [
            replace(
                item,
                # A text cannot show a picture, whatever is written in it.
                prompt=prompt.text.replace(TEXT, answer.text.replace(PICTURE, _PICTURE_WORD)),
                options=prompt.options,
                worth=prompt.worth,
                lexicons={},
                shapes={},
            )
            for item, answer in zip(run.items, run.answers, strict=True)
        ]

    return Suite(f"{run.source.suite}, judged", tuple(prompts), items, tuple(prompts))


def labelled(items: Sequence[Item], labels: Mapping[str, str]) -> tuple[Item, ...]:
    """The items with their human labels as right answers.

    InputError for labels of other items or other options, and if a group has fewer than two, which the correction
    needs.
    """
    known = {item.key: item for item in items}
    mistakes = [f"there is no item {key!r} in the run" for key in labels if key not in known]
    mistakes += [
        f"{key!r}: {no_such(f'{label!r} is no option', label, known[key].options)}"
        for key, label in labels.items()
        if key in known and label not in known[key].options
    ]
    if labels and not mistakes:
        counts = Counter({_group(item): 0 for item in items})
        counts.update(_group(known[key]) for key in labels)
        mistakes += [
            f"{count} {'text' if count == 1 else 'texts'} of {group} with a label: each group needs two or more"
            for group, count in counts.items()
            if count < 2
        ]
    if mistakes:
        raise problems("the human labels", mistakes)
    return with_labels(items, labels)


def _group(item: Item) -> str:
    return f"{item.about} {item.attributes[0][item.about]}"


def with_labels(items: Sequence[Item], labels: Mapping[str, str]) -> tuple[Item, ...]:
    """The items with the labels, which are not checked, as right answers."""
    return tuple(replace(item, expected=labels.get(item.key)) for item in items)


def labels_of_scores(file: Path) -> dict[str, dict[str, str]]:
    """By task, the human labels that a file of scores has; none if there is no such file."""
    runs = load(file) if file.is_file() else {}
    return {
        task: {item.key: item.expected for item in run.items if item.expected is not None}
        for task, run in runs.items()
    }


def read_labels(file: str | Path, questions: Sequence[str]) -> dict[str, dict[str, str]]:
    """Human labels by question of the rubric and item, from a CSV file; InputError lists every mistake.

    Its columns are item and label, and question, which may be left out if the rubric has only one.
    """
    rows = list(csv.DictReader(io.StringIO(read_utf8(file, "the human labels"))))
    if not rows or set(LABEL_COLUMNS) - set(rows[0]):
        raise InputError(f"the human labels {str(file)!r} need the columns item and label, and a row for each label")
    if QUESTION_COLUMN not in rows[0] and len(questions) > 1:
        raise InputError(
            f"the human labels {str(file)!r} do not say which question they are about, and the rubric has "
            f"{len(questions)} questions: add a column {QUESTION_COLUMN}, with {' or '.join(questions)}"
        )
    labels: dict[str, dict[str, str]] = {question: {} for question in questions}
    mistakes = []
    for number, row in enumerate(rows, start=2):
        item, label = (row.get(column) or "" for column in LABEL_COLUMNS)
        question = (row.get(QUESTION_COLUMN, questions[0]) or "").strip()
        if not item or not label.strip() or not question:
            absent = "item" if not item else "label" if question else QUESTION_COLUMN
            mistakes.append(f"line {number}: it has no {absent}")
        elif question not in labels:
            what = f"line {number}: {question!r} is no question of the rubric"
            mistakes.append(str(no_such(what, question, questions)))
        elif item in labels[question]:
            mistakes.append(f"line {number}: item {item!r} stands in an earlier line, too")
        else:
            labels[question][item] = label.strip()
    if mistakes:
        raise problems(f"the human labels {str(file)!r}", mistakes)
    return labels
