"""`python -m experiments.bench.share_coverage`: do intervals of shares near 0 or 1 hold the truth?

Those of their changes are tried, too.

It writes its section of docs/validity.md, which `make validity` writes with all others, and takes two minutes.
"""

from pathlib import Path

import numpy as np
import scipy.stats

from experiments.bench.coverage import Held, held
from experiments.bench.studies import Rng
from ggss.stats import jackknife, mean, share_change
from ggss.stats.metric import Array

STUDIES, ANSWERS, ALIKE = 2000, 10, 0.1  # studies a line, answers about an identity, and how alike they are
SHARES = tuple((identities, share) for identities in (8, 24) for share in (0.5, 0.9, 0.97, 0.995))
CHANGES = tuple(
    (identities, before, after)
    for identities in (8, 24)
    for before, after in ((0.97, 0.97), (0.995, 0.995), (0.97, 0.9), (0.995, 0.97), (0.97, 0.995))
)
FLIPS = tuple(
    (identities, before, after)
    for identities in (8, 24)
    for before, after in ((0.5, 0.5), (0.97, 0.03), (0.97, 0.5), (0.03, 0.03), (0.03, 0.2), (0.995, 0.005))
)
PAGE, HEADING = Path(__file__).parents[2] / "docs" / "validity.md", "### Shares near 0 or 100 %"
NEXT = "### Ambiguous questions"

TEXT = f"""{HEADING}

A share of right answers, or of pairs won, lies between 0 and 1. Near the end Student's interval leaves this range,
and if all answers are right it has no width. The jackknife of a metric with `bounds` gives Wilson's interval instead,
with as many answers as would vary like these ([statistics.md](statistics.md)). There are {ANSWERS} answers about each
identity, and identities differ (intraclass correlation {ALIKE})."""

CHANGED = """The change of a share has Newcombe's interval for paired shares (`share_change`), made of the two shares'
own intervals. Right answers, before and after, to questions of which nothing is the same but their number:"""

FLIPPED = """**Whose answer depends on an attribute**, before and after: answers about the same identities, and an
identity that is high before is high after."""


def of_share(identities: int, share: float, count: int, seed: int) -> tuple[Held, Held]:
    """How often Student's and the bounded interval of a share hold the truth."""
    rng, clusters = np.random.default_rng(seed), _clusters(identities)
    runs = [_right(rng, identities, share) for _ in range(count)]
    students = [jackknife(right, clusters) for right in runs]
    bounded = [jackknife(mean(right, bounds=(0.0, 1.0)), clusters) for right in runs]
    return held(students, share), held(bounded, share)


def of_change(
    identities: int, before: float, after: float, count: int, seed: int, alike: bool
) -> tuple[Held, Held, float]:
    """How often Student's and Newcombe's interval of a change hold the truth, and Newcombe's mean width.

    alike: an identity that is high before is high after.
    """
    rng, clusters = np.random.default_rng(seed), _clusters(identities)
    students, newcombe, changes = [], [], []
    for _ in range(count):
        ranks = rng.random((2, identities))
        old, new = _right(rng, identities, before, ranks[0]), _right(rng, identities, after, ranks[int(not alike)])
        students.append(jackknife(new - old, clusters))
        newcombe.append(share_change(new, old, clusters))
        changes.append(mean(new - old).by(clusters))
    width = float(np.mean([one.high - one.low for one in newcombe]))
    return held(students, after - before, changes), held(newcombe, after - before, changes), width


def section(count: int = STUDIES) -> str:
    shares = ["| identities | truth | Student covers | Wilson covers |", "| ---: | --- | ---: | ---: |"]
    for seed, (identities, share) in enumerate(SHARES):
        student, wilson = of_share(identities, share, count, seed)
        shares.append(f"| {identities} | {100 * share:g} % | {student} | {wilson} |")
    effort = f"{count:,} studies a line; 95 % intervals."
    changes, flips = (_changes(which, count, alike) for which, alike in ((CHANGES, False), (FLIPS, True)))
    return "\n\n".join([TEXT, effort, "\n".join(shares), CHANGED, changes, FLIPPED, flips])


def _changes(settings: tuple[tuple[int, float, float], ...], count: int, alike: bool) -> str:
    lines = [
        "| identities | truth | Student covers | Newcombe covers | width |",
        "| ---: | --- | ---: | ---: | ---: |",
    ]
    for seed, (identities, before, after) in enumerate(settings):
        student, newcombe, width = of_change(identities, before, after, count, seed, alike)
        truth = f"{100 * before:g} → {100 * after:g} %"
        lines.append(f"| {identities} | {truth} | {student} | {newcombe} | {100 * width:.0f} points |")
    return "\n".join(lines)


def _clusters(identities: int) -> Array:
    return np.repeat(np.arange(identities), ANSWERS).astype(float)


def _right(rng: Rng, identities: int, share: float, ranks: Array | None = None) -> Array:
    """ranks: where each identity's share lies among those of all people, between 0 and 1; None: anywhere."""
    spread = 1 / ALIKE - 1
    own = scipy.stats.beta.ppf(
        rng.random(identities) if ranks is None else ranks, share * spread, (1 - share) * spread
    )
    return (rng.random((identities, ANSWERS)) < own[:, None]).astype(float).ravel()


def main() -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(f"{HEADING}\n")
    after = rest.split(f"\n{NEXT}\n")[1]
    PAGE.write_text(f"{before}{section()}\n\n{NEXT}\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
