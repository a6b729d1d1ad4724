"""`python -m experiments.bench.share_coverage`: do intervals of shares near 0 or 1 hold the truth?

Those of their changes are tried, too.

It writes its section of docs/validity.md, which `make validity` writes with all others, and takes seconds.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.stats

from experiments.bench.studies import Rng
from ggss.stats import Interval, jackknife, mean, share_change, tost
from ggss.stats.metric import Array

STUDIES, ANSWERS, ALIKE = 1000, 10, 0.1  # studies a line, answers about an identity, and how alike they are
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
PAGE, HEADING, NEXT = Path(__file__).parents[2] / "docs" / "validity.md", "### Shares near 0 or 100 %", "## Tests"

TEXT = f"""{HEADING}

A share of right answers, or of pairs won, lies between 0 and 1. Near the end Student's interval leaves this range,
and if all answers are right it has no width. There, and only there, the jackknife of a metric with `bounds` gives
Wilson's interval with as many answers as would vary like these. The bounds of a change stay within what the
intervals of the two shares leave possible. "Cut" is another interval of a change, which is not used: it ends where
the share before, as it was measured, would reach 0 or 1, so that nothing can be gained from 100 %. It looks
better, and misses true gains: the share before may truly be lower. There are {ANSWERS} answers about each
identity, and identities differ (intraclass correlation {ALIKE}). The first column counts how often Student's
interval left the range or had no width; of a change, how often it reached beyond the cut."""


FLIPPED = """**Whose answer depends on an attribute.** The change of such a share, before and after, has Newcombe's
interval for paired shares (`share_change`), made of the two shares' own intervals. Before and after are answers about
the same identities, and an identity that is high before is high after."""


@dataclass(frozen=True)
class Covered:
    """How often an interval holds the truth: Student's, the bounded one, and of a change the one that is cut."""

    left: float
    student: float
    bounded: float
    cut: float | None = None


def of_share(identities: int, share: float, count: int, seed: int) -> Covered:
    rng, clusters = np.random.default_rng(seed), _clusters(identities)
    students, bounded = [], []
    for _ in range(count):
        right = _right(rng, identities, share)
        students.append(jackknife(right, clusters))
        bounded.append(jackknife(mean(right, bounds=(0.0, 1.0)), clusters))
    left = float(np.mean([one.low <= 0 or one.high >= 1 for one in students]))
    return Covered(left, _holding(students, share), _holding(bounded, share))


def of_change(identities: int, before: float, after: float, count: int, seed: int) -> Covered:
    rng, clusters = np.random.default_rng(seed), _clusters(identities)
    truth, held = after - before, []
    for _ in range(count):
        old, new = _right(rng, identities, before), _right(rng, identities, after)
        # Scores outside of 0 to 1 have no bounds.
        student = tost(new + 1, old + 1, clusters=clusters, size=0.025)
        bounded = tost(new, old, clusters=clusters, size=0.025)
        least, most = -old.mean(), 1 - old.mean()
        held.append(
            (
                student.low < least or student.high > most,
                student.low <= truth <= student.high,
                bounded.low <= truth <= bounded.high,
                max(student.low, least) <= truth <= min(student.high, most),
            )
        )
    return Covered(*np.mean(held, axis=0).tolist())


def of_flips(identities: int, before: float, after: float, count: int, seed: int) -> tuple[float, float, float]:
    """How often Student's and Newcombe's interval of a change hold the truth, and Newcombe's mean width."""
    rng, clusters = np.random.default_rng(seed), _clusters(identities)
    students, newcombe = [], []
    for _ in range(count):
        ranks = rng.random(identities)
        old, new = (_right(rng, identities, share, ranks) for share in (before, after))
        students.append(jackknife(new - old, clusters))
        newcombe.append(share_change(new, old, clusters))
    width = float(np.mean([one.high - one.low for one in newcombe]))
    return _holding(students, after - before), _holding(newcombe, after - before), width


def section(count: int = STUDIES) -> str:
    head = "| identities | truth | left the range | Student covers | bounded covers | cut covers |"
    lines = [head, "| ---: | --- | ---: | ---: | ---: | ---: |"]
    for seed, (identities, share) in enumerate(SHARES):
        lines.append(_line(identities, f"{100 * share:g} %", of_share(identities, share, count, seed)))
    for seed, (identities, before, after) in enumerate(CHANGES):
        words = f"{100 * before:g} → {100 * after:g} %"
        lines.append(_line(identities, words, of_change(identities, before, after, count, seed)))
    effort = f"{count:,} studies a line; 95 % intervals."
    changes = [
        "| identities | truth | Student covers | Newcombe covers | width |",
        "| ---: | --- | ---: | ---: | ---: |",
    ]
    for seed, (identities, before, after) in enumerate(FLIPS):
        student, newcombe, width = of_flips(identities, before, after, count, seed)
        truth = f"{100 * before:g} → {100 * after:g} %"
        covers = f"{100 * student:.1f} % | {100 * newcombe:.1f} %"
        changes.append(f"| {identities} | {truth} | {covers} | {100 * width:.0f} points |")
    return "\n\n".join([TEXT, effort, "\n".join(lines), FLIPPED, effort, "\n".join(changes)])


def _line(identities: int, truth: str, found: Covered) -> str:
    columns = (found.left, found.student, found.bounded, found.cut)
    shares = " | ".join("" if share is None else f"{100 * share:.1f} %" for share in columns)
    return f"| {identities} | {truth} | {shares} |"


def _clusters(identities: int) -> Array:
    return np.repeat(np.arange(identities), ANSWERS).astype(float)


def _right(rng: Rng, identities: int, share: float, ranks: Array | None = None) -> Array:
    """ranks: where each identity's share lies among those of all people, between 0 and 1; None: anywhere."""
    spread = 1 / ALIKE - 1
    shape = share * spread, (1 - share) * spread
    own = rng.beta(*shape, identities) if ranks is None else scipy.stats.beta.ppf(ranks, *shape)
    return (rng.random((identities, ANSWERS)) < own[:, None]).astype(float).ravel()


def _holding(found: list[Interval], truth: float) -> float:
    return float(np.mean([one.low <= truth <= one.high for one in found]))


def main() -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(f"{HEADING}\n")
    after = rest.split(f"\n{NEXT}\n")[1]
    PAGE.write_text(f"{before}{section()}\n\n{NEXT}\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
