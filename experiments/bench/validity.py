"""`python -m experiments.bench.validity [--quick]`: do intervals and tests keep their promises? docs/validity.md."""

import os

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # the processes share the cores; threads of each would only get in the way

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from experiments.bench import (
    abstention_coverage,
    average_coverage,
    consistent_pairs,
    people_coverage,
    share_coverage,
    text_coverage,
)
from experiments.bench.coverage import GOAL, METHODS, SETTINGS, Covered, Inflation, coverage, inflation
from experiments.bench.rejections import TRIALS, rejections
from ggss.terminal import track

PAGE = Path(__file__).parents[2] / "docs" / "validity.md"
SIZE = 0.055
SECTIONS = (average_coverage, share_coverage, abstention_coverage, text_coverage, people_coverage, consistent_pairs)
IDENTITIES, EFFECTS = (8, 16, 24, 48, 96), (0.0, 0.3, 0.75)


INTRODUCTION = """# Do the intervals and tests keep their promises?

Written by `make validity`; do not edit. Studies are simulated whose truth is known, in the sizes of the published
protocol; a line counts how often the 95 % interval holds the truth, and how often the 5 % test rejects. **Bold** is
within the goal: coverage 93 to 97 %, size at most 5.5 %. In the tables of shares, ambiguous questions, texts and
people, a coverage outside of the goal has in brackets how much nearer to the estimate, or further off, the ends would
have to be to bring it to the other side of the goal's edge, and what it would be there. Where few different studies
can happen (eight identities whose answers are nearly all alike) coverage goes in steps, and one step may lead from
one side of the goal to the other. Each end promises to miss in 2.5 % of studies. *above it*, *below it*: intervals
miss on this side of the truth only, so often; where the other side cannot be missed, as where even no refusal at all
by eight people does not speak against a share of 0.13, 97.5 % is what is promised. *Every valid one*: if fewer than
six identities change, no test of 5 % can tell their change from 0 (of five signs all are alike in 6 % of cases), so
an interval that is right for all symmetric distributions holds 0, and with it what lies between 0 and the estimate;
the number is how often every such interval of two equal tails holds the truth, at least. It shows that the statistics
are sound, not that any model's answers follow this
simulation."""

INTERVALS = """What to use: **`jackknife(metric, clusters)`** for a value, **`fieller(steered, unsteered, clusters)`**
for a percent change, with identities (biographies) as clusters. The percentile bootstrap is the paper's and stays the
default of `bootstrap`, but a plug-in divergence or spread is too high in a sample of this size, its resamples are
higher still, and the interval misses the truth from above, the more so the more questions are averaged. BCa helps a
little. Bootstraps over eight or ten clusters are too narrow for any metric, and over items they leave out what an
identity's items have in common. Where the unsteered value cannot be told from zero no percent change can be excluded:
Fieller's interval is then unbounded and says so. Where the truth is exactly zero use a test (`label_null`), not an
interval; for a gap use the signed one. Estimates are medians over studies."""

TESTS = """Size is the share of rejections where the null hypothesis holds, power the share in two worlds where it
does not. In the paired tests both runs have whims of their own about every identity. Swapping items ignores them;
swapping identities does not, and with eight of them has less power. For `tost` the null hypothesis is a loss of the
whole margin: with 1,500 questions it can show equivalence only if few answers change at all."""

INFLATION = """Times 1000, means over studies; one question of four options, ten answers an identity. "Corrected" is
the jackknife over identities. A value below the last column cannot be told from no bias at all (`label_null`)."""

SIMULATION = """## How it is simulated

`experiments/bench/studies.py`: an answer follows a score made of what the identity, the picture and the run add at
random and the
planted effect of the group shown; the truth is what infinitely many identities would give. All metrics, intervals and
tests are the package's own."""


@dataclass(frozen=True)
class Effort:
    """How many studies are simulated for an interval and for a test, and the resamples or draws within each.

    Fewer resamples than the package's 10,000, which hardly moves a coverage and does not move the size of a test.
    """

    intervals: int = 1000
    tests: int = 4000
    resamples: int = 500
    draws: int = 499


QUICK = Effort(intervals=10, tests=10, resamples=50, draws=49)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.validity", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few studies of each kind: only to see that it runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    chosen = parser.parse_args(arguments)
    effort = QUICK if chosen.quick else Effort()
    text = page(effort, *simulate(effort, chosen.jobs))
    chosen.output.write_text(text)
    print(text)


def simulate(effort: Effort, jobs: int) -> tuple[list[Any], list[Any], list[Any], list[str]]:
    """The results for `SETTINGS`, `TRIALS`, the plug-in bias at each effect and size, and `SECTIONS`."""
    work: list[Callable[[], Any]] = [
        partial(coverage, setting, effort.intervals, effort.resamples, seed) for seed, setting in enumerate(SETTINGS)
    ]
    work += [partial(rejections, trial, effort.tests, effort.draws, seed) for seed, trial in enumerate(TRIALS)]
    work += [partial(inflation, n, effect, effort.intervals, n) for effect, n in product(EFFECTS, IDENTITIES)]
    work += [partial(part.section, effort.intervals if effort is QUICK else part.STUDIES) for part in SECTIONS]
    if jobs == 1:
        done = [job() for job in work]
    else:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            waiting = [pool.submit(job) for job in work]
            done = [future.result() for future in track(waiting, "simulating studies")]
    first, second = len(SETTINGS), len(SETTINGS) + len(TRIALS)
    return done[:first], done[first:second], done[second : -len(SECTIONS)], done[-len(SECTIONS) :]


def page(
    effort: Effort,
    covered: list[list[Covered]],
    rejected: list[tuple[float, ...]],
    inflated: list[Inflation],
    others: list[str],
) -> str:
    *intervals, pairs = others
    sections = [
        INTRODUCTION,
        f"{effort.intervals:,} studies a line for intervals with {effort.resamples:,} resamples each, "
        f"{effort.tests:,} a cell for tests with {effort.draws:,} draws each: a coverage of 95 % is known to "
        f"{_error(0.95, effort.intervals)} points (standard error), a size of 5 % to {_error(0.05, effort.tests)}.",
        "## Intervals",
        INTERVALS,
        interval_table(covered),
        "### Where they fall short",
        "\n".join(shortfalls(covered)),
        *intervals,
        "## Tests",
        TESTS,
        test_table(rejected),
        "\n".join(oversized(rejected)),
        "## The plug-in JSD is too high",
        INFLATION,
        inflation_table(inflated),
        pairs,
        SIMULATION,
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def interval_table(covered: list[list[Covered]]) -> str:
    rows = [
        [setting.name, row.quantity, _number(row.truth), _number(row.plug_in), _number(row.corrected)]
        + [_goal(share, GOAL[0] <= share <= GOAL[1]) for share in row.shares]
        + [_percent(row.unbounded) if row.quantity == "percent change" else ""]
        for setting, found in zip(SETTINGS, covered, strict=True)
        for row in found
    ]
    head = ["study", "quantity", "truth", "plug-in", "corrected", *METHODS, "Fieller unbounded"]
    return _table(head, rows)


def shortfalls(covered: list[list[Covered]]) -> list[str]:
    """How many quantities each method covers as promised, and by name those where the advised one does not."""
    cells = [
        (f"{s.name}, {row.quantity}", row.shares) for s, found in zip(SETTINGS, covered, strict=True) for row in found
    ]
    lines = []
    for k, method in enumerate(METHODS):
        shares = [share[k] for _, share in cells]
        narrow, wide = sum(s < GOAL[0] for s in shares), sum(s > GOAL[1] for s in shares)
        lines.append(
            f"- {method}: {len(shares) - narrow - wide} of {len(shares)} within 93 to 97 %, {narrow} below (lowest "
            f"{_percent(min(shares))}), {wide} above."
        )
    lines += ["", "The last column, which is the one to use, misses the goal here:", ""]
    for name, (*_, share) in cells:
        if not GOAL[0] <= share <= GOAL[1]:
            lines.append(f"- {name}: {_percent(share)}, too {'narrow' if share < GOAL[0] else 'wide'}")
    return lines


def oversized(rejected: list[tuple[float, ...]]) -> list[str]:
    """The tests above the goal, by name."""
    found = [
        f"- {trial.name}: {_percent(size)}" for trial, (size, *_) in zip(TRIALS, rejected, strict=True) if size > SIZE
    ]
    return (
        [
            "Above 5.5 % are, and where items are swapped the remedy is to swap identities (`clusters=...`):",
            "",
            *found,
        ]
        if found
        else []
    )


def test_table(rejected: list[tuple[float, ...]]) -> str:
    rows = []
    for trial, shares in zip(TRIALS, rejected, strict=True):
        size = _goal(shares[0], shares[0] <= SIZE)
        powers = [f"{_percent(share)} ({world})" for world, share in zip(trial.worlds[1:], shares[1:], strict=True)]
        rows.append([trial.name, f"{size} ({trial.worlds[0]})", *powers])
    return _table(["test", "size", "power", "power"], rows)


def inflation_table(inflated: list[Inflation]) -> str:
    rows = [
        [f"{10 * n}", *(f"{1000 * value:.1f}" for value in (row.truth, row.plug_in, row.corrected, row.shuffled))]
        for (_, n), row in zip(product(EFFECTS, IDENTITIES), inflated, strict=True)
    ]
    return _table(["answers", "true JSD", "plug-in", "corrected", "95 % point of shuffled labels"], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _error(share: float, count: int) -> str:
    return f"{100 * (share * (1 - share) / count) ** 0.5:.1f}"


def _goal(share: float, met: bool) -> str:
    return f"**{_percent(share)}**" if met else _percent(share)


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 5 else f"{value:.4f}"


if __name__ == "__main__":
    main()
