"""Two runs on the same items, paired: did bias change, and did capability stay?

Tasks with right answers (capability, recognition) are compared question by question: exact McNemar for a difference,
TOST for equivalence. The others by their published metric: percent change, and the sign-flip test over clusters, per
task and combined. Holm's correction is over all tests of a difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ggss.analysis.records import Record, by_task
from ggss.errors import InputError, problems
from ggss.probes import ceo
from ggss.probes.base import get
from ggss.stats import Equivalence, Interval, Metric, bootstrap, fieller, holm, mcnemar, signflip, tost

COMBINED = "combined"


@dataclass(frozen=True)
class Bias:
    """A task's metric before and after, its change in percent (paper's interval, and corrected), and the test."""

    task: str
    metric: str
    before: float
    after: float
    change: Interval
    corrected: Interval
    p: float
    p_holm: float = float("nan")
    degenerate: bool = False


@dataclass(frozen=True)
class Capability:
    """Share of right answers before and after; how many questions were gained and lost; the tests."""

    task: str
    before: float
    after: float
    gained: int
    lost: int
    same: Equivalence
    p: float
    p_holm: float = float("nan")
    degenerate: bool = False


@dataclass(frozen=True)
class Comparison:
    """`combined` is the sign-flip test over all bias tasks that can be read, None where there are fewer than two."""

    bias: tuple[Bias, ...]
    capability: tuple[Capability, ...]
    combined: float | None
    combined_holm: float | None


def compare(before: Sequence[Record], after: Sequence[Record], seed: int = 0) -> Comparison:
    """From the unsteered run (or any baseline) to the steered one. InputError names all items that differ."""
    paired = _paired(before, after)
    bias: list[Bias] = []
    capability: list[Capability] = []
    tested: list[tuple[Metric, Metric, list[str]]] = []
    for task, (old, new) in paired.items():
        if all(record.expected is not None for record in old):
            capability.append(_capability(task, old, new))
            continue
        was, now = _metrics(task, old, new)
        clusters = [record.cluster for record in old]
        row = _bias(task, was, now, clusters, seed)
        bias.append(row)
        if not row.degenerate and np.isfinite(row.p):
            tested.append((was, now, clusters))
    combined = _combined(tested, seed)
    return _held_together(bias, capability, combined)


def _paired(before: Sequence[Record], after: Sequence[Record]) -> dict[str, tuple[list[Record], list[Record]]]:
    """Both runs' records of each task in the order of the first; refused unless they were asked the same."""
    old, new = by_task(before), by_task(after)
    found = [f"task {task!r} is in the first run only" for task in old if task not in new]
    found += [f"task {task!r} is in the second run only" for task in new if task not in old]
    paired = {}
    for task in old:
        if task in new:
            of_key = {record.item: record for record in new[task]}
            keys = {record.item for record in old[task]}
            found += [f"{task}: item {key!r} is in the first run only" for key in sorted(keys - of_key.keys())]
            found += [f"{task}: item {key!r} is in the second run only" for key in sorted(of_key.keys() - keys)]
            pairs = [(record, of_key[record.item]) for record in old[task] if record.item in of_key]
            found += [f"{task}: item {a.item!r} has another {what}" for a, b in pairs for what in _differences(a, b)]
            if pairs and not found and pairs[0][0].suite_hash != pairs[0][1].suite_hash:
                found.append(f"{task}: the suites' hashes differ, so prompts or pictures do")
            paired[task] = ([a for a, _ in pairs], [b for _, b in pairs])
    if found:
        raise problems("the two runs were not asked the same", found)
    return paired


def _differences(one: Record, other: Record) -> list[str]:
    asked = ("suite", "options", "attributes", "cluster", "question", "expected")
    return [what for what in asked if getattr(one, what) != getattr(other, what)]


def _metrics(task: str, old: Sequence[Record], new: Sequence[Record]) -> tuple[Metric, Metric]:
    """The published metric of both runs; steered salaries are capped by the baseline's largest."""
    probe, items = get(task), [record.as_item() for record in old]
    probe.check(items)
    was, now = ([probe.parse(r.answer, i) for r, i in zip(run, items, strict=True)] for run in (old, new))
    if task == "ceo":
        now = ceo.capped(now, was)
    first, second = (next(iter(probe.metrics(items, parsed, None).values())) for parsed in (was, now))
    return first, second


def _bias(task: str, was: Metric, now: Metric, clusters: list[str], seed: int) -> Bias:
    return Bias(
        task,
        was.name,
        float(was),
        float(now),
        bootstrap(now.percent_change(was), clusters, seed=seed),
        fieller(now, was, clusters),
        signflip(now, was, clusters=clusters, seed=seed).p,
        degenerate=was.degenerate or now.degenerate,
    )


def _combined(tested: Sequence[tuple[Metric, Metric, list[str]]], seed: int) -> float | None:
    chosen = [(was, now, own) for was, now, own in tested if abs(float(was)) > 0]
    if len(chosen) < 2:
        return None
    was, now, clusters = (list(column) for column in zip(*chosen, strict=True))
    return signflip(now, was, [float(metric) for metric in was], clusters, seed=seed).p


def _capability(task: str, old: Sequence[Record], new: Sequence[Record]) -> Capability:
    probe = get(task)
    parsed = [[probe.parse(record.answer, record.as_item()) for record in run] for run in (old, new)]
    was, now = (
        np.array([float(answer == record.expected) for answer, record in zip(answers, old, strict=True)])
        for answers in parsed
    )
    gained, lost = int((now > was).sum()), int((now < was).sum())
    clusters = [record.cluster for record in old]
    # Questions that share nothing have the better test to themselves.
    shared = clusters if len(set(clusters)) < len(clusters) else None
    unread = [2 * sum(answer is None for answer in answers) > len(answers) for answers in parsed]
    return Capability(
        task,
        float(was.mean()),
        float(now.mean()),
        gained,
        lost,
        tost(now, was, clusters=shared),
        mcnemar(gained, lost),
        degenerate=any(unread),
    )


def _held_together(bias: Sequence[Bias], capability: Sequence[Capability], combined: float | None) -> Comparison:
    """Holm's correction over every test of a difference in the table that has a p-value."""
    if not bias and not capability:
        raise InputError("there is nothing to compare: both runs are empty")
    tests: dict[str, float] = {row.task: row.p for row in (*bias, *capability) if np.isfinite(row.p)}
    if combined is not None:
        tests[COMBINED] = combined
    adjusted: Mapping[str, float] = (
        dict(zip(tests, holm(list(tests.values())).tolist(), strict=True)) if tests else {}
    )
    missing = float("nan")
    return Comparison(
        tuple(replace(row, p_holm=adjusted.get(row.task, missing)) for row in bias),
        tuple(replace(row, p_holm=adjusted.get(row.task, missing)) for row in capability),
        combined,
        adjusted.get(COMBINED),
    )
