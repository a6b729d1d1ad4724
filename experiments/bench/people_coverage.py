"""`python -m experiments.bench.people_coverage`: do the measures of people find what is planted, and only that?

Whose answer depends on an attribute, cells of two attributes, slopes of a number, ranges within a person, and a
judge's scores with human labels of some. It prints its section of docs/validity.md, and takes minutes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
from scipy.stats import norm

from experiments.bench.coverage import Held, held
from experiments.bench.studies import CUTS, Rng
from ggss.data.pictures import AbsentPicture
from ggss.probes.base import Answers, Item, counterfactual_set
from ggss.probes.metrics import flip_rates, intersection_gaps
from ggss.probes.people import measure_ceo, measure_mcq
from ggss.probes.questions import measure_judged
from ggss.stats import Metric, difference, fieller, jackknife, label_null
from ggss.stats.metric import Array

STUDIES, IDENTITIES = 1000, (8, 24)  # studies a line
MANY = 10_000  # identities by which a truth is known that has no formula
RACES, GENDERS = ("amber", "coral", "jade", "rose", "violet"), ("man", "woman")
AGES = ("20", "35", "50", "65")
BANDS = {"A": 30.0, "B": 60.0, "C": 90.0, "D": 120.0}
MARKS = {str(mark): float(mark) for mark in range(1, 11)}
PERSON, PICTURE, DOUBT = 0.5, 0.5, 0.5  # standard deviations of a score's parts; of the last, how sure an answer is
LABELLED = 0.4  # the share of texts with a human label
HARSH = 0.8  # by how much the judge is too hard on texts about women

TEXT = """### People

Answers drawn about each identity in all its versions, and read by the package as a model's would be. *planted*: the
answers depend on race, on age, and on being a woman of one race; in *nothing* versions of a person differ by chance
alone, which changes answers, too. Salaries are numbers. The judge gives marks of 1 to 10 and is {harsh} marks
too hard on texts about women; people have marked {labelled:.0f} % of the texts, and the truth is what they would say
of all. Coverage of the interval that is printed, over identities. The last column is a control: the jackknife's
interval of the largest of several differences, as if it had not been chosen for being the largest
([statistics.md](statistics.md)). Where several are equally large the upper end of its own interval cannot be missed.
What has no formula is known from {many:,} identities."""

CHANGED = """The change of the largest of several differences, here that of the mean answers about five races
(`race_mean_range`), and its change in percent:"""
CHANCE = """How often gaps between cells are above their chance level, the 95 % point of answers shuffled within each
person. `unexplained` is what is left beside race and gender by themselves. *race or gender*: each answer depends on
one of the two, which is drawn, so that nothing is left. In brackets the truth:"""
NAMES = {
    "signed_gender_corrected_gap": "judge, corrected (`signed_gender_corrected_gap`)",
    "signed_gender_mean_gap": "judge alone (`signed_gender_mean_gap`)",
}


@dataclass(frozen=True)
class World:
    """The planted effects, in units of the score."""

    race: tuple[float, ...] = (0.0,) * len(RACES)
    gender: float = 0.0  # of being a woman
    cell: float = 0.0  # of being a woman of the last race, besides
    age: float = 0.0  # of one standard deviation of age
    either: bool = False  # an answer depends on one of the two, race or gender, which is drawn

    def effects(self, shown: Mapping[str, str]) -> tuple[float, float]:
        """Of race (or age), and of the rest."""
        woman = shown["gender"] == "woman"
        if "age" in shown:
            ages = np.array(AGES, dtype=float)
            return self.age * (float(shown["age"]) - ages.mean()) / ages.std(), self.gender * woman
        race = RACES.index(shown["race"])
        return self.race[race], self.gender * woman + self.cell * (woman and race == len(RACES) - 1)


RACE = (0.7, 0.3, 0.0, -0.3, -0.7)
WORLDS = {"planted": World(RACE, 0.4, 1.0, 0.5), "nothing": World()}
CELLS = {
    "nothing": World(),
    "race or gender": World(tuple(2 * one for one in RACE), 0.8, either=True),
    "planted": WORLDS["planted"],
}


@cache
def items(about: str, identities: int) -> tuple[Item, ...]:
    """Each identity in all values of the attribute, as a man and as a woman."""
    values = AGES if about == "age" else RACES
    return tuple(
        Item(
            f"{person}/{value}/{gender}",
            "?",
            (AbsentPicture(f"{person}{value}{gender}"),),
            ({about: value, "gender": gender},),
            str(person),
            "pay",
            {letter: letter for letter in BANDS},
            about=about,
            context={"identity": str(person)},
            worth=BANDS,
        )
        for person, value, gender in product(range(identities), values, GENDERS)
    )


@cache
def effects(about: str, world: World) -> Array:
    """[versions, 2], in the items' order."""
    return np.array([world.effects(item.attributes[0]) for item in items(about, 1)])


def scores(rng: Rng, about: str, world: World, identities: int) -> Array:
    """[identities x versions], in the items' order."""
    by_race, other = effects(about, world).T
    shape = identities, len(other)
    planted = np.where(rng.random(shape) < 0.5, by_race, other) if world.either else by_race + other
    return (planted + rng.normal(0, PERSON, (identities, 1)) + rng.normal(0, PICTURE, shape)).ravel()


def choices(rng: Rng, about: str, world: World, identities: int) -> Answers:
    """The likeliest option by the score, and the options' probabilities."""
    score = scores(rng, about, world, identities)
    shares = np.diff(norm.cdf((CUTS - score[:, None]) / DOUBT), axis=1, prepend=0, append=1)
    letters = list(BANDS)
    return Answers(items(about, identities), [letters[k] for k in shares.argmax(1)], shares.tolist())


def salaries(rng: Rng, world: World, identities: int) -> Answers:
    """Thousands, as numbers."""
    paid = 120 + 20 * scores(rng, "age", world, identities)
    return Answers(items("age", identities), np.maximum(np.round(paid), 0).tolist())


def marks(rng: Rng, world: World, identities: int) -> Answers:
    """A judge's marks of texts, and the marks of people for some of them."""
    asked = items("race", identities)
    worth = 5.5 + 2 * scores(rng, "race", world, identities)
    women = np.array([item.attributes[0]["gender"] == "woman" for item in asked])
    judged = worth - HARSH * women + rng.normal(0, 1, len(asked))
    known = rng.random(len(asked)) < LABELLED
    texts = [
        Item(
            item.key,
            item.prompt,
            item.images,
            item.attributes,
            item.cluster,
            "mark",
            {mark: mark for mark in MARKS},
            _mark(mark) if labelled else None,
            "gender",
            item.context,
            MARKS,
        )
        for item, mark, labelled in zip(asked, worth, known, strict=True)
    ]
    return Answers(texts, [_mark(mark) for mark in judged])


def _mark(worth: float) -> str:
    return str(int(np.clip(np.round(worth), 1, len(MARKS))))


def of_choices(rng: Rng, world: World, identities: int) -> Mapping[str, Metric]:
    answers = choices(rng, "race", world, identities)
    return {**flip_rates(answers), **intersection_gaps(answers), **measure_mcq(answers, None)}


def of_ages(rng: Rng, world: World, identities: int) -> Mapping[str, Metric]:
    return measure_mcq(choices(rng, "age", world, identities), None)


def of_salaries(rng: Rng, world: World, identities: int) -> Mapping[str, Metric]:
    return measure_ceo(salaries(rng, world, identities), None)


def of_marks(rng: Rng, world: World, identities: int) -> Mapping[str, Metric]:
    return measure_judged(marks(rng, world, identities), None)


RANGE = "race_mean_range"
TESTED = ("race_x_gender_gap", "race_x_gender_unexplained")
Measure = Callable[[Rng, World, int], Mapping[str, Metric]]
CORRECTED, ALONE = "signed_gender_corrected_gap", "signed_gender_mean_gap"
MEASURES: Mapping[Measure, tuple[str, ...]] = {
    of_choices: (
        "race_flip_rate",
        "race_pair_flip_rate",
        "soft_race_pair_flip_rate",
        "gender_flip_rate",
        RANGE,
        *TESTED,
    ),
    of_ages: ("age_answer_slope",),
    of_salaries: ("age_salary_slope", "age_salary_range"),
    of_marks: (CORRECTED, ALONE),
}


@cache
def of_many(measure: Measure, world: World) -> Mapping[str, float]:
    """Each metric, of very many identities."""
    return {name: float(metric) for name, metric in measure(np.random.default_rng(99), world, MANY).items()}


def truth(measure: Measure, world: World) -> Mapping[str, float]:
    """Each metric: 0, or that of very many identities. A judge is asked for what people would say."""
    measured = of_many(measure, world)
    known = {name: 0.0 if zero(world, name) else measured[name] for name in MEASURES[measure]}
    return {name: known[CORRECTED] if name == ALONE else value for name, value in known.items()}


def zero(world: World, name: str) -> bool:
    return world == World() and name.endswith(("_gap", "_slope", "_unexplained", RANGE))


@dataclass(frozen=True)
class Covered:
    """How often the interval of a metric holds the truth.

    named: of the largest of several, that of the jackknife, which treats it as if it had been named before.
    """

    interval: Held
    named: Held | None


def covered(measure: Measure, world: World, identities: int, count: int, seed: int) -> Mapping[str, Covered]:
    """By metric, over identities."""
    rng, true = np.random.default_rng(seed), truth(measure, world)
    clusters = np.repeat(np.arange(identities), len(items("age" if measure in (of_ages, of_salaries) else "race", 1)))
    studies = [measure(rng, world, identities) for _ in range(count)]
    found = {}
    for name in MEASURES[measure]:
        samples = [measured[name].by(clusters) for measured in studies]
        symmetric = samples if zero(world, name) and name.endswith(("_slope", "_corrected_gap")) else ()
        intervals = held([jackknife(sample) for sample in samples], true[name], symmetric)
        named = [jackknife(replace(sample, contrasts=None, bounds=None)) for sample in samples if sample.contrasts]
        found[name] = Covered(intervals, held(named, true[name]) if named else None)
    return found


CHANGES = tuple((before, after) for before in WORLDS for after in WORLDS)


def of_change(before: World, after: World, identities: int, count: int, seed: int) -> tuple[Held, Held | None]:
    """How often the interval of a change of `race_mean_range` holds it, and that of the change in percent."""
    rng, (old, new) = np.random.default_rng(seed), (truth(of_choices, world)[RANGE] for world in (before, after))
    clusters = np.repeat(np.arange(identities), len(items("race", 1)))
    runs = [tuple(of_choices(rng, world, identities)[RANGE] for world in (after, before)) for _ in range(count)]
    differences = held([difference(one, other, clusters) for one, other in runs], new - old)
    if not old:
        return differences, None
    percents = [fieller(one, other, clusters) for one, other in runs]
    return differences, held(percents, 100 * (new / old - 1))


def above_chance(world: World, identities: int, count: int, seed: int, draws: int = 199) -> Mapping[str, float]:
    """By metric of cells, how often it is above what shuffling the pictures of each person gives."""
    rng = np.random.default_rng(seed)
    sets = [counterfactual_set(item) for item in items("race", identities)]
    above: dict[str, list[bool]] = {name: [] for name in TESTED}
    for number in range(count):
        measured = intersection_gaps(choices(rng, "race", world, identities))
        for name in TESTED:
            above[name].append(label_null(measured[name], sets, draws=draws, seed=number).p <= 0.05)
    return {name: float(np.mean(often)) for name, often in above.items()}


def section(count: int = STUDIES) -> str:
    lines = [
        "| world | identities | measure | truth | covers | as if named before |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for seed, (measure, (label, world), identities) in enumerate(product(MEASURES, WORLDS.items(), IDENTITIES)):
        for name, share in covered(measure, world, identities, count, seed).items():
            value = truth(measure, world)[name]
            lines.append(
                f"| {label} | {identities} | {NAMES.get(name, f'`{name}`')} | {value:z.3f} | {share.interval} "
                f"| {share.named or ''} |"
            )
    changes = [
        "| before | after | identities | change covers | percent covers |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for seed, ((was, now), identities) in enumerate(product(CHANGES, IDENTITIES)):
        plain, percent = of_change(WORLDS[was], WORLDS[now], identities, count, seed)
        changes.append(f"| {was} | {now} | {identities} | {plain} | {percent or ''} |")
    tests = [
        "| world | identities | " + " | ".join(f"`{name}`" for name in TESTED) + " |",
        "| --- | ---: | ---: | ---: |",
    ]
    for seed, ((label, world), identities) in enumerate(product(CELLS.items(), IDENTITIES)):
        often, known = above_chance(world, identities, count, seed), of_many(of_choices, world)
        shares = " | ".join(f"{100 * share:.1f} % ({known[name]:.2f})" for name, share in often.items())
        tests.append(f"| {label} | {identities} | {shares} |")
    effort = f"{count:,} studies a line; 95 % intervals."
    text = TEXT.format(harsh=HARSH, labelled=100 * LABELLED, many=MANY)
    return "\n\n".join([text, effort, "\n".join(lines), CHANGED, "\n".join(changes), CHANCE, "\n".join(tests)])


if __name__ == "__main__":
    print(section())
