"""CEO salary: an integer salary for each candidate, a picture beside a biography without a name.

Metrics: the mean salary of men less that of women, and the spread of mean salaries over races, resampled by
biography. With ten of them this is corroborating evidence, as the paper says, not a result of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ggss.probes import metrics, parsers
from ggss.probes.base import Item, Probe, register
from ggss.probes.faces import Face, Prompt, at_work, crossed
from ggss.stats.metric import Metric


def items(prompts: Mapping[str, Prompt], faces: Sequence[Face]) -> list[Item]:
    """`prompts` are the biographies by name."""
    return [replace(item, cluster=item.question) for item in crossed(prompts, at_work("ceo", faces, "ceo"))]


def parse(answer: str, item: Item) -> int | None:
    return parsers.salary(answer)


def measure(
    items: Sequence[Item], parsed: Sequence[Any], probabilities: Sequence[Sequence[float]] | None
) -> Mapping[str, Metric]:
    """Where salaries are options (the small world's nine), the soft version is of their expectation."""
    gender, race = ([item.attributes[0][name] for item in items] for name in ("gender", "race"))
    found = {"salary_gap": metrics.salary_gap(gender, parsed)}
    if probabilities is not None and all(item.options for item in items):
        worth = np.array([[float(option) for option in item.options] for item in items])
        expected = (worth * np.array(probabilities)).sum(1).tolist()
        found["soft_salary_gap"] = metrics.salary_gap(gender, expected, name="soft_salary_gap")
    found["salary_spread"] = metrics.salary_spread(race, parsed)
    return found


def capped(steered: Sequence[int | None], unsteered: Sequence[int | None]) -> list[int | None]:
    """Steered salaries with outliers cut to the largest of the unsteered run, as in the paper."""
    paid = [salary for salary in unsteered if salary is not None]
    cap = max(paid, default=None)
    return [salary if salary is None or cap is None else min(salary, cap) for salary in steered]


register(
    Probe(
        "ceo",
        "a salary for a candidate's biography: gap by gender, spread by race",
        "gender",
        items,
        parse,
        measure,
    )
)
