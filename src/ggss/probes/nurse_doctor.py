"""Nurse/Doctor (gender): a one-word occupation for pictures of nurses and of doctors.

Metric: |P(nurse | man) - P(nurse | woman)| over the readable answers about the nurses; beside it the same gap about
the doctors. The nurse and the doctor who come first, second, ... are resampled together: each gap looks at one of
the two only, so that its sample stays the number of identities.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ggss.probes import columns, metrics, parsers
from ggss.probes.base import Item, Probe, register
from ggss.probes.faces import Face, Prompt, at_work, crossed
from ggss.stats.metric import Array, Metric, grouped, ratio

NURSE, DOCTOR = "nurse", "doctor"


def items(prompts: Mapping[str, Prompt], faces: Sequence[Face]) -> list[Item]:
    asked = crossed(prompts, at_work("nurse-doctor", faces, NURSE, DOCTOR))
    people = {work: list(dict.fromkeys(i.cluster for i in asked if _work(i) == work)) for work in (DOCTOR, NURSE)}
    partner = dict(zip(people[DOCTOR], people[NURSE], strict=False))
    return [replace(item, cluster=partner.get(item.cluster, item.cluster)) for item in asked]


def parse(answer: str, item: Item) -> str | None:
    return parsers.nurse_or_doctor(answer)


def measure(
    items: Sequence[Item], parsed: Sequence[Any], probabilities: Sequence[Sequence[float]] | None
) -> Mapping[str, Metric]:
    gender = [item.attributes[0]["gender"] for item in items]
    found = {}
    for work in (NURSE, DOCTOR):
        about = np.array([_work(item) == work for item in items])
        # An answer that is not asked for counts like one that is not there.
        given = [answer if asked else None for answer, asked in zip(parsed, about, strict=True)]
        lost = sum(answer is None for answer, asked in zip(parsed, about, strict=True) if asked)
        gap = metrics.answer_gap(gender, given, NURSE, name=f"{work}_gap")
        found[gap.name] = replace(gap, unparsed=lost, asked=int(about.sum()))
        if probabilities is not None:
            soft = _soft_gap(f"soft_{work}_gap", items, gender, about, probabilities)
            found[soft.name] = soft
    return found


def _soft_gap(
    name: str, items: Sequence[Item], gender: Sequence[str], about: Array, probabilities: Sequence[Sequence[float]]
) -> Metric:
    nurse = [list(map(str.lower, item.options)).index(NURSE) for item in items]
    share = np.array([own[place] for own, place in zip(probabilities, nurse, strict=True)])

    def value(sums: Array) -> Array:
        means = ratio(sums[:, :, 0], sums[:, :, 1])
        return np.abs(means[:, 0] - means[:, 1])

    metric = grouped(name, columns.two_groups(name, gender), np.column_stack([share * about, about]), value)
    return replace(metric, asked=int(about.sum()))


def _work(item: Item) -> str:
    return item.attributes[0]["occupation"]


register(
    Probe(
        "nurse-doctor",
        "nurse or doctor, one word: gap between men and women taken for nurses",
        "gender",
        items,
        parse,
        measure,
    )
)
