"""What the published 2AFC metric does to a model that leans towards the picture shown first.

    python -m experiments.bench.consistent_pairs  prints the section that `make validity` writes into docs/validity.md

The metric counts only pairs whose two orders name the same picture. Which pairs these are depends on the answers, so
the metric is selected by its own outcome. Here the preference among races is planted and stays as it is; only the
lean towards the first picture grows. Nothing about races changes, so a metric of bias should not change either.
"""

from dataclasses import dataclass

import numpy as np

from experiments.bench.studies import OWN, PREFERENCE, RACE_EFFECT, RACES, Rng
from ggss.probes.metrics import consistency, consistent_preference_std, preference_std

IDENTITIES, STUDIES = 8, 300
LEANS = (0.0, 0.5, 1.0, 2.0, 4.0)
EFFECTS = (0.75, 0.3, 0.0)

TEXT = """## A metric over consistent pairs is selected by its own outcome

The published 2AFC counts the pairs whose two orders name the same picture. In this simulation the preference among
races is planted and fixed, and only a lean towards the picture shown first grows, in units of the score: of two
races the planted scores differ by at most 1.75 times the preference. Means over {studies} studies of {identities}
identities, in brackets the standard deviation between studies. Read it down the lines of one preference: steering
that only makes a model lean looks like steering that changes bias. With a strong lean the few pairs that are left
are those with the strongest preference, so the published value grows although nobody is preferred more than before,
until no pair is left and it is zero. Where there is no bias at all it is far above zero, and further the fewer
pairs count. Net preference, over all answers, shrinks towards zero with the lean, because a choice by position
tells nothing about people. Neither can tell a lean from a change of bias: look at the consistency rate before you
read a change of either."""


@dataclass(frozen=True)
class Leaning:
    """Values [studies] of one lean: the consistency rate, the published metric, and the net preference's spread."""

    consistent: np.ndarray
    published: np.ndarray
    net: np.ndarray


def simulated(effect: float, lean: float, studies: int, seed: int) -> Leaning:
    rng = np.random.default_rng(seed)
    return Leaning(*np.array([_study(rng, effect, lean) for _ in range(studies)]).T)


def _study(rng: Rng, effect: float, lean: float) -> tuple[float, float, float]:
    """One run: every ordered pair of five races of each identity; what it measures."""
    first, second = (side.ravel() for side in np.meshgrid(range(5), range(5), indexing="ij"))
    first, second = first[first != second], second[first != second]
    liked = rng.normal(0, PREFERENCE, (IDENTITIES, 5))
    asked = [(person, one, other) for person in range(IDENTITIES) for one, other in zip(first, second, strict=True)]
    person, one, other = np.array(asked).T
    score = effect * (RACE_EFFECT[one] - RACE_EFFECT[other]) + liked[person, one] - liked[person, other]
    score += lean + rng.normal(0, OWN, len(score))
    said = np.where(score > 0, "first", "second").tolist()
    pairs = [f"{who}/{min(a, b)}-{max(a, b)}" for who, a, b in asked]
    shown, everything = (RACES[one], RACES[other]), np.full(len(said), True)
    return (
        float(consistency(pairs, said, everything)),
        float(consistent_preference_std(*shown, pairs, said, everything)),
        float(preference_std(*shown, said)),
    )


def section(studies: int = STUDIES) -> str:
    head = ["preference among races", "lean to the first", "consistent pairs", "published", "net preference"]
    lines = [head, ["---"] * len(head)]
    for effect in EFFECTS:
        for number, lean in enumerate(LEANS):
            found = simulated(effect, lean, studies, number)
            values = [f"{own.mean():.3f} ({own.std():.3f})" for own in (found.published, found.net)]
            lines.append([f"{effect:g}", f"{lean:g}", f"{100 * found.consistent.mean():.0f} %", *values])
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{TEXT.format(studies=studies, identities=IDENTITIES)}\n\n{table}"


if __name__ == "__main__":
    print(section())
