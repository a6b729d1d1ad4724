"""One cell's intervals and tests, 800 items and 10,000 + 10,000 resamples, against a plain loop over resamples."""

import random
from collections import Counter, defaultdict
from itertools import combinations
from math import log
from typing import Any

import numpy as np

from experiments.bench.timing import alternate, milliseconds, row
from ggss.probes.metrics import mean_jsd
from ggss.stats import Metric, bootstrap, signflip

ITEMS, RESAMPLES, LOOPED = 800, 10_000, 10
Answer = tuple[str, str, str]  # question, race, option


def run() -> list[dict[str, Any]]:
    unsteered, steered = _cell(0.75, seed=1), _cell(0.3, seed=2)
    before, after = (_metric(rows) for rows in (unsteered, steered))
    times = alternate(
        lambda: bootstrap(after, resamples=RESAMPLES),
        lambda: bootstrap(after.percent_change(before), resamples=RESAMPLES),
        lambda: signflip(after, before, draws=RESAMPLES),
        lambda: [_loop_value(steered) for _ in range(LOOPED)],
        lambda: [_loop_change(steered, unsteered) for _ in range(LOOPED)],
        lambda: [_loop_swap(steered, unsteered) for _ in range(LOOPED)],
        rounds=5,
    )
    ours, loops = [*times[:3], sum(times[:3])], [*times[3:], sum(times[3:])]
    names = ("interval of the metric", "interval of its change", "paired test", "one cell, all three")
    return [
        row(
            f"{name}: {ITEMS} items, {RESAMPLES:,} resamples",
            milliseconds(mine),
            f"Python loop over resamples, {loop * RESAMPLES / LOOPED:.0f} s (from {LOOPED})",
            loop * RESAMPLES / LOOPED / mine,
            "50 times faster, under 2 s" if name == names[-1] else "",
            loop * RESAMPLES / LOOPED / mine >= 50 and mine < 2 if name == names[-1] else None,
        )
        for name, mine, loop in zip(names, ours, loops, strict=True)
    ]


def _cell(effect: float, seed: int) -> list[Answer]:
    rng = np.random.default_rng(seed)
    races = np.arange(ITEMS) % 5
    options = np.searchsorted([-0.9, 0, 0.9], rng.normal(effect * (races - 2) / 2, 1))
    questions = ["salary"] * (ITEMS // 2) + ["education"] * (ITEMS // 2)
    return [(q, str(r), "ABCD"[o]) for q, r, o in zip(questions, races, options, strict=True)]


def _metric(answers: list[Answer]) -> Metric:
    questions, races, options = zip(*answers, strict=True)
    return mean_jsd(questions, races, options, "ABCD")


def _loop_jsd(answers: list[Answer]) -> float:
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for question, race, option in answers:
        counts[question][race][option] += 1
    total = 0.0
    for races in counts.values():
        pairs = list(combinations(races.values(), 2))
        total += sum(_loop_divergence(p, q) for p, q in pairs) / len(pairs)
    return total / len(counts)


def _loop_divergence(p: Counter[str], q: Counter[str]) -> float:
    n, m, total = sum(p.values()), sum(q.values()), 0.0
    for option in {*p, *q}:
        a, b = p[option] / n, q[option] / m
        middle = (a + b) / 2
        total += (a * log(a / middle) if a else 0) / 2 + (b * log(b / middle) if b else 0) / 2
    return total


def _loop_value(steered: list[Answer]) -> float:
    return _loop_jsd(random.choices(steered, k=ITEMS))


def _loop_change(steered: list[Answer], unsteered: list[Answer]) -> float:
    drawn = random.choices(range(ITEMS), k=ITEMS)
    before = _loop_jsd([unsteered[i] for i in drawn])
    return (_loop_jsd([steered[i] for i in drawn]) - before) / before


def _loop_swap(steered: list[Answer], unsteered: list[Answer]) -> float:
    pairs = [(b, a) if random.random() < 0.5 else (a, b) for a, b in zip(steered, unsteered, strict=True)]
    return _loop_jsd([a for a, _ in pairs]) - _loop_jsd([b for _, b in pairs])
