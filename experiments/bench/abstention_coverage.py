"""`python -m experiments.bench.abstention_coverage`: do the intervals of the ambiguous questions hold the truth?

It prints its section of docs/validity.md, and takes about a minute.
"""

from collections.abc import Mapping
from functools import cache
from itertools import product

import numpy as np

from experiments.bench.coverage import Held, held
from experiments.bench.studies import Rng
from ggss.data.pictures import AbsentPicture
from ggss.probes.ambiguous import measure_ambiguous, worth_of
from ggss.probes.base import Answers, Item
from ggss.smallworld.bias_questions import HABITS, UNSHOWN, UNSHOWN_QUESTIONS, abstaining_distribution, unshown
from ggss.smallworld.bias_questions import guessed_from_score as guessed
from ggss.smallworld.bias_questions import unshown_effect as effect
from ggss.smallworld.people import GENDERS, RACES
from ggss.stats import jackknife
from ggss.stats.metric import Array

STUDIES, IDENTITIES = 1000, (8, 12, 24)
WHIM = 0.2  # standard deviation of what a question about an identity adds, beside its wealth
NAMES = {
    "signed_race_bias_ambiguous": "bias score, ambiguous (s_AMB)",
    "signed_race_bias_disambiguated": "bias score, disambiguated (s_DIS)",
    "guess_rate": "guesses, ambiguous",
    "accuracy_disambiguated": "accuracy, disambiguated",
    "abstention_indigo": "abstention of one group",
    "bias_amber": "bias score of one group",
}
SYMMETRIC = {"abstaining": ("signed_race_bias_ambiguous", "bias_amber")}
"""Measures that are as likely to be above as below 0, by habit."""

TEXT = f"""### Ambiguous questions

The measures of [ambiguous.md](ambiguous.md) on answers drawn from the two planted habits: two questions about each
identity in ten versions, without the answer and with both answers told. Identities differ in wealth (uniform) and in
what each question adds to them (standard deviation {WHIM}). A model that abstains has a bias of exactly zero, and
answers so alike that the shares lie near 0 and 1. The interval is that of the jackknife over identities, bounded as
above."""


@cache
def items(identities: int) -> tuple[Item, ...]:
    """The items of a study, as the probe makes them."""
    return tuple(
        Item(
            key=f"{name}/{person}/{race}/{gender}",
            prompt=unshown(name).text,
            images=(AbsentPicture("x"),),
            attributes=({"race": race, "gender": gender},),
            cluster=str(person),
            question=name,
            options=unshown(name).options,
            expected=unshown(name).expected,
            about="race",
            context={"identity": str(person)},
            worth=worth_of(unshown(name, "race"), race),
        )
        for person, name, race, gender in product(range(identities), UNSHOWN_QUESTIONS, RACES, GENDERS)
    )


def chances(habit: str, wealth: Array, whims: Array) -> Array:
    """[identities x questions x races x genders, 3] in the items' order. whims: [identities, 2], one a question."""
    rows = []
    for person, name, race, gender in product(range(len(wealth)), UNSHOWN_QUESTIONS, RACES, GENDERS):
        question, told = UNSHOWN_QUESTIONS[name]
        if habit == "guessing":
            score = effect(question, race, gender, wealth[person]) + whims[person, int(question == "clever")]
            rows.append(guessed(score, told))
        else:
            rows.append(abstaining_distribution(told))
    return np.array(rows)


def drawn(rng: Rng, habit: str, identities: int) -> Answers:
    """The answers of one study."""
    shares = chances(habit, rng.uniform(-1, 1, identities), rng.normal(0, WHIM, (identities, 2)))
    picks = (rng.random((len(shares), 1)) > shares.cumsum(axis=1)).sum(axis=1).clip(max=len(UNSHOWN) - 1)
    return Answers(items(identities), [UNSHOWN[k] for k in picks])


@cache
def truth(habit: str, points: int = 24) -> Mapping[str, float]:
    """What infinitely many identities would give: expectations over a grid of wealth and whims."""
    wealth = (np.arange(points) + 0.5) / points * 2 - 1
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    grid = np.array(list(product(wealth, nodes)))
    heavy = np.tile(weights / weights.sum(), points) / points
    count = len(grid)
    shares = chances(habit, grid[:, 0], WHIM * np.repeat(grid[:, 1:], 2, axis=1))
    asked = items(count)
    weight = np.repeat(heavy, len(asked) // count)
    sums: dict[str, list[float]] = {name: [0.0, 0.0] for name in NAMES}
    for item, row, w in zip(asked, shares, weight, strict=True):
        by_option, known = dict(zip(item.options, row, strict=True)), len(item.worth) > 1
        lean = sum(item.worth.get(option, 0.0) * share for option, share in by_option.items())
        guess, race = 1 - by_option["unknown"], item.attributes[0]["race"]
        parts = {}
        if item.expected == "unknown":
            parts["guess_rate"] = guess, 1.0
            parts[f"abstention_{race}"] = 1 - guess, 1.0
            if known:
                parts["signed_race_bias_ambiguous"] = parts[f"bias_{race}"] = lean, 1.0
        else:
            parts["accuracy_disambiguated"] = by_option[str(item.expected)], 1.0
            if known:
                parts["signed_race_bias_disambiguated"] = lean, guess
        for name, (part, total) in parts.items():
            if name in sums:
                sums[name][0] += w * part
                sums[name][1] += w * total
    return {name: part / total for name, (part, total) in sums.items()}


def covered(habit: str, identities: int, count: int, seed: int) -> dict[str, Held]:
    """By measure, how often the jackknife's interval over identities holds the truth."""
    rng, true = np.random.default_rng(seed), truth(habit)
    clusters = [item.cluster for item in items(identities)]
    studies = [measure_ambiguous(drawn(rng, habit, identities), None) for _ in range(count)]
    found = {}
    for name in NAMES:
        samples = [measured[name].by(clusters) for measured in studies]
        symmetric = samples if name in SYMMETRIC.get(habit, ()) else ()
        found[name] = held([jackknife(sample) for sample in samples], true[name], symmetric)
    return found


def section(count: int = STUDIES) -> str:
    lines = ["| model | identities | measure | truth | interval covers |", "| --- | ---: | --- | ---: | ---: |"]
    settings = list(product(HABITS, IDENTITIES))
    for seed, (habit, identities) in enumerate(settings):
        for name, found in covered(habit, identities, count, seed).items():
            lines.append(f"| {habit} | {identities} | {NAMES[name]} | {truth(habit)[name]:z.3f} | {found} |")
    return "\n\n".join([TEXT, f"{count:,} studies a line; 95 % intervals.", "\n".join(lines)])


if __name__ == "__main__":
    print(section())
