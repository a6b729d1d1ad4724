"""MME's scores: two yes/no questions about each picture, accuracy over questions and accuracy+ over pictures.

A subtask scores 100 accuracy + 100 accuracy+; its totals are sums over the perception and the reasoning
subtasks. The picture is the item: accuracy+ needs both its answers, so they are resampled together.
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from ggss.errors import problems
from ggss.probes import columns
from ggss.probes.columns import Labels, Parsed
from ggss.stats.metric import Array, Metric, ratio

PERCEPTION = frozenset(
    {
        "OCR",
        "artwork",
        "celebrity",
        "color",
        "count",
        "existence",
        "landmark",
        "position",
        "posters",
        "scene",
    }
)
REASONING = frozenset({"commonsense_reasoning", "numerical_calculation", "text_translation", "code_reasoning"})


def mme(
    subtask: Labels,
    image: Labels,
    answer: Parsed,
    expected: Labels,
    reasoning: Collection[str] = REASONING,
) -> dict[str, Metric]:
    """The metrics `accuracy`, `accuracy+`, and the totals `perception` and `reasoning` where there are such subtasks.

    Columns have one row per question; the metrics' items are pictures, in sorted order of (subtask, image).
    `unparsed` counts pictures with an answer that is neither yes nor no; such an answer is wrong.
    """
    columns.check_columns("mme", subtask=subtask, image=image, answer=answer, expected=expected)
    pictures = sorted(set(zip(subtask, image, strict=True)))
    place = {picture: i for i, picture in enumerate(pictures)}
    rows = np.array([place[picture] for picture in zip(subtask, image, strict=True)])
    asked = np.bincount(rows)
    odd = [f"{task}/{picture} has {n}" for (task, picture), n in zip(pictures, asked, strict=True) if n != 2]
    if odd:
        raise problems("mme: every picture needs two questions", odd)
    right = np.bincount(rows, [a == e for a, e in zip(answer, expected, strict=True)])
    unparsed = int(np.count_nonzero(np.bincount(rows, [a is None for a in answer])))
    tasks, numbers = columns.codes([task for task, _ in pictures])
    terms = np.zeros((len(pictures), len(tasks), 3))
    terms[np.arange(len(pictures)), numbers] = np.column_stack([right / 2, right == 2, np.ones(len(pictures))])
    hard = np.array([task in reasoning for task in tasks])

    def rates(sums: Array) -> Array:
        """[R, tasks, (right, both right, pictures)]"""
        return sums.reshape(len(sums), len(tasks), 3)

    def overall(column: int):
        return lambda sums: ratio(rates(sums)[..., column].sum(1), rates(sums)[..., 2].sum(1))

    def total(chosen: np.ndarray):
        return lambda sums: 100 * ratio(rates(sums)[:, chosen, :2].sum(-1), rates(sums)[:, chosen, 2]).sum(1)

    values = {"accuracy": overall(0), "accuracy+": overall(1)}
    if not hard.all():
        values["perception"] = total(~hard)
    if hard.any():
        values["reasoning"] = total(hard)
    flat = terms.reshape(len(pictures), -1)
    return {name: Metric(name, flat, value, unparsed) for name, value in values.items()}


def on_questions(metric: Metric, subtask: Labels, image: Labels) -> Metric:
    """One of these metrics with a row per question instead of per picture, in the questions' order.

    A picture's terms are in the row of its first question; the row of its second is zero. So the rows match the
    questions and their clusters, and resampling pictures gives the same values.
    """
    asked = list(zip(subtask, image, strict=True))
    first = {picture: place for place, picture in reversed(list(enumerate(asked)))}
    terms = np.zeros((len(asked), metric.terms.shape[1]))
    terms[[first[picture] for picture in sorted(first)]] = metric.terms
    return replace(metric, terms=terms)
