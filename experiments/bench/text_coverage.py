"""`python -m experiments.bench.text_coverage`: do the measures of texts find what is planted, and only that?

Texts are drawn from a known distribution, and read by the package as a model's would be. It prints its section of
docs/validity.md, and takes minutes.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from experiments.bench.coverage import Held, held
from experiments.bench.studies import Rng
from ggss.analysis.run import Run, Source
from ggss.data.pictures import AbsentPicture
from ggss.models.reading import Answer
from ggss.probes import Item
from ggss.stats import Metric, jackknife, label_null

STUDIES = 1000  # a line
MANY = 20_000  # identities by which a truth is known that has no formula
GROUPS, VERSIONS = ("amber", "jade"), ("man", "woman")
FILLER = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "at",
    "day",
    "year",
    "work",
    "desk",
    "town",
    "street",
    "house",
    "table",
    "road",
)
COMPETENCE, WARMTH, PLAIN = ("skilled", "able"), ("kind", "gentle"), ("tall", "quiet")
LENGTHS = (12, 18)  # words of a text, without its refusal or the two words that are planted


@dataclass(frozen=True)
class World:
    """What is planted: by group, the probabilities of a word of competence and of a refusal.

    Warmth does not depend on the group. Each identity has probabilities of its own.
    """

    competence: tuple[float, float] = (0.7, 0.4)
    refusal: tuple[float, float] = (0.05, 0.2)
    warmth: float = 0.5
    alike: float = 0.15  # standard deviation over identities of a probability

    @property
    def exchangeable(self) -> bool:
        """Whether the groups differ in nothing: then gaps are as likely to be above as below 0."""
        return all(len(set(of_group)) == 1 for of_group in (self.competence, self.refusal))

    def text(self, rng: Rng, group: int, shift: float) -> str:
        if rng.random() < self.refusal[group]:
            return "I am sorry, but I cannot write about this person."
        words = list(rng.choice(FILLER, rng.integers(*LENGTHS)))
        competent = rng.random() < np.clip(self.competence[group] + shift, 0, 1)
        warm = rng.random() < np.clip(self.warmth + shift, 0, 1)
        words += [rng.choice(COMPETENCE if competent else PLAIN), rng.choice(WARMTH if warm else PLAIN)]
        return " ".join(words)

    def run(self, rng: Rng, identities: int) -> Run:
        """A run about so many identities, each in two groups and two versions."""
        items, answers = [], []
        for person in range(identities):
            shift = rng.normal(0, self.alike)
            for (number, group), version in product(enumerate(GROUPS), VERSIONS):
                shown = {"race": group, "gender": version}
                items.append(
                    Item(
                        f"{person}/{group}/{version}",
                        "describe",
                        (AbsentPicture(f"{person}{group}{version}"),),
                        (shown,),
                        str(person),
                        "describe",
                        about="race",
                        context={"identity": str(person)},
                        lexicons={"mention": GROUPS},
                    )
                )
                answers.append(Answer(self.text(rng, number, shift)))
        return Run("writing", tuple(items), tuple(answers), Source("drawn"))


PLANTED, NOTHING = World(), World((0.55, 0.55), (0.1, 0.1))
MEASURES = (
    "signed_race_competence_gap",
    "signed_race_warmth_gap",
    "signed_race_sentiment_gap",
    "signed_race_length_gap",
    "signed_race_refusal_gap",
    "race_competence_range",
    "race_text_distance",
    "mean_refusal",
)
TESTED = ("competence", "warmth", "sentiment", "length", "refusal")


@cache
def truth(world: World) -> dict[str, float]:
    """Each metric: 0, or that of very many identities."""
    measured = world.run(np.random.default_rng(99), MANY).metrics()
    return {name: 0.0 if zero(world, name) else float(measured[name]) for name in MEASURES}


def zero(world: World, name: str) -> bool:
    return world.exchangeable and name.startswith("signed_")


@dataclass(frozen=True)
class Found:
    """By metric, how often its 95 % interval holds the truth; by measure, how often its gap is above chance."""

    covered: dict[str, Held]
    above_chance: dict[str, float]


def found(world: World, identities: int, count: int, seed: int, draws: int = 199) -> Found:
    rng, known = np.random.default_rng(seed), truth(world)
    samples: dict[str, list[Metric]] = {name: [] for name in MEASURES}
    above: dict[str, list[bool]] = {name: [] for name in TESTED}
    for number in range(count):
        run = world.run(rng, identities)
        measured, people = run.metrics(), run.clusters
        sets = run.measured().sets
        for name in MEASURES:
            samples[name].append(measured[name].by(people))
        for name in TESTED:
            null = label_null(measured[f"race_{name}_gap"], sets, draws=draws, seed=number)
            above[name].append(null.p <= 0.05)
    return Found(
        {
            name: held([jackknife(sample) for sample in of], known[name], of if zero(world, name) else ())
            for name, of in samples.items()
        },
        {name: float(np.mean(often)) for name, often in above.items()},
    )


TEXT = """### Texts

Texts of a known distribution, as the probe `writing` reads them: four about each identity, in two groups. In the
first world the groups differ in words of competence and in refusals, which are shorter than other texts, and not in
words of warmth; in the second they differ in nothing. Coverage of the jackknife's interval, over identities; and how
often a gap is above its chance level, the 95 % point of texts that are shuffled within each person: about 5 % where
nothing is planted, and the power where something is. What has no formula is known from {many:,} identities."""


def section(count: int = STUDIES) -> str:
    lines = ["| world | identities | measure | truth | covers |", "| --- | ---: | --- | ---: | ---: |"]
    tests = ["| world | identities | " + " | ".join(TESTED) + " |", "| --- | ---: |" + " ---: |" * len(TESTED)]
    worlds = {"planted": PLANTED, "nothing": NOTHING}
    for seed, ((label, world), identities) in enumerate(product(worlds.items(), (8, 24))):
        result = found(world, identities, count, seed)
        for name, share in result.covered.items():
            lines.append(f"| {label} | {identities} | `{name}` | {truth(world)[name]:z.3f} | {share} |")
        shares = " | ".join(f"{100 * share:.1f} %" for share in result.above_chance.values())
        tests.append(f"| {label} | {identities} | {shares} |")
    parts = [TEXT.format(many=MANY), f"{count:,} studies a line; 95 % intervals.", "\n".join(lines)]
    return "\n\n".join([*parts, "Gaps above their chance level:", "\n".join(tests)])


if __name__ == "__main__":
    print(section())
